"""Log time: no lease ends early, whatever clocks, networks and writers do, and every lease ends."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import pytest
from attrs import define, evolve, field
from hypothesis import given, settings
from hypothesis import strategies as st

from log_entries.registry import ENTRIES
from onyxq.core.claims import GRACE_MS, lapsed
from onyxq.core.log.clock import LOG_TIME_SLACK_MS, LOG_TIME_STEP_MAX_MS, NS, LogClock, Measured
from onyxq.core.log.interface import Record
from onyxq.core.log.record import encode_record
from onyxq.core.replica import CLOCK_SKEW_MAX_MS, Replica
from onyxq.core.step import CLOCK_TOLERANCE_MS, step
from tests.entries.world import CLUSTER_ID, World, created

PEERS = ("a", "b", "c")
RING = created(*PEERS)
HOUR_MS = 3_600_000
FAST_PPM = 500
"""How much too fast or slow a monotonic clock may run."""
CYCLE_MS = 5 * LOG_TIME_SLACK_MS
"""Time between two records of a leader with claims in flight if log time is too slow: it writes at each tick."""


@define
class Peer:
    """A writer: what it has read, its two clocks, and its records in flight."""

    id: str
    ppm: int = 0
    """How much too fast its monotonic clock runs."""
    wall_off_ms: int = 0
    read: int = 0
    """How many records it has read."""
    number: int = 0
    flying: list[bytes] = field(factory=list)
    clock: LogClock = field(factory=LogClock)

    def monotonic_ns(self, now_ms: int) -> int:
        """Return its monotonic clock, which is never set."""
        return now_ms * NS + now_ms * NS * self.ppm // 1_000_000


class Landed(NamedTuple):
    """A record that counted: true time and log time."""

    true_ms: int
    log_ms: int


@define
class Log:
    """A log with any clock, and its writers."""

    peers: dict[str, Peer]
    replicas: list[Replica] = field(factory=lambda: [RING.now])
    now_ms: int = RING.now_ms
    ctime_off_ms: int = 0
    landed: list[Landed] = field(factory=list)

    @property
    def log_ms(self) -> int:
        """Log time."""
        return self.replicas[-1].log_time_ms

    def catch_up(self, name: str, count: int = 1 << 30) -> None:
        """A peer reads up to ``count`` records, one by one."""
        peer = self.peers[name]
        end = min(len(self.replicas), peer.read + count)
        for replica in self.replicas[peer.read : end]:
            peer.clock.read(replica.position, replica.log_time_ms, peer.monotonic_ns(self.now_ms))
        peer.read = max(peer.read, end)

    def make(self, name: str) -> None:
        """Let a peer make a record, or repeat the one in flight."""
        peer = self.peers[name]
        measured = peer.clock.measured(peer.monotonic_ns(self.now_ms))
        number = self.replicas[-1].outbox.get(name, 0) + 1
        wall_ms = max(0, self.now_ms + peer.wall_off_ms)
        peer.flying.append(encode_record(CLUSTER_ID, name, number, wall_ms, [], measured=measured))

    def land(self, name: str) -> None:
        """Append the last record of a peer; it may be a repeat."""
        if self.peers[name].flying:
            self.append(self.peers[name].flying.pop())

    def append(self, data: bytes) -> int:
        """Append a record; return by how much log time rose."""
        before = self.replicas[-1]
        done = step(before, Record(before.position + 1, max(0, self.now_ms + self.ctime_off_ms), data), ENTRIES)
        self.replicas.append(done.replica)
        if not done.problem:
            self.landed.append(Landed(self.now_ms, done.replica.log_time_ms))
        return done.replica.log_time_ms - before.log_time_ms

    def write(self, name: str, *, latency_ms: int = 0, read_ms: int = 0) -> int:
        """Let a peer that has read everything append a record, and all read it; return by how much log time rose."""
        before_ms = self.log_ms
        self.catch_up(name)
        self.make(name)
        self.now_ms += latency_ms
        self.land(name)
        self.now_ms += read_ms
        for other in self.peers:
            self.catch_up(other)
        return self.log_ms - before_ms

    def jump(self, name: str) -> None:
        """Let a peer continue from a snapshot of the end; its records may still arrive."""
        peer, end = self.peers[name], self.replicas[-1]
        peer.clock.begin(end.position, end.log_time_ms, peer.monotonic_ns(self.now_ms))
        peer.read = len(self.replicas)


def log(ppm: Iterable[int] = (0, 0, 0)) -> Log:
    """Return a log with three peers that have read it."""
    found = Log({name: Peer(name, rate) for name, rate in zip(PEERS, ppm, strict=True)})
    for name in PEERS:
        found.catch_up(name)
    return found


Action = tuple[str, str, int]
"""A word, a peer and a number."""

JUMPS = st.sampled_from([-HOUR_MS, -60_000, -4_000, -700, 200, 700, 1_500, 4_900, 600_000, HOUR_MS])
ACTIONS = st.one_of(
    st.tuples(st.just("pass"), st.just(""), st.sampled_from([1, 10, 100, 400, 600, 1_000, 1_900, 4_900, 6_000])),
    st.tuples(st.just("read"), st.sampled_from(PEERS), st.sampled_from([1, 2, 99])),
    st.tuples(st.just("make"), st.sampled_from(PEERS), st.just(0)),
    st.tuples(st.just("land"), st.sampled_from(PEERS), st.just(0)),
    st.tuples(st.just("write"), st.sampled_from(PEERS), st.sampled_from([0, 5, 80])),
    st.tuples(st.just("jump"), st.sampled_from(PEERS), st.just(0)),
    st.tuples(st.just("wall"), st.sampled_from(PEERS), JUMPS),
    st.tuples(st.just("log"), st.just(""), JUMPS),
)
RATES = st.tuples(*[st.sampled_from([-FAST_PPM, 0, FAST_PPM])] * 3)


def act(world: Log, action: Action) -> None:
    """Carry out one action."""
    word, name, number = action
    if word == "pass":
        world.now_ms += number
    elif word == "read":
        world.catch_up(name, number)
    elif word == "write":
        world.write(name, latency_ms=number)
    elif word == "wall":
        world.peers[name].wall_off_ms += number
    elif word == "log":
        world.ctime_off_ms += number
    else:
        {"make": world.make, "land": world.land, "jump": world.jump}[word](name)


# --- no lease ends before its time ------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(actions=st.lists(ACTIONS, min_size=3, max_size=60), rates=RATES)
def test_no_interleaving_of_records_ends_a_lease_before_its_time(actions: list[Action], rates: tuple[int, ...]) -> None:
    """There are late records, repeats, slow readers, snapshots, and clocks that are set to anything."""
    world = log(rates)
    for action in actions:
        act(world, action)
    for place, granted in enumerate(world.landed):
        for later in world.landed[place + 1 :]:
            fast_ms = (later.true_ms - granted.true_ms) * FAST_PPM // 1_000_000 + 1
            lease_ms = later.true_ms - granted.true_ms + fast_ms
            assert not lapsed(granted.log_ms + lease_ms, later.log_ms)
            assert later.log_ms >= granted.log_ms


def test_the_grace_is_what_log_time_may_run_ahead() -> None:
    """A smaller grace would end leases early, a larger one would end them late."""
    assert GRACE_MS == LOG_TIME_SLACK_MS


def test_two_clocks_that_jump_together_add_nothing() -> None:
    """The writer's wall clock and that of the log jump at the same moment, by the same amount or not."""
    for by_ms, log_by_ms in ((1_500, 1_500), (600_000, 1_500), (HOUR_MS, HOUR_MS), (-HOUR_MS, -HOUR_MS)):
        world = log()
        world.now_ms += 1_000
        world.write("a")
        world.ctime_off_ms += log_by_ms
        world.peers["a"].wall_off_ms += by_ms
        world.now_ms += 1_000
        assert world.write("a") == 1_000
        world.now_ms += 1_000
        assert world.write("b") == 1_000


