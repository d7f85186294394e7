"""The store compared with a model: keys, dependencies, expiry and requeues as functions of the rows.

The model computes everything task by task from a set of rows. The stores get the same rows in any
order, grouping and repetition. Their tables must equal those of a store that got all rows in one
batch.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from onyxq.core.facts import (
    CANCELLED,
    COMPLETED,
    COMPLETION,
    EXPIRED,
    FAILED,
    GRANTED,
    HISTORY,
    RELEASED,
    REOPENED,
    RESOLUTION,
    RETRIED,
    STOPPED,
    TASK,
    History,
    Mark,
    Row,
    first_of,
    key_digest,
    rank,
    unique_digest,
    unpack_completion,
    unpack_history,
    unpack_resolution,
    unpack_task,
)
from onyxq.core.ids import TaskId, id_at, ids_of, make_id, mask_of, ms_of, runs_of, stretch_of
from onyxq.store.interface import Batch, QueueCounts
from onyxq.store.tables import INDEX_TABLES
from tests.conformance.store_world import (
    NOW_MS,
    AnyStore,
    World,
    done,
    event,
    key_tasks,
    put,
    reopening,
    resolved,
    tasks,
)
from tests.conformance.test_store_model import nonzero

PARTITIONS = (3, 4)
KEYS = ("a", "b")
TIMES = (NOW_MS - 9, NOW_MS - 3, NOW_MS + 7)
OUTCOMES = (COMPLETED, FAILED, CANCELLED, STOPPED)


def stretches() -> st.SearchStrategy[TaskId]:
    """A few stretches of two partitions, ready and due; most of one, so that rows overlap."""
    return st.builds(
        lambda partition, ms: make_id(ms, partition, 7, 0),
        st.sampled_from([3, 3, 3, 4]),
        st.sampled_from([NOW_MS - 4_000_000, NOW_MS + 1000]),
    )


@st.composite
def runs(draw: st.DrawFn) -> tuple[TaskId, int]:
    """A short run in one of the stretches."""
    offset = draw(st.integers(0, 5))
    return id_at(draw(stretches()), offset), draw(st.integers(1, 6 - offset))


@st.composite
def headers(draw: st.DrawFn) -> dict[str, Any]:
    """Rules of a row."""
    header: dict[str, Any] = {}
    if draw(st.integers(0, 2)):
        header["ordering_key"] = draw(st.sampled_from(KEYS))
    if draw(st.booleans()):
        header["unique_key"] = draw(st.sampled_from(KEYS))
        if until := draw(st.sampled_from([None, "started", "finished", "purged"])):
            header["unique_until"] = until
        if period_ms := draw(st.sampled_from([None, None, 1_000, 10_000_000_000_000])):
            header["unique_period_ms"] = period_ms
        if draw(st.booleans()):
            header["due_ms"] = draw(st.sampled_from(TIMES))
        if draw(st.booleans()):
            header["mark"] = [draw(st.integers(0, 3)), draw(st.integers(0, 2))]
    if header and draw(st.integers(0, 3)):
        header["order"] = [draw(st.sampled_from(TIMES)), draw(st.integers(0, 2)), draw(st.integers(0, 3))]
        if draw(st.booleans()):
            header["scheduled"] = True
    if not draw(st.integers(0, 3)):
        header["depends"] = [make_id(1, 1, 1, 1)]
    if not draw(st.integers(0, 3)):
        header["expires_ms"] = draw(st.sampled_from(TIMES))
    return header


@st.composite
def task_sets(draw: st.DrawFn) -> list[Row]:
    """Task rows that do not overlap, some with another value under their key."""
    known: dict[bytes, int] = {}
    rows = []
    for first, count in draw(st.lists(runs(), min_size=1, max_size=8)):
        stretch = stretch_of(first)
        for run in runs_of(stretch, mask_of(first, count) & ~known.get(stretch, 0)):
            for size in [run.count, *draw(st.lists(st.integers(1, run.count), max_size=1))]:
                header = draw(headers())
                size = 1 if "unique_key" in header else size
                queue, priority = draw(st.sampled_from(["m", "m", "m", "n"])), draw(st.sampled_from([0, 0, 5]))
                rows.append(tasks(run.first, size, queue=queue, priority=priority, **header))
        known[stretch] = known.get(stretch, 0) | mask_of(first, count)
    return rows


@st.composite
def later_facts(draw: st.DrawFn) -> Row:
    """Completions, history and resolutions, about any tasks there may be."""
    first, count = draw(runs())
    mark = Mark(draw(st.integers(0, 3)), draw(st.integers(0, 2)))
    position = draw(st.integers(0, 5))
    kind = draw(st.sampled_from([COMPLETION, COMPLETION, HISTORY, HISTORY, REOPENED, RESOLUTION]))
    if kind == COMPLETION:
        return done(first, count, token=position, outcome=draw(st.sampled_from(OUTCOMES)), mark=mark)
    if kind == RESOLUTION:
        return resolved(first, count, mark=mark)
    position = max(position, 1)  # the log's first record is 1
    retry_ms, attempts = draw(st.sampled_from(TIMES)), draw(st.integers(0, 3))
    if kind == REOPENED:
        return reopening(first, count, position=position, retry_ms=retry_ms, attempts=attempts)
    what = draw(st.sampled_from([GRANTED, RELEASED, RETRIED, EXPIRED]))
    return event(first, count, what, position=position, retry_ms=retry_ms, attempts=attempts)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Row], list[list[Row]]]:
    """A set of facts, and the same in batches in any order, some repeated."""
    rows = draw(task_sets()) + draw(st.lists(later_facts(), min_size=4, max_size=14))
    # A log entry has one statement about a task.
    told: dict[tuple[int, int, bytes], int] = {}
    sound = []
    for row in rows:
        if row.key[2:3] == HISTORY:
            first, history = first_of(row.key), unpack_history(row.value[:-4])
            place, bits = (history.position, history.index, stretch_of(first)), mask_of(first, history.count)
            if told.get(place, 0) & bits:
                continue
            told[place] = told.get(place, 0) | bits
        sound.append(row)
    rows = sound
    shuffled = draw(st.permutations(rows + draw(st.lists(st.sampled_from(rows), max_size=4) if rows else st.just([]))))
    batches: list[list[Row]] = [[]]
    for row in shuffled:
        if draw(st.booleans()):
            batches.append([])
        batches[-1].append(row)
    return rows, batches


STANDS = make_id(TIMES[0], 3, 7, 0)


def overtaken(about: Row) -> tuple[list[Row], list[list[Row]]]:
    """The current task of a key; then, in one batch, a fact about it and the task that replaces it."""
    rows = [
        tasks(
            id_at(STANDS, number),
            1,
            queue="m",
            priority=0,
            unique_key="a",
            unique_until="purged",
            order=[TIMES[0], number, 0],
        )
        for number in range(2)
    ]
    return [*rows, about], [[rows[0]], [about, rows[1]]]


class Task(NamedTuple):
    """One task of the model."""

    task_id: TaskId
    row_first: TaskId
    header: dict[str, Any]

    def order(self) -> tuple[Any, ...]:
        """The task's place in its ordering key."""
        return (*self.header.get("order", (ms_of(self.task_id), 0, 0)), self.task_id)

    def claim(self) -> tuple[Any, ...]:
        """The value that decides which task is the current one of a unique key."""
        due_ms, epoch, number = self.header.get("order", (ms_of(self.task_id), 0, 0))
        return (epoch, number, due_ms, self.task_id)

    def key(self, name: str) -> tuple[bytes, str, str]:
        """Partition, queue and one of its keys."""
        return (self.task_id[6:8], self.header["queue"], self.header.get(name, ""))

    def unique(self) -> tuple[bytes, bytes]:
        """Partition and digest of its unique key."""
        return (self.task_id[6:8], unique_digest(self.header, self.task_id))


