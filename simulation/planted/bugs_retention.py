"""Planted bugs of retention: too much is purged, or purged tasks come back."""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve

from log_entries.purge import Args
from onyxq.core.facts import HISTORY, STOPPED
from onyxq.core.replica import EMPTY, Partition, Replica
from onyxq.leader.cohort.row_deletion import RowDeletion
from onyxq.store.index.applier import Applier
from onyxq.store.index.stretches import Owner, Stretch
from onyxq.store.row_checks import Prepared
from simulation.planted.planted import Planted
from simulation.planted.seams import instead, returning

_Note = Callable[[RowDeletion, Replica, Replica], None]
_Refusal = Callable[[Replica, Partition, Args], str]


def _stopped_only(stretch: Stretch, owner: Owner) -> int:
    return owner.tasks & stretch.done[STOPPED]


def _no_times(original: Callable[..., list[object] | None]) -> Callable[..., list[object] | None]:
    return lambda tables, stretch: None if original(tables, stretch) is None else []


def _all_listed(exchange: object, listed: set[tuple[bytes, bytes]]) -> list[bytes]:
    return sorted(key for key, _ in listed)


def _history_goes_in(original: Callable[[Applier, Prepared], bool]) -> Callable[[Applier, Prepared], bool]:
    return lambda applier, row: row.kind != HISTORY and original(applier, row)


def _as_if_known_before(original: _Note) -> _Note:
    return lambda row_deletion, before, after: original(row_deletion, after if before is EMPTY else before, after)


def _ten_seconds_lower(original: _Refusal) -> _Refusal:
    return lambda replica, found, args: original(replica, evolve(found, purged_ms=found.purged_ms - 10_000), args)


RETENTION_BUGS: tuple[Planted, ...] = (
    Planted(
        "unfinished tasks are purged",
        "onyxq.store.index.endings:_open_bits",
        instead(_stopped_only),
        "an acknowledged task is lost",
        "purged_under_fire",
        quick=3,
    ),
    Planted(
        "retention begins when a task is enqueued",
        "onyxq.store.index.endings:_times",
        _no_times,
        "the result of a long task is purged before a client can read it",
        "purged_under_fire",
    ),
    Planted(
        "failed tasks are purged although others wait for them",
        "onyxq.leader.purge:Purger._spare_depended",
        returning(None),
        "dependents run that should fail",
        "failed_and_waited_for",
        quick=8,
    ),
    Planted(
        "anti-entropy fetches purged rows",
        "onyxq.leader.cohort.anti_entropy:Exchange._wanted",
        instead(_all_listed),
        "a node that was away for long restores purged tasks",
        "purged_under_fire",
        more=(("onyxq.store.index.applier:Applier._is_refused", returning(False)),),
    ),
    Planted(
        "claim history of purged tasks is stored again",
        "onyxq.store.index.applier:Applier._is_refused",
        _history_goes_in,
        "rows that are never deleted accumulate on nodes that were away",
        "purged_under_fire",
    ),
    Planted(
        "a node that loads a snapshot ignores its watermarks",
        "onyxq.leader.cohort.row_deletion:RowDeletion.note",
        _as_if_known_before,
        "a node that was away while the log was trimmed shows purged tasks",
        "back_behind_a_trim",
        quick=3,
    ),
    Planted(
        "a deposed leader may purge",
        "log_entries.purge:refusal",
        returning(""),
        "a deposed leader purges tasks that its successor requeued",
        "explorer",
    ),
    Planted(
        "watermarks may go down",
        "log_entries.purge:_refusal",
        _ten_seconds_lower,
        "purged tasks are accepted again",
        "explorer",
    ),
)
"""The planted bugs of retention."""
