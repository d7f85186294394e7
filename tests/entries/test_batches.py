"""Batches of jobs: each is committed completely or not at all, once, in order, and under the present version only."""

from __future__ import annotations

from attrs import evolve
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from log_entries import commit_batch, grant_claims, kill_job, settle_transactions, submit_job
from log_entries.commit_batch import CONFLICT, NAME_TAKEN, OUT_OF_ORDER, REPEAT, committed_by
from log_entries.commit_transaction import TOO_LATE
from onyxq.core.entry import APPLIED, decode_args, encode_args
from onyxq.core.jobs.batch_names import is_void, share_of
from onyxq.core.jobs.lifetime import OVER, SUPERSEDED, UNKNOWN
from onyxq.core.limits import OFFSETS_BYTES_MAX
from onyxq.core.replica import HELD_MS, claim_of
from onyxq.core.transactions import Claim, Part, Prepared, answer_of
from tests.entries.queue_world import DEADLINE_MS, QueueWorld, commit, tasks


def submission(name: str) -> submit_job.Args:
    """Return a job of one slot."""
    return submit_job.Args(name, b"body", bytes(16), "balanced", 0, 1, 1, (), (), "", ("in",), (), False, 5_000)


class BatchWorld(QueueWorld):
    """A running job, and the queue."""

    def __init__(self) -> None:
        super().__init__()
        self.done(submission("j"))
        assert self.replica.jobs["j"].state == "running"

    @property
    def version(self) -> int:
        """The job's present version."""
        return self.replica.jobs["j"].version

    def moved(self) -> None:
        """Let another driver take over."""
        job = evolve(self.replica.jobs["j"], version=self.version + 1)
        self.replica = evolve(self.replica, jobs=self.replica.jobs.set("j", job))

    def batch(self, number: int, *prepared: Prepared, offsets: bytes = b"here", version: int = 0) -> commit_batch.Args:
        """Commit a batch under the present version, or another one."""
        return commit_batch.Args("j", version or self.version, number, offsets, prepared)

    def settled(self, name: str) -> None:
        """Settle all parts of a transaction."""
        for partition in sorted(self.replica.transactions[name].parts):
            self.done(settle_transactions.Args((name,), partition, self.epoch(partition)))


def prepared(name: str, *claims: Claim, partitions: tuple[int, ...] = (), deadline_ms: int = DEADLINE_MS) -> Prepared:
    """Return a transaction whose pending rows are stored."""
    parts = tuple(Part(one, 1, b"d") for one in sorted({*partitions, *(claim.partition for claim in claims)}))
    return Prepared(name, deadline_ms, claims, (), parts)


def test_a_batch_is_committed_whole_and_its_job_knows_how_far_it_is() -> None:
    """Every transaction of it holds its claims from the same position on."""
    world = BatchWorld()
    token = world.granted(tasks(0, 4))
    world.done(world.batch(7, prepared("out", partitions=(1, 2)), prepared("in", Claim(0, token, (tasks(0, 4),)))))
    job = world.replica.jobs["j"]
    assert (job.batch, job.offsets) == (7, b"here")
    assert sorted(world.replica.transactions) == ["in", "out"]
    assert {one.position for one in world.replica.transactions.values()} == {world.replica.position}
    piece = claim_of(world.replica, tasks(3, 1).first)
    assert piece is not None and piece[3:] == ("transaction in", HELD_MS)
    world.settled("out")
    world.settled("in")
    assert not world.replica.transactions and not world.replica.claims


def test_one_transaction_that_cannot_be_committed_keeps_all_others_back() -> None:
    """This holds for any reason; the job stays at its last batch."""
    world = BatchWorld()
    token = world.granted(tasks(0, 4))
    fine = prepared("out", partitions=(1,))
    stale = prepared("in", Claim(0, token + 1, (tasks(0, 4),)))
    twice = Claim(0, token, (tasks(0, 1),))
    before = world.replica
    for others, verdict in (
        ((stale,), f"stale token {token + 1} on {tasks(0, 1).first.hex()}"),
        ((prepared("in", deadline_ms=-1),), TOO_LATE),
        ((prepared("out", partitions=(2,)),), NAME_TAKEN),
        ((prepared("a", twice), prepared("b", twice)), f"stale token {token} on {tasks(0, 1).first.hex()}"),
        ((prepared("in", partitions=(99,)),), "bad parts"),
    ):
        assert world.submit(world.batch(0, fine, *others)) == verdict
        assert world.replica.jobs == before.jobs and world.replica.transactions == before.transactions
        assert world.replica.claims == before.claims and world.replica.remembered == before.remembered


