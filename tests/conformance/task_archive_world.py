"""Helpers of the tests of task archives: finished tasks of all kinds, and the live cluster's answers about them."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

from pyrsistent import pmap

from onyxq.core import facts
from onyxq.core.facts import Completion, History, Mark, Row, Update
from onyxq.core.ids import TaskId, make_id, stretch_of, with_counter
from onyxq.core.queue_settings import Queue
from onyxq.core.replica import Replica
from onyxq.history.parquet.bucket import Bucket
from onyxq.history.parquet.reader import ArchivedTask, find
from onyxq.history.parquet.writer import Written, write_bucket
from onyxq.operations.task_view import placed_by_keys, task_view, updates_of
from tests.conformance.store_world import NOW_MS, AnyStore

HOUR_MS = 3_600_000
FROM_MS = NOW_MS // HOUR_MS * HOUR_MS - HOUR_MS
BEFORE_MS = FROM_MS + HOUR_MS
PARTITION = 3
REPLICA = Replica(queues=pmap({name: Queue(archive=True, retries=7) for name in ("mail", "bills")}))
BUCKET = Bucket(partition=PARTITION, from_ms=FROM_MS, before_ms=BEFORE_MS)


def task_id(counter: int = 0, *, ms: int = FROM_MS + 5_000, maker: int = 7) -> TaskId:
    """An id in the bucket."""
    return make_id(ms, PARTITION, maker, counter)


def completed(
    first: bytes,
    results: list[bytes | None],
    *,
    count: int = 0,
    token: int = 10,
    outcome: int = facts.COMPLETED,
    mark: Mark = facts.UNMARKED,
) -> Row:
    """Return a completion row; ``count`` applies without results."""
    done = Completion(token, count or len(results), outcome, NOW_MS + token, results, mark)
    return facts.completion_row(first, done)


def said(first: bytes, count: int, kind: int, position: int, *, token: int = 10, **more: Any) -> Row:
    """A history row."""
    event = History(position, 0, count, kind, token, NOW_MS + position, f"worker {token}", 0, 0, "")
    return facts.history_row(first, event._replace(**more))


def progress(task: bytes, seq: int, *, token: int = 10, data: bytes = b"half way") -> Row:
    """An update row."""
    return facts.update_row(task, Update(token, seq, NOW_MS + seq, data))


def live(store: AnyStore, task: TaskId, replica: Replica = REPLICA) -> ArchivedTask | None:
    """Return a leader's answer about a task."""
    rows = [(kind, first, body) for kind in facts.KINDS for first, body in store.covering(kind, task)]
    view = task_view(task, rows, None, replica=replica, now_ms=NOW_MS)
    view = view and placed_by_keys(view, store)
    if view is None:
        return None
    updates = ({"token": u.token, "seq": u.seq, "data": u.data, "at_ms": u.at_ms} for u in updates_of(rows))
    return ArchivedTask(view, tuple(updates))


async def archived(store: AnyStore, directory: Path, bucket: Bucket = BUCKET, **options: Any) -> Written:
    """Write the bucket."""
    return await write_bucket(REPLICA, store, directory, bucket, **options)


def files(directory: Path) -> dict[str, bytes]:
    """Return every file of an archive, hidden ones included."""
    return {str(file.relative_to(directory)): file.read_bytes() for file in directory.rglob("*") if file.is_file()}


def found(directory: Path, task: TaskId) -> ArchivedTask | None:
    """Return the task of an archive."""
    return find([directory], task)


def random_life(random: Random, counter: int) -> tuple[list[Row], list[TaskId]]:
    """Return rows of a run of tasks with many events before their end, and their ids."""
    count = random.choice((1, 1, 2, 5, 40))
    first = task_id(counter, ms=FROM_MS + random.randrange(HOUR_MS), maker=random.randrange(1 << 64))
    header = random.choice(
        ({}, {"priority": -3, "format": "json"}, {"retries": None}, {"retries": 2, "depends": [task_id(9), task_id(8)]})
    )
    payloads = [random.randbytes(random.randrange(60)) for _ in range(count)]
    rows = [facts.task_row(first, facts.pack_task(dict(sorted({"queue": "mail", **header}.items())), payloads))]
    if "depends" in header:
        rows.append(facts.resolution_row(first, facts.Resolution(count, NOW_MS)))
    position = 10
    for index in range(count) if random.random() < 0.5 else ():
        position = _attempts(random, rows, with_counter(first, counter + index), position)
    rows.append(said(first, count, facts.GRANTED, position + 1, token=position + 1))
    outcome = random.choice((facts.COMPLETED, facts.COMPLETED, facts.FAILED, facts.CANCELLED, facts.STOPPED))
    results: list[bytes | None] = [random.choice((None, b"", b"\xff\xfe", b'{"a": 1}')) for _ in range(count)]
    given = [] if random.random() < 0.3 or outcome == facts.CANCELLED else results
    if outcome == facts.CANCELLED and random.random() < 0.5:
        given = [facts.CLAIMED] * count
    rows.append(completed(first, given, count=count, token=position + 1, outcome=outcome))
    return rows, [with_counter(first, counter + index) for index in range(count)]


def _attempts(random: Random, rows: list[Row], task: TaskId, position: int) -> int:
    """Add earlier attempts on one task; return the last position."""
    for attempt in range(random.randrange(4)):
        token = position + 1
        rows.append(said(task, 1, facts.GRANTED, token, token=token))
        rows += [progress(task, seq, token=token) for seq in (0, 1, 3)]
        kind = random.choice((facts.RELEASED, facts.RETRIED, facts.EXPIRED, facts.REOPENED))
        position = token + 1
        if kind == facts.REOPENED:
            rows.append(completed(task, [b"was bad"], token=token, outcome=facts.FAILED))
            token = position
        more = {"retry_ms": NOW_MS + attempt, "attempts": attempt + 1} if kind != facts.RELEASED else {}
        rows.append(said(task, 1, kind, position, token=token, note=f"error {attempt}", **more))
    return position


def bucket_keeping(*tasks: bytes, again: tuple[bytes, ...] = ()) -> Bucket:
    """Return the bucket without the stretches of some tasks."""
    keep = frozenset(stretch_of(one) for one in tasks)
    return Bucket(partition=PARTITION, from_ms=FROM_MS, before_ms=BEFORE_MS, keep=keep, again=again)
