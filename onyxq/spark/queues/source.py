"""Queues as a source of Spark: a planner claims, executors read (design: jobs on Spark).

The planner, a process beside the driver, claims the tasks of a batch. Their runs and tokens are the batch's
offset, so a batch that Spark repeats has the same tasks. Executors read the bodies directly from the leaders,
whatever the state of the tasks is. In a job the commit of the batch completes the tasks and the job's driver renews
the claims. Without a job the planner does both.
"""

from __future__ import annotations

import functools
import json
import logging
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from fnmatch import fnmatchcase
from hashlib import blake2b
from typing import Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from onyxq.client import AsyncClient
from onyxq.client.batches import Bodies
from onyxq.core.errors import NotFound, OnyxqError
from onyxq.core.ids import TaskId
from onyxq.core.limits import RESERVED
from onyxq.operations.table.claim import QUEUES_MAX
from onyxq.spark.connection import Connection, connection
from onyxq.spark.queues import queue_claims
from onyxq.spark.queues.arrow import batch_of
from onyxq.spark.queues.options import ReadOptions, Target
from onyxq.spark.queues.queue_claims import TEMPORARY, Held
from onyxq.spark.queues.task_columns import TaskShape

SPLIT_TASKS_MIN = 250
"""Minimum number of tasks per partition.

A batch with fewer than twice this number is one partition.
"""
READ_TASKS = 8_000
"""Maximum number of tasks that an executor requests at once."""
RENEWALS_PER_LEASE = 3
PAGE_TASKS = 1_000
PATTERN_S = 10.0
"""Time after which the queues that match a pattern are looked up again, in seconds."""

log = logging.getLogger(__name__)

Offset = dict[str, Any]


def held_in(offset: Offset) -> list[Held]:
    """Return the claims of the batch that ends at an offset."""
    return [Held(TaskId(bytes.fromhex(first)), *rest) for first, *rest in offset.get("claims", ())]


def queue_offsets(text: str) -> list[Offset]:
    """Return the offsets of queues among those of a batch, each once.

    Spark notes an offset for each use of a source in its plan. A queue that feeds several stages is noted several
    times, and has claimed its tasks once.
    """
    found = []
    for line in dict.fromkeys(text.splitlines()):
        if line.startswith("{"):
            said = json.loads(line)
            if isinstance(said, dict) and said.get("onyxq") == 1:
                found.append(said)
    return found


def digest_of(claims: Sequence[Sequence[Any]]) -> str:
    """Return a digest that identifies a batch's claims."""
    return blake2b(repr([list(one) for one in claims]).encode(), digest_size=8).hexdigest()


class Runs(InputPartition):
    """A share of a batch, and the claims of the whole batch if its rows show them."""

    def __init__(self, runs: list[tuple[bytes, int]], time_ms: int, held: Sequence[Held] = ()) -> None:
        self.runs = runs
        self.time_ms = time_ms
        self.held = held


