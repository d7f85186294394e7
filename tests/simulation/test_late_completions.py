"""A takeover finds the completion of a task of an ordering key only after the partition serves again."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import trio

from onyxq.core.errors import Unavailable
from simulation.search.facts_calm import settle, work
from simulation.search.facts_clients import Clients
from simulation.search.facts_cluster import Facts
from simulation.search.facts_model import Model
from simulation.search.facts_node import FactsNode, SearchClock

FIRST, SECOND = 0, 1


def follow(facts: Facts, node: FactsNode, other: FactsNode) -> None:
    """Have the leader of the partition compare its copy with another node."""
    node.procedures.start(node.follow(node.leaders[0], other))
    for _ in range(5):
        work(facts)
        facts.wait(0.1)


def lead(facts: Facts, *, without: str = "") -> FactsNode:
    """Return the leader of the partition once it serves, without the copy of one node."""
    for _ in range(20):
        work(facts)
        for node in facts.living():
            if leader := node.leaders.get(0):
                for name in node.behind(leader):
                    if name != without:
                        follow(facts, node, facts.nodes[name])
                if leader.ready:
                    return node
        facts.wait(0.1)
    raise AssertionError("nobody leads")


def store_alone(facts: Facts, leader: FactsNode, other: str) -> None:
    """Have the writes that wait at the leader stored by one other node and by nothing else."""
    settle(facts, leader)
    leader.procedures.start(leader.senders[other].send_waiting())
    facts.deliver(facts.mail[-1])
    node = facts.nodes[other]
    while node.commit_due or node.disk.pending is not None:
        node.commit() if node.disk.pending is None else node.disk.end()
        settle(facts, node)


async def refuse(args: dict[str, Any]) -> None:
    """Answer like a node that is cut off."""
    raise Unavailable("cut off")


@pytest.mark.parametrize("place", [0, 1])
def test_the_next_task_of_the_key_is_granted(place: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim of the finished task is released long before its lease is over; then nothing offered the next task."""
    monkeypatch.setattr(Clients, "leases_ms", (60_000,))
    clock = SearchClock()

    async def main() -> None:
        facts, model = Facts(clock, Random(1), nodes=3, partitions=1), Model()
        facts.course.checkers = (model,)
        clients = Clients(facts, model, Random(1), 1, heard=1.0)
        leader = lead(facts)
        for _ in (FIRST, SECOND):
            clients.enqueue(key="k0")
            work(facts)
        tasks = list(model.tasks.values())
        clients.claim(1, leader)
        work(facts)
        assert [bool(task.grants) for task in tasks] == [True, False] and all(task.acked for task in tasks)
        alone = sorted({*facts.nodes} - {leader.node_id})[place]
        heir = next(name for name in facts.nodes if name not in (alone, leader.node_id))
        clients.enqueue()
        store_alone(facts, leader, heir)
        clients.complete(clients.held.pop(), b"done")
        store_alone(facts, leader, alone)
        peer = leader.peer_id
        facts.crash(leader, lands=False)
        facts.restart(leader)
        facts.nodes[leader.node_id].handlers["cohort.push"] = refuse  # it lacks a task: the heir is not backed
        facts.expire(peer)
        node = lead(facts, without=alone)
        assert node.node_id in (heir, alone)
        follow(facts, node, facts.nodes[alone])
        for _ in range(50):
            clients.claim(1, node)
            work(facts)
            facts.wait(0.1)
        assert tasks[SECOND].grants and len(tasks[FIRST].grants) == 1

    trio.run(main, clock=clock)
