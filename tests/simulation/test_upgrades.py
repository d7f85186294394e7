"""A cluster of real peers upgraded one by one, in simulation; an older peer gets an error and ends."""

from __future__ import annotations

import trio

from onyxq.errors import OlderThanCluster
from simulation.world.world import Options, SimulatedNode, World, simulate
from tests.entries.versions import NEW, OLD, Paint


async def paint(node: SimulatedNode, colour: str) -> str:
    """Let a node's peer paint three coats; return the verdict."""
    assert node.running is not None and node.running.node is not None
    _, verdicts = await node.running.node.verdicts([Paint(colour, 3)])
    return verdicts[0]


async def upgrade(world: World, node: SimulatedNode) -> None:
    """Stop the peer, install the newer program, start it."""
    await world.stop_node(node)
    node.entries = NEW
    world.start_node(node)
    await world.settle()


def test_a_cluster_is_upgraded_peer_by_peer_while_it_works() -> None:
    """Version 2 is enabled once the last peer knows it; a peer with version 1 then ends with a clear error."""

    async def workload(world: World) -> None:
        for node in world.nodes:
            node.entries = OLD
            world.start_node(node)
        await world.settle()
        first, second, third = world.nodes
        for node in (first, second):
            await upgrade(world, node)
            assert await paint(node, "red") == "applied"
            assert world.audit.replica.extensions["paint"] == ("red", 1)
        await upgrade(world, third)
        await world.until(lambda: world.audit.replica.enabled == NEW.versions, "the new version is enabled")
        assert await paint(first, "blue") == "applied"
        await world.until(lambda: world.audit.replica.extensions["paint"] == ("blue", 3), "three coats")

        await world.stop_node(second)
        second.entries, second.may_end = OLD, True
        world.start_node(second)
        with trio.fail_after(30):
            await second.ended.wait()
        assert isinstance(second.error, OlderThanCluster)
        assert "older than the cluster" in second.error.message and "entry paint, version 2" in second.error.message
        second.entries, second.may_end = NEW, False
        await world.bring_back(second)

    simulate(workload, seed=5, options=Options(entries=NEW), started=False)


def test_an_older_peer_that_comes_during_the_upgrade_joins_or_ends() -> None:
    """The first entry in the log decides: its request to join, and no version rises; or the rise, and it is refused."""
    refused: list[bool] = []

    async def workload(world: World) -> None:
        founder, late = world.nodes
        founder.entries = OLD
        world.start_node(founder)
        await world.until(lambda: bool(world.audit.replica.ring.members), "the cluster is there")
        await world.stop_node(founder)
        founder.entries, late.entries, late.may_end = NEW, OLD, True
        for node in world.random.sample(world.nodes, 2):
            world.start_node(node)
            await trio.sleep(world.random.random() / 20)

        def settled() -> bool:
            return late.ended.is_set() or len(world.audit.replica.ring.members) == 2

        await world.until(settled, "it joined or ended")
        refused.append(late.ended.is_set())
        if refused[-1]:
            assert isinstance(late.error, OlderThanCluster)
        else:
            assert "brand" not in world.audit.replica.enabled
            await world.stop_node(late)
        await world.until(lambda: world.audit.replica.enabled == NEW.versions, "all is enabled")
        late.entries, late.may_end = NEW, False
        await world.bring_back(late)

    for seed in range(8):
        simulate(workload, seed=seed, options=Options(nodes=2, entries=NEW), started=False)
    assert set(refused) == {True, False}
