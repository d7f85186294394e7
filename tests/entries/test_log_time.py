"""Log time: what clocks that jump, lag and disagree can do to it, and what they cannot."""

from __future__ import annotations

from typing import NamedTuple

from attrs import define, evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from onyxq.log.codec import encode_record
from onyxq.log.interface import Record
from onyxq.replica import LOG_TIME_STEP_MAX_MS, Replica
from onyxq.step import CLOCK_TOLERANCE_MS, step
from tests.entries.world import CLUSTER_ID, World, created

PEERS = ("a", "b", "c")
RING = created(*PEERS)
HOUR_MS = 3_600_000


@define
class Clocks:
    """A log with clocks of its own: real time, the log's offset from it, each writer's."""

    replica: Replica = RING.now
    now_ms: int = RING.now_ms
    log_off_ms: int = 0
    offs_ms: tuple[int, ...] = (0, 0, 0)

    def write(self, writer: int, *, latency_ms: int = 0, data: bytes = b"") -> int:
        """A record lands that was made ``latency_ms`` ago; by how much log time rose."""
        before = self.replica
        peer = PEERS[writer]
        wall_ms = self.now_ms - latency_ms + self.offs_ms[writer]
        data = data or encode_record(CLUSTER_ID, peer, before.outbox[peer] + 1, wall_ms, [])
        self.replica = step(before, Record(before.position + 1, self.now_ms + self.log_off_ms, data)).replica
        return self.replica.log_time_ms - before.log_time_ms

    def written(self, writer: int, after_ms: int, *, latency_ms: int = 0) -> int:
        """Time passes, then a record lands."""
        self.now_ms += after_ms
        return self.write(writer, latency_ms=latency_ms)


class Event(NamedTuple):
    """One record and what happened to clocks before it."""

    writer: int
    after_ms: int
    latency_ms: int = 0
    log_jump_ms: int = 0
    writer_jump_ms: int = 0


def events(*, log_jumps: bool, writer_jumps: bool) -> st.SearchStrategy[list[Event]]:
    """Records of three writers, at most two seconds apart."""
    jumps = st.sampled_from([0, 0, 0, 900, 3_000, 4_900, -4_000, 60_000, -60_000, HOUR_MS, -HOUR_MS])
    one = st.builds(
        Event,
        st.integers(0, 2),
        st.integers(0, 2_000),
        st.integers(0, 40),
        jumps if log_jumps else st.just(0),
        jumps if writer_jumps else st.just(0),
    )
    return st.lists(one, min_size=1, max_size=60)


def run(history: list[Event]) -> list[tuple[int, int]]:
    """Real and log time after each record, from the start."""
    clocks = Clocks()
    start_ms, log_start_ms = clocks.now_ms, clocks.replica.log_time_ms
    found = [(0, 0)]
    for event in history:
        clocks.log_off_ms += event.log_jump_ms
        offs = list(clocks.offs_ms)
        offs[event.writer] += event.writer_jump_ms
        clocks.offs_ms = tuple(offs)
        clocks.written(event.writer, event.after_ms, latency_ms=event.latency_ms)
        found.append((clocks.now_ms - start_ms, clocks.replica.log_time_ms - log_start_ms))
    return found


# --- when all is well -----------------------------------------------------------------


def test_log_time_passes_as_time_does() -> None:
    """By what the znodes' ctime rose, whoever writes."""
    clocks = Clocks()
    assert [clocks.written(number % 3, 700) for number in range(9)] == [700] * 9


@settings(max_examples=200, deadline=None)
@given(history=events(log_jumps=False, writer_jumps=False))
def test_with_right_clocks_no_time_is_lost_but_by_the_jitter_of_appending(history: list[Event]) -> None:
    """Log time and real time stay together."""
    for real_ms, log_ms in run(history):
        assert 0 <= real_ms - log_ms <= CLOCK_TOLERANCE_MS


# --- the log's clock ------------------------------------------------------------------


def test_a_jump_of_the_logs_clock_adds_nothing() -> None:
    """Forward or back, by milliseconds or hours: the record after it counts about what passed."""
    for by_ms in (-HOUR_MS, -4_000, 3_000, 4_900, 60_000, HOUR_MS):
        clocks = Clocks()
        clocks.written(0, 1_000)
        clocks.log_off_ms += by_ms
        assert clocks.written(1, 1_000) <= 1_000 + CLOCK_TOLERANCE_MS
        assert clocks.written(2, 1_000) <= 1_000
        assert sum(clocks.written(number % 3, 1_000) for number in range(10)) >= 9_500


def test_a_clock_that_goes_to_and_fro_adds_nothing() -> None:
    """Also where the writer after the second jump wrote last before the first."""
    clocks = Clocks()
    clocks.written(0, 1_000)
    clocks.log_off_ms -= 4_000
    clocks.written(1, 1_000)
    clocks.log_off_ms += 4_000
    assert clocks.written(0, 1_000) <= 2_000 + CLOCK_TOLERANCE_MS


def test_an_idle_time_does_not_blind_the_witnesses() -> None:
    """A jump after an hour without records is seen by one who has not written since."""
    clocks = Clocks()
    assert clocks.written(0, HOUR_MS) == 0
    clocks.written(0, 1_000)
    clocks.log_off_ms += 4_000
    assert clocks.written(1, 1_000) <= 1_000 + CLOCK_TOLERANCE_MS


