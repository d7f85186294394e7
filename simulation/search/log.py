"""The log of the pure cluster: a list of records, and the replica after each.

Every record is stepped once, by the newest program, when it lands; all readers share the result. Times are
milliseconds. A *place* is a record's index in the log; its position is what the replica sees, and jumps where a segment
ends.
"""

from __future__ import annotations

from attrs import define, field, frozen

from onyxq.core import snapshot
from onyxq.core.log.interface import Record, segment_of, segment_start
from onyxq.core.replica import EMPTY, Replica
from onyxq.core.step import Step
from simulation.checkers import Course
from simulation.search.extension import NEWEST

START_MS = 1_700_000_000_000
LAND_MS = 2
"""Time that passes while a record lands."""


class Unreadable(Exception):
    """A reader finds neither the next record nor an origin that leads past it."""


@frozen
class Origin:
    """The snapshot from which readers continue after a trim."""

    place: int
    """The first place that is not in it."""
    data: bytes
    version: int


@define(eq=False)
class PureLog:
    """See the module's first paragraph."""

    now_ms: int = START_MS
    """True time, which no peer knows."""
    ctime_offset_ms: int = 0
    """How far the log's own clock is ahead of true time."""
    following: int = 0
    """Position of the next record."""
    trimmed: int = 0
    """Records at lower places are gone."""
    origin: Origin | None = None
    course: Course = field(factory=lambda: Course(NEWEST))
    replicas: list[Replica] = field(factory=lambda: [EMPTY])
    """``replicas[n]``: after n records."""

    @property
    def records(self) -> list[Record]:
        """All records, also those that are trimmed."""
        return self.course.records

    @property
    def end(self) -> int:
        """The place of the next record."""
        return len(self.records)

    @property
    def now(self) -> Replica:
        """The replica at the end of the log."""
        return self.replicas[-1]

    @property
    def version(self) -> int:
        """The origin pointer's version, -1 before the first."""
        return self.origin.version if self.origin else -1

    def land(self, data: bytes) -> Step:
        """Write a record; raises what the checkers raise."""
        self.now_ms += LAND_MS
        record = Record(self.following, self.now_ms + self.ctime_offset_ms, data)
        self.following += 1
        done = self.course.step(record)
        self.replicas.append(done.replica)
        return done

    def open_segment(self) -> None:
        """The next record is the first of the next segment."""
        self.following = segment_start(segment_of(self.following) + 1)

    def store_origin(self, place: int, data: bytes, *, expected_version: int) -> bool:
        """Move the pointer to another snapshot, unless another peer did so since, or to a later one."""
        if self.version != expected_version or (self.origin and place <= self.origin.place):
            return False
        self.origin = Origin(place, data, expected_version + 1)
        return True

    def trim(self, upto: int) -> int:
        """Delete records below the place ``upto``; returns how many went."""
        gone = max(0, min(upto, self.end) - self.trimmed)
        self.trimmed += gone
        return gone

    def read(self, place: int) -> Record | Origin:
        """The record at a place below the end, or the origin if it is gone; raises `Unreadable`."""
        if place >= self.trimmed:
            return self.records[place]
        if self.origin is None or self.origin.place <= place:
            raise Unreadable(f"the record at place {place} was trimmed and no origin leads past it")
        return self.origin

    def load(self, origin: Origin) -> Replica:
        """The replica that a reader builds from an origin."""
        return snapshot.unpack(origin.data)
