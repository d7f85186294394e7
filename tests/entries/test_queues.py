"""Queues: settings, and limits that hold over all partitions and leaders."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from pyrsistent import pmap

from log_entries import expire_claims, grant_claims, renew_claims, set_queue
from log_entries.grant_limited_claims import OVER_THE_LIMIT, PAUSED
from onyxq.core.entry import APPLIED
from onyxq.core.ids import Run
from onyxq.core.queue_settings import DEFAULTS, SETTINGS, Queue
from onyxq.core.queues import QUEUES_MAX, problem_of, room, settings_of, wait_ms
from onyxq.core.replica import claimed_bits, pieces_of
from tests.entries.queue_world import PARTITIONS, QueueWorld, setting, tasks

# --- settings ------------------------------------------------------------------------


def test_settings_are_kept_and_cleared_one_by_one() -> None:
    """Other settings stay, and a queue with only defaults is not stored."""
    world = QueueWorld()
    world.done(setting("q", retries=3, on_dead="stops", archive=True))
    world.done(setting("q", backoff_ms=7))
    assert settings_of(world.replica, "q") == Queue(retries=3, on_dead="stops", archive=True, backoff_ms=7)
    cleared = set_queue.Args("q", pmap(), pmap(), pmap(), ("retries", "on_dead", "archive", "backoff_ms"), "", "")
    world.done(cleared)
    assert not world.replica.queues
    assert world.submit(cleared) == "already so"


def test_retries_without_a_limit() -> None:
    """The entry has -1 for this."""
    world = QueueWorld()
    world.done(setting("q", retries=-1))
    assert settings_of(world.replica, "q").retries is None


def test_a_pause_says_who_and_why_until_it_ends() -> None:
    """Other settings do not change it."""
    world = QueueWorld()
    world.done(setting("q", paused=True))
    world.done(setting("q", lease_ms=9_000))
    found = settings_of(world.replica, "q")
    assert (found.paused, found.paused_by, found.paused_why) == (True, "ops", "because")
    world.done(setting("q", paused=False))
    assert settings_of(world.replica, "q") == Queue(lease_ms=9_000)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"lease_ms": 999}, "lease_ms"),
        ({"retries": -2}, "retries"),
        ({"rate": -1}, "rate"),
        ({"concurrency": 10**9}, "concurrency"),
        ({"on_dead": "runs"}, "on_dead"),
        ({"durability": "none"}, "durability"),
        ({"speed": 1}, "speed"),
        ({"lease_ms": True}, "lease_ms"),
        ({"paused": 1}, "paused"),
        ({"archive": "yes"}, "archive"),
    ],
)
def test_what_cannot_be_set_is_named(given: dict[str, Any], field: str) -> None:
    """The verdict begins with the setting, and nothing changes."""
    world = QueueWorld()
    before = world.replica.queues
    assert world.submit(setting("q", **given)).startswith(f"{field} ")
    assert world.replica.queues is before


def test_an_older_version_of_the_entry_lacks_a_newer_setting() -> None:
    """It is refused as on peers of that release, when it is set and when it is cleared."""
    assert problem_of({"archive": True}, ("on_dead",), 1) == ""
    assert problem_of({"archive": True}, (), 0) == "archive is nothing to switch"
    assert problem_of({}, ("archive",), 0) == "archive is no setting"


def test_names_and_reasons_are_bounded() -> None:
    """The total in the replica is limited too."""
    world = QueueWorld()
    for bad in ("", "x" * 201, "a\nb"):
        assert world.submit(setting(bad, retries=1)).startswith("queue ")
    long = set_queue.Args("q", pmap(), pmap(), pmap({"paused": True}), (), "ops", "x" * 1_001)
    assert world.submit(long).startswith("why ")
    both = set_queue.Args("q", pmap({"retries": 1}), pmap(), pmap(), ("retries",), "", "")
    assert world.submit(both) == "retries is set and cleared"
    unknown = set_queue.Args("q", pmap(), pmap(), pmap(), ("paused_by",), "", "")
    assert world.submit(unknown) == "paused_by is no setting"


def test_so_many_queues_can_have_settings() -> None:
    """One more is refused; existing ones can still be changed."""
    world = QueueWorld()
    full = pmap({f"q{number}": Queue(retries=1) for number in range(QUEUES_MAX)})
    world.replica = type(world.replica)(**{**_fields(world.replica), "queues": full})
    assert world.submit(setting("more", retries=1)).startswith("queue is one too many")
    assert world.submit(setting("q7", retries=2)) == APPLIED


def _fields(value: Any) -> dict[str, Any]:
    return {item.name: getattr(value, item.name) for item in value.__attrs_attrs__}


def test_every_setting_is_named_once() -> None:
    """Each setting has its type."""
    assert set(SETTINGS) == {item for item in _fields(DEFAULTS) if not item.startswith("paused_")}


# --- limits ----------------------------------------------------------------------------


def test_concurrency_is_counted_over_all_partitions() -> None:
    """This includes a limit that is set while counted claims are in flight."""
    world = QueueWorld()
    world.limit(concurrency=5)
    token = world.done(world.limited(0, 3))
    assert world.submit(world.limited(0, 3, partition=1)) == OVER_THE_LIMIT
    world.done(world.limited(0, 2, partition=1))
    assert world.submit(world.limited(9, 1)) == OVER_THE_LIMIT
    world.done(world.release(tasks(1, 1), token))
    assert room(world.replica, "q") == 1
    world.done(world.limited(9, 1))
    world.limit(concurrency=1)
    assert room(world.replica, "q") == 0 and world.replica.running == {"q": 5}


@pytest.mark.parametrize("end", ["released", "expired"])
def test_what_ends_counts_no_more(end: str) -> None:
    """This holds for any end; a renewed claim still counts."""
    world = QueueWorld()
    world.limit(concurrency=4)
    token = world.done(world.limited(0, 4))
    renewal = renew_claims.Renewal(token, 30_000, (tasks(0, 1),))
    world.done(renew_claims.Args(0, world.epoch(0), (renewal,)), after_ms=1_000)
    assert world.replica.running["q"] == 4
    if end == "released":
        world.done(world.release(tasks(1, 3), token))
    else:
        expiry = expire_claims.Expiry(token, 1, (tasks(0, 4),))
        world.done(expire_claims.Args(0, world.epoch(0), (expiry,)), after_ms=29_600)
    assert world.replica.running == {"q": 1}
    assert list(world.replica.limited.values()) == [(("q", 0, 1),)]


def test_queues_share_a_stretch_and_count_apart() -> None:
    """Each queue counts its own tasks."""
    world = QueueWorld()
    world.limit("q", concurrency=9)
    world.limit("other", concurrency=9)
    first = world.done(world.limited(0, 2))
    world.done(world.limited(2, 2, queue="other"))
    world.done(world.limited(4, 2))
    assert world.replica.running == {"q": 4, "other": 2}
    world.done(world.release(tasks(0, 2), first))
    assert world.replica.running == {"q": 2, "other": 2}


def test_a_rate_lets_a_second_pass_at_once_and_then_as_much_as_time_goes() -> None:
    """Time is the log's clock, which no leader can exceed."""
    world = QueueWorld()
    world.limit(rate=4_000)
    world.done(world.limited(0, 4))
    assert world.submit(world.limited(4, 1)) == OVER_THE_LIMIT
    assert wait_ms(world.replica, "q") == 250
    assert room(world.replica, "q", since_ms=249) == 0 and room(world.replica, "q", since_ms=250) == 1
    world.done(world.limited(4, 2), after_ms=500)
    assert world.submit(world.limited(6, 5), after_ms=60_000) == OVER_THE_LIMIT
    world.done(world.limited(6, 4))