def test_only_the_present_version_of_a_running_job_commits() -> None:
    """A replaced driver, or one whose job was killed, commits nothing."""
    world = BatchWorld()
    old = world.version
    world.done(world.batch(0))
    world.moved()
    assert world.submit(world.batch(1, prepared("out", partitions=(1,)), version=old)) == SUPERSEDED
    assert world.submit(world.batch(0, version=old)) == SUPERSEDED
    world.done(world.batch(1))
    world.done(kill_job.Args("j"))
    assert world.submit(world.batch(2)) == OVER
    assert world.submit(evolve(world.batch(0), job="k")) == UNKNOWN
    assert not world.replica.transactions


def test_a_batch_comes_once_and_in_its_turn() -> None:
    """The first batch may have any number; the same one is a repeat; other offsets make it another attempt."""
    world = BatchWorld()
    world.done(world.batch(4, prepared("a", partitions=(1,))))
    assert world.submit(world.batch(4, prepared("b", partitions=(1,)))) == REPEAT
    assert world.submit(world.batch(4, prepared("b", partitions=(1,)), offsets=b"there")) == CONFLICT
    assert world.submit(world.batch(3, offsets=b"before")) == REPEAT
    assert world.submit(world.batch(6)) == OUT_OF_ORDER
    world.done(world.batch(5, offsets=b"there"))
    assert list(world.replica.transactions) == ["a"]
    assert (world.replica.jobs["j"].batch, world.replica.jobs["j"].offsets) == (5, b"there")


def test_a_transaction_belongs_to_one_batch() -> None:
    """A transaction that was committed alone or in another batch is refused, and is not a repeat of the batch."""
    world = BatchWorld()
    world.done(world.batch(0, prepared("a", partitions=(1,))))
    world.done(commit("b"))
    assert world.submit(world.batch(1, prepared("a", partitions=(1,)))) == NAME_TAKEN
    assert world.submit(world.batch(1, prepared("b", partitions=(1,)))) == NAME_TAKEN
    assert world.replica.jobs["j"].batch == 0


def test_the_log_tells_what_no_commit_can_come_of_any_more() -> None:
    """This holds for prepared parts of committed batches, of other versions, and of ended jobs."""
    world = BatchWorld()

    def void(version: int, batch: int, job: str = "j") -> bool:
        return is_void(world.replica, f"job/{job}/{version}/{batch}/0123")

    assert not void(world.version, 0)
    world.done(world.batch(0))
    assert void(world.version, 0) and not void(world.version, 1)
    world.moved()
    assert void(world.version - 1, 1) and not void(world.version, 1)
    assert not void(world.version + 1, 1), "another node may have read further"
    assert not void(world.version, 0, job="k"), "so may it of a job that nobody knows here"
    world.done(kill_job.Args("j"))
    assert void(world.version, 1)


def test_only_names_of_batches_tell_a_batch() -> None:
    """Other names of transactions that users choose are not taken for batches."""
    assert share_of("job/orders/12/3/ab/c") == ("orders", 12, 3)
    others = ("", "job", "job/orders", "job/orders/12/3", "jobs/orders/12/3/a", "job//12/3/a", "job/orders/-1/3/a")
    assert not any(map(share_of, (*others, "job/orders/12/None/a", "job/orders/²/3/a", "job/a b/12/3/a")))


def test_numbers_and_offsets_have_bounds() -> None:
    """A driver must not make a replica grow without limit."""
    world = BatchWorld()
    assert world.submit(world.batch(-1)) == "bad batch"
    assert world.submit(world.batch(0, offsets=bytes(OFFSETS_BYTES_MAX + 1))) == "bad batch"
    world.done(world.batch(0, offsets=bytes(OFFSETS_BYTES_MAX)))


def test_a_group_without_a_job_is_known_by_its_first_name() -> None:
    """A repeat changes nothing as long as the name is remembered."""
    world = QueueWorld()

    def group(*names: str) -> commit_batch.Args:
        shares = [prepared(name, partitions=(1,)) for name in names]
        return commit_batch.Args("", 0, 0, b"", (prepared("query/0"), *shares))

    assert world.submit(commit_batch.Args("", 0, 0, b"", ())) == "nothing to commit"
    position = world.done(group("a", "b"))
    assert answer_of(world.replica, "query/0") == position
    assert world.submit(group("c")) == REPEAT
    assert sorted(world.replica.transactions) == ["a", "b"]
    taken = evolve(group("a"), transactions=(prepared("query/1"), prepared("a", partitions=(1,))))
    assert world.submit(taken) == NAME_TAKEN
    assert answer_of(world.replica, "query/1") is None


def test_what_it_commits_can_be_asked_of_its_arguments() -> None:
    """The same works for a single transaction; other entries commit nothing."""
    both = prepared("a"), prepared("b")
    assert committed_by(commit_batch.Args("j", 1, 0, b"", both)) == both
    assert committed_by(commit("t")) == (commit("t"),)
    assert committed_by(submission("j")) == ()