class Expected:
    """Expected results of a set of facts."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.highest: dict[bytes, bytes] = {}
        for key, value in rows:
            self.highest[key] = max(value, self.highest.get(key, value), key=lambda one: rank(key, one))
        self.resolved: set[bytes] = set()
        self.events: dict[bytes, list[History]] = {}
        everyone: list[Task] = []
        for key, value in self.highest.items():
            first, body, kind = first_of(key), value[:-4], key[2:3]
            if kind == TASK:
                run = unpack_task(body)
                everyone += [Task(task, first, run.header) for task in ids_of(first, run.count)]
            elif kind == RESOLUTION:
                self.resolved.update(ids_of(first, unpack_resolution(body).count))
            elif kind == HISTORY:
                for task in ids_of(first, unpack_history(body).count):
                    self.events.setdefault(task, []).append(unpack_history(body))
        self.outcomes = self._outcomes()
        self.holders: dict[tuple[bytes, bytes], Task] = {}
        """The task of each unique key with the highest mark."""
        for task in everyone:
            if "unique_key" in task.header:
                self.holders[task.unique()] = max(self.holders.get(task.unique(), task), task, key=Task.claim)
        self.tasks = [task for task in everyone if self._stands(task)]
        self.superseded = sorted(task.task_id for task in everyone if not self._stands(task))
        self.keys: dict[tuple[bytes, str, str], list[Task]] = {}
        for task in sorted(self.tasks, key=Task.order):
            if "ordering_key" in task.header and self.outcomes.get(task.task_id, STOPPED) == STOPPED:
                self.keys.setdefault(task.key("ordering_key"), []).append(task)

    def has_released(self, task: Task) -> bool:
        """Whether a task does not need its unique key any more."""
        until = task.header.get("unique_until", "purged" if "unique_period_ms" in task.header else "finished")
        events = {one.event for one in self.events.get(task.task_id, [])}
        over = task.task_id in self.outcomes or REOPENED in events or (until == "started" and bool(events))
        return over and until != "purged"

    def _stands(self, task: Task) -> bool:
        if "unique_key" not in task.header or self.has_released(task):
            return True
        return self.holders[task.unique()] == task

    def _outcomes(self) -> dict[bytes, int]:
        best: dict[bytes, tuple[Mark, int, bytes, int]] = {}
        for key, value in self.highest.items():
            if key[2:3] != COMPLETION:
                continue
            completion = unpack_completion(value[:-4])
            for task in ids_of(first_of(key), completion.count):
                if completion.token >= self.counts_from(task):
                    candidate = (completion.mark, completion.token, key, completion.outcome)
                    best[task] = max(candidate, best.get(task, candidate))
        return {task: found[3] for task, found in best.items()}

    def counts_from(self, task: bytes) -> int:
        """The lowest token of completions that count."""
        ended = [one.token for one in self.events.get(task, []) if one.event in (RELEASED, RETRIED, EXPIRED)]
        return max([*ended, self.reopened(task)[0]])

    def reopened(self, task: bytes) -> tuple[int, int]:
        """Return position and attempts of a task's last requeue."""
        events = self.events.get(task, [])
        return max(((one.position, one.attempts) for one in events if one.event == REOPENED), default=(0, 0))

    def due_ms(self, task: Task) -> int:
        """When a task is due."""
        moves = [one for one in self.events.get(task.task_id, []) if one.event in (RETRIED, REOPENED)]
        if moves:
            return max(moves, key=lambda one: (one.position, one.index)).retry_ms
        return int(task.header.get("due_ms", ms_of(task.task_id)))

    def attempts(self, task: bytes) -> int:
        """Counted attempts of a task."""
        counting = (RETRIED, EXPIRED, REOPENED)
        return max((one.attempts for one in self.events.get(task, []) if one.event in counting), default=0)

    def waits(self, task: Task) -> bool:
        """Whether an unfinished task waits for its dependencies."""
        return "depends" in task.header and task.task_id not in self.resolved

    def live(self, partition: int) -> list[Task]:
        """Unfinished tasks of a partition."""
        prefix = partition.to_bytes(2, "big")
        return [task for task in self.tasks if task.task_id[6:8] == prefix and task.task_id not in self.outcomes]

    def claimable(self, partition: int) -> dict[bytes, tuple[Any, ...]]:
        """Task -> what its piece says, of those that are or become ready."""
        out: dict[bytes, tuple[Any, ...]] = {}
        for task in self.live(partition):
            digest = b""
            if "ordering_key" in task.header:
                if self.keys[task.key("ordering_key")][0] != task:
                    continue
                digest = key_digest(*task.key("ordering_key")[1:])
            if not self.waits(task):
                about = (self.due_ms(task), self.attempts(task.task_id), self.reopened(task.task_id)[1])
                named = (task.header["queue"], task.header["priority"])
                out[task.task_id] = (*named, *about, task.row_first, digest)
        return out

    def counts(self, partition: int) -> dict[str, QueueCounts]:
        """Counts per queue of a partition, all due."""
        out: dict[str, list[int]] = {}
        claimable = self.claimable(partition)
        for task in self.tasks:
            if task.task_id[6:8] != partition.to_bytes(2, "big"):
                continue
            numbers = out.setdefault(task.header["queue"], [0] * 6)
            numbers[0] += 1
            if task.task_id in self.outcomes:
                numbers[(1, 2, 3, 2)[self.outcomes[task.task_id]]] += 1
            elif task.task_id not in claimable:
                numbers[5] += 1
        return {queue: QueueCounts(*numbers) for queue, numbers in sorted(out.items())}


