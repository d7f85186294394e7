"""The ring with any interleaving: peers start, stop, crash and read the log at their own pace.

The invariants are checked after every record. At the end of each generated history the faults stop,
and the ring must become complete and quiet.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from log_entries import abort_join_cluster, gc
from onyxq.core import ring
from tests.entries.world import Ensemble, World, created, creation

NODES = 6
ODDS = {"start": 3, "crash": 2, "stop": 1, "abort": 1, "step": 8, "round": 5, "repeat": 1, "garbage": 1, "gc": 1}
ACTIONS = tuple(action for action, times in ODDS.items() for _ in range(times))

Script = list[tuple[str, int, int]]
scripts = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.integers(0, 63), st.integers(1, 12)), min_size=25, max_size=100
)
sizes = st.sampled_from([0, 1, 2, 4, NODES])
modest = settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def play(script: Script, *, started: int) -> Ensemble:
    """Carry out a generated history in a cluster whose first ``started`` nodes have joined."""
    ensemble = Ensemble(created())
    for number in range(started):
        ensemble.start(f"n{number}")
    ensemble.drain()
    for action, which, amount in script:
        perform(ensemble, action, which, amount)
    return ensemble


def perform(ensemble: Ensemble, action: str, which: int, amount: int) -> None:
    """Carry out one step: ``which`` picks a node, peer or record."""
    world, living = ensemble.world, ensemble.living()
    if action == "start":
        ensemble.start(f"n{which % NODES}")
    elif action == "repeat":
        # A record can be repeated only while its peer's session lives, so never across a gc after the peer left.
        recent = world.records[world.now.snapshot.position + 1 :]
        if recent:
            world.append(recent[which % len(recent)].data)
    elif action == "garbage":
        world.append(bytes([which]) * amount)
    elif living:
        sim = living[which % len(living)]
        if action == "crash":
            sim.alive = False
        elif action == "stop":
            ensemble.stop(sim)
        elif action == "abort":
            sim.append(world, abort_join_cluster.Args(sim.id))
            sim.alive = sim.id in world.now.peers
        elif action == "step":
            sim.advance(world, amount)
            sim.act(world, ensemble.pulses())
        elif action == "round":
            for each in living[which % len(living) :]:
                each.advance(world, 4 * amount)
                each.act(world, ensemble.pulses())
        elif action == "gc" and sim.id in world.now.ring.members:
            sim.append(world, gc.Args())


def assert_complete(ensemble: Ensemble) -> None:
    """Check that all live peers are in one cycle, no other peer is, and nothing is in progress."""
    now = ensemble.world.now
    assert sorted(now.ring.members) == sorted(ensemble.pulses()) == sorted(now.peers)
    assert ring.is_closed(now.ring)
    assert not (now.ring.prepared or now.ring.accepted or now.ring.queue)
    for sim in ensemble.living():
        assert now.nodes[sim.node].peer == sim.id


@pytest.mark.long
@modest
@given(script=scripts, started=sizes, last=st.integers(0, NODES - 1))
def test_any_interleaving_ends_in_one_cycle_of_the_living(script: Script, started: int, last: int) -> None:
    """There are joins, leaves, crashes, restarts and repeated records, then quiet; at least one peer lives."""
    ensemble = play(script, started=started)
    if not ensemble.living():
        ensemble.start(f"n{last}")
    ensemble.drain()
    assert_complete(ensemble)


@pytest.mark.long
@modest
@given(script=scripts, started=sizes, order=st.permutations(range(NODES)), pause=st.integers(0, 4))
def test_a_cluster_that_died_with_joins_in_flight_reforms(
    script: Script, started: int, order: list[int], pause: int
) -> None:
    """All peers die at any moment; the nodes return in any order, at any pace."""
    ensemble = play(script, started=started)
    for sim in ensemble.living():
        sim.alive = False
    for node in order:
        ensemble.start(f"n{node}")
        for sim in ensemble.living()[:pause]:
            sim.advance(ensemble.world, 1000)
            sim.act(ensemble.world, ensemble.pulses())
    ensemble.drain()
    assert_complete(ensemble)
    assert len(ensemble.pulses()) == NODES


@pytest.mark.long
@modest
@given(script=scripts, started=sizes, node=st.integers(NODES, NODES + 1))
def test_one_peer_alone_unwinds_whatever_the_dead_left(script: Script, started: int, node: int) -> None:
    """It belongs to a new node, so its join evicts no peer: watches do everything."""
    ensemble = play(script, started=started)
    for sim in ensemble.living():
        sim.alive = False
    ensemble.start(f"n{node}")
    ensemble.drain()
    assert_complete(ensemble)


def test_a_crowd_that_starts_at_once_is_in_the_ring_without_any_retry() -> None:
    """Each of 40 joiners appends at most two entries, its host one: no peer retries after a pause."""
    world = World()
    world.submit("founder", creation())
    ensemble = Ensemble(world)
    for number in range(40):
        ensemble.start(f"n{number}")
    ensemble.drain()
    assert_complete(ensemble)
    assert len(world.records) == 1 + 1 + 3 * 39
