"""How a client turns payloads into runs and stores them (design: facts, runs).

The client makes the ids, chooses the partition and cuts the runs once. Every retry sends the same runs, so it
can never make a second task.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from operator import methodcaller
from typing import Any, NamedTuple, Unpack

import anyio
import anyio.lowlevel

from onyxq.client.flows import Enqueued, Flow, Part, chain, group
from onyxq.client.options import refuse_unknown, takes
from onyxq.client.policy import ENQUEUE_DEFAULTS, NOW, EnqueueOptions, Policy, When, with_keys
from onyxq.client.pool import RETRYABLE, Backoff, Group, Pool
from onyxq.client.single import Single, Singles, about, named_by_caller, refusals, time_for, told
from onyxq.client.values import as_id, not_bytes
from onyxq.core.errors import BadRequest, OnyxqError, TimedOut, TooLarge, Unavailable
from onyxq.core.facts import TASK_BYTES_MAX, pack_task, partition_of_keys
from onyxq.core.ids import (
    RUN_TASKS_MAX,
    STRETCH_TASKS,
    IdMaker,
    Run,
    TaskId,
    counter_of,
    ids_of,
    ms_of,
    offset_of,
    partition_of,
    with_counter,
)
from onyxq.core.limits import RUN_BYTES_MAX, TIME_MS_MAX
from onyxq.system.durations import Milliseconds, Moment, Timeout
from onyxq.system.tracing import enqueuing

SHIPMENT_BYTES = 1024 * 1024
"""Payload bytes from which a request takes no further run."""
SHIPMENT_RUNS_MAX = 64
SHIPMENTS_MAX = 8
"""Largest number of requests of one call in progress at the same time."""
AVOID_S = 5.0
"""How long new runs avoid a partition after it could not take one, in seconds."""


class _Shipment(NamedTuple):
    address: str | None
    runs: list[list[Any]]


class _Payload:
    """A payload that is sent with others."""

    __slots__ = ("_made", "_place", "data", "withdrawn")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.withdrawn = False
        """Whether it must not be sent any more: its caller does not know its id, and may repeat it under another."""
        self._made: Sequence[TaskId] = ()
        self._place = 0

    def joins(self, made: Sequence[TaskId], place: int) -> None:
        """Record the list that gets the ids of a request, and the place of this payload in it."""
        self._made, self._place = made, place

    def leave(self) -> tuple[TaskId, ...]:
        """Return the id of the task for a caller whose time is over; withdraw the payload if it has none yet."""
        ids = tuple(self._made[self._place : self._place + 1])
        self.withdrawn = not ids
        return ids


class Enqueuer:
    """Maker of ids and runs for one client."""

    def __init__(self, pool: Pool, *, now_ms: Callable[[], int], random_64: Callable[[], int]) -> None:
        self._pool = pool
        self._now_ms = now_ms
        self._maker = IdMaker(now_ms, random_64)
        self._groups: dict[Policy, Group[_Payload, TaskId]] = {}
        self._singles = Singles(pool, avoid=self._keep_away)
        self._turn = pool.generator.randrange(1 << 16)
        self._avoid: dict[int, float] = {}

    async def one(
        self, policy: Policy, payload: bytes, *, until: float, when: When = NOW, id: bytes | str | None = None
    ) -> TaskId:
        """Store one task together with others that arrive while a request is in progress; return its id."""
        policy.check()
        check_payloads([payload])
        if when is not NOW or id is not None or policy.is_single:
            await self._pool.loaded_routes(until)
            return await self._singles.add(self._single(policy, payload, id, when), policy.w, until=until)
        if len(payload) > RUN_BYTES_MAX // 4:
            return (await self.many(policy, [payload], until=until))[0]
        group = self._groups.get(policy)
        if group is None:
            self._groups = {kept: group for kept, group in self._groups.items() if not group.idle}
            send = partial(self._send_group, policy)
            group = Group(self._pool, send, size_max=RUN_TASKS_MAX, leave=methodcaller("leave"))
            self._groups[policy] = group
        return await group.add(_Payload(payload), until=until)

    async def many(
        self,
        policy: Policy,
        payloads: Sequence[bytes],
        *,
        until: float,
        when: When = NOW,
        ids: Sequence[bytes | str] | None = None,
        made: list[TaskId] | None = None,
    ) -> list[TaskId]:
        """Store tasks; return their ids in the order of the payloads. Raise the first error.

        ``made``: an empty list that gets all fresh ids before the first of them is sent.
        """
        policy.check()
        check_payloads(payloads)
        given = None if ids is None else [as_id(task_id) for task_id in ids]
        if given is not None and len(given) != len(payloads):
            raise BadRequest(
                f"ids must have one id for each of the {len(payloads)} payloads, not {len(given)}", field="ids"
            )
        await self._pool.loaded_routes(until)
        at_once = made is not None
        made = [] if made is None else made
        shipments = self._shipments(policy.header(), payloads, given, when, made)
        if at_once:
            shipments = iter(list(shipments))
        try:
            await self._ship_all(shipments, policy.w, until)
        except RETRYABLE as error:
            for _ in shipments:
                pass  # the tasks that were not sent get ids too
            error.ids = tuple(made if given is None else given)
            raise
        return made if given is None else given

    async def keyed(
        self,
        policies: Sequence[Policy],
        payloads: Sequence[bytes],
        *,
        until: float,
        when: When = NOW,
        ids: Sequence[bytes | str] | None = None,
    ) -> list[TaskId]:
        """Store tasks with keys, one policy each, all with the same ``w``; return and raise as `many` does."""
        for policy in policies:
            policy.check()
        check_payloads(payloads)
        given = [None] * len(payloads) if ids is None else list(ids)
        if len(given) != len(payloads):
            raise BadRequest(
                f"ids must have one id for each of the {len(payloads)} payloads, not {len(given)}", field="ids"
            )
        await self._pool.loaded_routes(until)
        singles = [self._single(*one, when) for one in zip(policies, payloads, given, strict=True)]
        return await self._singles.store(singles, policies[0].w if policies else None, until=until)

    async def flow(self, flow: Flow[Any], *, until: float) -> None:
        """Store the tasks of a flow through one peer, which keeps their order."""
        await self._pool.loaded_routes(until)
        if not flow.ids:
            flow.ids = tuple(one for part in flow.runs() for one in self._ids_of_steps(flow, *part))
        await self._singles.in_order(list(runs_of_flow(flow)), until=until)

    def _ids_of_steps(self, flow: Flow[Any], start: int, end: int, when: When) -> list[TaskId]:
        first = flow.plan.steps[start].step.policy(())
        key, partitions = first.key, self._pool.routes.partitions
        there = None if key is None else partition_of_keys(first.queue, key, partitions)
        return self.make_ids(end - start, when=when, partition=there)

    def make_ids(self, count: int, *, when: When = NOW, partition: int | None = None) -> list[TaskId]:
        """Return fresh ids, in the partitions that new tasks would use or in the given one."""
        made: list[TaskId] = []
        while len(made) < count:
            part = min(RUN_TASKS_MAX, count - len(made))
            made += ids_of(*self._run(part, when, partition))
        return made

    def _again(self, failed: Iterable[tuple[list[Any], OnyxqError]]) -> list[list[Any]]:
        """Return the runs to send once more, under the same ids: a task that was stored already is recognised."""
        return [run for run, _ in failed]

    def _run(self, count: int, when: When, partition: int | None = None) -> Run:
        """Return fresh ids that are due by the clock of their leader, not of this machine; raise `BadRequest`."""
        if partition is None:
            partition = self._choose_partition()
        now_ms, base_ms = self._pool.now_ms(partition) or (self._now_ms(),) * 2
        due_ms = when.due_ms(base_ms) if when != NOW else 0
        if due_ms > TIME_MS_MAX:
            raise BadRequest("delay_ms leads beyond the latest possible time", field="delay_ms")
        return self._maker.run(partition, count, due_ms=due_ms, now_ms=now_ms)

    def _single(self, policy: Policy, payload: bytes, task_id: bytes | str | None, when: When) -> Single:
        """Return a task with an id that stays the same in every retry."""
        if task_id is None:
            key = policy.key
            there = None if key is None else partition_of_keys(policy.queue, key, self._pool.routes.partitions)
            first = self._run(1, when, there).first
        else:
            first = as_id(task_id)
        return Single(first, pack_task(policy.header(), [payload]), named_by_caller(first, when, policy))

    def _keep_away(self, partition: int) -> None:
        self._avoid[partition] = self._pool.clock() + AVOID_S

    async def _send_group(self, policy: Policy, payloads: list[_Payload], until: float) -> list[TaskId | OnyxqError]:
        await self._pool.loaded_routes(until)
        made: list[TaskId] = []
        sent = [payload for payload in payloads if not payload.withdrawn]
        for place, payload in enumerate(sent):
            payload.joins(made, place)
        outcomes: list[TaskId | OnyxqError]
        try:
            outcomes = list(await self.many(policy, [one.data for one in sent], until=until, made=made))
        except RETRYABLE as error:
            outcomes = [about(error, TaskId(one)) for one in error.ids] or [error] * len(sent)
        if len(sent) == len(payloads):
            return outcomes
        following = iter(outcomes)
        return [TimedOut("it was not sent in time") if one.withdrawn else next(following) for one in payloads]

    def _choose_partition(self) -> int:
        """Return the next partition whose leader answers, has a known clock and refused no recent run."""
        routes = self._pool.routes
        if not routes.partitions:
            raise Unavailable("the cluster's partitions are not known yet")
        now = self._pool.clock()
        self._avoid = {partition: end for partition, end in self._avoid.items() if end > now}
        for _ in range(routes.partitions):
            self._turn += 1
            partition = self._turn % routes.partitions
            served = partition in routes.leaders or not routes.leaders
            if not served or partition in self._avoid:
                continue
            # The routes still name a dead leader until its session expires.
            if self._pool.reachable(partition) and self._pool.clock_known(partition):
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
        """Yield the requests that store the payloads, each to one leader; append new ids to ``made``."""
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
            late = when.at_ms is not None and ms_of(first) != when.at_ms
            runs.append([first, body, when.at_ms] if late else [first, body])
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

    async def _sent(self, runs: list[list[Any]], w: int | None, address: str | None, until: float) -> list[Any]:
        async with self._pool.crowding.turn(sum(len(run[1]) for run in runs), until):
            acks = (await self._pool.call("enqueue", {"runs": runs, "w": w}, until=until, address=address))["acks"]
            for _, why in refusals(runs, acks):
                self._pool.crowding.refused(why)
        return list(acks)

    async def _ship(self, shipment: _Shipment, w: int | None, until: float) -> None:
        address, runs = shipment
        backoff = Backoff(until, self._pool.generator)
        while True:
            try:
                failed = refusals(runs, await self._sent(runs, w, address, until))
            except BadRequest as error:
                raise told(error) from None
            if not failed:
                return
            for run, why in failed:
                backoff.heed(why)
                if not isinstance(why, RETRYABLE) or backoff.over(margin_s=time_for(why)):
                    raise why
                self._keep_away(partition_of(run[0]))
            self._pool.refresh_soon()
            address, runs = None, self._again(failed)
            await backoff.wait()


class Enqueuing:
    """The calls of `AsyncClient` that store tasks."""

    _pool: Pool
    _enqueuer: Enqueuer

    def _until(self, timeout_ms: Timeout) -> float:
        raise NotImplementedError

    @takes(EnqueueOptions, ENQUEUE_DEFAULTS)
    async def enqueue(
        self,
        queue: str,
        payload: bytes,
        *,
        ordering_key: str | None = None,
        unique_key: str | None = None,
        id: bytes | str | None = None,
        w: int | None = None,
        timeout_ms: Timeout = None,
        **options: Unpack[EnqueueOptions],
    ) -> TaskId:
        """Store one task and return its id. Concurrent calls share requests.

        See `enqueue_many`. ``unique_key``: if another task of the queue holds that key, the id of that task is
        returned, and ``on_conflict`` says whether it changes.
        """
        refuse_unknown(options, self.enqueue, ENQUEUE_DEFAULTS)
        with enqueuing(queue, 1) as trace:
            keys = {"ordering_key": ordering_key, "unique_key": unique_key}
            policy, when = Policy.of(queue, {**options, **keys, "w": w, "trace": trace})
            return await self._enqueuer.one(policy, payload, until=self._until(timeout_ms), when=when, id=id)

    @takes(EnqueueOptions, ENQUEUE_DEFAULTS)
    async def enqueue_many(
        self,
        queue: str,
        payloads: Iterable[bytes],
        *,
        ordering_key: str | Sequence[str] | None = None,
        unique_key: str | Sequence[str] | None = None,
        ids: Sequence[bytes | str] | None = None,
        w: int | None = None,
        timeout_ms: Timeout = None,
        **options: Unpack[EnqueueOptions],
    ) -> list[TaskId]:
        """Store tasks that differ only in payload and keys; return their ids in the same order.

        ``ordering_key``, ``unique_key``: one key for all tasks, or one each. One task at a time holds a unique key.
        ``ids``: ids from `make_ids`, so that a repeated call stores no second tasks. ``w``: number of nodes that must
        have stored the tasks; None for a majority.

        Raises `Unknown` if fewer nodes have stored them before the timeout; its ``copies`` is their number. After any
        error some of the tasks may be stored: repeat the call with the error's ``ids``.
        """
        refuse_unknown(options, self.enqueue_many, ENQUEUE_DEFAULTS)
        payloads = list(payloads)
        with enqueuing(queue, len(payloads)) as trace:
            policy, when = Policy.of(queue, {**options, "w": w, "trace": trace})
            until = self._until(timeout_ms)
            if ordering_key is not None or unique_key is not None or policy.is_single:
                policies = with_keys(policy, len(payloads), ordering_key, unique_key)
                return await self._enqueuer.keyed(policies, payloads, until=until, when=when, ids=ids)
            if len(payloads) == 1:
                # A batch of one task is sent like a single task, together with other calls.
                given = None if ids is None else _only(ids)
                return [await self._enqueuer.one(policy, payloads[0], until=until, when=when, id=given)]
            return await self._enqueuer.many(policy, payloads, until=until, when=when, ids=ids)

    def chain(self, *parts: Part) -> Flow[Coroutine[Any, Any, Enqueued]]:
        """Return a flow of steps that run one after the other.

        Enqueue it: ``await client.chain(Step("a", b"1"), Step("b", b"2")).enqueue()``. A part is a `Step`, a pair of
        queue and payload, or another chain or group.
        """
        return chain(self.enqueue_flow, parts)

    def group(self, *parts: Part) -> Flow[Coroutine[Any, Any, Enqueued]]:
        """Return a flow of steps that run side by side; ``.then(...)`` adds parts that start once all are done."""
        return group(self.enqueue_flow, parts)

    async def enqueue_flow(self, flow: Flow[Any], *, timeout_ms: Timeout = None) -> Enqueued:
        """Store the tasks of a flow, each after the tasks that it depends on."""
        await self._enqueuer.flow(flow, until=self._until(timeout_ms))
        return flow.enqueued()

    async def make_ids(self, count: int, *, delay_ms: Milliseconds = 0, at_ms: Moment | None = None) -> list[TaskId]:
        """Return fresh ids to enqueue under; tasks with these ids are due at the time given here."""
        await self._pool.loaded_routes(self._until(None))
        await anyio.lowlevel.checkpoint()  # a loop around this call must let other tasks run
        return self._enqueuer.make_ids(count, when=When.of(delay_ms, at_ms))


def runs_of_flow(flow: Flow[Any]) -> Iterator[list[Any]]:
    """Yield the runs of a flow that has ids; tasks come before those that depend on them."""
    steps, ids = flow.plan.steps, flow.ids
    for start, end, when in flow.runs():
        policy = steps[start].step.policy([ids[place] for place in steps[start].follows])
        payloads, header = [one.step.payload for one in steps[start:end]], policy.header()
        for begin, stop in cut_with_ids(payloads, ids[start:end]):
            first = ids[start + begin]
            yield Single(first, pack_task(header, payloads[begin:stop]), named_by_caller(first, when, policy)).run


def check_payloads(payloads: Sequence[bytes]) -> None:
    """Raise `BadRequest` unless all are bytes, `TooLarge` if one is over the limit."""
    for payload in payloads:
        if type(payload) is not bytes:
            raise not_bytes(payload)
        if len(payload) > TASK_BYTES_MAX:
            raise TooLarge(f"a payload of {len(payload)} bytes; at most {TASK_BYTES_MAX}", field="data")


def cut_payloads(payloads: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    """Yield start and end of each run of fresh ids, as long as count and bytes allow."""
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
    """Yield start and end of each run of given ids, which may be non-consecutive or cross a stretch.

    The cut depends only on the arguments, so a retry makes the same runs.
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


def _only(ids: Sequence[bytes | str]) -> bytes | str:
    if len(ids) != 1:
        raise BadRequest(f"{len(ids)} ids for 1 payload", field="ids")
    return ids[0]