def fitting(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Return the names of queues that fit a pattern; OnyxQ's own queues fit only their full name."""
    others = (name for name in names if not name.startswith(RESERVED) or name in patterns)
    return sorted(name for name in others if any(fnmatchcase(name, one) for one in patterns))


class QueueStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The source of a stream."""

    def __init__(self, options: ReadOptions, shape: TaskShape | None = None) -> None:
        self._options = options
        self._shape = shape
        """Columns of a stream with ``schema`` or ``headers``; None: the columns that every stream has."""
        self._names: tuple[float, list[str]] = (0.0, [])
        """Monotonic time, in seconds, of the last look-up of patterns, and the queues that it found."""
        self._left: int | None = None
        """Tasks that a stream with the trigger ``availableNow`` may still claim; None without a limit."""
        self._keeper: Keeper | None = None

    # --- the planner

    def initialOffset(self) -> Offset:
        return {"onyxq": 1, "n": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_rows)

    def prepareForTriggerAvailableNow(self) -> None:
        """Limit the stream to the tasks that are ready now."""
        self._left = self._ready()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the number of ready tasks, or None while leaders do not answer.

        The query's progress shows it as the latest offset. If this raised, Spark would end the query.
        """
        try:
            return {"onyxq": 1, "ready": self._ready()}
        except TEMPORARY as error:
            self._warn("ready tasks are not counted", error)
            return None

    def _warn(self, what: str, error: OnyxqError) -> None:
        log.warning("queue %s: %s: %s", self._options.queue, what, error.message)

    def _ready(self) -> int:
        link = self._connection()
        counts = [link.call(functools.partial(AsyncClient.count, queue=name)) for name in self._queues()]
        return sum(depth["ready"] for one in counts for depth in one.values())

    def _queues(self) -> list[str]:
        """Return the queues of the stream; those of a pattern are looked up again after `PATTERN_S`."""
        patterns = self._options.queues
        if not any("*" in one for one in patterns):
            return list(patterns)
        at, names = self._names
        if not names or time.monotonic() - at >= PATTERN_S:
            found = self._connection().call(lambda client: client.queues())
            names = fitting([one["queue"] for one in found], patterns)
            self._names = time.monotonic(), names
        return names

    def _claim(self, most: int) -> list[Held]:
        """Claim up to ``most`` tasks of the stream's queues; raises one of `TEMPORARY` only if none was claimed."""
        one, names, held = self._options, self._queues(), list[Held]()
        for start in range(0, len(names), QUEUES_MAX):
            if len(held) >= one.max_runs or sum(run.count for run in held) >= most:
                break
            claiming = functools.partial(
                queue_claims.claim_tasks,
                queues=names[start : start + QUEUES_MAX],
                most=most - sum(run.count for run in held),
                worker=one.worker,
                lease_ms=one.lease_ms,
                runs_max=one.max_runs - len(held),
            )
            try:
                held += self._connection().call(claiming)
            except TEMPORARY:
                if not held:
                    raise
                break
        return held

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        """Claim the next batch.

        The offset stays the same if no task is ready, or leaders are unavailable. A stream with the trigger
        ``availableNow`` would then end without its tasks, so it raises their error instead.
        """
        most = self._most(limit)
        try:
            self._done(start)
            held = self._claim(most) if most > 0 else []
            now_ms = self._connection().call(lambda client: client.now_ms()) if held else 0
        except TEMPORARY as error:
            if self._left is not None:
                raise
            self._warn("no batch now", error)
            return start
        if not held:
            self._left = None if self._left is None else 0
            return start
        if self._left is not None:
            self._left -= sum(run.count for run in held)
        # Most claims are first attempts: an offset with many claims stays small.
        claims = [[run.first.hex(), run.count, run.token, *([run.attempts] if run.attempts else [])] for run in held]
        end = {"onyxq": 1, "n": int(start["n"]) + 1, "time_ms": now_ms, "claims": claims, "digest": digest_of(claims)}
        self._keep(end)
        return end

    def _most(self, limit: ReadLimit) -> int:
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_rows
        if isinstance(limit, ReadAllAvailable):
            most = 1_000_000
        return most if self._left is None else min(most, self._left)

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        """Return the batch's runs, spread over the slots."""
        if start["n"] == end["n"]:
            return []
        self._keep(end)
        held = held_in(end)
        tasks = sum(run.count for run in held)
        parts = max(1, min(self._options.slots or 2, tasks // SPLIT_TASKS_MIN))
        shown = held if self._shape is not None else ()
        return [Runs(runs, end["time_ms"], shown) for runs in spread(held, parts)]

    def commit(self, end: Offset) -> None:
        """Complete a batch that Spark has finished, or leave it to `latestOffset` while leaders are unavailable."""
        try:
            self._done(end)
        except TEMPORARY as error:
            if self._left is not None:
                raise
            self._warn("a batch is completed later", error)

    def stop(self) -> None:
        """Stop renewing.

        The claims of an unfinished batch end with their lease.
        """
        if self._keeper is not None:
            self._keeper.stop()

    def _connection(self) -> Connection:
        return connected(self._options.target)

    def _keep(self, end: Offset) -> None:
        """Renew the claims of a batch, unless the driver of a job does."""
        if not self._options.target.job:
            if self._keeper is None:
                self._keeper = Keeper(self._connection(), self._options.lease_ms)
            self._keeper.keep(int(end["n"]), held_in(end))

    def _done(self, end: Offset) -> None:
        """Complete the tasks of a batch and of earlier ones, unless the job's commit does."""
        if self._options.target.job or not end.get("claims"):
            return
        if self._keeper is None:
            self._keep(end)
        assert self._keeper is not None
        self._keeper.complete(int(end["n"]), self._options.queue)

    # --- executors

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the tasks of a share as Arrow batches; raises `NotFound` if one of them is gone."""
        assert isinstance(partition, Runs)
        target = self._options.target
        for bodies in read_runs(self._options, partition.runs):
            if self._shape is None:
                yield from batch_of(bodies, partition.time_ms)
            else:
                link = connected(target)
                yield from self._shape.batches(bodies, partition.time_ms, partition.held, link)


def connected(target: Target) -> Connection:
    """Return this process' connection with the cluster of a target."""
    return connection(target.connect, target.token, target.timeout_ms)


def spread(held: Sequence[Held], parts: int) -> list[list[tuple[bytes, int]]]:
    """Return runs in ``parts`` shares of about the same number of tasks."""
    shares: list[list[tuple[bytes, int]]] = [[]]
    each = -(-sum(run.count for run in held) // parts)
    room = each
    for first, count, *_ in held:
        while count > 0:
            if room == 0:
                shares.append([])
                room = each
            part = min(count, room)
            shares[-1].append((first, part))
            first = TaskId(first[:16] + (int.from_bytes(first[16:], "big") + part).to_bytes(4, "big"))
            count, room = count - part, room - part
    return shares


def read_runs(options: ReadOptions, runs: Sequence[tuple[bytes, int]]) -> Iterator[Sequence[tuple[bytes, bytes]]]:
    """Yield the bodies of the tasks in runs, with their first ids.

    The next ones are fetched while one is processed.
    """
    link = connected(options.target)
    asked: Future[Bodies] | None = None
    for part in [*_parts(runs), None]:
        begun = None if part is None else link.begin(functools.partial(AsyncClient.read_bodies, runs=part))
        if asked is not None:
            found = asked.result()
            if found.missing:
                first, count = found.missing[0]
                raise NotFound(
                    f"{sum(size for _, size in found.missing)} tasks of the batch are gone, the first of them "
                    f"{first.hex()} ({count} from there on)",
                    field="claims",
                    hint="Finished tasks are kept for their queue's retention: make it longer than batches take.",
                )
            yield found.found
        asked = begun


def _parts(runs: Sequence[tuple[bytes, int]]) -> Iterator[list[tuple[bytes, int]]]:
    part: list[tuple[bytes, int]] = []
    size = 0
    for first, count in runs:
        if part and size + count > READ_TASKS:
            yield part
            part, size = [], 0
        part.append((first, count))
        size += count
    if part:
        yield part


class Keeper:
    """Renews the claims of unfinished batches in a thread, and completes finished ones."""

    def __init__(self, link: Connection, lease_ms: int) -> None:
        self._link = link
        self._lease_ms = lease_ms
        self._kept: dict[int, list[Held]] = {}
        self._lock = threading.Lock()
        self._over = threading.Event()
        threading.Thread(target=self._run, name="onyxq leases", daemon=True).start()

    def keep(self, number: int, held: list[Held]) -> None:
        """Renew the claims of a batch from now on."""
        with self._lock:
            self._kept.setdefault(number, held)

    def complete(self, number: int, queue: str) -> None:
        """Complete a batch and all before it.

        A batch whose completion raises an error stays, and its claims are renewed until the next call.
        """
        with self._lock:
            done = sorted((one, held) for one, held in self._kept.items() if one <= number)
        for one, held in done:
            lost = self._link.call(functools.partial(queue_claims.complete, held=held))
            with self._lock:
                del self._kept[one]
            if lost:
                log.warning("queue %s: %d tasks of batch %d were not held any more", queue, lost, number)

    def stop(self) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.wait(self._lease_ms / 1000 / RENEWALS_PER_LEASE):
            with self._lock:
                held = [one for kept in self._kept.values() for one in kept]
            if held:
                try:
                    self._link.call(functools.partial(queue_claims.renew, held=held, lease_ms=self._lease_ms))
                except OnyxqError as error:
                    log.warning("claims were not renewed: %s", error.message)


# --- batch reads ------------------------------------------------------------------------------


class Span(InputPartition):
    """Tasks whose ids lie after one and up to another."""

    def __init__(self, after: bytes | None, until_ms: int | None) -> None:
        self.after = after
        self.until_ms = until_ms


class QueueScan(DataSourceReader):
    """A batch read: all tasks of a queue in their present state, of one state if named.

    It claims no task.
    """

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return spans of ids, which are times: from the queue's first task to now, and tasks that are due later."""
        one, link = self._options, connected(self._options.target)
        page = link.call(lambda client: client.list(one.queue, state=one.state, limit=1))
        parts = one.partitions or one.slots or 4
        if not page.tasks or parts == 1:
            return [Span(None, None)]
        first_ms = int.from_bytes(page.tasks[0].id[:6], "big")
        step_ms = max(1, -(-(max(first_ms, time.time_ns() // 1_000_000) - first_ms) // parts))
        borders = [first_ms + step_ms * place for place in range(1, parts)]
        starts = [None, *(border.to_bytes(6, "big") + bytes(14) for border in borders)]
        return [Span(start, until) for start, until in zip(starts, [*borders, None], strict=True)]

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        """Yield the tasks of a span."""
        assert isinstance(partition, Span)
        one, link = self._options, connected(self._options.target)
        after = partition.after
        while True:
            page = link.call(
                functools.partial(AsyncClient.list, queue=one.queue, state=one.state, after=after, limit=PAGE_TASKS)
            )
            for task in page.tasks:
                if partition.until_ms is not None and int.from_bytes(task.id[:6], "big") >= partition.until_ms:
                    return
                yield (
                    task.id, task.queue, task.data, task.format, task.state, task.priority, task.at_ms,
                    task.attempts, task.ordering_key, task.unique_key, task.result, task.error,
                )  # fmt: skip
            after = page.after
            passed = partition.until_ms is not None and after is not None
            if after is None or (passed and int.from_bytes(after[:6], "big") >= (partition.until_ms or 0)):
                return
