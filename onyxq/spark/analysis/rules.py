"""The rules of a history check, in words; `onyxq.spark.analysis.history_check` implements them.

Times in an archive are of two clocks: the log's, and that of the leader that took a completion. Either may be
slightly off. So ends in the log are compared by position, exactly. Times count as different only if they differ by
more than clocks may be apart.
"""

from __future__ import annotations

from typing import Any

from attrs import frozen

OVERLAPPING = "overlapping claims"
LOST = "lost tasks"
UNCLAIMED = "completions without claims"
TOKENS = "tokens out of order"
KEYS = "ordering keys violated"

RULES = (OVERLAPPING, LOST, UNCLAIMED, TOKENS, KEYS)

APART_MS = 5_000
"""Largest difference between clocks, in ms: a peer that is further off leaves the ring."""
FIRST = 10
"""Maximum number of offenders that a report names for each rule."""


@frozen
class Offender:
    """A violation of a rule: a task, the token in question, and what is wrong."""

    rule: str
    queue: str
    id: str
    token: int | None
    what: str


@frozen
class Report:
    """The findings of a check."""

    tasks: int
    claims: int
    updates: int
    grants: int | None
    """Number of tasks' grants in the log's records that were compared; None: there were no records."""
    repeats: int
    """Rows that are in the archive more than once."""
    counts: dict[str, int]
    """Rule -> number of violations; every rule is there."""
    first: tuple[Offender, ...]
    """The first offenders of each broken rule, in the order of ids."""

    @property
    def clean(self) -> bool:
        """Whether no rule is broken."""
        return not any(self.counts.values())

    def document(self) -> dict[str, Any]:
        """Return the report as values for JSON."""
        from attrs import asdict

        return {"clean": self.clean, **asdict(self)}
