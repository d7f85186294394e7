"""Rules of fencing tokens: for which tasks a token is valid, and why it is not for others (design: claims)."""

from __future__ import annotations

from onyxq.core import facts
from onyxq.core.errors import AlreadyFinished, NotLeader, OnyxqError, StaleToken
from onyxq.core.ids import Run, TaskId, id_at, mask_of, offset_of, partition_of, runs_of, stretch_of
from onyxq.core.replica import claimed_bits, held_bits, pieces_of
from onyxq.leader.completion_rows import history_of, overtaken_bits
from onyxq.leader.missing_tasks import missing
from onyxq.leader.state.states import State
from onyxq.leader.state.view import Refused, View


def valid_tasks(view: View, run: Run, token: int) -> tuple[int, list[Refused]]:
    """Return the mask of the tasks for which ``token`` is valid, and the refused parts.

    The token of an expired claim is valid until the task is granted again. Tasks that this token already
    completed are in neither result: their completion is written again.
    """
    mask, stretch = mask_of(*run), stretch_of(run.first)
    store = view.store
    held = held_bits(view.replica, run, token) & ~view.leader_state.blocked(run)
    finished = store.finished_bits(stretch) & mask
    valid = held & ~finished | overtaken_bits(store, run, token, held & finished)
    refused: list[Refused] = []
    rest = mask & ~valid
    for part in runs_of(stretch, rest):
        for task_id in (id_at(stretch, offset_of(part.first) + i) for i in range(part.count)):
            error = _why_not(view, task_id, token)
            if error is None and not finished & mask_of(task_id, 1):
                valid |= mask_of(task_id, 1)
                if (row := store.task_row(task_id)) is not None:
                    view.leader_state.keys.note(task_id, row[1])
            elif error is not None:
                refused.append([task_id, 1, error.to_map()])
    return valid, refused


def _why_not(view: View, task_id: TaskId, token: int) -> OnyxqError | None:
    """Return why ``token`` is not valid for a task that it does not hold; None if it is valid."""
    run = Run(task_id, 1)
    store = view.store
    if not view.leader_state.serves(partition_of(task_id)):
        return NotLeader(f"the log's events about the claims of task {task_id.hex()} are not in the store yet")
    if store.finished_bits(stretch_of(task_id)) & mask_of(*run):
        done = [facts.unpack_completion(body) for _, body in store.covering(facts.COMPLETION, task_id)]
        newest = max(done, key=lambda one: (one.mark, one.token), default=None)
        if newest is not None and newest.token == token and newest.outcome == facts.COMPLETED:
            # If the completion had been acknowledged, the task would not have been granted again.
            if not _granted_after(view, task_id, token):
                return None
            return StaleToken(f"task {task_id.hex()} was granted under a newer token than {token}")
        how = "was cancelled" if newest is not None and newest.outcome == facts.CANCELLED else "is finished already"
        return AlreadyFinished(f"task {task_id.hex()} {how}")
    if view.leader_state.any_in(State.UNDECIDED, [run]):
        return NotLeader(
            f"task {task_id.hex()} may have been granted again when the log was lost; that is not known yet"
        )
    return _why_not_unfinished(view, task_id, token)


def _why_not_unfinished(view: View, task_id: TaskId, token: int) -> OnyxqError | None:
    run, store = Run(task_id, 1), view.store
    if store.task_row(task_id) is None:
        return missing(store, task_id)
    if claimed_bits(pieces_of(view.replica, task_id)) & mask_of(*run) or view.leader_state.blocked(run):
        return StaleToken(f"task {task_id.hex()} is claimed under another token")
    if token < view.replica.void_below:
        return StaleToken(f"token {token} is void: it is from before the log was recovered")
    grants = [event.token for event in history_of(view.store, task_id) if event.event == facts.GRANTED]
    if not grants or max(grants) != token or token < store.counts_from(task_id):
        return StaleToken(
            f"token {token} is not the last one granted on task {task_id.hex()}, or the task was requeued since"
        )
    return None


def _granted_after(view: View, task_id: TaskId, token: int) -> bool:
    """Return whether a newer token was granted on a task, or is being granted now."""
    offset = offset_of(task_id)
    held = pieces_of(view.replica, task_id)
    if any(at <= offset < at + count and other > token for at, count, other, *_ in held):
        return True
    said = history_of(view.store, task_id)
    newer = any(event.event == facts.GRANTED and event.token > token for event in said)
    return newer or bool(view.leader_state.blocked(Run(task_id, 1)))
