"""Runs of tasks that wait for other tasks, as far as their leader remembers them.

The store has every waiting run. This memory says which of them to check soon: those whose
dependencies may be finished, and those that became the first of their ordering keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from onyxq.core.ids import TaskId
from onyxq.core.task_headers import DEPENDS
from onyxq.system.procedures import Wait

KNOWN_MAX = 200_000
"""Most dependencies that are remembered in memory. The regular check finds forgotten ones."""


class WaitingRuns:
    """Waiting runs of the partitions that a node leads; one per node."""

    def __init__(self) -> None:
        self._dependents: dict[TaskId, set[TaskId]] = {}
        """Task -> the first ids of local waiting runs that depend on it, as far as they are known."""
        self._look: set[TaskId] = set()
        """Waiting runs to check."""
        self._look_everywhere: set[int] = set()
        """Partitions whose waiting runs must all be checked."""
        self.listeners: list[Callable[[Sequence[TaskId]], None]] = []
        """Called with the ids of each hint."""
        self._wake = Wait()

    def note(self, first: TaskId, header: dict[str, Any]) -> None:
        """Remember on which tasks a run depends."""
        if len(self._dependents) >= KNOWN_MAX:
            self._dependents.clear()
        for one in header[DEPENDS]:
            self._dependents.setdefault(one, set()).add(first)

    def hint(self, ids: Iterable[TaskId]) -> None:
        """Take a hint that tasks are finished for which local tasks may wait."""
        ids = list(ids)
        self.look(first for one in ids for first in self._dependents.pop(one, ()))
        for listener in self.listeners:
            listener(ids)

    def look(self, firsts: Iterable[TaskId]) -> None:
        """Have some runs checked."""
        self._look.update(firsts)
        if self._look:
            self._wake.end()

    def look_everywhere(self, partition: int) -> None:
        """Have all waiting runs of a partition checked."""
        self._look_everywhere.add(partition)
        self._wake.end()

    async def wait(self, seconds: float) -> None:
        """Wait until there is something to check, or for a number of seconds."""
        await self._wake.wait(seconds)
        self._wake = Wait()

    def take_runs(self) -> list[TaskId]:
        """Return the runs to check, in order."""
        runs, self._look = sorted(self._look), set()
        return runs

    def take_partitions(self) -> set[int]:
        """Return the partitions whose runs must all be checked."""
        partitions, self._look_everywhere = self._look_everywhere, set()
        return partitions
