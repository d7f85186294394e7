"""Measures transactions per second: each completes one claimed task and enqueues another in one atomic step.

    python -m bench.transactions [--systems onyxq-embedded-1,onyxq-zookeeper-3] [--lanes 1,64,512]

One client process claims inputs in batches, which is not measured. Then it commits one transaction
for each input, in a number of lanes. With ``--apart`` the new task belongs to another partition
than the completed one, so every transaction has two parts. At the end every input must be completed
and every output must exist once. ``peers_cpu_ms`` is the processor time per transaction of all
peers together. Prints one JSON document.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import anyio

from bench.common import cpu_seconds, emit, machine, median_of, percentiles, progress
from bench.drive import fresh_queue, started
from bench.onyxq_system import ONYXQ, OnyxqEmbedded1
from bench.options import end_on_signal, guarded
from onyxq.client import AsyncClient, Claim

LEASE_MS = 600_000
BATCH_TASKS = 1_000


class Wrong(Exception):
    """An input was not counted exactly once."""


async def prepare(client: AsyncClient, queue: str, count: int, payload: bytes) -> list[Claim]:
    """Return a number of claimed inputs."""
    for start in range(0, count, BATCH_TASKS):
        await client.enqueue_many(queue, [payload] * min(BATCH_TASKS, count - start))
    claims: list[Claim] = []
    while len(claims) < count:
        claims += await client.claim([queue], max=BATCH_TASKS, lease_ms=LEASE_MS, wait_ms=10_000)
    return claims


async def commit_all(
    client: AsyncClient, claims: list[Claim], *, target: str, lanes: int, payload: bytes, apart: bool
) -> tuple[float, list[float]]:
    """Commit one transaction per claim; return the total seconds, and those of each."""
    left = iter(claims)
    took: list[float] = []
    partitions = int((await client.cluster())["settings"]["partitions"])

    async def lane() -> None:
        for claim in left:
            began = time.perf_counter()
            async with client.transaction() as tx:
                tx.complete(claim, b"done")
                if apart:
                    tx.enqueue(target, payload, id=_elsewhere(client, claim, partitions))
                else:
                    tx.enqueue(target, payload)
            took.append(time.perf_counter() - began)

    began = time.perf_counter()
    async with anyio.create_task_group() as group:
        for _ in range(lanes):
            group.start_soon(lane)
    return time.perf_counter() - began, took


def _elsewhere(client: AsyncClient, claim: Claim, partitions: int) -> bytes:
    """Return a new id in another partition."""
    partition = (int.from_bytes(claim.id[6:8], "big") + partitions // 2 + 1) % partitions
    return client._enqueuer.make_ids(1, partition=partition)[0]


async def measure(system: OnyxqEmbedded1, options: argparse.Namespace, lanes: int, *, apart: bool) -> dict[str, Any]:
    """Run one measurement."""
    payload = b"x" * options.payload
    count = max(50, min(options.transactions, lanes * 100))
    queue = fresh_queue()
    async with AsyncClient(system.addresses) as client:
        claims = await prepare(client, queue, count, payload)
        cpu_s, own_s = cpu_seconds(system.pids()), time.process_time()
        seconds, took = await commit_all(
            client, claims, target=f"{queue}-out", lanes=lanes, payload=payload, apart=apart
        )
        cpu_s, own_s = cpu_seconds(system.pids()) - cpu_s, time.process_time() - own_s
        counts = await client.count()
    inputs, outputs = counts[queue], counts[f"{queue}-out"]
    if (inputs["completed"], outputs["total"]) != (count, count):
        raise Wrong(f"{count} inputs: {inputs['completed']} completed, {outputs['total']} outputs")
    return {
        "per_second": count / seconds,
        "transactions": count,
        **percentiles(took),
        "peers_cpu_ms": 1000 * cpu_s / count,
        "client_cpu_ms": 1000 * own_s / count,
    }


def main() -> None:
    """Measure and print the JSON document."""
    options = _options()
    end_on_signal()
    systems = {name: _system(name, options) for name in options.systems}
    emit(
        {
            "benchmark": "transactions",
            "machine": machine(),
            "settings": {
                "transaction": "completes one claimed task and enqueues one",
                "payload_bytes": options.payload,
                "lanes": options.lanes,
                "runs": options.runs,
            },
            "systems": systems,
        }
    )


def _system(name: str, options: argparse.Namespace) -> dict[str, Any]:
    system = ONYXQ[name]()
    assert isinstance(system, OnyxqEmbedded1)
    progress(f"{name}: starting")

    def one(lanes: int, apart: bool) -> dict[str, Any]:
        progress(f"{name}: {lanes} lanes, {'two parts' if apart else 'one part'}")
        run = lambda: anyio.run(lambda: measure(system, options, lanes, apart=apart))  # noqa: E731
        return guarded(lambda: median_of(options.runs, run))

    def modes() -> dict[str, Any]:
        return {
            kind: {str(lanes): one(lanes, apart) for lanes in options.lanes}
            for kind, apart in (("one part", False), ("two parts", True))
            if not apart or options.apart
        }

    def whole() -> dict[str, Any]:
        with started(system, options.directory):
            return {"settings": system.settings(), "modes": modes()}

    return guarded(whole)


def _options() -> argparse.Namespace:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--systems", type=lambda text: text.split(","), default="onyxq-embedded-1,onyxq-zookeeper-3")
    made.add_argument("--lanes", type=lambda text: [int(one) for one in text.split(",")], default="1,64,512")
    made.add_argument("--transactions", type=int, default=10_000, help="most transactions per measurement")
    made.add_argument("--apart", action="store_true", help="also measure transactions over two partitions")
    made.add_argument("--runs", type=int, default=3, help="number of measurements; the figures are their medians")
    made.add_argument("--payload", type=int, default=100, help="bytes per task")
    made.add_argument("--directory", type=Path, default=None, help="directory of the data")
    return made.parse_args()


if __name__ == "__main__":
    main()
