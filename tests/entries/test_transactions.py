"""Transactions: all claims are valid and move, or nothing changes; tasks stay held until they are settled."""

from __future__ import annotations

import pytest
from attrs import evolve
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from log_entries import expire_claims, gc, grant_claims, reopen_tasks, settle_transactions, yield_partition
from log_entries.commit_transaction import REPEAT, TOO_LATE
from log_entries.release_claims import COMPLETED_EVENT
from log_entries.renew_claims import Args as Renew
from log_entries.renew_claims import Renewal
from onyxq.core.entry import APPLIED, Stamp
from onyxq.core.ids import Run
from onyxq.core.limits import DEADLINE_AHEAD_MS_MAX, NAME_KEEP_MS_MAX
from onyxq.core.replica import HELD_MS, claim_of, held_bits
from onyxq.core.transactions import (
    Claim,
    Part,
    Stale,
    answer_of,
    known_as,
    stale,
    worker_of,
)
from onyxq.leader.cohort import pending_facts
from tests.entries.queue_world import DEADLINE_MS, PARTITIONS, QueueWorld, commit, tasks


def claimed() -> tuple[QueueWorld, Claim, Claim]:
    """Claim four tasks of partition 0 and two of partition 1."""
    world = QueueWorld()
    one = Claim(0, world.granted(tasks(0, 4)), (tasks(0, 4),))
    other = Claim(1, world.granted(tasks(0, 2, partition=1)), (tasks(0, 2, partition=1),))
    return world, one, other


def settle(world: QueueWorld, *names: str, partition: int) -> settle_transactions.Args:
    """Return the leader's entry that its parts are visible."""
    return settle_transactions.Args(names, partition, world.epoch(partition))


# --- commit ------------------------------------------------------------------------------


def test_a_commit_moves_the_claims_into_the_transaction() -> None:
    """The claims are under its position without a deadline; parts and the workers' tokens are stored."""
    world, one, other = claimed()
    position = world.done(commit("t", one, other))
    held = (0, 4, position, worker_of("t"), HELD_MS)
    assert claim_of(world.replica, tasks(2, 1).first) == held
    found = world.replica.transactions["t"]
    assert found.position == position and dict(found.parts) == {0: (1, b"d"), 1: (1, b"d")}
    assert found.claims == ((0, one.token, one.runs), (1, other.token, other.runs))


def test_a_part_of_a_claim_can_be_taken() -> None:
    """The worker keeps the rest."""
    world, one, _ = claimed()
    world.done(commit("t", one._replace(runs=(tasks(1, 2),))))
    assert held_bits(world.replica, tasks(0, 4), one.token) == 0b1001


@pytest.mark.parametrize("how", ["token", "free", "held", "require"])
def test_one_claim_that_does_not_stand_keeps_all_from_happening(how: str) -> None:
    """The verdict names the token and the first task."""
    world, one, other = claimed()
    if how == "free":
        world.done(world.release(tasks(1, 1, partition=1), other.token))
    elif how == "held":
        world.done(commit("before", other._replace(runs=(tasks(1, 1, partition=1),))))
    wrong = other._replace(token=other.token + 7) if how in ("token", "require") else other
    args = commit("t", one, require=(wrong,)) if how == "require" else commit("t", one, wrong)
    first = tasks(0 if how in ("token", "require") else 1, 1, partition=1).first
    before = world.replica.claims
    assert world.submit(args) == f"stale token {wrong.token} on {first.hex()}"
    assert world.replica.claims is before and "t" not in world.replica.transactions


def test_required_claims_stay_with_their_workers() -> None:
    """They must only be valid."""
    world, one, other = claimed()
    world.done(commit("t", one, require=(other,)))
    assert held_bits(world.replica, other.runs[0], other.token) == 0b11
    world.done(world.release(other.runs[0], other.token))


def test_a_lapsed_claim_stands_until_it_is_expired() -> None:
    """As always, it is valid until the task is granted again."""
    world, one, _ = claimed()
    world.done(commit("t", one), after_ms=31_000)


def test_the_deadline_is_log_time() -> None:
    """At the deadline a commit is in time, after it a commit is late."""
    world, one, other = claimed()
    assert world.submit(commit("t", one, deadline_ms=999), after_ms=1_000) == TOO_LATE
    world.done(commit("t", one, deadline_ms=1_000))
    far = 1_000 + DEADLINE_AHEAD_MS_MAX
    assert world.submit(commit("u", other, deadline_ms=far + 1)) == "bad time"
    world.done(commit("u", other, deadline_ms=far))


