"""Measures a large backlog: memory, claims, lists, restarts, refills, and a stop until all of it is overdue.

    python -m bench.backlog [--tasks 2000000] [--systems onyxq-embedded-1,onyxq-zookeeper-3]

Everything is measured with `SMALL` stored tasks, and then with ``--tasks`` on the same cluster. The
tasks are mixed (see ``mixture.py``) and have 100 bytes each. Then one peer is killed and started
again, and a node is wiped and refilled as in ``sync.py``. At last another cluster is stopped until
``--overdue`` delayed tasks are overdue. Prints one JSON document.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio

from bench.common import emit, machine, percentiles, progress
from bench.drive import LostTasks, make_payloads
from bench.mixture import BATCH_TASKS, FILL_LANES, MIXTURE, READY, fill, put
from bench.options import end_on_signal, guarded
from bench.peers import Cluster, running, until_whole
from bench.refilling import refilled
from onyxq.client import AsyncClient
from onyxq.errors import OnyxqError

SYSTEMS = {"onyxq-embedded-1": (1, 0), "onyxq-zookeeper-3": (3, 1), "onyxq-ensemble-3": (3, 3)}
"""Numbers of peers and ZooKeeper servers."""
SMALL = 10_000
PARTS = ("claims", "lists", "restart", "scrub", "refill", "overdue")
STATES = ("scheduled", "waiting", "ready", "claimed", "completed", "failed", "cancelled")
FEW = 120
"""Tasks in each of the states that are rare in a backlog."""
CLAIMS = (*((queue, 1) for queue in READY), ("ready", 100))
PAGE_TASKS = 100
SETTLE_S = 3.0
SCRUB_SECONDS_MAX = 3_600
GOALS = {"own_mib": 400, "claim_p99_ratio": 1.5, "restart_s": 5, "load_kept": 0.7}


def main() -> None:
    """Measure and print the JSON document."""
    options = _options()
    end_on_signal()
    head = {"benchmark": "backlog", "machine": machine()}
    settings = {"tasks": options.tasks, "small": SMALL, "overdue": options.overdue, "mixture": MIXTURE,
                "payload_bytes": options.payload, "seconds": options.seconds, "goals": GOALS}  # fmt: skip
    emit({**head, "settings": settings, "systems": {name: _system(name, options) for name in options.systems}})


def _options() -> argparse.Namespace:
    made = argparse.ArgumentParser(
        description="What a large backlog costs.", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    made.add_argument(
        "--systems", type=_names(SYSTEMS), default="onyxq-embedded-1,onyxq-zookeeper-3", help="systems to measure"
    )
    made.add_argument("--parts", type=_names(PARTS), default=",".join(PARTS), help="what to measure")
    made.add_argument("--tasks", type=int, default=2_000_000, help="tasks in store")
    made.add_argument("--overdue", type=int, default=1_000_000, help="delayed tasks that are overdue after a stop")
    made.add_argument("--payload", type=int, default=100, help="bytes per task")
    made.add_argument("--seconds", type=float, default=10.0, help="duration of each measurement of claims")
    made.add_argument(
        "--directory", type=Path, default=None, help="directory of the data (default: the temporary directory)"
    )
    return made.parse_args()


def _names(known: Any) -> Callable[[str], list[str]]:
    def read(text: str) -> list[str]:
        if unknown := [name for name in text.split(",") if name not in known]:
            raise argparse.ArgumentTypeError(f"no such name: {', '.join(unknown)} (there are {', '.join(known)})")
        return text.split(",")

    return read


def _system(name: str, options: argparse.Namespace) -> dict[str, Any]:
    peers, zookeepers = SYSTEMS[name]
    found: dict[str, Any] = {}

    def backlog() -> dict[str, Any]:
        with running(peers, options.directory, zookeepers=zookeepers) as cluster:
            return trio.run(_backlog, cluster, options, found)

    def overdue() -> dict[str, Any]:
        with running(peers, options.directory, zookeepers=zookeepers) as cluster:
            return trio.run(_overdue, cluster, options)

    progress(f"{name}: starting")
    if set(options.parts) != {"overdue"}:
        found.update(guarded(backlog))
    if "overdue" in options.parts:
        found["overdue"] = guarded(overdue)
    return found


# --- the backlog ----------------------------------------------------------------------


async def _backlog(cluster: Cluster, options: argparse.Namespace, found: dict[str, Any]) -> dict[str, Any]:
    """Fill a cluster and measure it, first with few tasks; add each part to ``found`` when it is done."""
    async with AsyncClient(cluster.addresses) as client:
        await until_whole(client, len(cluster.peers))
        await fill(client, first=0, before=SMALL, payload_bytes=options.payload)
        await _some_of_each(client)
        found["small"] = await _state(cluster, client, options)
        progress(f"storing {options.tasks} tasks")
        seconds = await fill(client, first=SMALL, before=options.tasks, payload_bytes=options.payload)
        found["enqueued_per_second"] = round((options.tasks - SMALL) / seconds)
        found["large"] = await _state(cluster, client, options)
        if "claims" in options.parts:
            found["claim_ratio"] = {
                kind: {
                    name: round(large[name] / found["small"]["claims"][kind][name], 2) for name in ("p50_ms", "p99_ms")
                }
                for kind, large in found["large"]["claims"].items()
            }
    if "restart" in options.parts:
        found["restart"] = await _restart(cluster)
    if "scrub" in options.parts:
        found["scrub"] = await _scrub(cluster, options.tasks)
    if "refill" in options.parts and cluster.zookeeper is not None:
        async with AsyncClient(cluster.addresses[:-1]) as client:
            await until_whole(client, len(cluster.peers))
            found["refill"] = await refilled(cluster, client, tasks=options.tasks, seconds=options.seconds)
    return found


async def _some_of_each(client: AsyncClient) -> None:
    """Make a few tasks in each state that is rare in a backlog."""
    for queue in ("completed", "failed", "cancelled", "claimed"):
        ids = await client.enqueue_many(queue, make_payloads(0, FEW, 100), retries=0)
        if queue == "cancelled":
            await client.call("cancel", {"ids": list(ids)})
            continue
        left = FEW
        while left:
            claims = await client.claim([queue], max=left, lease_ms=86_400_000, wait_ms=5_000)
            left -= len(claims)
            if queue == "completed":
                await client.complete(claims)
            elif queue == "failed":
                await client.fail(claims, "as the benchmark wants it")


async def _state(cluster: Cluster, client: AsyncClient, options: argparse.Namespace) -> dict[str, Any]:
    """Return memory, and the durations of claims, counts and lists now."""
    await trio.sleep(SETTLE_S)
    found: dict[str, Any] = {"memory_mib": cluster.memory_mib(), "store_mib": round(cluster.disk_mib(), 1)}
    if "claims" in options.parts:
        found["claims"] = {f"{queue} x{batch}": await _claims(client, queue, batch, options) for queue, batch in CLAIMS}
    if "lists" in options.parts:
        found["lists"] = await _lists(client)
    found["memory_mib_after"] = cluster.memory_mib()
    return found


async def _claims(client: AsyncClient, queue: str, batch: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return durations of claims of one lane; each claimed task is replaced and completed."""
    progress(f"claiming {batch} of {queue}")
    times: list[float] = []
    number, until = 0, time.perf_counter() + options.seconds
    while time.perf_counter() < until:
        await put(client, queue, number, make_payloads(number, batch, options.payload))
        number += batch
        begin = time.perf_counter()
        claims = await client.claim([queue], max=batch, wait_ms=1_000)
        times.append(time.perf_counter() - begin)
        if not claims:
            raise LostTasks("a claim found nothing although tasks are ready")
        await client.complete(claims)
    return {"claims": len(times), **percentiles(times)}


