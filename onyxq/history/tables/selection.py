"""The part of a table that a query needs, by queue, state and time. It limits what is read. Pure."""

from __future__ import annotations

from attrs import evolve, frozen

from onyxq.core.limits import TIME_MS_MAX

STATES = ("scheduled", "waiting", "ready", "claimed", "completed", "failed", "cancelled")
FINISHED = frozenset(STATES[4:])
"""States of tasks that archives may hold."""


@frozen(kw_only=True)
class Selection:
    """The rows and columns that a query needs. Readers may return more rows."""

    queues: tuple[str, ...] | None = None
    """None: all queues, for which the caller needs the right to read every queue."""
    states: frozenset[str] | None = None
    """States of tasks; None: all."""
    since_ms: int = 0
    until_ms: int = TIME_MS_MAX
    """First and last time of the ids, in ms since the epoch; for entries, times of the log."""
    columns: frozenset[str] | None = None
    """None: all."""

    def of_queues(self, names: set[str]) -> Selection:
        """Return the selection limited to these queues."""
        kept = names if self.queues is None else names & set(self.queues)
        return evolve(self, queues=tuple(sorted(kept)))

    def of_states(self, names: set[str]) -> Selection:
        """Return the selection limited to these states."""
        return evolve(self, states=frozenset(names if self.states is None else names & self.states))

    def of_times(self, since_ms: int, until_ms: int) -> Selection:
        """Return the selection limited to a time span, both ends included."""
        return evolve(self, since_ms=max(self.since_ms, since_ms), until_ms=min(self.until_ms, until_ms))
