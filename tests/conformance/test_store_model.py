"""The store compared with a model: its indexes are a function of the set of facts.

The model computes everything task by task from a set of rows. The stores get the same rows in any
order, grouping and repetition.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
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
    RETRIED,
    TASK,
    Completion,
    History,
    Mark,
    Row,
    completion_row,
    first_of,
    rank,
    unpack_completion,
    unpack_history,
    unpack_task,
)
from onyxq.core.ids import TaskId, id_at, ids_of, make_id, mask_of, ms_of, runs_of, stretch_of
from onyxq.store.interface import Batch, QueueCounts
from tests.conformance.store_world import (
    NOW_MS,
    AnyStore,
    World,
    digests,
    done,
    event,
    put,
    tasks,
)

# --- the model -------------------------------------------------------------------------


def stretches() -> st.SearchStrategy[TaskId]:
    """A few stretches of two partitions and hours, ready and due."""
    return st.builds(
        lambda partition, ms, counter: make_id(ms, partition, 7, counter),
        st.sampled_from([3, 4]),
        st.sampled_from([NOW_MS - 4_000_000, NOW_MS + 1000]),
        st.sampled_from([0, 1024]),
    )


@st.composite
def runs(draw: st.DrawFn) -> tuple[TaskId, int]:
    """A short run in one of the stretches."""
    offset = draw(st.integers(0, 20))
    return id_at(draw(stretches()), offset), draw(st.integers(1, 24 - offset))


@st.composite
def task_sets(draw: st.DrawFn) -> list[Row]:
    """Task rows that do not overlap."""
    known: dict[bytes, int] = {}
    rows = []
    for first, count in draw(st.lists(runs(), max_size=8)):
        stretch = stretch_of(first)
        for run in runs_of(stretch, mask_of(first, count) & ~known.get(stretch, 0)):
            queue, priority = draw(st.sampled_from([("mail", 0), ("mail", 5), ("other", -1)]))
            rows.append(tasks(run.first, run.count, queue=queue, priority=priority))
            if draw(st.booleans()):
                # Tasks that a client made with the same ids at another leader.
                rows.append(tasks(run.first, draw(st.integers(1, run.count)), queue=draw(st.sampled_from("mx"))))
        known[stretch] = known.get(stretch, 0) | mask_of(first, count)
    return rows


def later_facts() -> st.SearchStrategy[Row]:
    """Completions and history, about any tasks there may be."""
    completions = st.builds(
        lambda run, token, outcome, epoch, number: done(*run, token=token, outcome=outcome, mark=Mark(epoch, number)),
        runs(),
        st.integers(0, 4),
        st.sampled_from([COMPLETED, FAILED, CANCELLED]),
        st.integers(0, 3),
        st.integers(0, 2),
    )
    events = st.builds(
        lambda run, kind, position, retry_ms, attempts: event(
            run[0], run[1], kind, position=position, retry_ms=retry_ms, attempts=attempts
        ),
        runs(),
        st.sampled_from([GRANTED, RELEASED, RETRIED, EXPIRED]),
        st.integers(0, 5),
        st.sampled_from([NOW_MS - 9, NOW_MS - 3, NOW_MS + 7]),
        st.integers(0, 3),
    )
    return st.one_of(completions, events)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Row], list[list[Row]]]:
    """A set of facts, and the same in batches in any order, some repeated."""
    rows = draw(task_sets()) + draw(st.lists(later_facts(), max_size=12))
    # History never has two values under one key.
    history = {row.key: row for row in rows if row.key[2:3] == HISTORY}
    rows = [row for row in rows if row.key[2:3] != HISTORY] + list(history.values())
    if draw(st.booleans()):
        # Completions under the same key with other outcomes and marks.
        rows += [
            completion_row(first_of(row.key), again._replace(outcome=draw(st.sampled_from([0, 1, 2])), mark=mark))
            for row in rows
            if row.key[2:3] == COMPLETION
            for again in [unpack_completion(row.value[:-4])]
            for mark in [Mark(draw(st.integers(0, 3)), draw(st.integers(0, 2)))]
        ]
    shuffled = draw(st.permutations(rows + draw(st.lists(st.sampled_from(rows), max_size=4) if rows else st.just([]))))
    batches: list[list[Row]] = [[]]
    for row in shuffled:
        if draw(st.booleans()):
            batches.append([])
        batches[-1].append(row)
    return rows, batches


class Expected:
    """Expected results of a set of facts, computed task by task."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.tasks: dict[bytes, tuple[str, int]] = {}
        self.outcomes: dict[bytes, tuple[Mark, int, bytes, int]] = {}
        self.retries: dict[bytes, tuple[int, int, int]] = {}
        self.attempts: dict[bytes, int] = {}
        self.ended: dict[bytes, int] = {}
        """Task -> the newest token of its claims that ended without a completion."""
        completions: list[tuple[bytes, Completion]] = []
        highest: dict[bytes, bytes] = {}
        for key, value in rows:
            highest[key] = max(value, highest.get(key, value), key=lambda one: rank(key, one))
        for key, value in highest.items():
            first, body, kind = first_of(key), value[:-4], key[2:3]
            if kind == TASK:
                run = unpack_task(body)
                entry = (run.header["queue"], run.header.get("priority", 0))
                self.tasks.update(dict.fromkeys(ids_of(first, run.count), entry))
            elif kind == COMPLETION:
                completions.append((key, unpack_completion(body)))
            elif kind == HISTORY:
                self._history(first, unpack_history(body))
        for key, completion in completions:
            for task in ids_of(first_of(key), completion.count):
                candidate = (completion.mark, completion.token, key, completion.outcome)
                if completion.token >= self.ended.get(task, 0):
                    self.outcomes[task] = max(candidate, self.outcomes.get(task, candidate))

    def _history(self, first: bytes, happened: History) -> None:
        for task in ids_of(first, happened.count):
            if happened.event != GRANTED:
                self.ended[task] = max(self.ended.get(task, 0), happened.token)
            if happened.event in (RETRIED, EXPIRED):
                self.attempts[task] = max(self.attempts.get(task, 0), happened.attempts)
            if happened.event == RETRIED:
                stamp = (happened.position, happened.index, happened.retry_ms)
                self.retries[task] = max(stamp, self.retries.get(task, stamp))

    def unfinished(self) -> dict[bytes, tuple[str, int, int, int]]:
        """Task -> (queue, priority, due, attempts)."""
        return {
            task: (queue, priority, self.due_ms(task), self.attempts.get(task, 0))
            for task, (queue, priority) in self.tasks.items()
            if task not in self.outcomes
        }

    def due_ms(self, task: bytes) -> int:
        """When a task is due."""
        return self.retries[task][2] if task in self.retries else ms_of(task)

    def counts(self, partition: int) -> dict[str, QueueCounts]:
        """Counts per queue of a partition, all due."""
        out: dict[str, list[int]] = {}
        for task, (queue, _) in self.tasks.items():
            if task[6:8] == partition.to_bytes(2, "big"):
                numbers = out.setdefault(queue, [0, 0, 0, 0, 0])
                numbers[0] += 1
                if task in self.outcomes:
                    numbers[1 + self.outcomes[task][3]] += 1
        return {queue: QueueCounts(*numbers) for queue, numbers in sorted(out.items())}