def test_its_arguments_survive_the_log() -> None:
    """Named tuples are equal after encoding and decoding."""
    args = commit_batch.Args("j", 1, 0, b"o", (prepared("a", Claim(0, 3, (tasks(0, 2),))),))
    packed = [list(one) if isinstance(one, tuple) else one for one in encode_args(args)]
    assert decode_args(commit_batch.Args, packed) == args


class Batches(RuleBasedStateMachine):
    """Grants, batches of two drivers and settlements in any order, compared with a plain model."""

    def __init__(self) -> None:
        super().__init__()
        self.world = BatchWorld()
        self.versions = [self.world.version]
        self.holder: dict[int, int | str] = {}
        """Task of partition 0 -> the token, or the transaction, that holds it."""
        self.batch: tuple[int, bytes] = (-1, b"")
        self.names: set[str] = set()
        self.open: set[str] = set()

    @rule(first=st.integers(0, 8), count=st.integers(1, 4))
    def grant(self, first: int, count: int) -> None:
        grant = grant_claims.Grant("w", 30_000, (tasks(first, count),))
        verdict = self.world.submit(grant_claims.Args(0, self.world.epoch(0), (grant,)))
        named = set(range(first, first + count))
        assert (verdict == APPLIED) == (not named & self.holder.keys())
        if verdict == APPLIED:
            self.holder |= dict.fromkeys(named, self.world.replica.position)

    @rule()
    def take_over(self) -> None:
        self.world.moved()
        self.versions.append(self.world.version)

    @rule(
        ahead=st.integers(-1, 2),
        offsets=st.sampled_from([b"x", b"y"]),
        old=st.booleans(),
        wanted=st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 11), st.booleans()), max_size=3),
    )
    def commit(self, ahead: int, offsets: bytes, old: bool, wanted: list[tuple[str, int, bool]]) -> None:
        version = self.versions[0] if old else self.versions[-1]
        number = max(0, self.batch[0] + ahead)
        shares = [self._share(*one) for one in wanted]
        expected = self._expected(version, number, offsets, shares)
        is_past = version != self.versions[-1] or number <= self.batch[0]
        assert is_void(self.world.replica, f"job/j/{version}/{number}/share") == is_past
        verdict = self.world.submit(self.world.batch(number, *shares, offsets=offsets, version=version))
        assert verdict.partition(" on ")[0].rstrip("0123456789") == expected
        if expected == APPLIED:
            self.batch = number, offsets
            for share in shares:
                self.names.add(share.name)
                self.open |= {share.name} if share.parts else set()
                self.holder |= dict.fromkeys(_tasks_of(share), share.name)

    def _share(self, name: str, number: int, off: bool) -> Prepared:
        token = self.holder.get(number)
        held = [Claim(0, token + off, (tasks(number, 1),))] if isinstance(token, int) else []
        return prepared(name, *held, partitions=(1,), deadline_ms=self.world.replica.log_time_ms + DEADLINE_MS)

    def _expected(self, version: int, number: int, offsets: bytes, shares: list[Prepared]) -> str:
        if version != self.versions[-1]:
            return SUPERSEDED
        if number <= self.batch[0]:
            return CONFLICT if number == self.batch[0] and offsets != self.batch[1] else REPEAT
        if self.batch[0] >= 0 and number != self.batch[0] + 1:
            return OUT_OF_ORDER
        names, holder = set(self.names), dict(self.holder)
        for share in shares:
            if share.name in names:
                return NAME_TAKEN
            if any(holder.get(number) != share.claims[0].token for number in _tasks_of(share)):
                return "stale token "
            names.add(share.name)
            holder |= dict.fromkeys(_tasks_of(share), share.name)
        return APPLIED

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.open)))
        self.world.settled(name)
        self.open.discard(name)
        self.holder = {number: by for number, by in self.holder.items() if by != name}

    @invariant()
    def the_replica_says_what_the_model_says(self) -> None:
        job = self.world.replica.jobs["j"]
        assert (job.batch, job.offsets) == self.batch
        assert set(self.world.replica.transactions) == self.open
        for number in range(12):
            piece = claim_of(self.world.replica, tasks(number, 1).first)
            by = self.holder.get(number)
            if isinstance(by, str):
                assert piece is not None and piece[3:] == (f"transaction {by}", HELD_MS)
            else:
                assert (piece[2] if piece else None) == by


def _tasks_of(share: Prepared) -> list[int]:
    return [int.from_bytes(run.first[16:], "big") for claim in share.claims for run in claim.runs]


TestBatches = Batches.TestCase
TestBatches.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