def claimable(store: AnyStore, partition: int) -> dict[bytes, tuple[Any, ...]]:
    """Task -> what its piece says, of everything in ``ready``; the same from `pieces`."""
    out: dict[bytes, tuple[Any, ...]] = {}
    for queue in store.queues(partition):
        for piece in store.ready(partition, queue, limit=10_000):
            assert piece in store.pieces(stretch_of(piece.first), piece.bits)
            for run in runs_of(stretch_of(piece.first), piece.bits):
                for task in ids_of(*run):
                    assert task not in out
                    about = (piece.due_ms, piece.attempts, piece.base)
                    out[task] = (queue, piece.priority, *about, piece.row_first, piece.key)
    return out


def tables(store: AnyStore) -> dict[str, dict[bytes, bytes]]:
    """The entries of all indexes."""
    names = (*INDEX_TABLES, "stretch", "hours", "leaves")
    return {
        name: {bytes(key): bytes(value) for key, value in getattr(store._tables, name).ascend(b"")} for name in names
    }


def check_reads(store: AnyStore, expected: Expected, partition: int) -> None:
    """Compare every read with the model."""
    live = expected.live(partition)
    for task in expected.tasks:
        assert store.counts_from(task.task_id) == expected.counts_from(task.task_id)
    for (prefix, queue, name), members in expected.keys.items():
        if prefix == partition.to_bytes(2, "big"):
            digest = key_digest(queue, name)
            ids = [task.task_id for task in members]
            assert key_tasks(store, partition, digest) == ids
            assert store.key_head(partition, digest) == ids[0]
            immediate = [task.order()[0] for task in members if "scheduled" not in task.header]
            assert store.last_immediate_ms(partition, digest) == max(immediate, default=0)
    for (prefix, digest), latest in expected.holders.items():
        if prefix == partition.to_bytes(2, "big"):
            released = expected.has_released(latest)
            assert store.latest(partition, digest) == (latest.task_id, released)
            assert store.unique(partition, digest) == (None if released else latest.task_id)
    for task in expected.tasks:
        assert store.superseded_by(task.task_id) is None
    for superseded in expected.superseded:
        assert store.superseded_by(superseded) in [task.task_id for task in expected.holders.values()]
    held = [task for run in store.waiting(partition) for task in ids_of(run[0], unpack_task(run[1]).count)]
    assert held == sorted(task.task_id for task in live if expected.waits(task))
    never = [
        (task.header["expires_ms"], task.task_id)
        for task in live
        if "expires_ms" in task.header
        and not any(one.event == GRANTED for one in expected.events.get(task.task_id, []))
    ]
    assert store.next_expiry_ms(partition) == min((at_ms for at_ms, _ in never), default=None)
    up = [one for one in never if one[0] <= NOW_MS]
    assert store.expiring(partition, NOW_MS) == [task for _, task in sorted(up)]
    for queue in (None, "m", "n"):
        dead = sorted(
            task.task_id
            for task in expected.tasks
            if task.task_id[6:8] == partition.to_bytes(2, "big")
            and expected.outcomes.get(task.task_id) in (FAILED, STOPPED)
            and queue in (None, task.header["queue"])
        )
        assert store.failed(partition, queue) == dead
        paged: list[TaskId] = []
        while page := store.failed(partition, queue, after=paged[-1] if paged else b"", limit=2):
            paged += page
        assert paged == dead


