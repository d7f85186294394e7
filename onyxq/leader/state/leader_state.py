"""What happens to tasks at their leader (design: leaders). Nothing else remembers it.

There is one state per node, not one per partition. One round of grants and one write serve tasks of
many partitions, and a write that is on its way outlives the leadership that began it. The id of a
stretch names its partition, so `LeaderState.end_leadership` finds what ends with a leadership.

This module does no I/O and reads no clock. Requests that wait for a task to leave a state wait in
the modules that serve them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ClassVar

from onyxq.core.ids import Run, TaskId, mask_of, stretch_of
from onyxq.core.replica import Replica, claimed_bits, pieces_of
from onyxq.leader.state.ordering_keys import OrderingKeys
from onyxq.leader.state.states import (
    BLOCKED,
    BUSY,
    ENDS_WITH_LEADERSHIP,
    FOLLOWS,
    NEVER_DURING,
    SHARED,
    UNGRANTABLE,
    UNSURE,
    State,
)

Column = dict[bytes, int]
"""Stretch -> mask of its tasks that are in a state. A stretch without such tasks is absent."""
HeldRun = tuple[Run, int]
"""Claimed tasks, and the token of their claim."""


class Refused(AssertionError):
    """A transition that must not happen."""


class LeaderState:
    """States of the tasks of all partitions that a node leads."""

    strict: ClassVar[bool] = False
    """Whether a transition that must not happen raises `Refused`. Otherwise it is reported and made."""

    def __init__(self, report: Callable[[str], None] = lambda problem: None) -> None:
        self._report = report
        """Called with a transition that must not happen."""
        self._table: tuple[Column, ...] = tuple({} for _ in State)
        self._again: dict[tuple[State, bytes], list[int]] = {}
        """State and stretch -> tasks for which the state began once more, for each such beginning."""
        self._never = tuple(tuple((other, self._table[other]) for other in NEVER_DURING[state]) for state in State)
        self._blocked = self._columns(BLOCKED)
        self._ungrantable = self._columns(UNGRANTABLE)
        self._unsure = self._columns(UNSURE)
        self._busy = self._columns(BUSY)
        self.keys = OrderingKeys(self._table[State.HOLDING_KEY], self.is_busy)
        self._updates: dict[tuple[TaskId, int], int] = {}
        """(task, token) -> next sequence number, while updates are being written."""
        self._releases: dict[int, list[HeldRun]] = {}
        """Partition -> completed runs whose claims are to be released, each with the claim's token."""

    def _columns(self, states: Iterable[State]) -> tuple[Column, ...]:
        return tuple(self._table[state] for state in states)

    # --- questions

    def bits(self, state: State, stretch: bytes) -> int:
        """Return the mask of a stretch's tasks that are in a state."""
        return self._table[state].get(stretch, 0)

    def any_in(self, state: State, runs: Iterable[Run]) -> bool:
        """Return whether any of these tasks is in a state."""
        column = self._table[state]
        if column:  # a loop, because a generator takes longer and every request asks
            for run in runs:
                if column.get(stretch_of(run.first), 0) & mask_of(*run):
                    return True
        return False

    def all_in(self, state: State) -> list[tuple[TaskId, int]]:
        """Return each stretch with tasks in a state, and their mask, in order."""
        return [(TaskId(stretch), bits) for stretch, bits in sorted(self._table[state].items())]

    def ungrantable(self, stretch: bytes) -> int:
        """Return the mask of a stretch's tasks that are not granted, whatever the log and the store say."""
        return _union(self._ungrantable, stretch)

    def blocked(self, run: Run) -> int:
        """Return the mask of a run's tasks that the log or the store is about to change; see `BLOCKED`."""
        return _union(self._blocked, stretch_of(run.first)) & mask_of(*run)

    def unsure(self, stretch: bytes) -> int:
        """Return the mask of a stretch's tasks for which it is unknown whether they are finished."""
        return _union(self._unsure, stretch)

    def is_busy(self, task_id: TaskId, replica: Replica) -> bool:
        """Return whether a task is claimed, being granted, being finished, or perhaps finished."""
        stretch = stretch_of(task_id)
        taken = _union(self._busy, stretch) | claimed_bits(pieces_of(replica, stretch))
        return bool(taken & mask_of(task_id, 1))

    # --- transitions

    def begin(self, state: State, runs: Iterable[Run]) -> None:
        """Put free tasks, or tasks in other states, into a state."""
        column, never = self._table[state], self._never[state]
        for run in runs:
            stretch, mask = stretch_of(run.first), mask_of(*run)
            for other, bits in never:
                if bits and bits.get(stretch, 0) & mask:
                    self._refuse(f"task {run.first.hex()} begins {state.name} during {other.name}")
            present = column.get(stretch, 0)
            if present & mask and state in SHARED:
                self._again.setdefault((state, stretch), []).append(present & mask)
            column[stretch] = present | mask

    def end(self, state: State, runs: Iterable[Run]) -> list[Run]:
        """Take tasks out of a state; return them, to be offered again."""
        column, runs = self._table[state], list(runs)
        for run in runs:
            stretch, mask = stretch_of(run.first), mask_of(*run)
            present = column.get(stretch, 0)
            if mask & ~present:
                self._refuse(f"task {run.first.hex()} ends {state.name}, which did not begin")
            if self._again and (state, stretch) in self._again:
                mask = self._end_once(state, stretch, mask)
            _keep(column, stretch, present & ~mask)
        return runs

    def replace(self, state: State, follower: State, runs: Iterable[Run]) -> None:
        """Take tasks out of a state and put them into the one that takes its place."""
        if follower not in FOLLOWS.get(state, ()):
            self._refuse(f"{follower.name} takes the place of {state.name}")
        column = self._table[follower]
        for run in self.end(state, runs):
            stretch = stretch_of(run.first)
            column[stretch] = column.get(stretch, 0) | mask_of(*run)

    def settle(self, state: State, runs: Iterable[Run]) -> None:
        """End one of the states in `UNKNOWN` for these tasks, as far as it began."""
        column = self._table[state]
        for run in runs if column else ():
            stretch = stretch_of(run.first)
            _keep(column, stretch, column.get(stretch, 0) & ~mask_of(*run))

    def begin_leadership(self, partition: int, now_ms: int) -> None:
        """Serve a partition from now on. The store has everything that the log recorded before."""
        self.keys.begin_leadership(partition, now_ms)

    def serves(self, partition: int) -> bool:
        """Return whether a partition serves here."""
        return self.keys.leads(partition)

    def end_leadership(self, partition: int) -> None:
        """Forget what the next leader of a partition finds in the log and the store."""
        prefix = partition.to_bytes(2, "big")
        self.keys.end_leadership(partition)
        for state in ENDS_WITH_LEADERSHIP:
            column = self._table[state]
            for stretch in [one for one in column if one[6:8] == prefix]:
                del column[stretch]

    # --- what claims wait for

    def update_begins(self, task_id: TaskId, token: int, seq: int) -> None:
        """Note that an update of a claim is being written."""
        self._updates[task_id, token] = seq + 1

    def update_ends(self, task_id: TaskId, token: int, seq: int) -> None:
        """Note that an update is decided, unless later ones of its claim are still being written."""
        if self._updates.get((task_id, token)) == seq + 1:
            del self._updates[task_id, token]

    def next_update(self, task_id: TaskId, token: int) -> int:
        """Return the sequence number after the updates of a claim that are being written; 0 if there are none."""
        return self._updates.get((task_id, token), 0)

    def release_later(self, partition: int, held: Iterable[HeldRun]) -> int:
        """Note completed runs whose claims are to be released; return how many of the partition wait for that."""
        waiting = self._releases.setdefault(partition, [])
        waiting += held
        return len(waiting)

    def take_releases(self, partition: int) -> list[HeldRun]:
        """Return the completed runs of a partition whose claims are to be released now."""
        return self._releases.pop(partition)

    def partitions_to_release(self) -> list[int]:
        """Return the partitions with claims that are to be released, sorted."""
        return sorted(self._releases)

    def _end_once(self, state: State, stretch: bytes, mask: int) -> int:
        """End one of several beginnings; return the mask of the tasks that have no other."""
        left = []
        for again in self._again[state, stretch]:
            left.append(again & ~mask)
            mask &= ~again
        left = [again for again in left if again]
        if left:
            self._again[state, stretch] = left
        else:
            del self._again[state, stretch]
        return mask

    def _refuse(self, problem: str) -> None:
        if self.strict:
            raise Refused(problem)
        self._report(problem)


def _union(columns: tuple[Column, ...], stretch: bytes) -> int:
    bits = 0
    for column in columns:
        if column:
            bits |= column.get(stretch, 0)
    return bits


def _keep(column: Column, stretch: bytes, bits: int) -> None:
    """Set the tasks of a stretch that are in a state."""
    if bits:
        column[stretch] = bits
    else:
        column.pop(stretch, None)