def test_all_that_does_not_stand_can_be_told() -> None:
    """The answer to the client has them: for runs of one claim, the first of each."""
    world, one, other = claimed()
    world.done(world.release(tasks(1, 1), one.token))
    gone = stale(world.replica, (one, other._replace(token=99)))
    assert gone == [Stale(tasks(1, 1).first, one.token), Stale(tasks(0, 1, partition=1).first, 99)]
    assert not stale(world.replica, (one._replace(runs=(tasks(0, 1), tasks(2, 2))), other))


def test_a_token_of_its_own_record_stands_for_nothing() -> None:
    """No client can know it yet."""
    world, _, _ = claimed()
    position = world.granted(tasks(9, 1))
    claim = Claim(0, position, (tasks(9, 1),))
    assert stale(world.replica, (claim,), position=position)
    assert not stale(world.replica, (claim,), position=position + 1)


@pytest.mark.parametrize(
    "problem", ["no part", "twice", "unknown", "count", "digest", "run", "require", "keep", "note"]
)
def test_what_is_malformed_is_refused(problem: str) -> None:
    """This holds even if all claims are valid."""
    world, one, _ = claimed()
    part = Part(0, 1, b"d")
    crossing = one._replace(runs=(tasks(1_020, 9),))
    wrong = {
        "no part": commit("t", one, parts=(Part(1, 1, b"d"),)),
        "twice": commit("t", one, parts=(part, part)),
        "unknown": commit("t", one, parts=(part, Part(PARTITIONS, 1, b"d"))),
        "count": commit("t", one, parts=(Part(0, -1, b"d"),)),
        "digest": commit("t", one, parts=(Part(0, 1, b"d" * 65),)),
        "run": commit("t", crossing),
        "require": commit("t", one, require=(one._replace(partition=-7),)),
        "keep": commit("t", one, keep_ms=NAME_KEEP_MS_MAX + 1),
        "note": commit("t", one, note=b"n" * 65),
    }
    assert world.submit(wrong[problem]).startswith("bad ")
    assert not world.replica.transactions


def test_names_are_bounded() -> None:
    """The replica stores them for a while."""
    world, one, _ = claimed()
    assert world.submit(commit("", one)) == world.submit(commit("x" * 201, one)) == "bad name"


# --- what is held ---------------------------------------------------------------------------


def test_what_is_held_can_be_neither_expired_released_renewed_granted_nor_reopened() -> None:
    """This holds for any token and time."""
    world, one, _ = claimed()
    position = world.done(commit("t", one))
    run, epoch = tasks(0, 4), world.epoch(0)
    for token in (one.token, position):
        assert world.submit(world.release(run, token)) == "nothing held"
        assert world.submit(world.release(run, token, COMPLETED_EVENT)) == "nothing held"
        assert world.submit(Renew(0, epoch, (Renewal(token, 1_000, (run,)),))) == "nothing held"
        late = expire_claims.Args(0, epoch, (expire_claims.Expiry(token, 1, (run,)),))
        assert world.submit(late, after_ms=90_000) == "nothing held"
        assert held_bits(world.replica, run, token) == 0
    grant = grant_claims.Args(0, epoch, (grant_claims.Grant("w", 30_000, (tasks(3, 1),)),))
    assert world.submit(grant) == "not free"
    assert world.submit(reopen_tasks.Args(0, epoch, 0, (reopen_tasks.Reopened(tasks(3, 1), 1),))) == "not free"


def test_what_stands_beside_what_is_held_is_released_with_it_named() -> None:
    """An entry acts on the claims that its token still holds."""
    world, one, _ = claimed()
    world.done(commit("t", one._replace(runs=(tasks(0, 2),))))
    world.done(world.release(tasks(0, 4), one.token))
    assert claim_of(world.replica, tasks(2, 1).first) is None
    assert claim_of(world.replica, tasks(1, 1).first) is not None


def test_a_held_task_counts_towards_its_queues_limit_until_it_is_settled() -> None:
    """Its worker may still run it."""
    world = QueueWorld()
    world.limit(concurrency=2)
    token = world.done(world.limited(0, 2))
    world.done(commit("t", Claim(0, token, (tasks(0, 2),))))
    assert world.replica.running == {"q": 2}
    world.done(settle(world, "t", partition=0))
    assert not world.replica.running