def test_a_slow_rate_lets_one_task_pass() -> None:
    """With less than one task a second, a second's worth would be no task."""
    world = QueueWorld()
    world.limit(rate=50)  # one in 20 s
    world.done(world.limited(0, 1))
    assert world.submit(world.limited(1, 1), after_ms=19_999) == OVER_THE_LIMIT
    world.done(world.limited(1, 1), after_ms=1)


def test_the_wait_for_a_rate_ends_in_the_first_millisecond_with_room() -> None:
    """A leader that tried earlier would be refused, and nothing would wake it again."""
    world = QueueWorld()
    world.limit(rate=3)
    assert wait_ms(world.replica, "q") == 0
    world.done(world.limited(0, 1))
    wait = wait_ms(world.replica, "q")
    assert wait == 333_334
    assert [room(world.replica, "q", since_ms=one) for one in (wait - 1, wait)] == [0, 1]


def test_a_paused_queue_is_not_granted() -> None:
    """Limited grants check this; existing claims are not affected."""
    world = QueueWorld()
    world.limit(concurrency=9)
    world.done(world.limited(0, 2))
    world.done(setting("q", paused=True))
    assert world.submit(world.limited(2, 1)) == PAUSED
    assert world.replica.running == {"q": 2} and room(world.replica, "q") == 0


