"""Tasks with keys, dependencies and times, enqueued into a simulated cluster by requests of the wire protocol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio

from onyxq.client.claims import Claim
from onyxq.core import facts
from onyxq.core.ids import TaskId, make_id
from onyxq.errors import OnyxqError, from_map
from simulation.world.clients import RecordingClient
from simulation.world.history import Said, Sent
from simulation.world.world import Options, World

STEADY = Options(partitions=4, clock_offset_ms=0)
PASSING = ("unavailable", "not_leader", "stale_epoch", "unknown", "timed_out", "corrupt")


class Tasks:
    """Enqueues for one client; ``delay_ms`` and ``at_ms`` make scheduled tasks."""

    def __init__(self, world: World, client: RecordingClient) -> None:
        self.world = world
        self.client = client
        self._maker = world.random.getrandbits(64)
        self._counter = 0

    def now_ms(self) -> int:
        """Return the time of the nodes' common clock."""
        return self.world.nodes[0].clock.wall_ms()

    def make_id(self, header: dict[str, Any], due_ms: int | None = None) -> TaskId:
        """Return a new id in the right partition for a task with this header."""
        partitions = self.world.options.partitions
        key = header.get("ordering_key") or header.get("unique_key")
        partition = self._counter % partitions
        if key is not None:
            partition = facts.partition_of_keys(header["queue"], key, partitions)
        self._counter += 1
        now_ms = self.now_ms()
        return make_id(max(due_ms or 0, now_ms), partition, self._maker, self._counter * 1024)

    def run(
        self,
        data: bytes,
        *,
        delay_ms: int | None = None,
        at_ms: int | None = None,
        task_id: TaskId | None = None,
        **said: Any,
    ) -> list[Any]:
        """Return one task as a run of the request."""
        header = {"queue": "q", **said}
        if delay_ms is not None:
            at_ms = self.now_ms() + delay_ms
        first = task_id or self.make_id(header, at_ms)
        if "on_dependency_failed" in said:
            policy = Said(depends=tuple(said["depends"]), on_dependency_failed=said["on_dependency_failed"])
            self.world.history.sent[data] = Sent(header["queue"], policy, trio.current_time())
        body = facts.pack_task(dict(sorted(header.items())), [data])
        return [first, body] if at_ms is None else [first, body, at_ms]

    async def send(self, runs: Sequence[list[Any]]) -> list[Any]:
        """Enqueue until every run has a final answer: acknowledgements, or the error."""
        acks: list[Any] = [None] * len(runs)
        left = list(range(len(runs)))
        for _ in range(100):
            try:
                answer = await self.client.client.call(
                    "enqueue", {"runs": [list(runs[one]) for one in left], "w": None}
                )
            except OnyxqError as error:
                if error.code not in PASSING:
                    raise
                await trio.sleep(0.2)
                continue
            for place, ack in zip(left, answer["acks"], strict=True):
                acks[place] = ack
            left = [one for one in left if isinstance(acks[one], dict) and acks[one]["code"] in PASSING]
            if not left:
                return acks
            await trio.sleep(0.2)
        raise AssertionError(f"not enqueued: {acks}")

    async def put(self, data: bytes, **said: Any) -> TaskId:
        """Enqueue one task; return the id of the key's current task. Raises the error."""
        run = self.run(data, **said)
        (ack,) = await self.send([run])
        if isinstance(ack, dict):
            raise from_map(ack)
        return TaskId(ack[1]) if isinstance(ack, list) else TaskId(run[0])

    async def state(self, task_id: TaskId) -> str:
        """Return a task's state."""
        return str((await self.client.client.call("get", {"id": task_id}))["state"])

    async def get(self, task_id: TaskId) -> dict[str, Any]:
        """Return a task in the form of the wire."""
        return dict(await self.client.client.call("get", {"id": task_id}))

    async def take(self, *, wait_ms: int = 5_000, lease_ms: int = 10_000) -> Claim | None:
        """Return one claim, or None."""
        claims = await self.client.claim("q", lease_ms=lease_ms, wait_ms=wait_ms)
        return claims[0] if claims else None

    async def done(self, claim: Claim) -> None:
        """Complete a claim."""
        await self.client.complete(claim)
