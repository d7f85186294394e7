"""Faults of a simulated cluster, each as an episode that begins and ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import wraps

import trio

from log_entries import yield_partition
from onyxq.core.errors import OnyxqError
from simulation.world.clients import tried
from simulation.world.world import SimulatedNode, World

Episode = Callable[[World], Awaitable[None]]


def any_running(world: World) -> SimulatedNode | None:
    """A node whose process runs."""
    running = [node for node in world.nodes if node.running is not None and not node.killed]
    return world.random.choice(running) if running else None


def of_a_node(episode: Callable[[World, SimulatedNode], Awaitable[None]]) -> Episode:
    """Make an episode of a running node that is drawn; without one nothing happens."""

    @wraps(episode)
    async def drawn(world: World) -> None:
        node = any_running(world)
        if node is not None:
            await episode(world, node)

    return drawn


async def _some_time(world: World, least_s: float, most_s: float) -> None:
    await trio.sleep(world.random.uniform(least_s, most_s))


def _start(world: World, node: SimulatedNode) -> None:
    if node.running is None:  # another episode may have been faster
        world.start_node(node)


@of_a_node
async def crash(world: World, node: SimulatedNode) -> None:
    """A process is killed and starts again on its disk."""
    await world.crash_node(node)
    await _some_time(world, 0, 15)
    _start(world, node)


async def crash_all(world: World) -> None:
    """Every process is killed; they start again one after the other."""
    running = [node for node in world.nodes if node.running is not None and not node.killed]
    for node in running:
        await world.crash_node(node)
    await _some_time(world, 0, 10)
    world.random.shuffle(running)
    for node in running:
        _start(world, node)
        await _some_time(world, 0, 2)


@of_a_node
async def restart(world: World, node: SimulatedNode) -> None:
    """A process drains, leaves, and starts again."""
    await world.stop_node(node)
    await _some_time(world, 0, 10)
    _start(world, node)


@of_a_node
async def session_expiry(world: World, node: SimulatedNode) -> None:
    """A node's session ends."""
    world.expire_session(node)
    await _some_time(world, 0, 3)


async def log_outage(world: World) -> None:
    """The whole log is away, and comes back with or without its sessions."""
    world.log_down()
    await _some_time(world, 0.1, 25)
    world.log_up(sessions_lost=world.random.random() < 0.5)


@of_a_node
async def log_unreachable(world: World, node: SimulatedNode) -> None:
    """One node cannot reach the log, perhaps longer than its session lives."""
    world.disconnect_log(node)
    await _some_time(world, 0.1, 20)
    world.reconnect_log(node)


async def broken_appends(world: World) -> None:
    """Appends break: their records are there not at all, once, twice, or only later."""
    for _ in range(world.random.randint(1, 5)):
        node = any_running(world)
        session = node.log.session_now if node is not None else None
        if session is not None:
            world.backend.break_append(session, landed=world.random.choice((0, 1, 1, 2)))
        await _some_time(world, 0, 2)


@of_a_node
async def partition(world: World, node: SimulatedNode) -> None:
    """One node is cut off from the others, and perhaps from the clients."""
    world.isolate(node, clients=world.random.random() < 0.5)
    await _some_time(world, 0.1, 20)
    world.network.heal()


@of_a_node
async def half_open(world: World, node: SimulatedNode) -> None:
    """What one node sends is lost, or what it is sent: rows are stored and not acknowledged, answers never come."""
    world.half_open(node, deaf=world.random.random() < 0.5, clients=world.random.random() < 0.5)
    await _some_time(world, 0.1, 20)
    world.network.heal()


@of_a_node
async def dead_to_the_world(world: World, node: SimulatedNode) -> None:
    """One node reaches nothing: as a frozen process, or a cable pulled."""
    world.isolate(node, clients=True)
    world.disconnect_log(node)
    await _some_time(world, 0.5, 20)
    world.network.heal()
    world.reconnect_log(node)


@of_a_node
async def clients_only(world: World, node: SimulatedNode) -> None:
    """One node reaches neither the log nor the others, but clients still talk to it."""
    world.isolate(node)
    world.disconnect_log(node)
    await _some_time(world, 5, 20)
    world.network.heal()
    world.reconnect_log(node)