def test_a_peer_that_continues_from_a_snapshot_measures_anew() -> None:
    """It has not read the records in which two others counted the slack, so it must not count the slack again."""
    world = log()
    world.make("b")
    world.land("b")
    world.catch_up("b")
    world.now_ms += 2_000
    started_ms = world.log_ms
    for writer in "ab":
        world.make(writer)
        world.land(writer)
        world.catch_up("b")
    assert world.log_ms == started_ms + 2 * LOG_TIME_SLACK_MS
    world.jump("c")
    world.make("c")
    world.land("c")
    assert world.log_ms == started_ms + 2 * LOG_TIME_SLACK_MS


def test_a_writer_that_has_not_read_the_last_record_counts_no_more_than_the_slack() -> None:
    """The record that it has not read may have a grant that was appended just before."""
    world = log()
    world.make("b")
    world.now_ms += 3_000
    world.land("b")
    world.make("a")
    world.land("a")
    assert world.log_ms - RING.now.log_time_ms == LOG_TIME_SLACK_MS


def test_a_record_that_lands_late_counts_what_passed_before_it_was_made() -> None:
    """The next record counts the rest, once."""
    world = log()
    world.now_ms += 1_000
    world.make("a")
    world.now_ms += 3_000
    world.land("a")
    assert world.log_ms - RING.now.log_time_ms == 1_000
    world.now_ms += 2_000
    assert world.write("b") <= 2_000


