"""Reads a bucket of finished tasks from a store, run by run, for the archive.

It runs on the event loop, like all reads of a store: in small steps. Memory holds at most one run, or one
task's update, with the rows about it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from attrs import field, frozen

from onyxq.core import facts
from onyxq.core.errors import Conflict
from onyxq.core.facts import Completion, History, Mark, Update
from onyxq.core.ids import (
    COUNTER_MAX,
    STRETCH_TASKS,
    TaskId,
    id_at,
    ids_of,
    make_id,
    mask_of,
    ms_of,
    runs_of,
    stretch_of,
)
from onyxq.core.queues import settings_of
from onyxq.core.replica import Replica
from onyxq.core.task_headers import policy_of
from onyxq.store.store import Store

KEYS_AT_ONCE = 256
_REST = struct.Struct(">QI")


def _set(stretches: Iterable[bytes]) -> frozenset[bytes]:
    return frozenset(stretches)


def _sorted(stretches: Iterable[bytes]) -> tuple[bytes, ...]:
    return tuple(sorted(stretches))


@frozen(kw_only=True)
class Bucket:
    """Tasks of one partition, selected by their ids.

    The tasks of times from ``from_ms`` to ``before_ms`` (not included) and of the stretches ``again``, without
    those of the stretches ``keep``.
    """

    partition: int
    from_ms: int
    before_ms: int
    keep: frozenset[bytes] = field(default=(), converter=_set)
    again: tuple[bytes, ...] = field(default=(), converter=_sorted)

    def ranges(self) -> Iterator[tuple[TaskId, TaskId]]:
        """Yield the first and last ids, in id order if ``again`` is before ``from_ms``, as kept stretches are."""
        for stretch in self.again:
            if stretch not in self.keep:
                yield TaskId(stretch), id_at(stretch, STRETCH_TASKS - 1)
        if self.from_ms < self.before_ms:
            last = make_id(self.before_ms - 1, self.partition, (1 << 64) - 1, COUNTER_MAX)
            yield make_id(self.from_ms, self.partition, 0, 0), last

    @property
    def earliest_ms(self) -> int:
        """The earliest time in an id of the bucket."""
        return min([self.from_ms, *(ms_of(stretch) for stretch in self.again if stretch not in self.keep)])


class Run(NamedTuple):
    """Finished tasks of one task row, and all that is known of them.

    Masks are those of their stretch.
    """

    queue: str
    header: dict[str, Any]
    first: TaskId
    """First id of ``body``."""
    body: bytes
    """Body of the task row.

    """
    bits: int
    """Mask of the tasks."""
    retries: int | None
    done: list[tuple[int, TaskId, Completion]]
    """The valid completions: (mask of tasks, id at which the results begin, completion)."""
    ended: list[tuple[int, TaskId, Completion]]
    """All completions, later marks last.

    A task that was reopened has several.
    """
    history: list[tuple[int, History]]
    """In the order of the log."""
    updates: dict[TaskId, list[tuple[int, int]]]
    """(token, sequence number) of the valid updates, in that order."""
    reports: dict[TaskId, list[Update]]
    """The updates that hold reports of failed attempts."""


class Progress(NamedTuple):
    """An update of a task of a queue."""

    queue: str
    task_id: TaskId
    update: Update


class BucketReader:
    """Reads buckets from a store.

    ``replica`` provides the settings of queues.
    """

    def __init__(self, replica: Replica, store: Store) -> None:
        self._replica = replica
        self._store = store

    def stretches(self, bucket: Bucket) -> Iterator[list[TaskId]]:
        """Yield the first ids of the bucket's task rows, those of a stretch together, in id order."""
        for first, last in bucket.ranges():
            group: list[TaskId] = []
            after = first
            while keys := self._store.row_keys(facts.TASK, after, last, limit=KEYS_AT_ONCE):
                for found in map(facts.first_of, keys):
                    if group and stretch_of(found) != stretch_of(group[0]):
                        yield group
                        group = []
                    if stretch_of(found) not in bucket.keep:
                        group.append(found)
                if keys[-1][3:] == last:
                    break
                after = TaskId((int.from_bytes(keys[-1][3:], "big") + 1).to_bytes(20, "big"))
            if group:
                yield group

    def runs(self, firsts: list[TaskId]) -> Iterator[Run | Progress]:
        """Yield the runs of one stretch that are to be archived, the last one first, each followed by its updates.

        ``firsts``: the first ids of the stretch's task rows, in id order. Queues without ``archive`` and superseded
        tasks are left out. Raises `Corrupt`, and `Conflict` if a task is not finished.
        """
        stretch = stretch_of(firsts[0])
        known: _Stretch | None = None
        taken = 0
        for first in reversed(firsts):
            body = self._store.body(facts.key_of(facts.TASK, first))
            header, count = facts.task_header(body)
            bits = mask_of(first, count) & ~taken
            taken |= bits
            archived = settings_of(self._replica, header["queue"]).archive
            if archived and bits and self._store.superseded_by(first) is None:
                known = known or _Stretch(self._store, stretch)
                run = self._run(known, first, body, header, bits)
                yield run
                yield from self._progress(run)

    def _run(self, stretch: _Stretch, first: TaskId, body: bytes, header: dict[str, Any], bits: int) -> Run:
        if unfinished := bits & ~stretch.finished:
            task = runs_of(stretch.first, unfinished)[0].first
            raise Conflict(f"task {task.hex()} is not finished, so it is not archived")
        return Run(
            header["queue"],
            header,
            first,
            body,
            bits,
            policy_of(self._replica, header).retries,
            *stretch.completions(bits),
            [(mask & bits, event) for mask, event in stretch.history if mask & bits],
            {task: said for task, said in stretch.updates.items() if mask_of(task, 1) & bits},
            {task: stretch.reports(keys) for task, keys in stretch.report_keys.items() if mask_of(task, 1) & bits},
        )

    def _progress(self, run: Run) -> Iterator[Progress]:
        for task_id, said in run.updates.items():
            for token, seq in said:
                key = facts.key_of(facts.UPDATE, task_id, _REST.pack(token, seq))
                yield Progress(run.queue, task_id, facts.unpack_update(self._store.body(key)))