async def _lists(client: AsyncClient) -> dict[str, Any]:
    """Return the milliseconds of counts and of pages of each state, and the requests that a page needs."""
    progress("counting and listing")
    found: dict[str, Any] = {"count": await _timed(client.count), "queues": await _timed(client.queues)}
    found["page"] = await _timed(lambda: client.list(limit=PAGE_TASKS))
    for state in STATES:
        found[f"page of {state}"] = await _page(client, state)
    return found


async def _timed(call: Callable[[], Awaitable[Any]]) -> dict[str, Any]:
    times = []
    for _ in range(5):
        begin = time.perf_counter()
        await call()
        times.append(time.perf_counter() - begin)
    return percentiles(times)


async def _page(client: AsyncClient, state: str) -> dict[str, Any]:
    """Read the first `PAGE_TASKS` tasks of a state; return the number of requests, the slowest one, and the total."""
    times: list[float] = []
    tasks, after = 0, None
    while tasks < PAGE_TASKS:
        begin = time.perf_counter()
        page = await client.list(state=state, after=after, limit=PAGE_TASKS - tasks)
        times.append(time.perf_counter() - begin)
        tasks, after = tasks + len(page.tasks), page.after
        if after is None:
            break
    return {"tasks": tasks, "requests": len(times), "ms": round(1000 * sum(times), 1),
            "slowest_ms": round(1000 * max(times), 1)}  # fmt: skip


# --- restarts -------------------------------------------------------------------------


async def _restart(cluster: Cluster) -> dict[str, Any]:
    """Return the seconds from the start of a killed peer until it serves, and of all peers until a claim succeeds."""
    progress("killing a peer and starting it again")
    peer = cluster.peers[-1]
    found = {}
    if len(cluster.peers) > 1:
        cluster.kill(peer)
        begin = time.perf_counter()
        await trio.to_thread.run_sync(cluster.start, peer.number)
        found["one_s"] = round(time.perf_counter() - begin, 2)
        async with AsyncClient(cluster.addresses[:-1]) as client:
            await until_whole(client, len(cluster.peers))
        found["one_until_whole_s"] = round(time.perf_counter() - begin, 2)
    progress("killing all peers and starting them again")
    numbers = [one.number for one in cluster.peers]
    for one in list(cluster.peers):
        cluster.kill(one)
    found.update(await _first_claim(cluster, numbers, "ready"))
    return found


