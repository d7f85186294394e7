"""Checks of fencing tokens (design: claims).

Once a newer grant is on its way, older tokens are refused. The token of an expired claim is
accepted until the task is granted again.

A deposed leader does not know the grants of its successor. It must not call their tokens stale,
because the holders would stop working. So a leader that sees a newer token reads the log first.
"""

from __future__ import annotations

from collections.abc import Iterable

from log_entries import renew_claims
from onyxq.core import facts
from onyxq.core.claims import BAD_RUN
from onyxq.core.errors import AlreadyFinished, BadRequest, NotLeader, OnyxqError, StaleToken
from onyxq.core.facts import History
from onyxq.core.ids import Run, TaskId, id_at, mask_of, offset_of, partition_of, runs_of, stretch_of
from onyxq.core.replica import claimed_bits, held_bits, pieces_of
from onyxq.leader.completion_rows import history_of, overtaken_bits
from onyxq.leader.host import OperationsHost, Refused
from onyxq.leader.leader import PartitionLeader
from onyxq.leader.missing_tasks import missing
from onyxq.leader.state.states import State


class TokenCheck:
    """Checks tokens of the partitions that a node leads."""

    def __init__(self, host: OperationsHost) -> None:
        self._host = host

    def leader(self, partition: int) -> PartitionLeader:
        """Return the serving leader of a partition; raises `NotLeader`, `BadRequest`."""
        if partition >= self._host.replica.settings.partitions:
            raise BadRequest(f"there is no partition {partition}", field="id")
        leader = self._host.leaders.get(partition)
        if leader is None:
            raise NotLeader(f"partition {partition} is not led from here")
        leader.check()
        return leader

    def leader_for(self, task_id: TaskId, token: int, unsure: set[int]) -> PartitionLeader:
        """Return the leader that can check a token; raises `NotLeader` if that is not possible here now."""
        leader = self.leader(partition_of(task_id))
        if leader.partition in unsure and token > self._host.replica.position:
            raise NotLeader(f"token {token} is newer than what this node has read of the log")
        return leader

    def valid_tasks(self, run: Run, token: int) -> tuple[int, list[Refused]]:
        """Return the mask of the tasks for which ``token`` is valid, and the refused parts.

        The token of an expired claim is valid until the task is granted again. Tasks that this token already
        completed are in neither result: their completion is written again.
        """
        mask, stretch = mask_of(*run), stretch_of(run.first)
        store = self._host.store
        held = held_bits(self._host.replica, run, token) & ~self._host.leader_state.blocked(run)
        finished = store.finished_bits(stretch) & mask
        valid = held & ~finished | overtaken_bits(store, run, token, held & finished)
        refused: list[Refused] = []
        rest = mask & ~valid
        for part in runs_of(stretch, rest):
            for task_id in (id_at(stretch, offset_of(part.first) + i) for i in range(part.count)):
                error = self._why_not(task_id, token)
                if error is None and not finished & mask_of(task_id, 1):
                    valid |= mask_of(task_id, 1)
                    if (row := store.task_row(task_id)) is not None:
                        self._host.leader_state.keys.note(task_id, row[1])
                elif error is not None:
                    refused.append([task_id, 1, error.to_map()])
        return valid, refused

    def _why_not(self, task_id: TaskId, token: int) -> OnyxqError | None:
        """Return why ``token`` is not valid for a task that it does not hold; None if it is valid."""
        run = Run(task_id, 1)
        store = self._host.store
        if not self._host.granter.serves(partition_of(task_id)):
            return NotLeader(f"the log's events about the claims of task {task_id.hex()} are not in the store yet")
        if store.finished_bits(stretch_of(task_id)) & mask_of(*run):
            done = [facts.unpack_completion(body) for _, body in store.covering(facts.COMPLETION, task_id)]
            newest = max(done, key=lambda one: (one.mark, one.token), default=None)
            if newest is not None and newest.token == token and newest.outcome == facts.COMPLETED:
                # If the completion had been acknowledged, the task would not have been granted again.
                if not self._granted_after(task_id, token):
                    return None
                return StaleToken(f"task {task_id.hex()} was granted under a newer token than {token}")
            how = "was cancelled" if newest is not None and newest.outcome == facts.CANCELLED else "is finished already"
            return AlreadyFinished(f"task {task_id.hex()} {how}")
        if self._host.leader_state.any_in(State.UNDECIDED, [run]):
            return NotLeader(
                f"task {task_id.hex()} may have been granted again when the log was lost; that is not known yet"
            )
        return self._why_not_unfinished(task_id, token)

    def _why_not_unfinished(self, task_id: TaskId, token: int) -> OnyxqError | None:
        run, store = Run(task_id, 1), self._host.store
        if store.task_row(task_id) is None:
            return missing(store, task_id)
        if claimed_bits(pieces_of(self._host.replica, task_id)) & mask_of(*run) or self._host.leader_state.blocked(run):
            return StaleToken(f"task {task_id.hex()} is claimed under another token")
        if token < self._host.replica.void_below:
            return StaleToken(f"token {token} is void: it is from before the log was recovered")
        grants = [event.token for event in self.history(task_id) if event.event == facts.GRANTED]
        if not grants or max(grants) != token or token < store.counts_from(task_id):
            return StaleToken(
                f"token {token} is not the last one granted on task {task_id.hex()}, or the task was requeued since"
            )
        return None

    def _granted_after(self, task_id: TaskId, token: int) -> bool:
        """Return whether a newer token was granted on a task, or is being granted now."""
        offset = offset_of(task_id)
        held = pieces_of(self._host.replica, task_id)
        if any(at <= offset < at + count and other > token for at, count, other, *_ in held):
            return True
        said = self.history(task_id)
        newer = any(event.event == facts.GRANTED and event.token > token for event in said)
        return newer or bool(self._host.leader_state.blocked(Run(task_id, 1)))

    def history(self, task_id: TaskId) -> list[History]:
        """Return the log's events about a task's claims, in order."""
        return history_of(self._host.store, task_id)


async def unsure_partitions(host: OperationsHost, named: Iterable[tuple[TaskId, int]]) -> set[int]:
    """Return the partitions of ``(task, token)`` pairs whose tokens this node cannot check now.

    If a token is newer than what this node has read, it reads the log to its end first. For that it submits an
    entry that changes nothing. The verdict shows whether the node still leads, and comes after every earlier
    grant.
    """
    position = host.replica.position
    unsure = set()
    for partition in sorted({partition_of(task_id) for task_id, token in named if token > position}):
        leader = host.leaders.get(partition)
        if leader is None or not leader.ready:
            continue
        if not await _leads(host, leader):
            unsure.add(partition)
    return unsure


async def _leads(host: OperationsHost, leader: PartitionLeader) -> bool:
    """Return whether the log confirms the leadership; everything before the answer has then been read."""
    try:
        _, verdicts = await host.verdicts([renew_claims.Args(leader.partition, leader.epoch, ())])
    except OnyxqError:
        return False
    return verdicts[0] == BAD_RUN  # the entry was not refused for its epoch
