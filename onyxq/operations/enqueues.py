"""Enqueueing at the node that a client talks to: each run goes to its partition's leader.

If runs of one request depend on each other, they are sent in waves, so one request may hold a whole
graph: a run is sent once all runs that it depends on are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import msgspec

from onyxq.core import facts
from onyxq.core.errors import BadRequest, NotLeader, OnyxqError, from_map
from onyxq.core.ids import IdMaker, TaskId, ids_of, mask_of, runs_of, stretch_of
from onyxq.core.limits import REQUESTS_QUEUE
from onyxq.core.task_headers import DEPENDS, may_say
from onyxq.node.node import Node
from onyxq.node.routing import Router
from onyxq.operations import guarantees
from onyxq.operations.checks.peers import Records
from onyxq.operations.checks.runs import CallbackCheck, check_new_runs, write_level
from onyxq.operations.handlers import Handler, merged, served
from onyxq.operations.table.enqueue import (
    ENQUEUE,
    REMEMBER_REQUEST,
    Enqueue,
    Enqueued,
    FirstRequest,
    NewRun,
    RememberedRequest,
    RememberRequest,
)
from onyxq.operations.table.operation import Items
from onyxq.operations.table.task import MAKE_IDS, Ids, MakeIds
from onyxq.system.procedures import procedure

Asked = Sequence[NewRun]


class Enqueueing:
    """Serves ``enqueue`` and ``ids`` of one node; the first ids are of the partition after ``partition``."""

    def __init__(
        self,
        node: Node,
        router: Router,
        partitions: Callable[[], int],
        check_callbacks: CallbackCheck,
        *,
        maker: IdMaker,
        partition: int,
    ) -> None:
        self._node = node
        self._check_callbacks = check_callbacks
        self._stored = router.led(ENQUEUE, node.operations.enqueues.enqueue)
        self._recorded = router.asked("request.record", Records, Items(argument="runs"), self._record_here)
        self._partitions = partitions
        self._maker = maker
        self._partition = partition
        """The partition of the last ids that were made."""

    def handlers(self) -> dict[str, Handler]:
        """Return the functions that serve the operations."""
        return merged(
            served(ENQUEUE, self.enqueue), served(MAKE_IDS, self.ids), served(REMEMBER_REQUEST, self.remember)
        )

    @procedure
    async def enqueue(self, args: Enqueue) -> Enqueued:
        """Store task runs; see `onyxq.leader.enqueues.Ack` for the answers. Raises `BadRequest`."""
        runs, replica = args.runs, self._node.replica
        wanted = write_level(args.w, replica.settings.replicas)
        check_new_runs(runs, self._partitions())
        await self._check_callbacks(runs, "runs")
        acks = await self.in_waves(args)
        answer, replica = Enqueued(acks=acks, now_ms=self._node.wall_ms()), self._node.replica
        if (wanted is not None or replica.queues) and (lacking := guarantees.of_enqueue(replica, runs, acks)):
            answer.guarantee = lacking
        return answer

    async def ids(self, args: MakeIds) -> Ids:
        """Make ids for new tasks, spread over the partitions."""
        count = args.count
        partitions = self._partitions()
        ids: list[TaskId] = []
        while count:
            part = min(count, 1024)
            self._partition = (self._partition + 1) % partitions
            run = self._maker.run(self._partition, part)
            ids += ids_of(*run)
            count -= part
        return Ids(ids=ids)

    async def remember(self, args: RememberRequest) -> RememberedRequest:
        """Remember a request under its key, or return the earlier one under this key; raises `Unavailable`."""
        key, partitions = args.key.hex(), self._partitions()
        first = self._maker.run(facts.partition_of_keys(REQUESTS_QUEUE, key, partitions), 1).first
        data = b"" if args.request is None else msgspec.msgpack.encode(args.request)
        # The record is stored finished, so its key must be held until it is purged.
        header = {"queue": REQUESTS_QUEUE, "unique_key": key, "unique_until": "purged"}
        body = facts.pack_task(header, [data])
        (found,) = await self._recorded.ask(Records(runs=[(first, body)]))
        if isinstance(found, dict):
            raise from_map(found)
        return RememberedRequest(first=msgspec.msgpack.decode(found, type=FirstRequest) if found else None)

    async def _record_here(self, args: Records) -> list[bytes]:
        return [await self._node.operations.enqueues.record(*run) for run in args.runs]

    async def in_waves(self, args: Enqueue) -> list[Any]:
        """Store checked runs, each after the runs that it depends on; return the leaders' answers."""
        runs = args.runs
        if not any(may_say(body, DEPENDS) for _, body, _ in runs):
            return _with_places(await self._stored.ask(args), range(len(runs)))
        acks: list[Any] = [None] * len(runs)
        needs = needed(runs)
        for wave in waves(needs):
            # What depends on a run that was not stored is not stored either.
            for place in wave:
                acks[place] = next((_spoilt(acks[one]) for one in needs[place] if isinstance(acks[one], dict)), None)
            send = [place for place in wave if acks[place] is None]
            wave_args = Enqueue(runs=[runs[place] for place in send], w=args.w)
            answers = _with_places(await self._stored.ask(wave_args), send)
            for place, answer in zip(send, answers, strict=True):
                acks[place] = answer
        return acks


