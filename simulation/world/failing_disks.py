"""Disks that fail in single writes, in single pages, or altogether, one machine at a time (design: simulation).

A write that is refused may be on the disk nevertheless.  A page that is damaged is met when the
store touches it: then its process ends, or is killed, and its next start finds an empty store.
So between two damages every copy is made whole again, as an operator would wait for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import trio

from onyxq.core.errors import OnyxqError, StoreDamaged, StoreFailed
from onyxq.node.membership import STORE_PATIENCE_S
from onyxq.store.memory import MemoryTable, MemoryTables
from simulation.world.faults import any_running, of_a_node
from simulation.world.world import SETTLE_S, SimulatedNode, World

PAGE_ENTRIES = 12
"""Entries on a page that is damaged."""
LEFT_S = STORE_PATIENCE_S + 15.0
"""In which a peer whose disk refuses writes is out of the ring."""
MET_S = 8.0
"""Time after which damage that was not met stays while the process is killed or stopped."""
ROUNDS = (3, 6)


class SpoiltTable:
    """A table with entries that cannot be touched; ``met`` gives the error."""

    def __init__(self, table: MemoryTable, keys: set[bytes], met: Callable[[], OnyxqError]) -> None:
        self._table = table
        self._keys = keys
        self._met = met

    def _touch(self, key: bytes) -> None:
        if key in self._keys:
            raise self._met()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return ``get``, ``put``, ``add`` or ``delete`` of the table, which touch a key."""
        method = getattr(self._table, name)

        def touching(key: bytes, *args: Any) -> Any:
            self._touch(key)
            return method(key, *args)

        return touching

    def ascend(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield entries from ``start`` on."""
        return self._touched(self._table.ascend(start))

    def descend(self, start: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Yield entries from ``start`` down."""
        return self._touched(self._table.descend(start))

    def first(self, start: bytes) -> tuple[bytes, bytes] | None:
        """Return the first entry from ``start`` on."""
        return next(self.ascend(start), None)

    def _touched(self, entries: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[bytes, bytes]]:
        for key, value in entries:
            self._touch(key)
            yield key, value

    def clear(self, prefix: bytes, limit: int | None = None) -> int:
        """Delete every key that starts with ``prefix``."""
        for key in self._keys:
            if key.startswith(prefix):
                raise self._met()
        return self._table.clear(prefix, limit)


def damage_page(world: World, node: SimulatedNode, *, kills: bool) -> bool:
    """Damage a page of a node's store; False if nothing is in it. The start after it finds the store empty."""
    store, draw = node.store, world.random
    tables = {name: [key for key, _ in table.ascend(b"")] for name, table in vars(node.disk.tables).items()}
    filled = sorted(name for name, keys in tables.items() if keys and name != "meta")
    if store is None or not filled:
        return False
    name = draw.choice(filled)
    first = draw.randrange(len(tables[name]))
    keys = set(tables[name][first : first + PAGE_ENTRIES])

    def met() -> OnyxqError:
        error = StoreDamaged(f"a page of {name} on {node.name} is damaged")
        if kills and not node.killed:
            node.killed = True
            world.nursery.start_soon(world.crash_node, node)
        else:
            store.condition.end(error)
        return error

    view = MemoryTables()
    vars(view).update(vars(node.disk.tables))
    setattr(view, name, SpoiltTable(getattr(view, name), keys, met))
    store.read_through(view)
    node.disk.damaged = True
    return True


@of_a_node
async def damaged_page(world: World, node: SimulatedNode) -> None:
    """A page of a node's store is damaged; its process ends, or is killed, when it meets it."""
    node.may_end += 1
    try:
        if not damage_page(world, node, kills=world.random.random() < 0.3):
            return
        with trio.move_on_after(MET_S):
            await node.ended.wait()
            if not node.killed:
                assert isinstance(node.error, StoreDamaged), f"{node.name} ended with {node.error!r}"
        if node.running is not None:
            await world.crash_node(node)
    finally:
        node.may_end -= 1
    await trio.sleep(world.random.uniform(0, 5))
    await _start(world, node)


async def _start(world: World, node: SimulatedNode) -> None:
    """Start a process on an empty store. Each refused write of its identity ends it, and it is started again."""
    node.may_end += 1
    world.start_node(node)
    while node.inner is None:
        if node.running is None:
            assert isinstance(node.error, StoreFailed), f"{node.name} ended with {node.error!r}"
            world.start_node(node)
        await trio.sleep(0.05)
    node.may_end -= 1


async def refused_writes(world: World) -> None:
    """Some writes of a node are refused; each may be on the disk nevertheless."""
    for _ in range(world.random.randint(1, 8)):
        node = any_running(world)
        if node is not None:
            node.disk.refuse(times=world.random.choice((1, 1, 2, 5)), lands=world.random.random() < 0.5)
        await trio.sleep(world.random.uniform(0, 2))


@of_a_node
async def refusing_disk(world: World, node: SimulatedNode) -> None:
    """A disk refuses writes: its peer leaves the ring before long, stays away, and comes back when it is well."""
    node.disk.failing = True
    try:
        if world.random.random() < 0.5:
            await trio.sleep(world.random.uniform(0.1, STORE_PATIENCE_S))
            return
        await world.until(lambda: not _in_ring(world, node), "it leaves the ring", within_s=LEFT_S)
        for _ in range(100):
            assert not _in_ring(world, node), "a node that cannot write joined the ring"
            await trio.sleep(0.1)
    finally:
        node.disk.failing = False
    await world.until(lambda: _in_ring(world, node), "it joins again", within_s=SETTLE_S)


def _in_ring(world: World, node: SimulatedNode) -> bool:
    replica = world.audit.replica
    return any(replica.peers[peer].node == node.known_id for peer in replica.ring.members)


async def whole(world: World) -> None:
    """Return once every copy of every partition is on a node that runs, and complete."""

    def look() -> bool:
        nodes = {node.node_id for node in world.nodes if node.running is not None}
        placed = world.audit.replica.partitions.values()
        lacking = [node.inner.transfers_here() for node in world.nodes if node.inner]
        return world.serving() and all(set(one.members) <= nodes for one in placed) and not any(lacking)

    await world.until(look, "every copy is whole", within_s=SETTLE_S)


async def failing_disks(world: World) -> None:
    """Some of these in turn."""
    episodes = (damaged_page, damaged_page, refused_writes, refused_writes, refusing_disk)
    for _ in range(world.random.randint(*ROUNDS)):
        await whole(world)
        for node in world.nodes:
            node.known_id = node.node_id or node.known_id
        await world.random.choice(episodes)(world)
    await whole(world)
