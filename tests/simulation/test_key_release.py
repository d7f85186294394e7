"""A leader that alone knows of the end of a task gives its unique key to no other task.

If it did and died, the next leader would know the new task of the key and not that end. It would take
the first task for one that gave way, and would never run it again.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
import trio

from simulation.checkers import Broken
from simulation.planted.seams import Fault, faulty, returning
from simulation.search.facts_calm import calm, work
from simulation.search.facts_clients import Clients
from simulation.search.facts_cluster import Facts
from simulation.search.facts_model import Model, UniqueKey
from simulation.search.facts_node import FactsNode, SearchClock
from tests.simulation.test_late_completions import lead, refuse, store_alone

FREE_TOO_EARLY = ("onyxq.leader.task_keys:TaskKeys._may_go_on", returning(False))
KEY = UniqueKey("u0")
STEP_S = 0.01


def lead_alone(facts: Facts, other: FactsNode) -> FactsNode:
    """Return the leader of the partition once it serves with the copy of another node, which gets none of its rows."""
    for _ in range(500):
        work(facts)
        for node in facts.living():
            leader = node.leaders.get(0)
            if leader and leader.ready:
                return node
            if leader and other.node_id in node.behind(leader) and not facts.mail:
                node.procedures.start(node.follow(leader, other))
        facts.wait(STEP_S)
    raise AssertionError("nobody leads")


def play(faults: Sequence[tuple[str, Fault]] = ()) -> list[str]:
    """Return the outcomes of two enqueues of one key; empty for no success.

    The second one is sent to a leader that alone knows of the end of the first task. Raises `Broken` if the leader
    after it breaks a promise.
    """
    clock = SearchClock()
    outcomes: list[str] = []

    async def scene() -> None:
        facts, model = Facts(clock, Random(1), nodes=3, partitions=1), Model()
        facts.course.checkers = (model,)
        clients = Clients(facts, model, Random(2), 1, heard=1.0)
        first = lead(facts)
        heir, other = (facts.nodes[name] for name in sorted({*facts.nodes} - {first.node_id}))
        clients.enqueue(unique=KEY)
        work(facts)
        clients.claim(1, first)
        work(facts)
        (task,) = model.tasks.values()
        assert task.acked and task.grants and task.attempts > 1
        clients.complete(clients.held.pop(), b"done")
        store_alone(facts, first, heir.node_id)
        depart(facts, first, lands=False)
        push = other.handlers["cohort.push"]
        other.handlers["cohort.push"] = refuse
        assert lead_alone(facts, other) is heir and not heir.leaders[0].backed
        clients.enqueue(unique=KEY)
        work(facts)
        outcomes.extend(task.outcome for task in model.tasks.values())
        depart(facts, heir, lands=True)
        other.handlers["cohort.push"] = push
        calm(facts, clients, model)

    with faulty(faults):
        trio.run(scene, clock=clock)
    return outcomes


def depart(facts: Facts, node: FactsNode, *, lands: bool) -> None:
    """A node dies for good; those that died before it start again."""
    peer = node.peer_id
    facts.gone = {node.node_id}
    facts.crash(node, lands=lands)
    facts.expire(peer)


def test_a_key_is_free_once_a_majority_knows_of_the_end() -> None:
    """Until then an enqueue of the key has no success. A fault that frees the key at once is found."""
    assert play() == ["new", ""]
    with pytest.raises(Broken, match="never finished"):
        play([FREE_TOO_EARLY])