async def _first_claim(cluster: Cluster, numbers: list[int], queue: str) -> dict[str, float]:
    """Start the peers together; return the seconds until all serve, and until a claim got a task."""
    begin = time.perf_counter()
    claimed_s = 0.0
    async with trio.open_nursery() as nursery:
        for number in numbers:
            nursery.start_soon(trio.to_thread.run_sync, cluster.start, number)
        while not cluster.peers:
            await trio.sleep(0.01)
        async with AsyncClient(cluster.addresses) as client:
            while not claimed_s:
                try:
                    claims = await client.claim([queue], max=1, wait_ms=10_000, timeout_ms=10_000)
                except OnyxqError:
                    await trio.sleep(0.05)
                    continue
                if claims:
                    claimed_s = time.perf_counter() - begin
                    await client.complete(claims)
        while len(cluster.peers) < len(numbers):
            await trio.sleep(0.01)
        all_s = time.perf_counter() - begin
    return {"all_serve_s": round(all_s, 2), "first_claim_s": round(claimed_s, 2)}


async def _scrub(cluster: Cluster, tasks: int) -> dict[str, Any]:
    """Return the seconds until started peers have scrubbed their whole stores without any client."""
    progress("waiting until all stores were looked through")
    for number in [one.number for one in cluster.peers]:
        cluster.kill(cluster.peers[0])
        await trio.to_thread.run_sync(cluster.start, number)
    begin = time.perf_counter()
    while not all(await trio.to_thread.run_sync(cluster.metric, "onyxq_scrub_rounds_total")):
        if time.perf_counter() - begin > SCRUB_SECONDS_MAX:
            return {"reached": await trio.to_thread.run_sync(cluster.metric, "onyxq_scrub_progress")}
        await trio.sleep(1)
    took_s = time.perf_counter() - begin
    return {"seconds": round(took_s), "tasks_per_s": round(tasks / took_s)}


# --- overdue --------------------------------------------------------------------------


async def _overdue(cluster: Cluster, options: argparse.Namespace) -> dict[str, Any]:
    """Store delayed tasks, stop until they are overdue, and start."""
    async with AsyncClient(cluster.addresses) as client:
        await until_whole(client, len(cluster.peers))
        seconds = await fill(client, first=0, before=SMALL * 4, payload_bytes=options.payload)
        due_ms = int(time.time() * 1000) + int(seconds / SMALL / 4 * options.overdue * 1.5 * 1000) + 15_000
        progress(f"storing {options.overdue} delayed tasks")
        await _delayed(client, options, due_ms)
        early = (await client.count("overdue"))["overdue"]
        numbers = [one.number for one in cluster.peers]
        await trio.to_thread.run_sync(cluster.stop)
        late_s = time.time() - due_ms / 1000
        progress(f"waiting {max(0.0, 5 - late_s):.0f} s until they are overdue")
        await trio.sleep(max(0.0, 5 - late_s))
    found = await _first_claim(cluster, numbers, "overdue")
    async with AsyncClient(cluster.addresses) as client:
        begin = time.perf_counter()
        claims = await _claims_only(client, options)
        while (left := (await client.count("overdue"))["overdue"])["scheduled"]:
            await trio.sleep(0.25)
        took_s = time.perf_counter() - begin
    return {"scheduled_at_the_stop": early["scheduled"], "tasks": left["total"], **found, "claims_meanwhile": claims,
            "all_ready_within_s": round(took_s, 1), "memory_mib": cluster.memory_mib()}  # fmt: skip


async def _delayed(client: AsyncClient, options: argparse.Namespace, due_ms: int) -> None:
    """Store half of the tasks in runs of the largest size, half in runs of ten."""
    starts = iter(range(0, options.overdue, BATCH_TASKS))

    async def some(payloads: list[bytes], at_ms: int) -> None:
        await client.enqueue_many("overdue", payloads, at_ms=at_ms)

    async def lane() -> None:
        for start in starts:
            payloads = make_payloads(start, BATCH_TASKS, options.payload)
            at_ms = due_ms + start // BATCH_TASKS
            each = BATCH_TASKS if start // BATCH_TASKS % 2 else 10
            async with trio.open_nursery() as nursery:
                for place in range(0, BATCH_TASKS, each):
                    nursery.start_soon(some, payloads[place : place + each], at_ms)

    async with trio.open_nursery() as nursery:
        for _ in range(FILL_LANES):
            nursery.start_soon(lane)


async def _claims_only(client: AsyncClient, options: argparse.Namespace) -> dict[str, Any]:
    """Return durations of claims while tasks become ready."""
    times: list[float] = []
    until = time.perf_counter() + options.seconds
    while time.perf_counter() < until:
        begin = time.perf_counter()
        claims = await client.claim(["overdue"], max=10, wait_ms=1_000)
        times.append(time.perf_counter() - begin)
        if claims:
            await client.complete(claims)
    return {"claims": len(times), **percentiles(times)}


if __name__ == "__main__":
    main()
