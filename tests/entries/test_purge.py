"""The entry that purges: its effect, and that purged tasks stay purged."""

from __future__ import annotations

from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from log_entries import grant_claims, purge, reopen_tasks
from onyxq.core.entry import APPLIED
from onyxq.core.facts import RELEASED
from onyxq.core.ids import Run, TaskId, make_id
from onyxq.core.invariants.replica import violations
from onyxq.core.purged import KEPT_MAX, MARGIN_MS, Watermark, is_purged, watermark_of
from onyxq.core.snapshot import pack, unpack
from onyxq.history.words import sentence
from tests.entries.queue_world import QueueWorld

NOW_MS = 1_000_000


def stretch(ms: int, number: int = 0, partition: int = 0) -> TaskId:
    """A stretch of a time."""
    return make_id(ms, partition, 7, 1024 * number)


class Purged(QueueWorld):
    """A cluster whose clock has run for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.replica = evolve(self.replica, clock_ms=NOW_MS)

    def to(self, before_ms: int, *keep: bytes, partition: int = 0) -> str:
        """Purge; the verdict."""
        return self.submit(purge.Args(partition, self.epoch(partition), before_ms, tuple(sorted(keep))))

    def gone(self, task_id: bytes) -> bool:
        """Return whether a task of partition 0 is purged."""
        found = self.replica.partitions[0]
        assert is_purged(found, task_id) == watermark_of(found).covers(task_id)
        return is_purged(found, task_id)


def test_what_lies_below_the_watermark_is_purged_but_for_what_is_kept() -> None:
    """This holds only in its partition, and to the exact millisecond."""
    world = Purged()
    assert world.to(500, stretch(7, 2)) == APPLIED
    assert world.gone(stretch(499)) and world.gone(make_id(7, 0, 7, 1))
    assert not world.gone(stretch(500)) and not world.gone(make_id(7, 0, 7, 2048 + 9))
    assert world.replica.partitions[1].purged_ms == 0
    assert world.to(500) == APPLIED
    assert world.gone(make_id(7, 0, 7, 2048 + 9))
    assert world.to(500) == "already so"


def test_the_watermark_neither_sinks_nor_gives_back() -> None:
    """It does not come close to the present either."""
    world = Purged()
    assert world.to(NOW_MS - MARGIN_MS + 1_000) == "too recent"
    assert world.to(500, stretch(7)) == APPLIED
    assert world.to(499, stretch(7)) == "watermark would sink"
    assert world.to(600, stretch(8)) == "keeps what is purged"
    assert world.to(500, stretch(7), stretch(8)) == "keeps what is purged"
    assert world.to(600, stretch(7), stretch(550)) == APPLIED
    assert world.to(700, stretch(550)) == APPLIED
    assert world.to(800, stretch(7)) == "keeps what is purged"


def test_only_the_ready_leader_purges() -> None:
    """The leader purges only in its epoch."""
    world = Purged()
    epoch = world.epoch(0)
    assert (
        world.submit(purge.Args(0, epoch + 1, 9, ())) == world.submit(purge.Args(0, epoch - 1, 9, ())) == "stale epoch"
    )
    assert world.submit(purge.Args(9, epoch, 9, ())) == "no such partition"
    world.replica = evolve(
        world.replica,
        partitions=world.replica.partitions.set(0, evolve(world.replica.partitions[0], ready=False)),
    )
    assert world.to(9) == "not ready"


def test_a_malformed_list_of_what_is_kept_purges_nothing() -> None:
    """Valid are sorted stretches of the partition below the watermark, up to a number."""
    world = Purged()
    epoch = world.epoch(0)
    for keep in (
        [stretch(7, 1), stretch(7)],
        [stretch(7)] * 2,
        [make_id(7, 0, 7, 1)],
        [stretch(7, 0, 1)],
        [b"x"],
        [stretch(50)],
    ):
        assert world.submit(purge.Args(0, epoch, 50, tuple(keep))) == "bad keep"
    assert world.to(50, *(stretch(7, number) for number in range(KEPT_MAX + 1))) == "keeps too many"
    assert world.to(50, *(stretch(7, number) for number in range(KEPT_MAX))) == APPLIED


def test_what_is_claimed_is_not_purged_and_what_is_purged_not_claimed() -> None:
    """Purged tasks cannot be requeued either."""
    world = Purged()
    run = Run(make_id(7, 0, 7, 5), 2)
    token = world.granted(run)
    assert world.to(50) == "claimed"
    assert world.to(50, stretch(7)) == APPLIED
    assert world.to(50) == "claimed"
    world.done(world.release(run, token, RELEASED))
    assert world.to(50) == APPLIED
    grant = grant_claims.Grant("w", 1_000, (run,))
    assert world.submit(grant_claims.Args(0, world.epoch(0), (grant,))) == "purged"
    reopened = reopen_tasks.Reopened(Run(run.first, 1), 1)
    assert world.submit(reopen_tasks.Args(0, world.epoch(0), 0, (reopened,))) == "purged"
    world.granted(Run(make_id(50, 0, 7, 5), 2))


def test_it_is_told_in_words() -> None:
    """The words have the time up to which tasks are purged."""
    said = sentence("purge", purge.Args(3, 7, 86_400_000, (stretch(7, 0, 3),)))
    assert said == "partition 3 (epoch 7) purges all tasks of before 1970-01-02 00:00:00.000Z, but for 1 stretch"


PLACES = [stretch(ms, number) for ms in (10, 20, 30, 40) for number in (0, 1)]


@settings(deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("purge"), st.integers(0, 60), st.sets(st.sampled_from(PLACES))),
            st.tuples(st.just("grant"), st.just(0), st.sets(st.sampled_from(PLACES), min_size=1, max_size=1)),
        ),
        max_size=20,
    )
)
def test_what_is_purged_stays_so_whatever_is_submitted(moves: list[tuple[str, int, set[TaskId]]]) -> None:
    """This includes snapshots; the watermark only rises, and no purged task has a claim."""
    world = Purged()
    gone: set[TaskId] = set()
    mark = Watermark()
    for kind, before_ms, places in moves:
        before = world.replica
        if kind == "grant":
            (place,) = places
            grant = grant_claims.Grant("w", 1_000, (Run(place, 1),))
            verdict = world.submit(grant_claims.Args(0, world.epoch(0), (grant,)))
            assert (verdict == "purged") == (place in gone)
        else:
            verdict = world.to(before_ms, *(one for one in places if int.from_bytes(one[:6], "big") < before_ms))
            if verdict != APPLIED:
                assert world.replica.partitions == before.partitions
        now = {place for place in PLACES if world.gone(place)}
        assert gone <= now
        assert watermark_of(world.replica.partitions[0]).reaches(mark)
        gone, mark = now, watermark_of(world.replica.partitions[0])
        assert violations(world.replica) == []
        world.replica = unpack(pack(world.replica))
