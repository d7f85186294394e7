"""The parts of ordering keys and of graphs in one request, tested alone."""

from __future__ import annotations

import itertools
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio

from onyxq.core.facts import Mark, key_digest, pack_task, task_header, task_row
from onyxq.core.ids import Run, TaskId, make_id, stretch_of
from onyxq.core.replica import EMPTY
from onyxq.errors import BadRequest
from onyxq.leader.grants.grantable import Grantable
from onyxq.leader.grants.keyed_rows import KeyedRows
from onyxq.leader.host import OperationsHost
from onyxq.leader.leader import PartitionLeader
from onyxq.leader.state.leader_state import LeaderState
from onyxq.leader.state.ordering_keys import INTERVAL_MS, TIMES_MAX
from onyxq.leader.state.states import State
from onyxq.leader.task_keys import TaskKeys
from onyxq.operations.enqueues import needed, waves
from onyxq.store.interface import Batch, Piece
from onyxq.store.memory import MemoryStore
from onyxq.store.store import Store
from simulation.world.disk import SimulatedDisk

DIGEST = key_digest("q", "k")
PER_SECOND = INTERVAL_MS // 1_000
"""The rate of one task a second."""


def task(counter: int) -> TaskId:
    """Return the id of a task of the key."""
    return make_id(1_000, 0, 7, counter * 1_024)


def piece(task_id: TaskId) -> Piece:
    """Return the piece of a task."""
    return Piece("q", 0, 1_000, task_id, 1, 0, task_id, 0, DIGEST)


class Backed:
    """A leader whose finished tasks stay finished."""

    backed = True


class LeadingHost:
    """A node with a store, an empty replica and one partition that it leads."""

    def __init__(self) -> None:
        self.store: Store = MemoryStore(SimulatedDisk(), now_ms=self.wall_ms)
        self.replica = EMPTY
        self.leader_state = LeaderState()
        leaders: Any = {0: Backed()}
        self.grantable = Grantable(self, leaders=leaders, offer_later=lambda seconds, run: None)

    def wall_ms(self) -> int:
        """The wall clock."""
        return 5_000

    async def put(self, task_id: TaskId, order_ms: int) -> None:
        """Store a task at a place in the order of the key."""
        header = {"order": [order_ms, 1, 0], "ordering_key": "k", "queue": "q"}
        await self.store.write(Batch(rows=[task_row(task_id, pack_task(header, [b"x"]))]))


def test_a_task_that_comes_before_a_granted_one_waits_for_it() -> None:
    """A new first task of a key cannot be claimed while another one is being granted."""
    later, sooner = task(1), task(2)

    async def main() -> None:
        host = LeadingHost()
        await host.put(later, 20)
        assert host.grantable.free(piece(later))
        host.grantable.granting(piece(later))
        host.leader_state.begin(State.GRANTING, [Run(later, 1)])
        await host.put(sooner, 10)
        assert not host.grantable.free(piece(later)) and not host.grantable.free(piece(sooner))
        host.leader_state.end(State.GRANTING, [Run(later, 1)])
        assert host.grantable.free(piece(sooner)) and not host.grantable.free(piece(later))

    trio.run(main)


def test_a_task_of_a_key_waits_for_a_busy_one() -> None:
    """A holder that is no longer busy is forgotten, and the key is free."""
    state = LeaderState()
    later, sooner = task(1), task(2)
    state.keys.hold(DIGEST, later)
    state.begin(State.GRANTING, [Run(later, 1)])
    assert state.keys.is_held(DIGEST, sooner, EMPTY) and not state.keys.is_held(DIGEST, later, EMPTY)
    state.end(State.GRANTING, [Run(later, 1)])
    assert not state.keys.is_held(DIGEST, sooner, EMPTY)
    assert not state.bits(State.HOLDING_KEY, stretch_of(later))


