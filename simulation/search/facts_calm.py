"""The end of the faults: every partition serves, every request is answered, every task can be finished."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from onyxq.core.ids import STRETCH_TASKS
from onyxq.leader.state.states import State
from onyxq.store.store import Store
from simulation.checkers import Broken
from simulation.search.facts_clients import Clients
from simulation.search.facts_cluster import Facts
from simulation.search.facts_model import Model
from simulation.search.facts_node import FactsNode, differing

ROUND_S = 0.1
ROUNDS_MAX = 600
"""Rounds in which everything must be over: a minute."""
COMPARE_EVERY = 10
"""Rounds between comparisons of copies that are up to date as far as is known."""
TURNS_MAX = 10_000

Differences: TypeAlias = Callable[[Facts, dict[int, FactsNode]], list[str]]
"""Returns in words which copies are not as they must be at rest; takes the node that serves each partition."""


def settle(facts: Facts, node: FactsNode) -> None:
    """Let the procedures of a node make steps until all of them wait."""
    for _ in range(TURNS_MAX):
        more = node.procedures.turn()
        if node.procedures._failed:
            facts.blame(node.procedures._failed[0], node)
            return
        if not more:
            return
    facts.broken = facts.broken or Broken("liveness: procedures of a node never wait")


def differing_copies(facts: Facts, led: dict[int, FactsNode]) -> list[str]:
    """Return in words which copies differ, where every node holds every partition."""
    return [
        f"copies of partition {n} differ"
        for node in facts.living()
        for n in led
        if differing(node, led[n], n) or differing(led[n], node, n)
    ]


def calm(facts: Facts, clients: Clients, model: Model, *, differences: Differences = differing_copies) -> int:
    """Let all come to rest; return how many steps it took. Raises `Broken`."""
    steps = 0
    for peer, name in list(facts.pulses.items()):
        if facts.nodes[name].peer_id != peer:
            facts.expire(peer)
    facts.ghosts.clear()
    for round_ in range(ROUNDS_MAX):
        steps += work(facts)
        if facts.broken is not None:
            raise facts.broken
        waits = unsettled(facts, clients, model, differences)
        if not waits:
            finish(facts, model)
            return steps
        drain(facts, clients, round_)
        facts.wait(ROUND_S)
    raise model.lost("; ".join(waits))


def work(facts: Facts) -> int:
    """Let every node do all that it can, until all wait for time; return the number of steps."""
    steps, busy = 0, True
    while busy and facts.broken is None:
        busy = False
        for node in list(facts.nodes.values()):
            if not node.alive:
                if node.node_id not in facts.gone:
                    facts.restart(node)
                    busy = True
                continue
            done = _go_on(facts, node)
            steps, busy = steps + done, busy or done > 0
        for message in list(facts.mail):
            if message in facts.mail and (message.answered or not message.begun):
                facts.deliver(message)
                steps, busy = steps + 1, True
        if steps > TURNS_MAX:
            raise Broken("liveness: nodes are busy for ever without time")
    return steps


def _go_on(facts: Facts, node: FactsNode) -> int:
    steps = 0
    settle(facts, node)
    if node.sends is None:
        facts.rejoin(node)
    while facts.read(node):
        steps += 1
        settle(facts, node)
    facts.react(node)
    sends = node.sends
    if sends is not None and sends.due:
        sends.send()
        steps += 1
    if sends is not None and sends.flying:
        sends.land(heard=True)
        steps += 1
    if node.commit_due:
        node.commit()
        steps += 1
    if node.disk.pending is not None:
        node.disk.end()
        steps += 1
    for sender in list(node.senders.values()):
        if sender.node != node.node_id and sender._waiting:
            node.procedures.start(sender.send_waiting())
            steps += 1
    settle(facts, node)
    return steps


def drain(facts: Facts, clients: Clients, round_: int) -> None:
    """Leaders compare copies, and workers claim and complete what there is."""
    for node in facts.living():
        for leader in list(node.leaders.values()):
            for other in node.behind(leader) if round_ % COMPARE_EVERY else sorted(leader.holders()):
                if other == node.node_id:
                    continue
                node.procedures.start(node.follow(leader, facts.nodes[other]))
        if node.granter.led():
            clients.claim(50, node)
    for given in clients.held:
        clients.complete(given, b"end")
    clients.held.clear()


def serving(facts: Facts) -> dict[int, FactsNode]:
    """Return the node that serves each partition, if a majority has all rows that it found."""
    return {
        number: node
        for node in facts.living()
        for number, leader in node.leaders.items()
        if leader.ready and leader.backed and not leader.deposed
    }


def unsettled(facts: Facts, clients: Clients, model: Model, differences: Differences) -> list[str]:
    """Return in words what has not come to rest."""
    led = serving(facts)
    out = [f"partition {n} is not served" for n in sorted(facts.course.replica.partitions) if n not in led]
    if out:
        return out
    stores: dict[int, Store] = {number: node.store for number, node in led.items()}
    left = model.left(stores)
    if left:
        out.append(f"{left[0].hex} and {len(left) - 1} others are never finished")
    if clients.open:
        out.append(f"{clients.open} requests are never answered")
    if facts.mail:
        out.append(f"{facts.mail[0].method} is never answered")
    if any(facts.course.replica.claims.values()):
        out.append("claims never end")
    for node in facts.living():
        out += [f"a task at {node.node_id} is {State(state).name} for ever" for state in states_of(node)]
    return out + differences(facts, led)


def states_of(node: FactsNode) -> list[int]:
    """Return the states in which tasks of a node are, without the keys that are held."""
    state = node.leader_state
    return [one for one in State if one is not State.HOLDING_KEY and state.all_in(one)]


def finish(facts: Facts, model: Model) -> None:
    """Compare with the model, and check the indexes."""
    model.finish({number: node.store for number, node in serving(facts).items()})
    for node in facts.living():
        node.store.scrub(b"", STRETCH_TASKS << 20)
        if node.store.damaged_indexes or node.store.damaged:
            raise Broken(f"index: {node.node_id} has a wrong index of {sorted(node.store.damaged_indexes)}")
