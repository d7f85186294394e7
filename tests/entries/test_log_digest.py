"""The chained digest: equal only for equal records, with milestones for readers that start late."""

from __future__ import annotations

import pytest
from attrs import evolve

from log_entries.registry import ENTRIES
from onyxq.core.log.digest import (
    MILESTONE_POSITIONS,
    TRAIL_BLOCKS,
    TRAIL_BYTES,
    Milestones,
    ReadMark,
    trail_at,
    with_milestone,
)
from onyxq.core.log.interface import Record
from onyxq.core.replica import EMPTY, Replica
from onyxq.core.step import step
from tests.entries.world import created

RECORDS = [Record(place, 1_000 + place, b"%d" % place) for place in range(4)]


def read(records: list[Record]) -> Replica:
    """Return the replica after records that change nothing."""
    replica = EMPTY
    for record in records:
        replica = step(replica, record, ENTRIES).replica
    return replica


def milestones(newest: int) -> Milestones:
    """Return the milestones of a log that was read up to milestone number ``newest``."""
    found: Milestones = ()
    for number in range(newest + 1):
        found = with_milestone(found, number * MILESTONE_POSITIONS, b"%d" % number)
    return found


def test_readers_of_the_same_records_have_equal_digests() -> None:
    """This holds at every position."""
    for count in range(len(RECORDS)):
        assert read(RECORDS[:count]).digest == read(RECORDS[:count]).digest


@pytest.mark.parametrize("change", [{"data": b"other"}, {"ctime_ms": 7}])
@pytest.mark.parametrize("place", range(3))
def test_one_other_record_changes_every_later_digest(place: int, change: dict[str, object]) -> None:
    """Bytes and the log's time of a record both count."""
    others = [evolve(one, **change) if one.position == place else one for one in RECORDS]
    for count in range(place + 1, len(RECORDS) + 1):
        assert read(RECORDS[:count]).digest != read(others[:count]).digest


def test_records_that_count_change_the_digest_too() -> None:
    """So do repeats, which have no other effect."""
    world = created("a")
    before = world.now.digest
    world.append(world.records[-1].data)
    assert len({before, world.now.digest, created("a", "b").now.digest}) == 3


def test_milestones_hold_the_digest_of_their_position() -> None:
    """At every multiple, from the first record on."""
    replica = EMPTY
    digests = {}
    for place in range(2 * MILESTONE_POSITIONS + 5):
        replica = step(replica, Record(place, 1, b""), ENTRIES).replica
        digests[place] = replica.digest
    expected = [(place, digests[place]) for place in (0, MILESTONE_POSITIONS, 2 * MILESTONE_POSITIONS)]
    assert list(replica.milestones) == expected


def test_the_trail_has_the_last_digests() -> None:
    """This holds after a gap between two segments; older positions are unknown."""
    replica = EMPTY
    digests = {}
    last = MILESTONE_POSITIONS * (TRAIL_BLOCKS + 1)
    for place in (*range(last), last + 7):
        replica = step(replica, Record(place, 1, b""), ENTRIES).replica
        digests[place] = replica.digest[:TRAIL_BYTES]
    for place in (2 * MILESTONE_POSITIONS, last - 1, last + 7):
        assert trail_at(replica.trail, place) == digests[place]
    for place in (0, MILESTONE_POSITIONS, last, last + 6, last + 8):
        assert trail_at(replica.trail, place) is None


def mark(replica: Replica) -> ReadMark:
    """Return the read mark of a store whose node has this replica."""
    return ReadMark(replica.position, replica.digest, replica.milestones)


@pytest.mark.parametrize("more", [0, 5, 3 * MILESTONE_POSITIONS, (TRAIL_BLOCKS + 4) * MILESTONE_POSITIONS])
def test_a_snapshot_of_another_log_contradicts_what_was_read(more: int) -> None:
    """The trail shows it near the end, milestones show it elsewhere; a snapshot of the same log never contradicts."""
    same = other = EMPTY
    for place in range(8 * MILESTONE_POSITIONS + 1):
        same = step(same, Record(place, 1, b""), ENTRIES).replica
        other = step(other, Record(place, 1, b"x" if place == 900 else b""), ENTRIES).replica
    read = mark(same)
    for place in range(read.position + 1, read.position + 1 + more):
        same, other = (step(one, Record(place, 1, b""), ENTRIES).replica for one in (same, other))
    assert read.contradicted_by(same.trail, same.milestones) is None
    assert read.contradicted_by(other.trail, other.milestones) is not None


def test_a_milestone_at_the_readers_own_position_is_compared() -> None:
    """The trail of a snapshot that is far ahead does not reach back to it."""
    read = ReadMark(MILESTONE_POSITIONS, b"mine", ((MILESTONE_POSITIONS, b"mine"),))
    assert read.contradicted_by((), ((MILESTONE_POSITIONS, b"other"),)) == MILESTONE_POSITIONS
    assert read.contradicted_by((), ((MILESTONE_POSITIONS, b"mine"), (2 * MILESTONE_POSITIONS, b"later"))) is None


def test_milestones_stay_few() -> None:
    """A billion records later a snapshot is larger by some kilobytes."""
    assert len(milestones(20_000)) < 70


def test_two_readers_of_one_log_have_a_recent_milestone_in_common() -> None:
    """The reader that has read less can be compared near its own end."""
    for short in (0, 1, 7, 100, 777, 1_023):
        for ahead in (1, 5, 64, 900):
            common = set(milestones(short)) & set(milestones(short + ahead))
            assert short - max(common)[0] // MILESTONE_POSITIONS <= ahead