class _Stretch:
    """The rows about the tasks of a stretch, without payloads, results and the updates themselves."""

    def __init__(self, store: Store, first: TaskId) -> None:
        self.first = first
        self._store = store
        self.history = self._history()
        self.report_keys: dict[TaskId, list[bytes]] = {}
        """The keys of the reports of failed attempts per task."""
        self.updates = self._updates()
        self._judged: list[tuple[int, int, bytes]] = []
        """Per completion: mask of the tasks for which it is valid, mask of all its tasks, key.

        Later marks first.
        """
        self.finished = 0
        self._judge()

    def _keys(self, kind: bytes) -> list[bytes]:
        return self._store.row_keys(kind, self.first, id_at(self.first, STRETCH_TASKS - 1), limit=1 << 62)

    def _history(self) -> list[tuple[int, History]]:
        found = []
        for key in self._keys(facts.HISTORY):
            event = facts.unpack_history(self._store.body(key))
            found.append((mask_of(key[3:23], event.count), event))
        return sorted(found, key=lambda one: one[1])

    def _updates(self) -> dict[TaskId, list[tuple[int, int]]]:
        """Return the valid updates per task: those of a token from 0 without gaps.

        Keys are in the order of tokens and sequence numbers. `onyxq.operations.task_view` does the same.
        """
        found: dict[TaskId, list[tuple[int, int]]] = {}
        expected: dict[tuple[TaskId, int], int] = {}
        for key in self._keys(facts.UPDATE):
            task_id = facts.first_of(key)
            token, seq = _REST.unpack(key[23:])
            if seq == facts.REPORT:
                self.report_keys.setdefault(task_id, []).append(key)
            elif seq == expected.get((task_id, token), 0):
                found.setdefault(task_id, []).append((token, seq))
                expected[task_id, token] = seq + 1
        return found

    def reports(self, keys: Iterable[bytes]) -> list[Update]:
        """Read reports of failed attempts."""
        return [facts.unpack_update(self._store.body(key)) for key in keys]

    def _judge(self) -> None:
        """Choose the valid completion of each task.

        Of the completions since the task was last opened, the one with the highest mark is valid, then the one with
        the highest token.
        """
        heads: list[tuple[Mark, int, bytes, int]] = []
        for key in self._keys(facts.COMPLETION):
            token, count, _, mark = facts.completion_head(self._store.body(key))
            heads.append((mark, token, key, mask_of(key[3:23], count)))
        for _, token, key, whole in sorted(heads, reverse=True):
            mask = whole
            for bits, event in self.history:
                if event.event == facts.REOPENED and event.position > token:
                    mask &= ~bits
            mask &= ~self.finished
            self._judged.append((mask, whole, key))
            self.finished |= mask

    def completions(
        self, bits: int
    ) -> tuple[list[tuple[int, TaskId, Completion]], list[tuple[int, TaskId, Completion]]]:
        """Return the valid completions of some finished tasks, and all completions."""
        counted, found = [], []
        for mask, whole, key in reversed(self._judged):
            if whole & bits:
                done = facts.unpack_completion(self._store.body(key))
                found.append((whole & bits, facts.first_of(key), done))
                if mask & bits:
                    counted.append((mask & bits, facts.first_of(key), done))
        return counted, found


def ids_in(stretch: bytes, bits: int) -> Iterator[TaskId]:
    """Yield every id in a mask of a stretch."""
    for run in runs_of(stretch, bits):
        yield from ids_of(*run)
