"""What a history is checked for, in words; `onyxq.spark.analysis.history_check` says it to Spark.

Times in an archive are of two clocks, the log's and that of the leader that took a
completion, and either may be a little off.  So ends that the log knows are compared by
position, exactly, and times only where they differ by more than clocks may be apart.
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
"""How far clocks may be apart: a peer that is further off than this leaves."""
FIRST = 10
"""Offenders that a report names for each rule."""


@frozen
class Offender:
    """Something that breaks a rule: a task, the token in question, and what is wrong."""

    rule: str
    queue: str
    id: str
    token: int | None
    what: str


@frozen
class Report:
    """What a check found."""

    tasks: int
    claims: int
    updates: int
    grants: int | None
    """Of tasks, in the log's records that were compared; None: there were none."""
    repeats: int
    """Rows that are in the archive more than once."""
    counts: dict[str, int]
    """Per rule how often it is broken; every rule is there."""
    first: tuple[Offender, ...]
    """The first offenders of each broken rule, in the order of ids."""

    @property
    def clean(self) -> bool:
        """Whether nothing is broken."""
        return not any(self.counts.values())

    def document(self) -> dict[str, Any]:
        """As JSON."""
        from attrs import asdict

        return {"clean": self.clean, **asdict(self)}