# --- settling --------------------------------------------------------------------------------


def test_each_part_settles_by_itself_and_the_last_one_ends_it() -> None:
    """Its claims are released; the name is remembered with the position of the commit."""
    world, one, other = claimed()
    position = world.done(commit("t", one, other, note=b"what for"))
    world.done(settle(world, "t", partition=1))
    assert claim_of(world.replica, tasks(0, 1, partition=1).first) is None
    assert claim_of(world.replica, tasks(0, 1).first) is not None
    assert world.replica.transactions["t"].claims == ((0, one.token, one.runs),)
    assert known_as(world.replica, "t") == (position, b"what for")
    world.done(settle(world, "t", partition=0))
    assert not world.replica.transactions and not world.replica.claims
    assert known_as(world.replica, "t") == (position, b"what for")


def test_one_entry_settles_the_parts_of_many_transactions() -> None:
    """Names that have no part there are left out; each transaction ends with its last part, and has its own answer."""
    world, one, other = claimed()
    parts = [Claim(0, one.token, (tasks(place, 1),)) for place in range(3)]
    first = world.done(commit("first", parts[0], note=b"1"))
    both = world.done(commit("both", parts[1], other))
    last = world.done(commit("last", parts[2], note=b"3"))
    third = tasks(0, 1, partition=2)
    elsewhere = world.done(commit("elsewhere", Claim(2, world.granted(third), (third,))))
    world.done(settle(world, "first", "unknown", "both", "elsewhere", "last", partition=0))
    left = {name: set(found.parts) for name, found in world.replica.transactions.items()}
    assert left == {"both": {1}, "elsewhere": {2}}
    answers = [known_as(world.replica, name) for name in ("first", "both", "last", "elsewhere")]
    assert answers == [(first, b"1"), (both, b""), (last, b"3"), (elsewhere, b"")]
    assert [claim_of(world.replica, tasks(place, 1).first) is None for place in range(4)] == [True, True, True, False]
    assert claim_of(world.replica, tasks(0, 1, partition=1).first) is not None


def test_only_the_ready_leader_of_the_epoch_settles() -> None:
    """Facts that another leader found visible may be missing."""
    world, one, _ = claimed()
    world.done(commit("t", one))
    assert world.submit(settle_transactions.Args(("t",), 0, world.epoch(0) - 1)) == "stale epoch"
    assert world.submit(settle(world, "t", partition=1)) == "no part of it"
    assert world.submit(settle(world, "u", partition=0)) == "no such transaction"
    assert world.submit(yield_partition.Args(0, world.epoch(0))) == APPLIED
    assert world.submit(settle(world, "t", partition=0)) == "not ready"


def test_nothing_settles_in_the_record_of_its_commit() -> None:
    """No leader has read the commit yet; a grant after it would have the token of the commit again."""
    world, one, _ = claimed()
    position = world.done(commit("t", one))
    stamp = Stamp(position=position, index=1, peer=world.peer, log_time_ms=0, wall_ms=0)
    assert settle_transactions.apply(world.replica, settle(world, "t", partition=0), stamp)[1] == "too early"
    world.done(commit("earlier", Claim(0, world.granted(tasks(4, 1)), (tasks(4, 1),))))
    both = settle(world, "earlier", "t", partition=0)
    assert settle_transactions.apply(world.replica, both, stamp)[1] == "too early"


# --- repeats ---------------------------------------------------------------------------------


def test_a_repeat_changes_nothing_while_it_is_under_way_or_remembered() -> None:
    """This holds after its deadline: the answer is the first one."""
    world, one, other = claimed()
    world.done(commit("t", one, keep_ms=5_000))
    assert world.submit(commit("t", other)) == REPEAT
    world.done(settle(world, "t", partition=0))
    assert world.submit(commit("t", other), after_ms=DEADLINE_MS + 1) == REPEAT
    world.done(gc.Args())
    assert answer_of(world.replica, "t") is None
    assert world.submit(commit("t", other)) == TOO_LATE


def test_one_that_completes_nothing_is_remembered_at_once() -> None:
    """It has no part to settle."""
    world, one, _ = claimed()
    position = world.done(commit("t", require=(one,)))
    assert not world.replica.transactions and answer_of(world.replica, "t") == position
    assert world.submit(commit("t")) == REPEAT