def test_the_pace_of_a_key_holds_however_many_keys_have_one() -> None:
    """Keys whose interval is over are forgotten to save memory; the others still wait."""
    keys = LeaderState().keys
    keys.begin_leadership(0, 0)
    digests = [key_digest("q", str(number)) for number in range(2 * TIMES_MAX + 2)]
    early, late = digests[: len(digests) // 2], digests[len(digests) // 2 :]
    for one in early:
        keys.granted(one, task(1), key_rate=PER_SECOND, now_ms=10_000)
    for one in late:
        keys.granted(one, task(1), key_rate=PER_SECOND, now_ms=11_000)
    assert {keys.next_ms(one, task(1), key_rate=PER_SECOND) for one in late} == {12_000}
    assert all(keys.next_ms(one, task(1), key_rate=PER_SECOND) <= 11_000 for one in early)


def test_a_new_leader_keeps_the_pace_of_a_key() -> None:
    """It does not know when its predecessor granted the last task: that may have been just before."""
    keys = LeaderState().keys
    keys.begin_leadership(0, 10_000)
    assert keys.next_ms(DIGEST, task(1), key_rate=PER_SECOND) == 11_000
    keys.granted(DIGEST, task(1), key_rate=PER_SECOND, now_ms=11_500)
    assert keys.next_ms(DIGEST, task(1), key_rate=PER_SECOND) == 12_500


def test_a_changed_pace_of_a_key_counts_from_its_last_grant() -> None:
    """The interval of the earlier pace does not count, whether it was longer or shorter."""
    keys = LeaderState().keys
    keys.begin_leadership(0, 0)
    keys.granted(DIGEST, task(1), key_rate=1, now_ms=10_000)
    assert keys.next_ms(DIGEST, task(1), key_rate=1) == 10_000 + INTERVAL_MS
    assert keys.next_ms(DIGEST, task(1), key_rate=PER_SECOND) == 11_000


def test_the_order_of_a_key_does_not_follow_the_clock_back() -> None:
    """The first task is not in the store yet when the second one gets its place."""
    store = MemoryStore(SimulatedDisk(), now_ms=lambda: 5_000)
    marks, clock_ms = itertools.count(1), iter((5_000, 3_000, 5_001))
    leader = SimpleNamespace(partition=0, epoch=1, mark=lambda: Mark(1, next(marks)))
    host = cast(OperationsHost, SimpleNamespace(store=store, wall_ms=lambda: next(clock_ms)))
    keys = TaskKeys(host, cast(KeyedRows, None), completions=cast(Any, None), dependencies=cast(Any, None))
    header = {"ordering_key": "k", "queue": "q"}
    placed = [
        task_header(keys.ordered(cast(PartitionLeader, leader), task(number), header, body, None))[0]["order"]
        for number, body in enumerate([pack_task(header, [b"x"])] * 3)
    ]
    assert [at_ms for at_ms, *_ in placed] == [5_000, 5_000, 5_001] and placed == sorted(placed)


def test_runs_of_a_request_go_once_what_they_depend_on_is_stored() -> None:
    """This holds for any order; runs without dependencies in the request go first."""
    ids = [make_id(1, 0, 1, 1_024 * number) for number in range(5)]
    elsewhere = make_id(1, 0, 2, 0)
    depends = [[ids[1], ids[2]], [ids[3]], [ids[3]], [elsewhere], []]
    runs = [
        (first, pack_task({"depends": others, "queue": "q"} if others else {"queue": "q"}, [b"x"]), None)
        for first, others in zip(ids, depends, strict=True)
    ]
    needs = needed(runs)
    assert needs == [[1, 2], [3], [3], [], []]
    assert waves(needs) == [[3, 4], [1, 2], [0]]


def test_many_dependencies_within_a_request_are_found_soon() -> None:
    """Thousands of tasks after a hundred others each do not hold up the peer; of equal ids the first run counts."""
    ids = [make_id(1, 0, 1, number) for number in range(3_000)]
    runs = [(first, pack_task({"queue": "q"}, [b"x"]), None) for first in ids]
    runs += [
        (make_id(1, 0, 2, place), pack_task({"depends": ids[place : place + 100], "queue": "q"}, [b"x"]), None)
        for place in range(2_900)
    ]
    runs += [runs[0], runs[5]]
    began = time.process_time()
    found = needed(runs)
    assert time.process_time() - began < 10
    assert found[3_000:5_900] == [list(range(place, place + 100)) for place in range(2_900)]
    assert not any(found[:3_000]) and not any(found[5_900:])


@pytest.mark.parametrize("needs", [[[0]], [[1], [0]], [[], [2], [3], [1]]])
def test_a_circle_in_a_request_is_refused(needs: list[list[int]]) -> None:
    """None of its tasks could ever run."""
    with pytest.raises(BadRequest) as caught:
        waves(needs)
    assert caught.value.field is not None and caught.value.field.endswith(".depends")