def test_a_slow_monotonic_clock_only_makes_leases_longer() -> None:
    """A machine that slept, or was stopped, measures too little."""
    world = log((-500_000, 0, 0))
    world.now_ms += 2_000
    assert world.write("a") == 1_000


# --- all leases end -----------------------------------------------------------------------


def test_log_time_passes_as_time_does() -> None:
    """Log time follows the measurements of all writers."""
    world = log()
    found = []
    for number in range(9):
        world.now_ms += 700
        found.append(world.write(PEERS[number % 3]))
    assert found == [700] * 9


@settings(max_examples=100, deadline=None)
@given(pauses=st.lists(st.tuples(st.integers(0, 2_000), st.integers(0, 2)), min_size=1, max_size=60))
def test_little_time_is_lost_by_appending_and_reading(pauses: list[tuple[int, int]]) -> None:
    """With many records and 40 ms for appending and reading each, this time is lost once, not for each record."""
    world = log()
    start_ms = world.now_ms
    for pause_ms, writer in pauses:
        world.now_ms += pause_ms
        world.write(PEERS[writer], latency_ms=40, read_ms=40)
    passed_ms = world.now_ms - start_ms
    assert world.log_ms - RING.now.log_time_ms >= passed_ms - 2 * 80


def test_a_flood_of_records_does_not_hold_log_time_up() -> None:
    """Writers that have just read a record measure over all records."""
    world = log()
    start_ms = world.now_ms
    for number in range(2_000):
        world.write(PEERS[number % 3], latency_ms=3, read_ms=2)
    assert world.log_ms - RING.now.log_time_ms >= world.now_ms - start_ms - 2 * 5


def test_a_late_reading_costs_only_what_is_beyond_the_slack() -> None:
    """A later record of a peer that read in time brings log time back."""
    world = log()
    start_ms = world.now_ms
    for _ in range(20):
        world.write("b", latency_ms=3, read_ms=2)
    world.write("b", latency_ms=3, read_ms=LOG_TIME_SLACK_MS + 400)
    for _ in range(20):
        world.write("b", latency_ms=3, read_ms=2)
    passed_ms = world.now_ms - start_ms
    assert passed_ms - 400 - 2 * 5 <= world.log_ms - RING.now.log_time_ms <= passed_ms - 400


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(
    before=st.lists(ACTIONS, max_size=30),
    between=st.lists(st.lists(ACTIONS, max_size=6), min_size=4, max_size=12),
    rates=RATES,
)
def test_whatever_others_do_a_leader_that_writes_moves_log_time(
    before: list[Action], between: list[list[Action]], rates: tuple[int, ...]
) -> None:
    """Each of its records adds the slack, so a lease lasts at most five times as long, and some seconds."""
    world = log(rates)
    for action in before:
        act(world, action)
    for actions in between:
        start_ms, log_ms = world.now_ms, world.log_ms
        world.write("c")
        for action in actions:
            if action[1] != "c" and action[0] != "pass":
                act(world, action)
        world.now_ms = max(world.now_ms, start_ms + CYCLE_MS)
        world.catch_up("c")
        world.write("c")
        assert world.log_ms - log_ms >= LOG_TIME_SLACK_MS - 1


@settings(max_examples=200, deadline=None)
@given(history=st.lists(ACTIONS, max_size=40), rates=RATES, writer=st.sampled_from(PEERS))
def test_leases_end_as_soon_as_ever_once_faults_are_over(
    history: list[Action], rates: tuple[int, ...], writer: str
) -> None:
    """After any faults, ten seconds of records every two seconds count as ten."""
    world = log(rates)
    for action in history:
        act(world, action)
    world.write(writer)
    before_ms = world.log_ms
    for _ in range(5):
        world.now_ms += 2_000
        world.write(writer)
    assert world.log_ms - before_ms >= 9_980


# --- outages and strangers ---------------------------------------------------------------


