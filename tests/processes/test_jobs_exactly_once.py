"""A job from queue to queue on a real Spark cluster whose processes die: each segment counts once.

Drivers (a peer's Spark host, or its virtual machine), their peers and the cluster's workers are
killed during batches while input arrives. A driver is frozen with its peer, and thawed once its
replacement runs.
"""

from __future__ import annotations

import json
import os
import random
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest
import trio

from onyxq import Function, Input, Job, Output, Reduce, Trigger, Window
from onyxq.client import AsyncClient
from onyxq.errors import OnyxqError
from onyxq.leader.transaction_parts import SWEEP_EVERY_S
from tests.processes.cluster import Cluster, PeerProcess, bounded
from tests.processes.jobs_watched import STEP_S_MAX, Faults, Watch
from tests.spark.standalone_world import Standalone

pytestmark = [pytest.mark.anyio, pytest.mark.long]

SEGMENTS = int(os.environ.get("ONYXQ_TEST_SEGMENTS", "1000"))
"""Segments; before a release there are 200,000."""
FAULTS = {
    "driver": int(os.environ.get("ONYXQ_TEST_DRIVER_KILLS", "1")),
    "peer": int(os.environ.get("ONYXQ_TEST_PEER_KILLS", "1")),
    "worker": int(os.environ.get("ONYXQ_TEST_WORKER_KILLS", "1")),
    "frozen": int(os.environ.get("ONYXQ_TEST_FROZEN", "1")),
}
"""How often each fault happens; before a release 10, 3, 2 and 1 times."""
NAMES = ("a", "b", "c")
STEPS = sum(FAULTS.values()) + 1
SHARE = SEGMENTS // STEPS
"""Segments from one fault to the next."""
BATCH_ROWS = max(50, SEGMENTS // 80)
WORDS = 20
WRONG = 25
"""Every such segment is a number instead of a text: the job's function fails."""
TOGETHER = max(100, SEGMENTS // 400)
LOOK_S = 0.25
EXECUTOR_MEMORY = "512m"
SEED = 8


def segment(number: int) -> bytes:
    """Return one input, different from all others."""
    return json.dumps(number if number % WRONG == 0 else f"word {number}").encode()


def image(number: int) -> bytes:
    """Return the job's output for it."""
    return json.dumps(f"WORD {number}").encode()


def shouting() -> Job:
    """A job from queue to queue."""
    return Job(
        id="shouting",
        workflow=[("in", "shout"), ("shout", "out")],
        catalog=[
            Input("in", queue="in", max_rows=BATCH_ROWS),
            Function("shout", "builtins:str.upper", dead_letters=True),
            Output("out", queue="out"),
        ],
    )


def counting() -> Job:
    """Return a job with state, which outputs parts of its result as it grows and the total at the end."""
    return Job(
        id="counting",
        workflow=[("words", "count"), ("count", "parts"), ("count", "totals")],
        catalog=[
            Input("words", queue="words", max_rows=2 * BATCH_ROWS),
            Reduce("count"),
            Output("parts", queue="parts"),
            Output("totals", queue="totals"),
        ],
        windows=[Window("all", "count", "global", key="word", aggregation="count")],
        triggers=[
            Trigger("all", "batch", refinement="discarding", emit_to="parts"),
            Trigger("all", "watermark", emit_to="totals"),
        ],
        beside="shouting",
        key_groups=2,
        trigger_ms=1_000,
    )


def word(number: int) -> int:
    """Return the word of a segment that the job counts."""
    return number % WORDS


class Fire:
    """The running job, and the faults of its processes."""

    def __init__(self, watch: Watch, spark: Standalone) -> None:
        self.watch = watch
        self.faults = Faults(watch)
        self.spark = spark
        self.sent = 0
        self.completed = 0
        self.claimed = 0
        self.struck = 0
        """Faults that have started."""
        self.began = time.monotonic()
        self._random = random.Random(SEED)
        self._looked = trio.Event()

    async def look(self) -> None:
        """Track the progress until all input was sent and all faults have happened."""
        while self.sent < SEGMENTS or self.struck < STEPS - 1:
            with suppress(OnyxqError):
                counts = (await self.watch.client.count("in")).get("in", {})
                self.completed = max(self.completed, counts.get("completed", 0))
                self.claimed = counts.get("claimed", 0)
            self._looked.set()
            self._looked = trio.Event()
            await trio.sleep(LOOK_S)

    async def feed(self) -> None:
        """Send all input, a share with each fault, so that some is waiting at the start of each."""
        while self.sent < SEGMENTS:
            end = min(SEGMENTS, self.sent + TOGETHER, (self.struck + 1) * SHARE + SHARE // 2)
            if end == self.sent:
                await self._looked.wait()
                continue
            some = [segment(number) for number in range(self.sent, end)]
            await self.watch.client.enqueue_many("in", some, format="json")
            words = [json.dumps({"word": word(number)}).encode() for number in range(self.sent, end)]
            await self.watch.client.enqueue_many("words", words, format="json")
            self.sent = end

    async def burn(self) -> None:
        """Cause all faults in a random order, evenly spread over the segments."""
        kinds = [kind for kind, times in FAULTS.items() for _ in range(times)]
        self._random.shuffle(kinds)
        for place, kind in enumerate(kinds):
            while self.completed < place * SHARE + SHARE // 2:
                await self._looked.wait()
            before = await self.watch.until("a batch", lambda job: job["ready"] and job["progress"])
            while not self.claimed and self.completed < self.sent:
                await self._looked.wait()
            self.struck += 1
            self._say(f"{kind}, batch {before['batch']} of version {before['version']}, load {os.getloadavg()[0]:.1f}")
            await getattr(self, f"_{kind}")(before)
            # Batches in flight may still have been committed; the next batch is that of the new driver.
            await self.watch.until("it goes on", lambda job: job["ready"] and job["batch"] > before["batch"] + 1)  # noqa: B023

    def _say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:6.1f} s, {self.completed} of {self.sent} done: {text}", flush=True)

    async def _driver(self, before: dict[str, Any]) -> None:
        await self._random.choice((self.faults.host, self.faults.virtual_machine))(before)

    async def _peer(self, before: dict[str, Any]) -> None:
        self._say_taken_over(await self.faults.peer(before))
        await self.watch.cluster.start(self.watch.driver_in(before).name)
        await self._whole()

    async def _worker(self, before: dict[str, Any]) -> None:
        """Kill a worker with all its executors, and start another one."""
        self._random.choice(self.spark.workers).kill()
        self.spark.add_worker()

    async def _frozen(self, before: dict[str, Any]) -> None:
        self._say_taken_over(await self.faults.frozen(before))
        await self._whole()

    def _say_taken_over(self, after: dict[str, Any]) -> None:
        self._say(f"version {after['version']} continues after batch {after['batch']}")

    async def _whole(self) -> None:
        await self.watch.cluster.whole(*NAMES, seconds=STEP_S_MAX)


async def check_totals(client: AsyncClient) -> None:
    """Check that the counts are right, in parts together and in the total of each word."""
    wanted = Counter(map(word, range(SEGMENTS)))
    found: Counter[int] = Counter()
    async for task in client.list_all("parts"):
        said = json.loads(task.data)
        found[said["key"]] += said["value"]
    assert found == wanted
    totals = [json.loads(task.data) async for task in client.list_all("totals")]
    assert sorted((one["key"], one["value"]) for one in totals) == sorted(wanted.items())


async def check_outcome(client: AsyncClient) -> None:
    """Check that the output is right, each segment was completed once, and no claim is left."""
    outputs = Counter([task.data async for task in client.list_all("out")])
    wanted = Counter(image(number) for number in range(SEGMENTS) if number % WRONG)
    assert not outputs - wanted, f"too much: {list((outputs - wanted).items())[:5]}"
    assert not wanted - outputs, f"too little: {list((wanted - outputs).items())[:5]}"
    inputs = 0
    async for task in client.list_all("in"):
        ends = Counter(claim.outcome for claim in task.claims)
        assert task.state == "completed" and ends["completed"] == 1, task
        inputs += 1
    assert inputs == SEGMENTS
    for name, state, number in (
        ("in", "completed", SEGMENTS),
        ("out", "ready", wanted.total()),
        ("words", "completed", SEGMENTS),
    ):
        found = (await client.count(name))[name]
        assert {state: n for state, n in found.items() if n} == {state: number, "total": number}, name


async def check_letters(client: AsyncClient) -> None:
    """Check that each segment at which the function failed is one dead letter."""
    found: Counter[int] = Counter()
    after = None
    while True:
        page = await client.job_letters("shouting", limit=1_000, after=after)
        assert {(one["task"], one["error"]) for one in page["letters"]} <= {("shout", "TypeError")}
        found.update(json.loads(one["segment"]) for one in page["letters"])
        if (after := page["after"]) is None:
            break
    assert found == Counter(range(0, SEGMENTS, WRONG))


async def nothing_prepared(cluster: Cluster) -> None:
    """Wait until no peer has pending rows of a driver that will never be committed."""

    since_s = trio.current_time()

    async def look() -> bool:
        nonlocal since_s
        if not all([await _prepared(cluster, peer) == 0 for peer in cluster.serving]):
            since_s = trio.current_time()
        return trio.current_time() - since_s > 2 * SWEEP_EVERY_S  # the metric shows parts from the second sweep on

    await cluster.until("nothing left of drivers that died", look)


async def _prepared(cluster: Cluster, peer: PeerProcess) -> float:
    said = (await cluster.send(peer, "GET", "/metrics")).text
    return next(
        float(line.split()[-1]) for line in said.splitlines() if line.startswith("onyxq_prepared_transactions ")
    )


@pytest.mark.parametrize("session_timeout_ms", [10_000])
@bounded(300 + SEGMENTS / 100 + STEPS * 120)
async def test_each_segment_counts_once_whatever_dies(cluster: Cluster, spark: Standalone) -> None:
    """Each segment counts once although drivers, peers and workers are killed and a driver is thawed late.

    The output is exact, and so is the count of a second job beside it.
    """
    cluster.more_options("--spark", "--allow-local-code", "--slots", "2", "--spark-master", spark.url)
    cluster.more_options("--checkpoints", str(cluster.root / "checkpoints"))
    for name in NAMES:
        cluster.add(name).surroundings = {"SPARK_EXECUTOR_MEMORY": EXECUTOR_MEMORY}
    await cluster.start(*NAMES)
    await cluster.whole(*NAMES)
    async with cluster.client(timeout_ms=120_000) as client:
        watch = Watch(cluster, client, "shouting")
        await client.submit_job(shouting())
        await client.submit_job(counting())
        fire = Fire(watch, spark)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fire.look)
            nursery.start_soon(fire.feed)
            await fire.burn()
        for name, queue in (("shouting", "in"), ("counting", "words")):
            await client.seal_job(name, queue)
            outcome = await client.wait_job(name, int(STEP_S_MAX * 1000))
            assert outcome.completed, outcome
        job = await watch.check()
        print(f"{SEGMENTS} segments in {job['batch'] + 1} batches, {FAULTS}: {time.monotonic() - fire.began:.0f} s")
        await check_outcome(client)
        await check_totals(client)
        await check_letters(client)
        await nothing_prepared(cluster)