async def cut_connections(world: World) -> None:
    """Connections of a node break; new ones can be made."""
    for _ in range(world.random.randint(1, 4)):
        world.network.cut(world.random.choice(world.nodes).name)
        await _some_time(world, 0, 2)


async def dead_connections(world: World) -> None:
    """Connections of a node carry nothing any more, and neither end notices; new ones can be made."""
    for _ in range(world.random.randint(1, 4)):
        world.network.deaden(world.random.choice(world.nodes).name)
        await _some_time(world, 0, 10)


async def slow_network(world: World) -> None:
    """Two nodes hear each other late."""
    if len(world.nodes) < 2:
        return
    one, other = world.random.sample(world.nodes, 2)
    world.network.delay(one.name, other.name, delay_ms=world.random.choice((20, 200, 1_500)))
    await _some_time(world, 1, 15)
    world.network.delay(one.name, other.name, delay_ms=world.options.network_delay_ms)


@of_a_node
async def full_disk(world: World, node: SimulatedNode) -> None:
    """A node's disk takes nothing for a while."""
    node.disk.failing = True
    await _some_time(world, 0.1, 15)
    node.disk.failing = False


async def bit_rot(world: World) -> None:
    """Bits flip on the disk of a node: of index entries, and of rows that two others hold soundly."""
    for _ in range(world.random.randint(1, 6)):
        node = any_running(world)
        entries = node.disk.index_keys() if node is not None else []
        if node is not None and entries and world.random.random() < 0.3:
            name, key = world.random.choice(entries)
            node.disk.rot(key, bit=world.random.getrandbits(16), name=name)
        others = [other for other in world.nodes if other is not node]
        keys = node.disk.row_keys() if node is not None else []
        if node is not None and keys:
            key = world.random.choice(keys)
            if sum(other.disk.sound(key) for other in others) >= 2:
                node.disk.rot(key, bit=world.random.getrandbits(16))
        await _some_time(world, 0, 3)


async def log_clock_jump(world: World) -> None:
    """The log's clock is set forward or back, by seconds, minutes or hours."""
    world.log_clock.jump(world.random.choice((-3_600_000, -60_000, -4_000, 1_500, 3_000, 4_900, 60_000, 3_600_000)))
    await _some_time(world, 0, 5)


async def log_clock_flaps(world: World) -> None:
    """The log's leadership goes to and fro between servers whose clocks differ."""
    by_ms = world.random.choice((700, 4_000, 4_000, 90_000))
    for _ in range(world.random.randint(1, 6)):
        world.log_clock.jump(by_ms)
        await _some_time(world, 0, 2)
        world.log_clock.jump(-by_ms)
        await _some_time(world, 0, 2)


def _far(world: World, by_ms: int) -> int:
    """Return how far a clock may jump ahead: so far only if two others are right and know better.

    What is due by a clock that most members share would wait as long.
    """
    others_right = not any(node.may_end for node in world.nodes)
    return by_ms if others_right and len(world.audit.replica.ring.members) > 2 else 4_000


@asynccontextmanager
async def _somebody_may_leave(world: World) -> AsyncIterator[None]:
    """While two clocks are wrong at a time, the node with the right clock may be the one to leave."""
    nodes = list(world.nodes)
    for node in nodes:
        node.may_end += 1
    yield
    await trio.sleep(1)
    for node in nodes:
        node.may_end -= 1
        if node.error is not None:
            _start(world, node)


@of_a_node
async def node_clock_jump(world: World, node: SimulatedNode) -> None:
    """A node's clock is set forward or back, and corrected before any node must leave for it."""
    by_ms = world.random.choice((-600_000, -4_000, -1_500, 300, 2_000, 4_000, _far(world, 600_000)))
    async with _somebody_may_leave(world):
        node.clock.jump(by_ms)
        await _some_time(world, 0, 8)
        node.clock.jump(-by_ms)


@of_a_node
async def wrong_clock(world: World, node: SimulatedNode) -> None:
    """A node's clock is wrong until the node has left for it, or until it is unknown whose clock is right."""
    by_ms = world.random.choice((-3_600_000, -7_000, 7_000, _far(world, 3_600_000)))
    async with _somebody_may_leave(world):
        node.clock.jump(by_ms)
        with trio.move_on_after(40):
            await node.ended.wait()
        node.clock.jump(-by_ms)
        await _some_time(world, 0, 5)


