"""One workload that moves every metric: a simulated cluster is used, and suffers, while its metrics are scraped.

Its stages are named after what happens in them, so that the reference can say what moves each metric.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import trio
from attrs import define, evolve, field

from onyxq.core.facts import TASK, pack_task
from onyxq.core.ids import make_id
from onyxq.leader.transaction_parts import PartRequest
from onyxq.system.metrics import Counter, Gauge, Histogram, Metrics
from simulation.scenes.base import leader_of
from simulation.world.clients import RecordingClient, tried
from simulation.world.receiver import CALLBACK
from simulation.world.restored_log import REFUSED, SET_BACK, Plan, RestoredLog
from simulation.world.world import Options, SimulatedNode, World, simulate
from tests.jobs.driving_world import SLOTS, Stage, submit
from tests.jobs.fake_host import FakeHosts

SCRAPE_S = 0.5
OPTIONS = Options(
    partitions=4,
    clock_offset_ms=0,
    callbacks=True,
    timer_timeout_ms=1_000,
    purge_bucket_ms=2_000,
    purge_margin_ms=12_000,
    absent_after_ms=600_000,
)
DEADLINE_MS = 20_000
"""Time after which a transaction that is not committed is given up."""
COPY_BYTES_PER_S = 1 << 20
LARGE, LARGE_BYTES = 24, 200_000
"""Tasks that a peer misses while it is away, and their size: they are copied for some seconds."""
LEASE_MS = 2_000
LONGEST_S = 120.0
"""In which a stage must have moved what it waits for."""
DECLARED = {one.name: one for one in vars(Metrics()).values() if isinstance(one, Counter | Gauge | Histogram)}
LINE = re.compile(r"(\w+)(\{.*\})? (\S+)")

Sample = tuple[str, float]


class Scrape(NamedTuple):
    """The metrics of all peers at a moment; a peer that does not run has none."""

    at_s: float
    peers: dict[str, dict[str, float] | None]
    """Peer -> its series and their values."""


@define
class Recorded:
    """What a run of the workload showed."""

    scrapes: list[Scrape] = field(factory=list, repr=False)
    moved: dict[str, str] = field(factory=dict)
    """What moved -> the stage in which it first did: a metric, or a metric and a value of its last label."""
    _before: dict[tuple[str, str], float] = field(factory=dict, repr=False)

    async def take(self, world: World, stage: str) -> None:
        """Scrape all peers."""
        peers: dict[str, dict[str, float] | None] = {}
        for node in world.nodes:
            peers[node.name] = await _scraped(node)
            for series, value in (peers[node.name] or {}).items():
                self._note(node.name, series, value, stage)
        self.scrapes.append(Scrape(trio.current_time(), peers))

    def _note(self, peer: str, series: str, value: float, stage: str) -> None:
        name = re.split(r"_(?:bucket|sum|count)\b|\{", series)[0]
        metric = DECLARED[name]
        # What a peer shows from its start on has not moved; counters begin at 0, also when they appear later.
        first = 0.0 if isinstance(metric, Counter) or (isinstance(metric, Gauge) and metric.labels) else value
        if value != self._before.get((peer, series), first) or name == "onyxq_build_info":
            self.moved.setdefault(name, stage)
            for label in re.findall(r'(\w+="[^"]*")', series):
                self.moved.setdefault(f"{name}{{{label}}}", stage)
        self._before[peer, series] = value


async def _scraped(node: SimulatedNode) -> dict[str, float] | None:
    running = node.running
    if running is None or running.service is None:
        return None
    text = (await running.service.call("metrics", {}))["text"]
    found = [LINE.fullmatch(line) for line in text.splitlines() if not line.startswith("#")]
    return {f"{one[1]}{one[2] or ''}": float(one[3]) for one in found if one is not None}


class Worked(NamedTuple):
    """What a stage may use."""

    stage: Stage
    client: RecordingClient
    recorded: Recorded

    @property
    def world(self) -> World:
        """The cluster."""
        return self.stage.world

    async def until(self, moved: str) -> None:
        """Wait until a metric, or one of its series, has moved."""
        await self.world.until(lambda: moved in self.recorded.moved, f"{moved} moves", within_s=LONGEST_S)


async def tasks(at: Worked) -> None:
    """Tasks are enqueued, claimed and completed"""
    client = at.client
    await client.client.set_queue("mail", retention_ms=0, backoff_ms=200)
    await client.enqueue("mail", [b"%d" % number for number in range(40)])
    await trio.sleep(3.0)
    for claim in await client.claim("mail", maximum=30, wait_ms=5_000):
        await trio.sleep(0.1)
        await client.complete(claim)


async def failures(at: Worked) -> None:
    """Tasks fail, are retried, given back, cancelled, and fail for good; a lease runs out"""
    client = at.client
    await client.enqueue("report", [b"again"], retries=3, backoff_ms=100)
    await client.enqueue("report", [b"once"], retries=0)
    await client.enqueue("report", [b"slow"], retries=3)
    (cancelled,) = await client.enqueue("report", [b"not wanted"], retries=3, delay_ms=60_000)
    claims = {claim.data: claim for claim in await client.claim("report", maximum=3, lease_ms=LEASE_MS, wait_ms=5_000)}
    while len(claims) < 3:
        claims |= {claim.data: claim for claim in await client.claim("report", maximum=3, lease_ms=LEASE_MS)}
    await client.cancel(cancelled)
    await client.fail(claims[b"again"], "no")
    await client.fail(claims[b"once"], "no")
    await at.until('onyxq_tasks_total{event="expired"}')
    (claim, *_) = await client.claim("report", wait_ms=10_000)
    await client.release(claim)
    await at.until('onyxq_tasks_total{event="released"}')


async def timers(at: Worked) -> None:
    """Timers fall due; a callback is not answered in time"""
    for name, takes_s in (("quick", 0.2), ("slow", 5.0)):
        at.world.receiver.takes_s = lambda delivery, takes_s=takes_s: takes_s
        timer = {"id": name, "timeout": 500, "data": "x", "callback": CALLBACK}
        await at.client.client.call("timer.set", timer)
        await at.until('onyxq_timer_deliveries_total{outcome="%s"}' % ("failed" if takes_s > 1 else "delivered"))
    at.world.receiver.takes_s = lambda delivery: 0.1


async def away(at: Worked) -> None:
    """A peer is away while tasks are enqueued; when it is back it is brought up to date"""
    gone = at.world.nodes[2]
    await at.world.crash_node(gone)
    await at.world.until(lambda: len(at.world.audit.replica.ring.members) == 2, "a ring of two")
    for _ in range(LARGE):
        await at.client.client.enqueue("large", b"x" * LARGE_BYTES)
    at.world.start_node(gone)
    await at.until("onyxq_sync_rows_left")
    await at.world.settle()


async def slow_disks(at: Worked) -> None:
    """More is written than slow disks take"""
    delays = [node.disk.delay_ms for node in at.world.nodes]
    for node in at.world.nodes:
        node.disk.delay_ms = lambda: 2_000
    async with at.world.client(nodes=at.world.nodes[:1]) as client:
        while "onyxq_writes_refused" not in at.recorded.moved:
            async with trio.open_nursery() as nursery:
                for _ in range(60):
                    nursery.start_soon(tried, client.client.enqueue("large", b"x" * LARGE_BYTES, timeout_ms=5_000))
    for node, delay_ms in zip(at.world.nodes, delays, strict=True):
        node.disk.delay_ms = delay_ms
    await at.world.settle()


async def full_disk(at: Worked) -> None:
    """A disk refuses writes"""
    node = at.world.nodes[1]
    node.disk.failing = True
    await at.client.enqueue("mail", [b"%d" % number for number in range(20)])
    await at.until("onyxq_store_writable")
    node.disk.failing = False
    await at.world.settle()


async def rot(at: Worked) -> None:
    """Rows and an index are damaged on a disk"""
    node = leader_of(at.world)
    rows = [key for key in node.disk.row_keys() if key[2:3] == TASK]
    assert rows and all(node.disk.rot(key, bit=300) for key in rows)
    await at.until('onyxq_repaired_total{what="rows"}')
    keys = [key for name, key in node.disk.index_keys() if name == "stretch"]
    assert node.disk.rot(keys[0], bit=77, name="stretch")
    await at.until('onyxq_repaired_total{what="indexes"}')
    await at.until("onyxq_damaged_rows")
    await at.until("onyxq_scrub_progress")
    await at.world.settle()


async def log_away(at: Worked) -> None:
    """The log is away for some seconds"""
    at.world.log_down()
    await at.until("onyxq_purge_waits")
    at.world.log_up()
    await at.world.settle()


async def log_slow(at: Worked) -> None:
    """The log is slow to read"""
    backend = at.world.backend
    delay_s, backend.read_delay_s = backend.read_delay_s, lambda: 1.5
    for number in range(3):
        await at.client.enqueue("mail", [b"slow %d" % number])
        await tried(at.client.claim("mail", wait_ms=3_000))
    await at.until("onyxq_log_lag_entries")
    backend.read_delay_s = delay_s
    await at.world.settle()


async def purge(at: Worked) -> None:
    """Finished tasks are purged"""
    while claims := await at.client.claim("mail", maximum=30, wait_ms=2_000):
        for claim in claims:
            await at.client.complete(claim)
    await at.until("onyxq_purged_rows_total")


async def transactions(at: Worked) -> None:
    """The peer that coordinates a transaction dies before it is committed"""
    node = leader_of(at.world).inner
    assert node is not None
    first = make_id(node.wall_ms(), 0, 0xBEEF, 0)
    item = ["T", first, pack_task({"queue": "out"}, [b"left behind"]), None]
    deadline_ms = node.replica.log_time_ms + DEADLINE_MS
    await node.operations.transaction_parts.prepare([PartRequest("left behind", deadline_ms, 0, [item], [])])
    await at.until("onyxq_prepared_transactions")


async def jobs(at: Worked) -> None:
    """A job is started, reads, fails, and its Spark host dies"""
    stage = at.stage
    for hosts in stage.hosts.values():
        hosts.up_by_themselves = False
    await submit(stage, restarts=5)
    await at.until('onyxq_jobs_driven{state="starting"}')
    stage.link().up()
    await stage.ready()
    await at.until('onyxq_jobs_driven{state="running"}')
    await at.client.enqueue("a", [b"row"])
    for batch in range(3):
        figures = {"rows": 40, "inputs": {"in": 40}, "late": {"window": 2 * batch + 1}, "duration_ms": 400}
        state = {"watermark_ms": 5_000 * (batch + 1), "state_rows": 12, "state_bytes": 4_096, "unread": {"in": 3}}
        stage.say("progress", progress={"batch": batch, **figures, **state})
        await trio.sleep(2 * SCRAPE_S)
    for name in (
        "rows_total",
        "lag_rows",
        "lag_files",
        "late_rows_total",
        "watermark_timestamp_seconds",
        "batch_seconds",
    ):
        await at.until(f"onyxq_job_{name}")
    await at.until("onyxq_job_state_rows")
    await at.until("onyxq_job_state_bytes")
    stage.say("failed", error="no number", restart=True)
    await at.until('onyxq_jobs_driven{state="pausing"}')
    await at.until("onyxq_spark_host_up")
    stage.link().die()
    await at.until("onyxq_job_failures_total")
    await stage.client.kill_job("j")


async def restored(at: Worked) -> None:
    """The log is set back to an older copy, and the newest one is brought back"""
    plan = Plan(SET_BACK, REFUSED, 0, 1.0, 7.0, None, False, (), False, False, 1, False)
    await RestoredLog(at.world, plan).run()


STAGES: tuple[Callable[[Worked], Awaitable[None]], ...] = (
    tasks,
    failures,
    timers,
    away,
    slow_disks,
    full_disk,
    rot,
    log_away,
    log_slow,
    purge,
    transactions,
    jobs,
    restored,
)


def run() -> Recorded:
    """Run the workload."""
    recorded = Recorded()

    async def workload(world: World) -> None:
        hosts = {node.name: FakeHosts() for node in world.nodes}
        for node in world.nodes:
            node.launch_host = hosts[node.name].launch
            node.config = evolve(node.config, spark=True, slots=SLOTS, sync_bytes_per_s=COPY_BYTES_PER_S)
            world.start_node(node)
        now = ["Peers start"]
        async with world.client() as client, trio.open_nursery() as nursery:
            nursery.start_soon(_scrape, recorded, world, now)
            await world.settle()
            await trio.sleep(2 * SCRAPE_S)
            at = Worked(Stage(world, client.client, hosts), client, recorded)
            for stage in STAGES:
                now[0] = stage.__doc__ or ""
                await stage(at)
                await trio.sleep(2 * SCRAPE_S)
            nursery.cancel_scope.cancel()

    simulate(workload, seed=1, options=OPTIONS, started=False)
    return recorded


async def _scrape(recorded: Recorded, world: World, stage: list[str]) -> None:
    while True:
        await recorded.take(world, stage[0])
        await trio.sleep(SCRAPE_S)