def test_a_refused_grant_takes_nothing() -> None:
    """It uses up neither the rate nor the concurrency."""
    world = QueueWorld()
    world.limit(rate=10_000, concurrency=10)
    token = world.done(world.limited(0, 3))
    left = world.replica.rates
    assert world.submit(world.limited(2, 3)) == "not free"
    assert world.submit(world.limited(0, 0)) == "bad run"
    assert world.replica.rates is left and world.replica.running == {"q": 3}
    world.done(world.release(tasks(0, 3), token))
    assert not world.replica.limited and not world.replica.running


def test_a_limit_that_went_leaves_claims_counted_until_they_end() -> None:
    """A grant that was in flight is still applied."""
    world = QueueWorld()
    world.limit(concurrency=2, rate=5_000)
    token = world.done(world.limited(0, 2))
    world.done(set_queue.Args("q", pmap(), pmap(), pmap(), ("concurrency", "rate"), "", ""))
    assert not world.replica.rates and room(world.replica, "q") is None
    world.done(world.limited(2, 5))
    assert world.replica.running == {"q": 7}
    world.done(world.release(tasks(0, 2), token))
    assert world.replica.running == {"q": 5}


class Limits(RuleBasedStateMachine):
    """Grants, ends and changes of limits in any order, next to a plain count of what is claimed."""

    def __init__(self) -> None:
        super().__init__()
        self.world = QueueWorld()
        self.tokens: dict[tuple[int, int], int] = {}
        """(partition, number) -> token of a claimed task."""
        self.queue_of: dict[tuple[int, int], str] = {}

    @rule(queue=st.sampled_from("ab"), concurrency=st.integers(0, 12), rate=st.sampled_from([0, 500, 3_000]))
    def limit(self, queue: str, concurrency: int, rate: int) -> None:
        self.world.submit(setting(queue, concurrency=concurrency, rate=rate))

    @rule(
        queue=st.sampled_from("ab"),
        partition=st.integers(0, PARTITIONS - 1),
        first=st.integers(1_018, 1_036),
        count=st.integers(1, 6),
        after_ms=st.sampled_from([0, 100, 2_000]),
    )
    def grant(self, queue: str, partition: int, first: int, count: int, after_ms: int) -> None:
        count = min(count, 1_024 - first) if first < 1_024 else count
        named = {(partition, number) for number in range(first, first + count)}
        left = room(self.world.replica, queue, since_ms=after_ms)
        verdict = self.world.submit(
            self.world.limited(first, count, queue=queue, partition=partition), after_ms=after_ms
        )
        free = not named & self.tokens.keys()
        assert (verdict == APPLIED) == (free and (left is None or count <= left))
        if verdict == APPLIED:
            self.tokens |= dict.fromkeys(named, self.world.replica.position)
            self.queue_of |= dict.fromkeys(named, queue)

    @rule(partition=st.integers(0, PARTITIONS - 1), first=st.integers(1_018, 1_036))
    def grant_without_limits(self, partition: int, first: int) -> None:
        grant = grant_claims.Grant("w", 30_000, (tasks(first, 1, partition=partition),))
        if self.world.submit(grant_claims.Args(partition, self.world.epoch(partition), (grant,))) == APPLIED:
            self.tokens[partition, first] = self.world.replica.position

    @precondition(lambda self: self.tokens)
    @rule(data=st.data(), count=st.integers(1, 4))
    def release(self, data: st.DataObject, count: int) -> None:
        partition, number = data.draw(st.sampled_from(sorted(self.tokens)))
        token = self.tokens[partition, number]
        count = min(count, 1_024 - number) if number < 1_024 else count
        self.world.done(self.world.release(Run(tasks(number, 1, partition=partition).first, count), token))
        for one in range(number, number + count):
            if self.tokens.get((partition, one)) == token:
                del self.tokens[partition, one]
                self.queue_of.pop((partition, one), None)

    @invariant()
    def running_is_what_is_claimed(self) -> None:
        names = list(self.queue_of.values())
        assert dict(self.world.replica.running) == {name: names.count(name) for name in sorted(set(names))}
        claimed = [
            claimed_bits(pieces_of(self.world.replica, tasks(first, 1, partition=partition).first)).bit_count()
            for partition in range(PARTITIONS)
            for first in (0, 1_024)
        ]
        assert sum(claimed) == len(self.tokens)


TestLimits = Limits.TestCase
TestLimits.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
