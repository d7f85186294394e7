"""How a client turns payloads into runs and gets them stored (design: facts, runs).

The client makes the ids and cuts the runs once; whatever happens afterwards, the same
runs are sent again, so a retry can never make a second task.  The partition is chosen
when the run is made, and stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import anyio

from onyxq.client.groups import Group
from onyxq.client.pool import RETRYABLE, Backoff, Pool
from onyxq.client.values import as_id
from onyxq.errors import BadRequest, OnyxqError, TooLarge, Unavailable, from_map
from onyxq.facts import RUN_BYTES_MAX, TASK_BYTES_MAX, pack_task
from onyxq.ids import (
    RUN_TASKS_MAX,
    STRETCH_TASKS,
    IdMaker,
    Run,
    TaskId,
    counter_of,
    ids_of,
    offset_of,
    partition_of,
    with_counter,
)
from onyxq.wire.background import Spawner

SHIPMENT_BYTES = 1024 * 1024
"""Payload bytes from which on a request takes no further run."""
SHIPMENT_RUNS_MAX = 64
SHIPMENTS_MAX = 8
"""Requests of one call in flight at a time."""
AVOID_S = 5.0
"""How long new runs go elsewhere after a partition could not take one."""

DEFAULTS = {"priority": 0, "retries": 25, "backoff_ms": 1000, "format": "bytes"}


class Policy(NamedTuple):
    """What tasks enqueued together have in common."""

    queue: str
    priority: int
    retries: int | None
    backoff_ms: int
    format: str
    w: int | None

    def header(self) -> dict[str, Any]:
        """The header of their runs: what differs from the defaults, sorted by name."""
        said = {name: getattr(self, name) for name in DEFAULTS if getattr(self, name) != DEFAULTS[name]}
        return dict(sorted({"queue": self.queue, **said}.items()))

    def check(self) -> None:
        """Raise `BadRequest` for what no server would take."""
        if not isinstance(self.queue, str) or not 1 <= len(self.queue) <= 200:
            raise BadRequest("a queue's name has 1 to 200 characters", field="queue")
        for name in ("priority", "backoff_ms"):
            if type(getattr(self, name)) is not int:
                raise BadRequest(f"{name} is a whole number", field=name)
        if not -(2**31) <= self.priority < 2**31:
            raise BadRequest("priority is a signed 32-bit number", field="priority")
        if self.retries is not None and (type(self.retries) is not int or self.retries < 0):
            raise BadRequest("retries is a whole number from 0 on, or None for no limit", field="retries")
        if self.backoff_ms < 0:
            raise BadRequest("backoff_ms cannot be negative", field="backoff_ms")
        if self.format not in ("bytes", "json"):
            raise BadRequest("format is bytes or json", field="format")


class When(NamedTuple):
    """When tasks are due: after a delay, or at a time (milliseconds since the epoch)."""

    delay_ms: int = 0
    at_ms: int | None = None

    @staticmethod
    def of(delay_ms: int, at_ms: int | None) -> When:
        """Raises `BadRequest` for a delay that is negative."""
        if delay_ms < 0:
            raise BadRequest("delay_ms cannot be negative", field="delay_ms")
        return When(delay_ms, at_ms)

    def due_ms(self, now_ms: int) -> int:
        """The time due, for one who says it is ``now_ms``."""
        return now_ms + self.delay_ms if self.at_ms is None else self.at_ms


NOW = When()


class _Shipment(NamedTuple):
    address: str | None
    runs: list[list[Any]]


class Enqueuer:
    """Makes ids and runs for one client."""

    def __init__(
        self, spawner: Spawner, pool: Pool, *, now_ms: Callable[[], int], random_64: Callable[[], int]
    ) -> None:
        self._spawner = spawner
        self._pool = pool
        self._now_ms = now_ms
        self._maker = IdMaker(now_ms, random_64)
        self._groups: dict[Policy, Group[bytes, TaskId]] = {}
        self._turn = pool.generator.randrange(1 << 16)
        self._avoid: dict[int, float] = {}

    async def one(self, policy: Policy, payload: bytes, *, until: float) -> TaskId:
        """Store one task, together with others of its kind that come while a request is in flight."""
        policy.check()
        check_payloads([payload])
        if len(payload) > RUN_BYTES_MAX // 4:
            return (await self.many(policy, [payload], until=until))[0]
        group = self._groups.get(policy)
        if group is None:
            self._groups = {kept: group for kept, group in self._groups.items() if not group.idle}
            group = self._groups[policy] = self._group(policy)
        return await group.add(payload, until=until)

    async def many(
        self,
        policy: Policy,
        payloads: Sequence[bytes],
        *,
        until: float,
        when: When = NOW,
        ids: Sequence[bytes | str] | None = None,
    ) -> list[TaskId]:
        """Store tasks; their ids in the order of the payloads. Raises the first error met."""
        policy.check()
        check_payloads(payloads)
        given = None if ids is None else [as_id(task_id) for task_id in ids]
        if given is not None and len(given) != len(payloads):
            raise BadRequest(f"{len(given)} ids for {len(payloads)} payloads", field="ids")
        await self._pool.loaded_routes(until)
        made: list[TaskId] = []
        header = policy.header()
        shipments = self._shipments(header, payloads, given, when, made)
        await self._ship_all(shipments, policy.w, until)
        return made if given is None else given

    def make_ids(self, count: int, *, when: When = NOW) -> list[TaskId]:
        """Fresh ids, in the partitions that new tasks would go to."""
        made: list[TaskId] = []
        while len(made) < count:
            part = min(RUN_TASKS_MAX, count - len(made))
            made += ids_of(*self._run(part, when))
        return made

    def _run(self, count: int, when: When) -> Run:
        """Fresh ids that are due by the clock of their leader, not by this machine's."""
        partition = self._choose_partition()
        now_ms, base_ms = self._pool.now_ms(partition) or (self._now_ms(),) * 2
        due_ms = when.due_ms(base_ms) if when != NOW else 0
        return self._maker.run(partition, count, due_ms=due_ms, now_ms=now_ms)

    def _group(self, policy: Policy) -> Group[bytes, TaskId]:
        async def send(payloads: list[bytes], until: float) -> list[TaskId | OnyxqError]:
            return list(await self.many(policy, payloads, until=until))

        return Group(self._spawner, send, size_max=RUN_TASKS_MAX)

    def _choose_partition(self) -> int:
        """The next partition in turn that has a leader whose clock is known, and took what it was sent."""
        routes = self._pool.routes
        if not routes.partitions:
            raise Unavailable("the cluster's partitions are not known yet")
        now = anyio.current_time()
        self._avoid = {partition: end for partition, end in self._avoid.items() if end > now}
        for _ in range(routes.partitions):
            self._turn += 1
            partition = self._turn % routes.partitions
            served = partition in routes.leaders or not routes.leaders
            if served and partition not in self._avoid and self._pool.clock_known(partition):
                return partition
        self._turn += 1
        return self._turn % routes.partitions

    def _shipments(
        self,
        header: dict[str, Any],
        payloads: Sequence[bytes],
        given: list[TaskId] | None,
        when: When,
        made: list[TaskId],
    ) -> Iterator[_Shipment]:
        """The requests that store the payloads, each to one leader; new ids go to ``made``."""
        loading: dict[str | None, tuple[list[list[Any]], int]] = {}
        for start, end in cut_payloads(payloads) if given is None else cut_with_ids(payloads, given):
            if given is None:
                run = self._run(end - start, when)
                first = run.first
                made += ids_of(first, run.count)
            else:
                first = given[start]
            address = self._pool.leader_of(partition_of(first))
            body = pack_task(header, payloads[start:end])
            runs, size = loading.pop(address, ([], 0))
            runs.append([first, body])
            size += len(body)
            if size >= SHIPMENT_BYTES or len(runs) >= SHIPMENT_RUNS_MAX:
                yield _Shipment(address, runs)
            else:
                loading[address] = (runs, size)
        for address, (runs, _) in loading.items():
            yield _Shipment(address, runs)

    async def _ship_all(self, shipments: Iterator[_Shipment], w: int | None, until: float) -> None:
        first, second = next(shipments, None), next(shipments, None)
        if first is not None:
            if second is None:
                await self._ship(first, w, until)
                return
            errors: list[OnyxqError] = []
            todo = _chain((first, second), shipments)
            async with anyio.create_task_group() as group:
                for _ in range(SHIPMENTS_MAX):
                    group.start_soon(self._ship_in_turn, todo, w, until, errors)
            if errors:
                raise errors[0]

    async def _ship_in_turn(
        self, todo: Iterator[_Shipment], w: int | None, until: float, errors: list[OnyxqError]
    ) -> None:
        for shipment in todo:
            if errors:
                return
            try:
                await self._ship(shipment, w, until)
            except OnyxqError as error:
                errors.append(error)

    async def _ship(self, shipment: _Shipment, w: int | None, until: float) -> None:
        address, runs = shipment
        backoff = Backoff(until, self._pool.generator)
        while True:
            answer = await self._pool.call("enqueue", {"runs": runs, "w": w}, until=until, address=address)
            failed = [
                (run, from_map(ack)) for run, ack in zip(runs, answer["acks"], strict=True) if isinstance(ack, dict)
            ]
            if not failed:
                return
            for run, error in failed:
                if not isinstance(error, RETRYABLE) or backoff.over():
                    raise error
                self._avoid[partition_of(run[0])] = anyio.current_time() + AVOID_S
            self._pool.refresh_soon()
            address, runs = None, [run for run, _ in failed]
            await backoff.wait()