def _with_places(acks: list[Any], places: Sequence[int]) -> list[Any]:
    """Return the acks; fields of errors begin with the place of their run in the request."""
    for ack, place in zip(acks, places, strict=True):
        if isinstance(ack, dict) and ack.get("field") and not str(ack["field"]).startswith("runs["):
            ack["field"] = f"runs[{place}].{ack['field']}"
    return acks


def _spoilt(error: dict[str, Any]) -> dict[str, Any]:
    """Return the answer for a run that depends on a run with an error."""
    cause: OnyxqError = from_map(error)
    message = f"a task on which it depends was not stored: {cause.message}"
    if isinstance(cause, BadRequest):
        return BadRequest(message, field=cause.field).to_map()
    return NotLeader(message).to_map() | {"code": cause.code, "hint": cause.advice}


def needed(runs: Asked) -> list[list[int]]:
    """Return for each run the places of the runs of the request on which it depends.

    If an id is in several runs, the first of them counts: the task is stored with it.
    """
    heads = [facts.task_header(body) for _, body, _ in runs]
    depends: list[Sequence[TaskId]] = [header.get(DEPENDS, ()) for header, _ in heads]
    wanted: dict[TaskId, int] = {}
    for one in set(chain.from_iterable(depends)):
        wanted[stretch_of(one)] = wanted.get(stretch_of(one), 0) | mask_of(one, 1)
    owners: dict[TaskId, int] = {}
    for place, ((first, _, _), (_, count)) in enumerate(zip(runs, heads, strict=True)):
        stretch = stretch_of(first)
        if bits := wanted.get(stretch, 0) & mask_of(first, count):
            wanted[stretch] ^= bits
            owners |= {one: place for run in runs_of(stretch, bits) for one in ids_of(*run)}
    return [sorted({owners[one] for one in ids if one in owners}) for ids in depends]


def waves(needs: list[list[int]]) -> list[list[int]]:
    """Return the places in groups that depend on earlier groups only; raises `BadRequest` for a circle."""
    left = {place: set(others) for place, others in enumerate(needs)}
    behind: dict[int, list[int]] = {}
    for place, others in enumerate(needs):
        for other in others:
            behind.setdefault(other, []).append(place)
    out: list[list[int]] = []
    wave = [place for place, others in left.items() if not others]
    while wave:
        out.append(wave)
        following: list[int] = []
        for place in wave:
            del left[place]
            for one in behind.get(place, ()):
                left[one].discard(place)
                if not left[one]:
                    following.append(one)
        wave = sorted(following)
    if left:
        field = f"runs[{min(left)}].{DEPENDS}"
        raise BadRequest("tasks of this request depend on each other in a circle", field=field)
    return out