async def check_against_model(world: World, rows: list[Row], batches: list[list[Row]]) -> None:
    """Write the batches, then compare with the model and with a store written in order."""
    expected = Expected(rows)
    superseded: set[TaskId] = set()
    async with world.store(map_bytes=1 << 24) as store:
        for batch in batches:
            superseded.update((await put(store, *batch)).superseded)
        assert superseded >= set(expected.superseded)
        for partition in PARTITIONS:
            scheduled = sum(numbers.scheduled for numbers in store.counts(partition).values())
            assert scheduled == sum(one[2] > NOW_MS for one in expected.claimable(partition).values())
        promote = tuple((partition, NOW_MS + 10_000) for partition in PARTITIONS)
        await store.write(Batch(promote=promote))
        for partition in PARTITIONS:
            assert claimable(store, partition) == expected.claimable(partition)
            assert nonzero(store.counts(partition)) == expected.counts(partition)
            check_reads(store, expected, partition)
        async with World("memory", world.directory).store() as ordered:
            await put(ordered, *rows)
            await ordered.write(Batch(promote=promote))
            assert tables(store) == tables(ordered)
            assert {key: store.get(key) for key in expected.highest} == expected.highest


@pytest.mark.long
@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(history=histories())
@example(overtaken(resolved(STANDS)))
@example(overtaken(done(STANDS, 1)))
@example(overtaken(event(STANDS, 1, RETRIED, position=1, retry_ms=NOW_MS + 7)))
def test_memory_keeps_keys_as_a_function_of_the_facts(history: tuple[list[Row], list[list[Row]]]) -> None:
    """Any order, grouping and repetition gives the model's heads, holders, waiting and failed tasks."""
    trio.run(check_against_model, World("memory", Path()), *history)


@pytest.mark.long
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(history=histories())
@example(overtaken(resolved(STANDS)))
@example(overtaken(done(STANDS, 1)))
@example(overtaken(event(STANDS, 1, RETRIED, position=1, retry_ms=NOW_MS + 7)))
def test_lmdb_keeps_keys_as_a_function_of_the_facts(history: tuple[list[Row], list[list[Row]]]) -> None:
    """Any order, grouping and repetition gives the model's heads, holders, waiting and failed tasks."""
    with tempfile.TemporaryDirectory() as directory:
        trio.run(check_against_model, World("lmdb", Path(directory)), *history)
