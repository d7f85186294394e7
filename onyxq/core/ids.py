"""Task ids, runs of ids and stretches: the arithmetic that every layer shares.

A task id is 20 bytes, big-endian: 48 bits of milliseconds, 16 bits of partition,
64 bits that identify the maker, and a 32-bit counter.  Ids made together by one maker differ
only in the counter, so a *run* ``(first, count)`` names many tasks in a few bytes.
A *stretch* is 1,024 aligned consecutive ids.  Runs never cross the border of a stretch,
so a set of tasks in one stretch can be a bit mask in an ``int``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import NamedTuple, NewType

TaskId = NewType("TaskId", bytes)
"""A task id of 20 bytes; see the module's first paragraph."""
Token = NewType("Token", int)
"""Fencing token of a claim: the log position of its grant."""

ID_BYTES = 20
STRETCH_TASKS = 1024
RUN_TASKS_MAX = STRETCH_TASKS
PARTITIONS_MAX = 1 << 16
COUNTER_MAX = (1 << 32) - 1
CALLBACK_BIT = 1 << 31
"""Bit of the counter in which a task and its callback differ. Makers of ids leave it 0."""

_COUNTER = struct.Struct(">I")
_PREFIX = struct.Struct(">QQ")
_STRETCH_ENDS = tuple(bytes((byte & 0xFC, 0)) for byte in range(256))
"""Last two bytes of a stretch, indexed by the second-last byte of an id in it.

The lower two bits of that byte and the last byte are the offset.  This is a table of bytes
because every layer computes stretch and offset very often.
"""


class Run(NamedTuple):
    """Consecutive task ids within one stretch."""

    first: TaskId
    count: int  # type: ignore[assignment]  # shadows the tuple's method


def make_id(ms: int, partition: int, maker: int, counter: int) -> TaskId:
    """Return the id with these four fields."""
    return TaskId(_PREFIX.pack((ms << 16) | partition, maker) + _COUNTER.pack(counter))


def ms_of(task_id: bytes) -> int:
    """Return the time in the id, in ms since the epoch.

    This is when the task is due, or when the id was made if that is later.
    """
    return int.from_bytes(task_id[:6], "big")


def partition_of(task_id: bytes) -> int:
    """Return the partition number in the id."""
    return int.from_bytes(task_id[6:8], "big")


def counter_of(task_id: bytes) -> int:
    """Return the maker's 32-bit counter."""
    return int.from_bytes(task_id[16:20], "big")


def with_counter(task_id: bytes, counter: int) -> TaskId:
    """Return the id of the same maker and time with another counter."""
    return TaskId(task_id[:16] + _COUNTER.pack(counter))


def callback_of(task_id: bytes) -> TaskId:
    """Return the id of a task's callback. For the id of a callback, return the id of its task."""
    return with_counter(task_id, counter_of(task_id) ^ CALLBACK_BIT)


def is_callback(task_id: bytes) -> bool:
    """Return whether an id has the form of a callback's."""
    return bool(counter_of(task_id) & CALLBACK_BIT)


def offset_of(task_id: bytes) -> int:
    """Return the place of the id in its stretch, 0 to 1,023."""
    return (task_id[18] & 3) << 8 | task_id[19]


def stretch_of(task_id: bytes) -> TaskId:
    """Return the first id of the stretch that holds ``task_id``."""
    return TaskId(task_id[:18] + _STRETCH_ENDS[task_id[18]])


def id_at(stretch: bytes, offset: int) -> TaskId:
    """Return the id at ``offset`` of a stretch."""
    return with_counter(stretch, counter_of(stretch) + offset)


def mask_of(first: bytes, count: int) -> int:
    """Return the bit mask, relative to the stretch, of a run in one stretch."""
    return ((1 << count) - 1) << offset_of(first)


def spans(bits: int) -> Iterator[tuple[int, int]]:
    """Yield the maximal ``(offset, count)`` intervals of set bits, lowest first."""
    base = 0
    while bits:
        skip = (bits & -bits).bit_length() - 1
        bits >>= skip
        count = (~bits & (bits + 1)).bit_length() - 1
        yield base + skip, count
        base += skip + count
        bits >>= count


def runs_of(stretch: bytes, bits: int) -> list[Run]:
    """Return the runs that a mask of a stretch describes."""
    return [Run(id_at(stretch, offset), count) for offset, count in spans(bits)]


def cut(first: bytes, count: int) -> list[Run]:
    """Return consecutive ids as runs, cut at the borders of stretches."""
    runs = []
    while count > 0:
        part = min(count, STRETCH_TASKS - offset_of(first))
        runs.append(Run(TaskId(first), part))
        count -= part
        if count:
            first = with_counter(first, counter_of(first) + part)
    return runs


def ids_of(first: bytes, count: int) -> list[TaskId]:
    """Return every id of a run."""
    prefix, start = first[:16], counter_of(first)
    return [TaskId(prefix + _COUNTER.pack(start + i)) for i in range(count)]


class IdMaker:
    """A maker of ids that never repeat, for one client session.

    ``now_ms`` returns milliseconds since the epoch; ``random_64`` returns a random 64-bit maker.
    The time in an id is when its task is due by the clock of its partition's leader.  A caller that
    knows that clock passes its time to `run`.
    """

    def __init__(self, now_ms: Callable[[], int], random_64: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._random_64 = random_64
        self._maker = random_64()
        self._counter = 0

    def run(self, partition: int, count: int, *, due_ms: int = 0, now_ms: int | None = None) -> Run:
        """Return a new run of ``count`` ids (1 to 1,024) for tasks due at ``due_ms``, or now if that is past.

        Raises `ValueError` for any other count.
        """
        if not 1 <= count <= RUN_TASKS_MAX:
            raise ValueError(f"count must be 1 to {RUN_TASKS_MAX}, not {count}")
        room = STRETCH_TASKS - (self._counter & (STRETCH_TASKS - 1))
        if count > room:
            self._counter += room
        if self._counter + count >= CALLBACK_BIT:
            self._maker = self._random_64()
            self._counter = 0
        now_ms = self._now_ms() if now_ms is None else now_ms
        first = make_id(max(due_ms, now_ms), partition, self._maker, self._counter)
        self._counter += count
        return Run(first, count)