def check_payloads(payloads: Sequence[bytes]) -> None:
    """Raise `BadRequest` unless all are bytes, `TooLarge` if one is over the limit."""
    for payload in payloads:
        if type(payload) is not bytes:
            raise BadRequest(f"a payload is bytes, not {type(payload).__name__}", field="data")
        if len(payload) > TASK_BYTES_MAX:
            raise TooLarge(f"a payload of {len(payload)} bytes; at most {TASK_BYTES_MAX}", field="data")


def cut_payloads(payloads: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Where runs of fresh ids begin and end: as long as count and bytes allow."""
    ends = list(accumulate(map(len, payloads), initial=0))
    start = 0
    while start < len(payloads):
        end = min(start + RUN_TASKS_MAX, len(payloads))
        if ends[end] - ends[start] > RUN_BYTES_MAX:
            end = start + 1
            while end < len(payloads) and ends[end + 1] - ends[start] <= RUN_BYTES_MAX:
                end += 1
        yield start, end
        start = end


def cut_with_ids(payloads: Sequence[bytes], ids: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """The same for ids that were given: also where they are not consecutive or cross a stretch.

    The cut depends on nothing but the arguments, so a repetition makes the same runs.
    """
    start = size = 0
    for i in range(1, len(payloads) + 1):
        size += len(payloads[i - 1])
        if i < len(payloads) and size + len(payloads[i]) <= RUN_BYTES_MAX and _follows(ids[i - 1], ids[i]):
            continue
        yield start, i
        start, size = i, 0


def _follows(before: bytes, after: bytes) -> bool:
    if offset_of(before) == STRETCH_TASKS - 1:
        return False
    return after == with_counter(before, counter_of(before) + 1)


def _chain(first: Iterable[_Shipment], rest: Iterator[_Shipment]) -> Iterator[_Shipment]:
    yield from first
    yield from rest