def nonzero(counts: dict[str, QueueCounts]) -> dict[str, QueueCounts]:
    """Return counts of the queues that have tasks; a store may also list emptied queues."""
    return {queue: numbers for queue, numbers in counts.items() if any(numbers)}


def claimable(store: AnyStore) -> dict[bytes, tuple[str, int, int, int]]:
    """Task -> (queue, priority, due, attempts) of everything in `ready`."""
    out: dict[bytes, tuple[str, int, int, int]] = {}
    for partition in store.partitions():
        for queue in store.queues(partition):
            for piece in store.ready(partition, queue, limit=10_000):
                for run in runs_of(stretch_of(piece.first), piece.bits):
                    for task in ids_of(*run):
                        assert task not in out
                        out[task] = (queue, piece.priority, piece.due_ms, piece.attempts)
                        found = store.task_row(task)
                        assert found is not None
                        assert found[0] == piece.row_first
    return out


async def check_against_model(world: World, rows: list[Row], batches: list[list[Row]]) -> None:
    """Write the batches, then compare with the model and with a store written in order."""
    expected = Expected(rows)
    async with world.store(map_bytes=1 << 24) as store:
        for batch in batches:
            await put(store, *batch)
        for partition in (3, 4):
            scheduled = sum(numbers.scheduled for numbers in store.counts(partition).values())
            assert scheduled == sum(
                due_ms > NOW_MS
                for task, (_, _, due_ms, _) in expected.unfinished().items()
                if task[6:8] == partition.to_bytes(2, "big")
            )
        await store.write(Batch(promote=((3, NOW_MS + 10_000), (4, NOW_MS + 10_000))))
        assert claimable(store) == expected.unfinished()
        for partition in (3, 4):
            assert nonzero(store.counts(partition)) == expected.counts(partition)
            assert store.next_due_ms(partition) is None
        async with World("memory", world.directory).store() as ordered:
            await put(ordered, *rows)
            assert digests(store) == digests(ordered)
            for key, _ in rows:
                assert store.get(key) == ordered.get(key)


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(history=histories())
def test_memory_is_a_function_of_the_set_of_facts(history: tuple[list[Row], list[list[Row]]]) -> None:
    """Any order, grouping and repetition gives the model's ready tasks, counts and digests."""
    trio.run(check_against_model, World("memory", Path()), *history)


@pytest.mark.long
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(history=histories())
def test_lmdb_is_a_function_of_the_set_of_facts(history: tuple[list[Row], list[list[Row]]]) -> None:
    """Any order, grouping and repetition gives the model's ready tasks, counts and digests."""
    with tempfile.TemporaryDirectory() as directory:
        trio.run(check_against_model, World("lmdb", Path(directory)), *history)
