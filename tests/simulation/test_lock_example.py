"""The lock of ``examples/`` while peers come and go: one holder at a time, and every next one has a higher token."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import trio

from log_entries.registry import ENTRIES
from onyxq.core.entry import APPLIED, Entries
from onyxq.core.extensions import state_of
from onyxq.core.replica import EMPTY, Replica
from onyxq.core.step import step
from onyxq.errors import OnyxqError
from onyxq.system.extensions import entry_of
from simulation.world.world import Options, World, simulate

pytestmark = pytest.mark.long


EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "lock"
OWNERS = 4
FAULTS_S = 60.0


@pytest.fixture
def entries(monkeypatch: pytest.MonkeyPatch) -> Entries:
    """Return OnyxQ's entries with the lock."""
    monkeypatch.syspath_prepend(EXAMPLE)
    parts = ("acquire", "release", "expire")
    modules = [(name, importlib.import_module(f"onyxq_lock.{name}")) for name in parts]
    return Entries([*ENTRIES.values(), *(entry_of(f"lock.{name}", module) for name, module in modules)])


async def use_the_lock(world: World, owner: str, stop: trio.Event) -> None:
    """Take the lock, hold it for a while, and release it or die; repeat."""
    async with world.client() as client:
        while not stop.is_set():
            try:
                await client.client.submit_entry("lock.acquire", ["db", owner, 2_000], timeout_ms=3_000)
                held = (await client.client.extension("lock")).get("db")
                await trio.sleep(world.random.random())
                if held and held[0] == owner and world.random.random() < 0.7:
                    await client.client.submit_entry("lock.release", ["db", held[1]], timeout_ms=3_000)
                else:
                    await trio.sleep(world.random.random() * 4)
            except OnyxqError:
                await trio.sleep(0.2)


async def break_things(world: World) -> None:
    """Let peers crash, lose their sessions and return; make the log unavailable."""
    until_s = trio.current_time() + FAULTS_S
    while trio.current_time() < until_s:
        node = world.random.choice(world.nodes)
        fault = world.random.randrange(4)
        if fault == 0 and node.running is not None:
            await world.restart_node(node, after_s=world.random.random() * 8)
        elif fault == 1:
            world.expire_session(node)
        elif fault == 2:
            world.log_down()
            await trio.sleep(world.random.random() * 4)
            world.log_up()
        await trio.sleep(world.random.random() * 5)


def check_history(world: World, entries: Entries) -> tuple[int, int]:
    """Read the log again; return how often the lock changed hands, and how often a dead holder's was released."""
    replica: Replica = EMPTY
    last, hands, expired = -1, 0, 0
    for record in world.audit.records:
        before, done = replica, step(replica, record, entries)
        replica = done.replica
        one, other = (state_of(found, "lock").get("db") for found in (before, replica))
        expired += any(out.name == "lock.expire" and out.verdict == APPLIED for out in done.outcomes)
        if other is None or (one is not None and one[1] == other[1]):
            continue
        assert other[1] > last, "every holder has a higher token than all before"
        freed = any(out.name in ("lock.release", "lock.expire") and out.verdict == APPLIED for out in done.outcomes)
        assert one is None or freed or one[2] < replica.log_time_ms, "it was taken from somebody whose lease runs"
        last, hands = other[1], hands + 1
    return hands, expired


def test_the_lock_holds_while_peers_come_and_go(entries: Entries) -> None:
    """This holds in the order of the log; at the end it is free, because it is not renewed."""
    total: Any = [0, 0]

    async def workload(world: World) -> None:
        stop = trio.Event()
        async with trio.open_nursery() as nursery:
            for number in range(OWNERS):
                nursery.start_soon(use_the_lock, world, f"owner-{number}", stop)
            await break_things(world)
            stop.set()
        await world.settle()
        await world.until(lambda: not state_of(world.audit.replica, "lock"), "the lock is free")

    for seed in range(3):
        world = simulate(workload, seed=seed, options=Options(entries=entries))
        total = [one + other for one, other in zip(total, check_history(world, entries), strict=True)]
    assert total[0] > 60 and total[1] > 3
