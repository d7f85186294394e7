"""Cuts work on claims into log entries of a limited size (design: the log).

One request may name more runs, and one round more workers, than an entry can hold. The sizes are
upper estimates: cutting too early costs a few bytes, cutting too late is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from onyxq.core.ids import Run
from onyxq.core.limits import ENTRY_BYTES_MAX

PART_BYTES = 48
"""Bytes of one grant, renewal, release or expiry without its text and runs."""
RUN_BYTES = 32
PIECE_RUNS_MAX = 1_000
ENTRY_ROOM_BYTES = ENTRY_BYTES_MAX - 1_024

T = TypeVar("T")


def fitting(parts: Iterable[T], size: Callable[[T], int]) -> Iterator[list[T]]:
    """Yield the parts in their order, in groups that fit one entry each."""
    group: list[T] = []
    used = 0
    for part in parts:
        wanted = size(part)
        if group and used + wanted > ENTRY_ROOM_BYTES:
            yield group
            group, used = [], 0
        group.append(part)
        used += wanted
    if group:
        yield group


def size_of(runs: Sequence[Run], text: str = "") -> int:
    """Return the most bytes that a part of an entry takes."""
    return PART_BYTES + 4 * len(text) + RUN_BYTES * len(runs)


def run_groups(runs: Sequence[Run]) -> Iterator[tuple[Run, ...]]:
    """Yield the runs in groups that fit one entry each."""
    for start in range(0, len(runs), PIECE_RUNS_MAX):
        yield tuple(runs[start : start + PIECE_RUNS_MAX])
