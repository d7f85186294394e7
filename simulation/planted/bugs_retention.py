"""Planted bugs of retention: too much is purged, or what was purged comes back."""

from __future__ import annotations

from simulation.planted.planted import Planted

RETENTION_BUGS: tuple[Planted, ...] = (
    Planted(
        "unfinished tasks are purged",
        "onyxq/store/index/endings.py",
        "if owner.tasks & (~stretch.finished | stretch.done[STOPPED]) and not superseded:",
        "if owner.tasks & stretch.done[STOPPED] and not superseded:",
        "an acknowledged task is lost",
        "purged_under_fire",
        quick=3,
    ),
    Planted(
        "retention from when a task was made",
        "onyxq/store/index/endings.py",
        "at_ms = max([ms_of(stretch.key[7:]), *(at_ms for mask, at_ms in times if mask & owner.tasks)])",
        "at_ms = ms_of(stretch.key[7:])",
        "the result of a task that took long is gone before anybody can read it",
        "purged_under_fire",
    ),
    Planted(
        "failed tasks are purged whoever waits for them",
        "onyxq/leader/purge.py",
        "if not found.failed:",
        "if found is not None:",
        "what was to fail with them runs",
        "failed_and_waited_for",
        quick=3,
    ),
    Planted(
        "anti-entropy takes what is purged",
        "onyxq/leader/cohort/anti_entropy.py",
        "await self._pull(sorted(key for key, _ in theirs - mine if not purged.covers(key[3:23])))",
        "await self._pull(sorted(key for key, _ in theirs - mine))",
        "a node that was away for long brings everything back",
        "purged_under_fire",
        more=(
            (
                "onyxq/store/index/applier.py",
                "if purges and self._is_purged(stretch_id):",
                "if not purges and rows is None:",
            ),
        ),
    ),
    Planted(
        "the log's history of purged tasks is stored again",
        "onyxq/store/index/applier.py",
        "if purges and self._is_purged(stretch_id):",
        "if purges and row.kind != HISTORY and self._is_purged(stretch_id):",
        "rows that nobody deletes pile up on nodes that were away",
        "purged_under_fire",
    ),
    Planted(
        "who reads the origin does not hear of watermarks",
        "onyxq/node/node.py",
        "self.deleting.note(EMPTY, replica)",
        "self.deleting.note(replica, replica)",
        "a node that was away while the log was trimmed shows what was purged",
        "back_behind_a_trim",
        quick=3,
    ),
    Planted(
        "anybody purges",
        "log_entries/purge.py",
        "refused = refusal(replica, partition=args.partition, epoch=args.epoch, stamp=stamp) or _misfit(args)",
        "refused = _misfit(args)",
        "a deposed leader purges what its successor has opened again",
        "explorer",
    ),
    Planted(
        "watermarks sink",
        "log_entries/purge.py",
        "if args.before_ms < found.purged_ms:",
        "if args.before_ms < found.purged_ms - 10_000:",
        "what was purged is taken again",
        "explorer",
    ),
)
"""Planted bugs about it."""
