"""Measures how late a waiting claimer gets the task of a lapsed claim.

    python -m bench.leases [--lapses 100] [--lease-ms 2000] [--lanes 4] [--load 16]

Three peers on one ZooKeeper, all on this machine. In each lane a worker claims a task and is not heard of again,
while another one waits for the task at another peer. The delay is the time from the end of the lease, as the first
worker counts it, until the other worker has the task. It is measured once with nothing else to do, and once while other
tasks are enqueued, claimed and completed without a pause. Prints one JSON document.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import trio
from attrs import define, field

from bench.common import emit, machine, percentiles, progress
from bench.drive import fresh_queue
from bench.options import end_on_signal, guarded
from bench.peers import PARTITIONS, PEERS, SESSION_TIMEOUT_MS, Cluster, three_peers, until_whole
from onyxq.client import AsyncClient

GOAL_MS = 300.0
SETTLE_S = 3.0
"""Pause before each measurement, in seconds."""
PAYLOAD = b"x" * 100
WAIT_MS = 30_000
LATE_MAX_S = 60.0


class Untimely(Exception):
    """A task was granted before the lease of its claim was over, or not at all."""


@define
class Lapses:
    """The lapses of one measurement."""

    left: int
    lease_ms: int
    delays_s: list[float] = field(factory=list)
    passed: int = 0
    """Other tasks that were completed meanwhile."""

    async def lane(self, first: AsyncClient, second: AsyncClient) -> None:
        """Let claims of ``first`` lapse until none is left; ``second`` waits for the tasks."""
        queue = fresh_queue()
        while self.left > 0:
            self.left -= 1
            await first.enqueue(queue, PAYLOAD)
            asked_s = trio.current_time()
            (claim,) = await first.claim(queue, lease_ms=self.lease_ms, wait_ms=WAIT_MS, worker="lost")
            delay_s = await self._granted(second, queue, claim.token) - asked_s - self.lease_ms / 1000
            if delay_s < 0:
                raise Untimely(f"a task was granted {-delay_s:.3f} s before the lease was over")
            self.delays_s.append(delay_s)

    async def _granted(self, client: AsyncClient, queue: str, token: int) -> float:
        with trio.move_on_after(self.lease_ms / 1000 + LATE_MAX_S):
            while True:
                for claim in await client.claim(queue, lease_ms=WAIT_MS, wait_ms=WAIT_MS, worker="waiting"):
                    granted_s = trio.current_time()
                    if claim.token <= token:
                        raise Untimely("the token did not rise")
                    await client.complete(claim)
                    return granted_s
        raise Untimely(f"a task was not granted within {LATE_MAX_S:g} s after the lease")

    async def load(self, client: AsyncClient) -> None:
        """Pass tasks through a queue, one after the other, until cancelled."""
        queue = fresh_queue()
        while True:
            await client.enqueue(queue, PAYLOAD)
            for claim in await client.claim(queue, wait_ms=WAIT_MS, worker="load"):
                await client.complete(claim)
                self.passed += 1


async def measure(cluster: Cluster, options: argparse.Namespace, load: int) -> dict[str, Any]:
    """Measure one mode; ``load``: number of lanes that pass other tasks."""
    found = Lapses(options.lapses, options.lease_ms)
    async with AsyncExitStack() as stack:
        orders = (_first(cluster.addresses, place) for place in range(PEERS))
        clients = [await stack.enter_async_context(AsyncClient(order)) for order in orders]
        loads = await stack.enter_async_context(trio.open_nursery())
        await until_whole(clients[0])
        for place in range(load):
            loads.start_soon(found.load, clients[place % PEERS])
        await trio.sleep(SETTLE_S)
        progress(f"measuring {options.lapses} lapses")
        began_s, passed = trio.current_time(), found.passed
        async with trio.open_nursery() as lanes:
            for place in range(options.lanes):
                lanes.start_soon(found.lane, clients[place % PEERS], clients[(place + 1) % PEERS])
        took_s = trio.current_time() - began_s
        loads.cancel_scope.cancel()
    figures = percentiles(found.delays_s)
    if load:
        figures["load_per_s"] = round((found.passed - passed) / took_s, 1)
    return {**figures, "lapses": len(found.delays_s), "goal_max_ms": GOAL_MS, "reached": figures["max_ms"] <= GOAL_MS}


def _first(addresses: Sequence[str], place: int) -> list[str]:
    """Return the addresses, beginning with one of them."""
    return [*addresses[place:], *addresses[:place]]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="bench.leases", description=__doc__.partition("\n")[0])
    parser.add_argument("--lapses", type=int, default=100, metavar="N", help="lapses in each mode (default 100)")
    parser.add_argument("--lease-ms", type=int, default=2_000, metavar="MS", help="lease of a claim (default 2000)")
    parser.add_argument("--lanes", type=int, default=4, metavar="N", help="leases that run at a time (default 4)")
    parser.add_argument("--load", type=int, default=16, metavar="N", help="lanes of other tasks (default 16)")
    parser.add_argument("--directory", type=Path, default=None, help="directory of the data")
    options = parser.parse_args()
    end_on_signal()
    modes: dict[str, Any] = {}
    with three_peers(options.directory) as cluster:
        for name, load in (("idle", 0), ("busy", options.load)):
            progress(f"{name}: starting")
            modes[name] = guarded(partial(trio.run, measure, cluster, options, load))
    settings = {
        "lapses": options.lapses,
        "lease_ms": options.lease_ms,
        "lanes": f"{options.lanes}, each with a worker that is lost and one that waits at another peer",
        "load": f"{options.load} lanes that enqueue, claim and complete one task after the other",
        "delay": "from the end of the lease, counted from the request, until the waiting worker has the task",
        "peers": PEERS,
        "partitions": PARTITIONS,
        "session_timeout_ms": SESSION_TIMEOUT_MS,
    }
    emit({"benchmark": "leases", "machine": machine(), "settings": settings, "modes": modes})


if __name__ == "__main__":
    main()
