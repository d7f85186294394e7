"""Drivers of a job without Spark: they plan, write and commit batches as Spark's source and sink do.

The code is that of `onyxq.spark` as far as it needs no Spark.  A driver reads two inputs: a queue, whose
tasks it claims and completes, and numbered rows; only the job's offsets say how many rows were read.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import trio
from attrs import define, field

from onyxq.client import AsyncClient
from onyxq.core.errors import Conflict, NotFound, OnyxqError, Superseded
from onyxq.core.facts import unpack_task
from onyxq.core.ids import ids_of, make_id
from onyxq.core.replica import Job
from onyxq.spark.lineage import PREFIX_BYTES, source_prefix
from onyxq.spark.queues import queue_claims
from onyxq.spark.queues.options import QueueOutput
from onyxq.spark.queues.queue_claims import Held
from onyxq.spark.queues.shares import Share
from simulation.world.world import SimulatedNode, World

JOB, INPUT, OUTPUT = "j", "in", "out"
LEASE_MS = 3_000
ROWS_MAKER = 0xF00D


class Plan(NamedTuple):
    """What a batch reads."""

    number: int
    held: list[Held]
    rows: range
    time_ms: int

    def offsets(self) -> bytes:
        """Return the batch's offsets as the driver records them in the log: the row after its last, and its claims.

        Each claim is named by its first task, the number of its tasks, and its token.
        """
        claims = [[one.first.hex(), one.count, one.token] for one in self.held]
        return json.dumps({"rows": self.rows.stop, "claims": claims}).encode()


@define(eq=False)
class Driver:
    """One driver, under one version; it ends when it is superseded, or cancelled."""

    world: World
    version: int
    rows: int
    """How many rows there are."""
    nodes: Sequence[SimulatedNode] = ()
    """Those that it asks; empty: all."""
    committing: trio.Event = field(factory=trio.Event)
    """Set, and replaced, when it begins to commit a batch."""
    committed: int = 0
    superseded: bool = False
    _output: QueueOutput = field(factory=lambda: QueueOutput(OUTPUT))

    async def run(self) -> None:
        """Drive until superseded."""
        async with self.world.client(nodes=self.nodes) as recording:
            while not self.superseded:
                try:
                    await self._drive(recording.client)
                except Superseded:
                    self.superseded = True
                except OnyxqError:
                    await trio.sleep(0.3)  # the query ends, and is started anew as the log says

    async def _drive(self, client: AsyncClient) -> None:
        job = await self._known()
        number, row = job.batch + 1, json.loads(job.offsets)["rows"] if job.offsets else 0
        draw = self.world.random
        while True:
            plan = await self._plan(client, number, row)
            if plan is None:
                await trio.sleep(draw.uniform(0.1, 0.4))
                continue
            parts = await self._written(client, plan)
            if draw.random() < 0.15:
                await trio.sleep(draw.uniform(0.5, 1.5 * LEASE_MS / 1000))
            await self._commit(client, plan, parts)
            self.committed += 1
            number, row = number + 1, plan.rows.stop

    async def _known(self) -> Job:
        """Return the job as some node knows it, which may be old."""
        while True:
            found = [replica.jobs.get(JOB) for _, replica in self.world.replicas()]
            known = [job for job in found if job is not None and job.version >= self.version]
            if any(job.version > self.version for job in known):
                raise Superseded("another one drives the job")
            if known:
                return self.world.random.choice(known)
            await trio.sleep(0.1)

    async def _plan(self, client: AsyncClient, number: int, row: int) -> Plan | None:
        draw = self.world.random
        worker = f"job/{JOB}/{self.version}"
        held = await queue_claims.claim_tasks(client, INPUT, most=draw.randint(1, 8), worker=worker, lease_ms=LEASE_MS)
        rows = range(row, min(self.rows, row + draw.randint(0, 3)))
        return Plan(number, held, rows, await client.now_ms()) if held or rows else None

    # --- writing

    async def _written(self, client: AsyncClient, plan: Plan) -> list[bytes]:
        """What the writers of the batch prepared; some attempts die, and others take their place."""
        draw = self.world.random
        segments = await self._segments(client, plan)
        cut = draw.randint(0, len(segments))
        parts: list[bytes] = []
        for place, share in enumerate((segments[:cut], segments[cut:])):
            while share:
                if draw.random() < 0.2:  # an attempt that dies in the middle
                    await self._prepare(client, plan, share[: draw.randint(1, len(share))])
                    continue
                parts.append(await self._prepare(client, plan, share))
                break
            if place == 0 and draw.random() < 0.2:
                await trio.sleep(draw.uniform(0, 0.3))
        return parts

    async def _segments(self, client: AsyncClient, plan: Plan) -> list[tuple[bytes, bytes]]:
        """Lineage and payload of everything that the batch reads."""
        found: list[tuple[bytes, bytes]] = []
        if plan.held:
            bodies = await client.read_bodies([(one.first, one.count) for one in plan.held])
            if bodies.missing:
                raise NotFound("tasks of the batch are gone")
            for first, body in bodies.found:
                run = unpack_task(body)
                for one, payload in zip(ids_of(first, run.count), run.all_payloads(), strict=True):
                    prefix = source_prefix(one[:PREFIX_BYTES], plan.time_ms)
                    found.append((prefix + one[PREFIX_BYTES:], image(payload)))
        found += [(make_id(plan.time_ms, 0, ROWS_MAKER, row), image(row_payload(row))) for row in plan.rows]
        return found

    async def _prepare(self, client: AsyncClient, plan: Plan, segments: Sequence[tuple[bytes, bytes]]) -> bytes:
        generator = random.Random(self.world.random.getrandbits(64))
        share = Share(
            partitions=self.world.options.partitions,
            now_ms=plan.time_ms,
            random_64=lambda: generator.getrandbits(64),
        )
        for lineage, payload in segments:
            share.add(self._output, payload, lineage=lineage)
        return await client.prepare_batch(
            name=self._name(plan), enqueue=share.take(), job=JOB, version=self.version, timeout_ms=8_000
        )

    def _name(self, plan: Plan) -> str:
        return f"job/{JOB}/{self.version}/{plan.number}/{self.world.random.getrandbits(64):016x}"

    # --- committing

    async def _commit(self, client: AsyncClient, plan: Plan, parts: list[bytes]) -> None:
        """Commit, in one of the ways in which Spark may do so: twice, or once more after an answer was lost."""
        draw = self.world.random
        self.committing.set()
        self.committing = trio.Event()
        args: dict[str, Any] = {
            "name": self._name(plan),
            "prepared": parts,
            "complete": [[*one[:3], None] for one in plan.held],
            "job": JOB,
            "version": self.version,
            "batch": plan.number,
            "offsets": plan.offsets(),
        }
        if draw.random() < 0.15:  # nobody waits for the answer: the query is started anew meanwhile
            with trio.move_on_after(draw.uniform(0, 0.05)):
                await client.commit_batch(**args, timeout_ms=5_000)
            if draw.random() < 0.5:
                raise Conflict("given up")
        await client.commit_batch(**args, timeout_ms=10_000)
        if draw.random() < 0.15:
            again = args | {"name": self._name(plan), "prepared": await self._written(client, plan)}
            said = await client.commit_batch(**again, timeout_ms=10_000)
            self.world.audit.batches_once.repeats += said.repeat


def row_payload(row: int) -> bytes:
    """What the rows of the second input hold."""
    return b"row %d" % row


def image(payload: bytes) -> bytes:
    """Return the output of an input."""
    return b"out of " + payload
