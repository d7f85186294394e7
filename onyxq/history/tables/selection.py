"""What a query can use of the tables: queues, states and times, to read no more than needed. Pure."""

from __future__ import annotations

from attrs import evolve, frozen

from onyxq.core.limits import TIME_MS_MAX

STATES = ("scheduled", "waiting", "ready", "claimed", "completed", "failed", "cancelled")
FINISHED = frozenset(STATES[4:])
"""States of tasks that archives may hold."""
FAR_MS = 253_402_300_800_000
"""Beginning of the year 10000, from which no day has a name."""


@frozen(kw_only=True)
class Selection:
    """The rows that a query can use; more may be read."""

    queues: tuple[str, ...] | None = None
    """None: all. Then the caller must be allowed to read every queue."""
    states: frozenset[str] | None = None
    """Of tasks."""
    since_ms: int = 0
    until_ms: int = TIME_MS_MAX
    """Times in ids, both included; for entries, times of the log."""
    columns: frozenset[str] | None = None

    def of_queues(self, names: set[str]) -> Selection:
        """Return what is left of it in some queues."""
        kept = names if self.queues is None else names & set(self.queues)
        return evolve(self, queues=tuple(sorted(kept)))

    def of_states(self, names: set[str]) -> Selection:
        """Return what is left of it in some states."""
        return evolve(self, states=frozenset(names if self.states is None else names & self.states))

    def of_times(self, since_ms: int, until_ms: int) -> Selection:
        """Return what is left of it in a time, both ends included."""
        return evolve(self, since_ms=max(self.since_ms, since_ms), until_ms=min(self.until_ms, until_ms))
