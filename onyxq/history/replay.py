"""Replay of a log: the steps that every peer took, with verdicts, and any replica on the way.

Pure, except for the dump file that may be read. A replica depends only on the records, so a replay ends in
the same replica that every live peer has at that position.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from attrs import define, field

from onyxq.core.errors import NotFound
from onyxq.core.invariants.replica import violations
from onyxq.core.log.interface import Record
from onyxq.core.replica import EMPTY, Replica
from onyxq.core.step import Outcome, Step, step
from onyxq.history.dump import Dump
from onyxq.system.extensions import installed

CHECK_EVERY = 100
"""Records between checks of the invariants.

Records that change members are always checked.
"""


def steps(start: Replica, records: Iterable[Record], *, until: int | None = None) -> Iterator[Step]:
    """Yield each record's step from the replica ``start``.

    Records at or before its position are skipped.

    ``until``: the last position (inclusive). Raises `OlderThanCluster`.
    """
    replica = start
    for record in records:
        if until is not None and record.position > until:
            return
        if record.position <= replica.position:
            continue
        done = step(replica, record, installed())
        replica = done.replica
        yield done


def traced(replica: Replica, record: Record) -> tuple[Step, list[tuple[Outcome, Replica]]]:
    """Return a record's step, and each of its entries with the replica after it.

    The replica of the last entry is that of the step.
    """
    seen: list[tuple[Outcome, Replica]] = []
    done = step(replica, record, installed(), after_each=lambda outcome, after: seen.append((outcome, after)))
    if seen:
        seen[-1] = seen[-1][0], done.replica
    return done, seen


def replay(dump: Dump, until: int | None = None) -> Iterator[Step]:
    """Yield the steps of a dump; raises `Corrupt` at a damaged block, and `OlderThanCluster`."""
    return steps(dump.start, dump.records, until=until)


def replica_at(dump: Dump, position: int | None = None) -> Replica:
    """Return the replica at a position, or at the end; raises `NotFound` if the dump starts after it."""
    if position is not None and position < dump.start.position:
        raise NotFound(
            f"the records start at position {dump.start.position}, after {position}",
            field="at",
            hint="An archive (--archive DIR) or an older dump (--file FILE) may reach further back.",
        )
    replica = dump.start
    for done in replay(dump, position):
        replica = done.replica
    return replica


@define
class Tally:
    """Numbers of what replays met."""

    records: int = 0
    entries: int = 0
    verdicts: Counter[tuple[str, str]] = field(factory=Counter)
    """(entry, verdict) -> number."""
    problems: Counter[str] = field(factory=Counter)
    """Reason why whole records were no-ops -> number."""
    checked: int = 0
    """Number of replicas on which the invariants were checked."""
    violations: list[str] = field(factory=list)

    def add(self, other: Tally) -> None:
        """Add the numbers of another replay."""
        self.records += other.records
        self.entries += other.entries
        self.verdicts.update(other.verdicts)
        self.problems.update(other.problems)
        self.checked += other.checked
        self.violations += other.violations


@define
class Report(Tally):
    """The findings of a replay."""

    replica: Replica = EMPTY
    first: int | None = None
    """Position of the first record."""

    def take(self, done: Step) -> None:
        """Count one step."""
        if self.first is None:
            self.first = done.replica.position
        self.replica = done.replica
        self.records += 1
        self.entries += len(done.outcomes)
        for outcome in done.outcomes:
            self.verdicts[outcome.name, outcome.verdict] += 1
        if done.problem:
            self.problems[done.problem] += 1

    def check(self) -> None:
        """Check the invariants of the present replica."""
        self.checked += 1
        self.violations += [f"at {self.replica.position}: {text}" for text in violations(self.replica)]


def checked(dump: Dump, until: int | None = None, *, check_every: int = CHECK_EVERY) -> Iterator[Report]:
    """Yield the report at the start, after each record and at the end; always the same object.

    Invariants are checked after each record that changed the ring, peers, nodes or partitions, after every
    ``check_every`` records, and at the end.
    """
    report = Report(replica=dump.start)
    yield report
    structure = _structure(report.replica)
    clean = False
    for done in replay(dump, until):
        report.take(done)
        moved = _structure(done.replica)
        clean = any(new is not old for new, old in zip(moved, structure, strict=True))
        clean = clean or report.records % check_every == 0
        if clean:
            report.check()
        structure = moved
        yield report
    if not clean:
        report.check()
        yield report


def _structure(replica: Replica) -> tuple[object, ...]:
    return replica.ring, replica.peers, replica.nodes, replica.partitions
