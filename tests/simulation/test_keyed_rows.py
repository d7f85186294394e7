"""A leader dies when only its own disk has a task with a key, and the next leader does not know the task."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
import trio

from onyxq.core.facts import pack_task, task_row
from onyxq.core.ids import Run, make_id
from onyxq.leader.grants.keyed_rows import AGAIN_EVERY_S
from onyxq.leader.state.states import State
from simulation.checkers import Broken
from simulation.planted.seams import Fault, faulty, instead
from simulation.search.facts_calm import settle, work
from simulation.search.facts_clients import MAKER, Clients
from simulation.search.facts_cluster import Facts
from simulation.search.facts_model import QUEUE, Model, UniqueKey
from simulation.search.facts_node import FactsNode, SearchClock
from tests.simulation.test_late_completions import lead

GRANTED_AT_ONCE: Fault = (
    "onyxq.leader.grants.keyed_rows:KeyedRows.write",
    instead(lambda self, leader, task_id, rows: leader.replicate(rows)),
)


def commit(facts: Facts, node: FactsNode) -> None:
    """Have a node's store keep what it was given."""
    settle(facts, node)
    while node.commit_due or node.disk.pending is not None:
        node.commit() if node.disk.pending is None else node.disk.end()
        settle(facts, node)


def play(options: dict[str, str], faults: Sequence[Fault] = ()) -> int:
    """Return how many tasks a claimer got from a leader alone with a task; raises what the next leader breaks."""
    clock = SearchClock()
    held: list[int] = []

    async def scene() -> None:
        facts, model = Facts(clock, Random(1), nodes=3, partitions=1), Model()
        facts.course.checkers = (model,)
        clients = Clients(facts, model, Random(1), 1, heard=1.0)
        leader = lead(facts)
        clients.enqueue(**options)
        commit(facts, leader)
        clients.claim(1, leader)
        settle(facts, leader)
        outbox = leader.sends
        assert outbox is not None
        if outbox.due:
            outbox.send()
            outbox.land(heard=True)
        facts.read(leader)
        settle(facts, leader)
        held.append(len(clients.held))
        peer = leader.peer_id
        facts.gone.add(leader.node_id)
        facts.crash(leader, lands=True)
        facts.expire(peer)
        following = lead(facts, without=leader.node_id)
        clients.enqueue(**options)
        for _ in range(40):
            work(facts)
            clients.claim(1, following)
            facts.wait(0.1)
        assert facts.broken is None

    with faulty(faults):
        trio.run(scene, clock=clock)
    return held[0]


@pytest.mark.parametrize("options", [{"unique": UniqueKey("u0")}, {"key": "k0"}], ids=["unique", "ordering"])
def test_a_task_with_a_key_is_granted_once_a_majority_has_it(
    options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A leader that dies earlier has given it to no worker, and a fault that grants it at once is found."""
    monkeypatch.setattr(Clients, "leases_ms", (60_000,))
    assert play(options) == 0
    with pytest.raises(Broken, match="is granted while"):
        play(options, [GRANTED_AT_ONCE])


def test_a_row_that_is_stored_slowly_is_not_granted_before_a_majority_has_it() -> None:
    """The leader merges another node's row while its disk is slow: the task waits for its write nevertheless."""
    clock = SearchClock()

    async def scene() -> None:
        facts = Facts(clock, Random(1), nodes=5, partitions=1)
        leader = lead(facts)
        other = next(name for name in facts.nodes if name != leader.node_id)
        task_id = make_id(facts.start_ms, 0, MAKER, 0)
        row = task_row(task_id, pack_task({"queue": QUEUE, "unique_key": "u0"}, [b""]))

        def unconfirmed() -> bool:
            return leader.leader_state.any_in(State.UNCONFIRMED, [Run(task_id, 1)])

        leader.procedures.start(leader.leaders[0].keep(other, [row]))
        for _ in range(3):
            settle(facts, leader)
            facts.wait(AGAIN_EVERY_S)
        assert unconfirmed()
        commit(facts, leader)
        assert unconfirmed() and leader.store.task_row(task_id)
        for _ in range(3):
            work(facts)
            facts.wait(AGAIN_EVERY_S)
        assert not unconfirmed()
        assert all(node.store.task_row(task_id) for node in facts.living())

    trio.run(scene, clock=clock)