@settings(max_examples=400, deadline=None)
@given(history=events(log_jumps=True, writer_jumps=False))
def test_no_jumps_of_the_logs_clock_age_a_lease(history: list[Event]) -> None:
    """Between any two records log time passes no more than real time, but for the tolerance at each jump."""
    found = run(history)
    jumps = [0]
    for event in history:
        jumps.append(jumps[-1] + (event.log_jump_ms > 0))
    for start, (real_from, log_from) in enumerate(found):
        for end, (real_to, log_to) in enumerate(found[start:], start):
            allowed_ms = CLOCK_TOLERANCE_MS * (1 + jumps[end] - jumps[start]) + 40
            assert log_to - log_from <= real_to - real_from + allowed_ms


# --- writers' clocks -------------------------------------------------------------------


def test_a_jump_of_a_writers_clock_costs_one_record_at_most() -> None:
    """Forward it changes nothing, back its next record counts nothing."""
    for by_ms, counted_ms in ((HOUR_MS, 1_000), (3_000, 1_000), (-3_000, 0), (-HOUR_MS, 0)):
        clocks = Clocks()
        clocks.written(0, 1_000)
        clocks.offs_ms = (by_ms, 0, 0)
        assert [clocks.written(0, 1_000), clocks.written(0, 1_000), clocks.written(1, 1_000)] == [
            counted_ms,
            1_000,
            1_000,
        ]


@settings(max_examples=400, deadline=None)
@given(history=events(log_jumps=False, writer_jumps=True))
def test_no_jumps_of_writers_clocks_age_a_lease(history: list[Event]) -> None:
    """The log's clock is right: log time never overtakes it."""
    found = run(history)
    for (real_from, log_from), (real_to, log_to) in zip(found, found[1:], strict=False):
        assert log_to - log_from <= real_to - real_from


@settings(max_examples=300, deadline=None)
@given(history=events(log_jumps=True, writer_jumps=True), quiet=st.integers(0, 2))
def test_expiry_goes_on_once_clocks_have_stopped_jumping(history: list[Event], quiet: int) -> None:
    """After whatever happened, ten seconds of records every two seconds count as at least six."""
    clocks = Clocks()
    for event in history:
        clocks.log_off_ms += event.log_jump_ms
        offs = list(clocks.offs_ms)
        offs[event.writer] += event.writer_jump_ms
        clocks.offs_ms = tuple(offs)
        assert clocks.written(event.writer, event.after_ms, latency_ms=event.latency_ms) >= 0
    assert sum(clocks.written(quiet, 2_000) for _ in range(5)) >= 6_000


# --- outages and strangers ---------------------------------------------------------------


def test_an_outage_counts_nothing() -> None:
    """Nor does an idle time: a longer pause than there is while claims are held."""
    clocks = Clocks()
    assert clocks.written(0, LOG_TIME_STEP_MAX_MS) == LOG_TIME_STEP_MAX_MS
    assert clocks.written(1, LOG_TIME_STEP_MAX_MS + 1) == 0
    assert clocks.written(2, HOUR_MS) == 0
    assert clocks.written(0, 1_000) == 1_000


def test_a_record_that_lands_late_counts_nothing_and_spoils_nothing() -> None:
    """It was made before an outage: what passed since then counts with the next, or not at all."""
    clocks = Clocks()
    clocks.written(0, 1_000)
    assert clocks.written(1, 60_000, latency_ms=59_900) <= 100 + CLOCK_TOLERANCE_MS
    assert [clocks.written(number % 3, 1_000) for number in range(6)] == [1_000] * 6


def test_a_flood_of_foreign_bytes_does_not_hold_time_up() -> None:
    """What is no record of a known peer is no witness; the next one counts the whole time."""
    clocks = Clocks()
    clocks.written(0, 1_000)
    for _ in range(10):
        clocks.now_ms += 150
        assert clocks.write(0, data=b"nonsense") == 0
    assert clocks.write(1) == 1_500


def test_a_newcomers_clock_is_compared_from_its_first_record_on() -> None:
    """However long nothing was written before it came."""
    world = World(check=False)
    world.replicas, world.now_ms = [evolve(RING.now, position=-1)], RING.now_ms + HOUR_MS
    world.join("d")
    assert abs(world.now.peers["d"].clock_skew_ms) <= CLOCK_TOLERANCE_MS


def test_a_writers_clock_skew_is_noted() -> None:
    """Once it moved by more than the jitter of appending; a jump of the log's clock is none of its own."""
    clocks = Clocks()
    clocks.offs_ms = (CLOCK_TOLERANCE_MS, 0, 0)
    clocks.written(0, 10)
    assert clocks.replica.peers["a"].clock_skew_ms == 0
    clocks.offs_ms = (9_000, 0, 0)
    clocks.written(0, 10)
    assert clocks.replica.peers["a"].clock_skew_ms == 9_000
    clocks.log_off_ms += HOUR_MS
    clocks.written(1, 10)
    clocks.written(0, 10)
    assert abs(clocks.replica.peers["a"].clock_skew_ms - 9_000) <= CLOCK_TOLERANCE_MS
    assert clocks.replica.peers["b"].clock_skew_ms == 0