class Transactions(RuleBasedStateMachine):
    """Grants, ends, commits and settlings in any order, compared with a plain model of the holders."""

    def __init__(self) -> None:
        super().__init__()
        self.world = QueueWorld()
        self.holder: dict[tuple[int, int], int | str] = {}
        """(partition, number) -> the token, or the transaction, that holds it."""
        self.open: dict[str, set[int]] = {}
        self.over: set[str] = set()

    @rule(partition=st.integers(0, 1), first=st.integers(0, 8), count=st.integers(1, 4))
    def grant(self, partition: int, first: int, count: int) -> None:
        named = {(partition, number) for number in range(first, first + count)}
        grant = grant_claims.Grant("w", 30_000, (tasks(first, count, partition=partition),))
        verdict = self.world.submit(grant_claims.Args(partition, self.world.epoch(partition), (grant,)))
        assert (verdict == APPLIED) == (not named & self.holder.keys())
        if verdict == APPLIED:
            self.holder |= dict.fromkeys(named, self.world.replica.position)

    def _tokens(self) -> list[tuple[int, int, int]]:
        return sorted({(place[0], place[1], by) for place, by in self.holder.items() if isinstance(by, int)})

    @precondition(lambda self: self._tokens())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        partition, number, token = data.draw(st.sampled_from(self._tokens()))
        self.world.done(self.world.release(tasks(number, 1, partition=partition), token))
        del self.holder[partition, number]

    @precondition(lambda self: self._tokens())
    @rule(data=st.data(), name=st.sampled_from("tuvw"), off=st.booleans())
    def commit(self, data: st.DataObject, name: str, off: bool) -> None:
        picked = data.draw(st.lists(st.sampled_from(self._tokens()), min_size=1, max_size=4, unique=True))
        claims = [
            Claim(partition, token, (tasks(number, 1, partition=partition),)) for partition, number, token in picked
        ]
        if off:
            claims[-1] = claims[-1]._replace(token=claims[-1].token + 1)
        stands = not off
        verdict = self.world.submit(evolve(commit(name, *claims), deadline_ms=self.world.replica.log_time_ms))
        known = name in self.open or name in self.over
        assert (verdict == REPEAT) == known
        if not known:
            assert (verdict == APPLIED) == stands
        if verdict == APPLIED:
            self.open[name] = {partition for partition, _, _ in picked}
            self.holder |= {(partition, number): name for partition, number, _ in picked}

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        partition = data.draw(st.sampled_from(sorted(self.open[name])))
        self.world.done(settle(self.world, name, partition=partition))
        self.open[name].discard(partition)
        self.holder = {place: by for place, by in self.holder.items() if by != name or place[0] != partition}
        if not self.open[name]:
            del self.open[name]
            self.over.add(name)

    @invariant()
    def each_task_is_held_by_whom_the_model_says(self) -> None:
        for partition in range(2):
            for number in range(12):
                piece = claim_of(self.world.replica, tasks(number, 1, partition=partition).first)
                by = self.holder.get((partition, number))
                if isinstance(by, str):
                    assert piece is not None and (piece[3], piece[4]) == (worker_of(by), HELD_MS)
                else:
                    assert (piece[2] if piece else None) == by
        assert set(self.world.replica.transactions) == set(self.open)


TestTransactions = Transactions.TestCase
TestTransactions.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_pending_rows_of_another_attempt_are_over_at_their_deadline() -> None:
    """This holds even if another attempt with the same name and deadline was committed, whose rows are still needed."""
    world = QueueWorld()
    world.done(commit("t", Claim(1, world.granted(tasks(0, 2, partition=1)), (tasks(0, 2, partition=1),))))
    found = world.replica.transactions["t"]
    (_, digest), late = found.parts[1], evolve(world.replica, log_time_ms=found.deadline_ms + 1)
    in_time = evolve(world.replica, log_time_ms=found.deadline_ms)
    other = pending_facts.part_key(pending_facts.Part(found.deadline_ms, b"another attempt", "t"))
    assert not pending_facts.is_over(
        late, 1, pending_facts.part_key(pending_facts.Part(found.deadline_ms, digest, "t"))
    )
    assert not pending_facts.is_over(in_time, 1, other)
    assert pending_facts.is_over(late, 1, other)


def test_runs_are_named_as_plain_tuples_in_the_replica() -> None:
    """So a decoded snapshot has the same types."""
    world, one, _ = claimed()
    world.done(commit("t", one))
    ((_, _, runs),) = world.replica.transactions["t"].claims
    assert not any(isinstance(run, Run) for run in runs)