async def late_appends(world: World) -> None:
    """The log becomes unreachable with records of all peers in flight, which arrive when it is back."""
    for session in list(world.backend.sessions):
        world.backend.break_append(session, landed=world.random.choice((0, 1, 1, 2)), late=True)
    await _some_time(world, 0, 2)
    world.log_down()
    await _some_time(world, 1, 60)
    world.log_up()


async def collection(world: World) -> None:
    """A client requests a log collection."""
    async with world.client() as client:
        await tried(client.client.gc(timeout_ms=20_000))


@of_a_node
async def behind_a_trim(world: World, node: SimulatedNode) -> None:
    """A node is cut off from the log, or down, while the log is collected: it continues from the origin."""
    if len(world.nodes) < 2:
        return
    down = world.random.random() < 0.5
    if down:
        await world.crash_node(node)
    else:
        world.disconnect_log(node)
    await _some_time(world, 1, world.options.session_timeout_ms / 1000 + 4)
    await collection(world)
    if down:
        _start(world, node)
    else:
        world.reconnect_log(node)


@of_a_node
async def away(world: World, node: SimulatedNode) -> None:
    """A machine is away for longer than its copies are waited for, and comes back."""
    await world.crash_node(node)
    wait_s = (world.options.session_timeout_ms + world.options.absent_after_ms) / 1000
    await _some_time(world, 0.3 * wait_s, min(wait_s + 12, 45))
    _start(world, node)


@of_a_node
async def slow_disk(world: World, node: SimulatedNode) -> None:
    """A node's disk takes its time."""
    before, slow_ms = node.disk.delay_ms, world.random.choice((50, 300, 1_500))
    node.disk.delay_ms = lambda: world.random.randint(1, slow_ms)
    await _some_time(world, 1, 12)
    node.disk.delay_ms = before


async def giving_up(world: World) -> None:
    """Leaders give partitions up in the middle of their work."""
    for _ in range(world.random.randint(2, 10)):
        node = any_running(world)
        inner = node.inner if node is not None else None
        if inner is not None:
            led = [number for number, placed in inner.replica.partitions.items() if placed.leader == inner.peer_id]
            for number in sorted(led):
                with suppress(OnyxqError):  # it cannot write now
                    inner.outbox_now().submit([yield_partition.Args(number, inner.replica.partitions[number].epoch)])
        await _some_time(world, 0, 1)


async def new_node(world: World) -> None:
    """A machine joins for good."""
    if len(world.nodes) < 6:
        world.start_node(world.add_node())
    await _some_time(world, 0, 10)


EPISODES: Mapping[str, Episode] = {
    "crash": crash,
    "crash_all": crash_all,
    "restart": restart,
    "session_expiry": session_expiry,
    "log_outage": log_outage,
    "log_unreachable": log_unreachable,
    "broken_appends": broken_appends,
    "partition": partition,
    "half_open": half_open,
    "dead_to_the_world": dead_to_the_world,
    "clients_only": clients_only,
    "cut_connections": cut_connections,
    "dead_connections": dead_connections,
    "slow_network": slow_network,
    "full_disk": full_disk,
    "bit_rot": bit_rot,
    "log_clock_jump": log_clock_jump,
    "log_clock_flaps": log_clock_flaps,
    "node_clock_jump": node_clock_jump,
    "wrong_clock": wrong_clock,
    "late_appends": late_appends,
    "collection": collection,
    "behind_a_trim": behind_a_trim,
    "away": away,
    "slow_disk": slow_disk,
    "giving_up": giving_up,
    "new_node": new_node,
}
"""Every episode that may happen at any time, by name."""


async def storm(
    world: World, *, names: Sequence[str] | None = None, rounds: int = 4, at_once: int = 2, rest_s: float = 5.0
) -> None:
    """``rounds`` times up to ``at_once`` of the named episodes (default: any) together; then nothing is broken."""
    choices = sorted(EPISODES) if names is None else names
    for _ in range(rounds):
        async with trio.open_nursery() as nursery:
            for _ in range(world.random.randint(1, at_once)):
                name = world.random.choice(choices)
                world.episodes.append((trio.current_time(), name))
                nursery.start_soon(_later, world, EPISODES[name])
        await _some_time(world, 0, rest_s)
    world.network.heal()


async def _later(world: World, episode: Episode) -> None:
    await _some_time(world, 0, 4)
    await episode(world)
