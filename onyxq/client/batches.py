"""Calls of batch drivers: read bodies by runs, store shares of a batch, commit it (design: jobs on Spark)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypedDict, Unpack

import anyio

from onyxq.client.options import known, takes
from onyxq.client.pool import Pool
from onyxq.core.errors import OnyxqError
from onyxq.core.ids import TaskId, partition_of
from onyxq.core.limits import NAME_KEEP_MS
from onyxq.operations.table.operation import plain
from onyxq.operations.table.savepoint import ALL_SAVEPOINTS, DROP_SAVEPOINT, KEEP_SAVEPOINT
from onyxq.operations.table.task import READ_BODIES
from onyxq.operations.table.transaction import AHEAD_MS_MAX, COMMIT_BATCH, PREPARE_BATCH
from onyxq.system.durations import Milliseconds, Timeout, as_milliseconds

COMMIT_WAIT_MS = 20_000
"""Time that a peer may take to answer, beyond that of an ordinary request, in milliseconds."""

Runs = Sequence[tuple[bytes, int]]


class Bodies(NamedTuple):
    """Bodies of task rows with the first id of each, in no order, and the runs that have no tasks."""

    found: list[tuple[TaskId, bytes]]
    missing: list[tuple[TaskId, int]]


class BatchCommitted(NamedTuple):
    """Outcome of a batch that is committed."""

    position: int
    """Log position of the commit; for a repeat, that of a commit of the same batch."""
    repeat: bool
    """Whether the batch was committed before this call."""
    settled: bool
    """Whether all of it was readable when the call was answered; if not, it will be soon."""


class JobOptions(TypedDict, total=False):
    """The job of a batch.

    - ``job``: its id; empty for a batch without a job.
    - ``version``: the version of the job that the driver runs.
    """

    job: str
    version: int


NO_JOB: JobOptions = {"job": "", "version": -1}


class Batching:
    """The calls of `AsyncClient` for drivers of batches."""

    _pool: Pool

    def _until(self, timeout_ms: Timeout) -> float:
        raise NotImplementedError

    async def partition_count(self, *, timeout_ms: Timeout = None) -> int:
        """Return the number of partitions of the cluster."""
        return (await self._pool.loaded_routes(self._until(timeout_ms))).partitions

    async def read_bodies(self, runs: Runs, *, timeout_ms: Timeout = None) -> Bodies:
        """Read tasks in any state from the leaders of their partitions; each run lies within one stretch."""
        until = self._until(timeout_ms)
        await self._pool.loaded_routes(until)
        answer, errors = Bodies([], []), list[OnyxqError]()
        by_leader: dict[str | None, list[list[Any]]] = {}
        for first, count in runs:
            by_leader.setdefault(self._pool.leader_of(partition_of(first)), []).append([first, count])
        async with anyio.create_task_group() as group:
            for address, part in by_leader.items():
                group.start_soon(self._read_from, address, part, until, answer, errors)
        if errors:
            raise errors[0]
        return answer

    async def _read_from(
        self, address: str | None, runs: list[list[Any]], until: float, answer: Bodies, errors: list[OnyxqError]
    ) -> None:
        try:
            while runs:
                said = await self._pool.call(READ_BODIES.name, {"runs": runs}, until=until, address=address)
                answer.found.extend((TaskId(first), body) for first, body in said["bodies"])
                answer.missing.extend((TaskId(first), count) for first, count in said["missing"])
                runs = said["rest"]
        except OnyxqError as error:
            errors.append(error)

    @takes(JobOptions, NO_JOB)
    async def prepare_batch(
        self,
        *,
        name: str,
        enqueue: Iterable[Sequence[Any]] = (),
        complete: Iterable[Sequence[Any]] = (),
        deadline_ms: Milliseconds = AHEAD_MS_MAX,
        timeout_ms: Timeout = None,
        **job: Unpack[JobOptions],
    ) -> bytes:
        """Store a share of a batch until its commit or deadline; return the value that `commit_batch` takes.

        ``enqueue``: runs, ``[first id, body]`` or ``[first id, body, due time]``.
        ``complete``: ``[first id, count, token, results]``. ``name``: a unique name for the share. ``deadline_ms``: how
        long the share waits for its commit, in milliseconds of the log's time. Raises `Superseded` or `StaleToken`.
        """
        args = {
            **known(job, self.prepare_batch, NO_JOB),
            "name": name,
            "enqueue": [list(run) for run in enqueue],
            "complete": [list(item) for item in complete],
            "deadline_ms": as_milliseconds(deadline_ms, "deadline_ms"),
        }
        asked = PREPARE_BATCH.decode(args)
        first = next((part[0].id for part in (asked.enqueue, asked.complete) if part), None)
        until = self._until(timeout_ms)
        await self._pool.loaded_routes(until)
        address = None if first is None else self._pool.leader_of(partition_of(first))
        answer = await self._pool.call(
            PREPARE_BATCH.name, plain(asked), until=until, address=address, wait_ms=COMMIT_WAIT_MS
        )
        return bytes(answer["prepared"])

    @takes(JobOptions, NO_JOB)
    async def commit_batch(
        self,
        *,
        name: str,
        prepared: Iterable[bytes] = (),
        complete: Iterable[Sequence[Any]] = (),
        batch: int = 0,
        offsets: bytes = b"",
        keep_ms: Milliseconds = NAME_KEEP_MS,
        timeout_ms: Timeout = None,
        **job: Unpack[JobOptions],
    ) -> BatchCommitted:
        """Commit all of a batch or nothing; repeat the request until it is decided.

        ``name``: unique name of the tasks that it completes. For a batch without a job the name also identifies a
        repeat, for ``keep_ms``. Raises `Superseded`, `Conflict`, or `StaleToken` naming the invalid claims.
        """
        asked = COMMIT_BATCH.decode(
            {
                **known(job, self.commit_batch, NO_JOB),
                "batch": batch,
                "offsets": offsets,
                "prepared": list(prepared),
                "name": name,
                "complete": [list(item) for item in complete],
                "keep_ms": as_milliseconds(keep_ms, "keep_ms"),
            }
        )
        until = self._until(timeout_ms)
        answer = await self._pool.call(COMMIT_BATCH.name, plain(asked), until=until, wait_ms=COMMIT_WAIT_MS)
        return BatchCommitted(answer["position"], answer["repeat"], answer["settled"])

    async def all_savepoints(self) -> dict[str, Any]:
        """Return the ``savepoints`` of all jobs, the id of the ``cluster``, and the ``position`` of the replica."""
        found: dict[str, Any] = await self._pool.call(ALL_SAVEPOINTS.name, {}, until=self._until(None))
        return found

    async def keep_savepoint(
        self, *, name: str, position: int, version: int, batch: int, offsets: bytes, place: str, size_bytes: int
    ) -> None:
        """Report that all files of a savepoint are at a ``place``, a path or URI.

        ``version``: of the driver. ``batch``, ``offsets``: as they were committed. Raises `Superseded`, or `Conflict`
        if the savepoint is not being made any more.
        """
        args = {
            "name": name,
            "position": position,
            "version": version,
            "batch": batch,
            "offsets": offsets,
            "place": place,
            "size_bytes": size_bytes,
        }
        await self._pool.call(KEEP_SAVEPOINT.name, plain(KEEP_SAVEPOINT.decode(args)), until=self._until(None))

    async def drop_savepoint(self, *, name: str, position: int, version: int, why: str) -> None:
        """Report why a savepoint cannot be made. Raises `Superseded`, or `Conflict` if it is not being made."""
        args = {"name": name, "position": position, "version": version, "why": why}
        await self._pool.call(DROP_SAVEPOINT.name, plain(DROP_SAVEPOINT.decode(args)), until=self._until(None))