def test_an_outage_counts_nothing() -> None:
    """Idle time does not count either: a longer pause than is possible while claims are held."""
    world = log()
    for pause_ms, counted_ms in (
        (LOG_TIME_STEP_MAX_MS, LOG_TIME_STEP_MAX_MS),
        (LOG_TIME_STEP_MAX_MS + 1, 0),
        (HOUR_MS, 0),
        (1_000, 1_000),
    ):
        world.now_ms += pause_ms
        assert world.write("a") == counted_ms


@settings(max_examples=200, deadline=None)
@given(history=st.lists(ACTIONS, max_size=30), writers=st.permutations(PEERS))
def test_no_record_after_an_outage_counts_any_of_it(history: list[Action], writers: list[str]) -> None:
    """This holds for any earlier measurement and any first writer."""
    world = log()
    for action in history:
        act(world, action)
    for name in PEERS:
        world.catch_up(name)
        world.peers[name].flying.clear()
    world.write("a")
    before_ms = world.log_ms
    world.now_ms += LOG_TIME_STEP_MAX_MS + 1
    for name in writers:
        world.make(name)
    for name in writers:
        world.land(name)
    for name in writers:
        world.write(name)
    assert world.log_ms == before_ms


def test_a_flood_of_foreign_bytes_does_not_hold_time_up() -> None:
    """Bytes that are not a record of this cluster grant nothing, so a writer need not have read them."""
    world = log()
    world.now_ms += 1_000
    world.write("a")
    world.now_ms += 1_500
    world.make("b")
    for _ in range(10):
        assert world.append(b"nonsense") == 0
    before_ms = world.log_ms
    world.land("b")
    assert world.log_ms - before_ms == 1_500


def test_a_record_that_claims_too_much_moves_log_time_by_the_slack() -> None:
    """The effect of a broken writer is bounded."""
    world = log()
    data = encode_record(CLUSTER_ID, "a", RING.now.outbox["a"] + 1, 0, [], measured=Measured(-1, 9_000, 1 << 60))
    assert world.append(data) == LOG_TIME_SLACK_MS


# --- the cluster's clock and its peers' -----------------------------------------------------


def test_the_clusters_clock_follows_the_logs_but_not_its_jumps() -> None:
    """Also after a pause of an hour."""
    world = log()
    for jump_ms, pause_ms in ((0, 1_000), (HOUR_MS, 1_000), (-HOUR_MS, 2_000), (1_500, 500), (700_000, HOUR_MS)):
        world.ctime_off_ms += jump_ms
        before_ms = world.replicas[-1].clock_ms
        world.now_ms += pause_ms
        world.write("a")
        assert abs(world.replicas[-1].clock_ms - before_ms - pause_ms) <= CLOCK_TOLERANCE_MS


def test_clocks_that_jump_together_do_not_take_the_clusters_clock_along() -> None:
    """The jump becomes part of the writer's skew, so its peer does not trust its clock."""
    for by_ms, log_by_ms in ((HOUR_MS, HOUR_MS), (600_000, -700), (HOUR_MS, 2 * HOUR_MS)):
        world = log()
        before_ms = world.replicas[-1].clock_ms
        world.ctime_off_ms += log_by_ms
        world.peers["a"].wall_off_ms += by_ms
        world.now_ms += 1_000
        world.write("a")
        assert world.replicas[-1].clock_ms - before_ms <= 1_000 + CLOCK_SKEW_MAX_MS
        assert world.replicas[-1].peers["a"].clock_skew_ms > by_ms - 2 * CLOCK_SKEW_MAX_MS


def test_a_newcomers_clock_is_compared_from_its_first_record_on() -> None:
    """This holds after any pause without records."""
    world = World(check=False)
    world.replicas, world.now_ms = [evolve(RING.now, position=-1, counted_position=-1)], RING.now_ms + HOUR_MS
    world.join("d")
    assert abs(world.now.peers["d"].clock_skew_ms) <= CLOCK_TOLERANCE_MS


def test_a_writers_clock_skew_is_noted() -> None:
    """It is noted if it changes by more than the jitter of appends; a jump of the log's clock is not a skew."""
    world = log()

    def skews() -> dict[str, int]:
        return {name: world.replicas[-1].peers[name].clock_skew_ms for name in PEERS}

    world.peers["a"].wall_off_ms = CLOCK_TOLERANCE_MS
    world.write("a")
    assert skews()["a"] == 0
    world.peers["a"].wall_off_ms = 9_000
    world.write("a")
    assert skews()["a"] == 9_000
    world.ctime_off_ms += HOUR_MS
    world.write("b")
    world.write("a")
    assert skews() == {"a": 9_000, "b": 0, "c": 0}
