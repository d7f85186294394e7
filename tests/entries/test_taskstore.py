"""The task store's entries compared with a model, which is a plain dictionary.

``ONYXQ_TEST_PROGRAMS`` is the number of programs, instead of the usual few hundred. Each program
has several clients whose requests are mixed, in records with one request or several. At random
places the replica is packed and unpacked, as in a restart.
"""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st

from onyxq.core.entry import APPLIED, Stamp, decode_args, encode_args
from onyxq.core.replica import Replica
from onyxq.core.snapshot import pack, unpack
from onyxq.core.taskstore import claim, order, set_limits, state, update
from onyxq.testing import check_extension
from simulation.world.stored import Model

PROGRAMS = int(os.environ.get("ONYXQ_TEST_PROGRAMS", "300"))
STEPS_MAX = 30
START = Replica(position=1 << 31, clock_ms=1_800_000_000_000)
GROUPS = ("map", "reduce", "a/b")


class Program:
    """Random requests of a few clients, applied to a replica and to the model."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.replica = START
        self.model = Model()
        self.seen: list[int] = [1]
        self.requests = 0
        self.counts: Counter[str] = Counter()

    def run(self) -> None:
        """Append several records, with time between them and a few restarts."""
        for _ in range(self.random.randint(1, STEPS_MAX)):
            passed_ms = self.random.choice((0, 1, 10, 1_000))
            position = self.replica.position + self.random.choice((1, 1, 1, 300, 1 << 31))
            self.replica = evolve(self.replica, position=position, clock_ms=self.replica.clock_ms + passed_ms)
            for index in range(self.random.choice((1, 1, 2, 5))):
                self.request(Stamp(position, index, "peer", 0, 0))
            if self.random.random() < 0.1:
                self.replica = unpack(pack(self.replica))
                self.counts["restarts"] += 1
        self.check()

    def request(self, stamp: Stamp) -> None:
        """Send one request to both."""
        self.requests += 1
        args = self.update() if self.random.random() < 0.6 else self.claim()
        entry = update if isinstance(args, update.Args) else claim
        before = state.read(self.replica)
        self.replica, verdict = entry.apply(self.replica, decode_args(type(args), encode_args(args)), stamp)
        found = state.answer_of(self.replica, stamp.position, self.requests)
        assert found is not None
        made = [number for number, _ in found[0]]
        now_ms = self.replica.clock_ms
        if isinstance(args, update.Args):
            said = self.model.update(args, now_ms, made)
        else:
            after = state.read(self.replica)
            gone = [number for number in self.model.tasks if before.get(number) and not after.get(number)]
            said = self.model.claim(args, now_ms, made, gone[0] if gone else None)
        assert said[0] == found[0] and said[1][:4] == found[1][:4]
        assert (verdict == APPLIED) == bool(made or (isinstance(args, update.Args) and not found[1]))
        self.counts[f"{entry.__name__.rpartition('.')[2]} {'done' if verdict == APPLIED else 'not'}"] += 1
        self.seen += made

    def update(self) -> update.Args:
        """Update; sometimes nothing, or missing tasks."""
        rand, few = self.random, (0, 0, 1, 2, 4)
        return update.Args(
            request=self.requests,
            client=rand.randint(1, 3),
            adds=tuple((rand.choice(GROUPS), rand.choice("xyz"), self.time()) for _ in range(rand.choice(few))),
            changes=tuple((self.number(), rand.choice("xyz"), self.time()) for _ in range(rand.choice(few[:4]))),
            deletes=tuple(self.number() for _ in range(rand.choice(few[:4]))),
            depends=tuple(self.number() for _ in range(rand.choice(few[:4]))),
        )

    def claim(self) -> claim.Args:
        """Claim from any group, for any time."""
        depends = (self.number(),) if self.random.random() < 0.2 else ()
        duration_ms = self.random.choice((-5, 0, 5, 500, 5_000))
        return claim.Args(self.requests, self.random.randint(1, 3), self.random.choice(GROUPS), duration_ms, depends)

    def number(self) -> int:
        """Return a number, mostly of an existing task."""
        there = list(self.model.tasks)
        return self.random.choice(there if there and self.random.random() < 0.8 else self.seen[-20:])

    def time(self) -> int:
        """Return a time: now, soon, or any past or future one."""
        return self.random.choice((0, 0, -10, -1_000, 1, START.clock_ms + self.random.randint(0, 10_000)))

    def check(self) -> None:
        """Check that everything readable equals the model."""
        store = state.read(self.replica)
        kept = {number: row for part in store.tasks.values() for number, row in part.items()}
        assert kept == self.model.tasks
        assert store.size == sum(map(state.size_of, kept.values()))
        groups = {row[0] for row in kept.values()}
        assert set(store.groups) == groups
        for group in groups:
            listed = list(order.pairs(store.groups[group]))
            assert listed == sorted((row[1], number) for number, row in kept.items() if row[0] == group)
            assert list(store.members(group)) == [number for _, number in listed]


@pytest.mark.long
def test_any_program_gives_what_the_model_gives() -> None:
    """Answers, ids that rise, and the tasks that are left; all kinds of outcome occur."""
    counts: Counter[str] = Counter()
    for seed in range(PROGRAMS):
        program = Program(seed)
        try:
            program.run()
        except AssertionError as error:
            raise AssertionError(f"program {seed}: {error}") from error
        counts += program.counts
    print(f"{PROGRAMS} programs: {dict(sorted(counts.items()))}")
    assert set(counts) == {"claim done", "claim not", "restarts", "update done", "update not"}


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), st.booleans()), max_size=400), st.integers(0, 40))
@settings(max_examples=100, deadline=None)
def test_pairs_stay_sorted(changes: list[tuple[int, int, bool]], number: int) -> None:
    """This holds for any changes; blocks are neither empty nor too large."""
    kept: set[tuple[int, int]] = set()
    found = order.EMPTY
    for first, second, wanted in changes:
        pair = (first, second)
        if wanted and pair not in kept:
            found = order.added(found, pair)
            kept.add(pair)
        elif not wanted and pair in kept:
            found = order.removed(found, pair)
            kept.remove(pair)
    assert list(order.pairs(found)) == sorted(kept)
    assert [order.nth(found, place) for place in range(len(kept))] == sorted(kept)
    assert order.count_until(found, number) == sum(first <= number for first, _ in kept)
    assert all(0 < len(block) <= order.BLOCK_MAX for block in found)


@pytest.mark.parametrize("step", [1, -1, 7])
def test_many_pairs_stand_in_blocks(step: int) -> None:
    """This holds in rising, falling or mixed order, and after most are removed."""
    count = 10 * order.BLOCK_MAX
    numbers = [(step * number) % count for number in range(count)]
    found = order.EMPTY
    for number in numbers:
        found = order.added(found, (number, number))
    assert list(order.pairs(found)) == [(number, number) for number in range(count)]
    assert all(len(block) <= order.BLOCK_MAX for block in found) and len(found) <= 21
    for number in numbers[: count - 100]:
        found = order.removed(found, (number, number))
    assert len(list(order.pairs(found))) == 100 and len(found) < 12


def test_a_claim_takes_any_of_those_that_are_available() -> None:
    """Each is taken about equally often, and every peer takes the same one."""
    added, _ = update.apply(
        START, update.Args(1, 1, adds=tuple(("g", str(n), 0) for n in range(7))), Stamp(START.position, 0, "peer", 0, 0)
    )
    taken: Counter[str] = Counter()
    for position in range(1, 1_401):
        stamp = Stamp(START.position + position, 0, "peer", 0, 0)
        args = claim.Args(position, 2, "g", 1_000)
        replica, verdict = claim.apply(added, args, stamp)
        answer = state.answer_of(replica, stamp.position, position)
        assert verdict == APPLIED and answer is not None
        assert state.answer_of(claim.apply(unpack(pack(added)), args, stamp)[0], stamp.position, position) == answer
        taken[answer[0][0][1][3]] += 1
    assert len(taken) == 7 and all(140 < times < 260 for times in taken.values()), taken


def test_the_store_is_bounded() -> None:
    """A task that is too large is refused, and so is one that exceeds the store's limit; a shrinking change is not."""
    stamp = Stamp(START.position, 0, "peer", 0, 0)
    replica, verdict = set_limits.apply(START, set_limits.Args(10, 500), stamp)
    assert verdict == APPLIED
    assert "10 bytes, not 12" in update.apply(replica, update.Args(1, 1, adds=(("g", "ü" * 6, 0),)), stamp)[1]
    replica, verdict = update.apply(replica, update.Args(2, 1, adds=(("g", "x" * 10, 0),) * 3), stamp)
    assert verdict == APPLIED and state.read(replica).size == 3 * (state.TASK_OVERHEAD_BYTES + 11)
    again, verdict = update.apply(replica, update.Args(3, 1, adds=(("g", "x" * 10, 0),)), stamp)
    assert (
        verdict.startswith(f"refused: {state.FULL}")
        and state.read(again).tasks == replica.extensions["taskstore"]["tasks"]
    )
    smaller, _ = set_limits.apply(replica, set_limits.Args(10, 100), stamp)
    first = state.answer_of(replica, START.position, 2)
    assert first is not None
    numbers = [number for number, _ in first[0]]
    assert update.apply(smaller, update.Args(4, 1, deletes=(numbers[0],)), stamp)[1] == APPLIED
    assert claim.apply(smaller, claim.Args(5, 1, "g", 5), stamp)[1] == APPLIED
    assert set_limits.apply(replica, set_limits.Args(0, 5), stamp)[1].startswith("task_bytes_max")
    assert set_limits.apply(replica, set_limits.Args(10, 5), stamp)[1].startswith("bytes_max")


def test_ids_go_on_where_a_record_has_more_than_its_number_can_count() -> None:
    """They are higher than all before, also after a later record."""
    replica = state.kept(START, state.Store(last=(START.position + 9) << 16))
    stamp = Stamp(START.position + 1, 0, "peer", 0, 0)
    replica, _ = update.apply(replica, update.Args(1, 1, adds=(("g", "", 0),) * 2), stamp)
    answer = state.answer_of(replica, stamp.position, 1)
    assert answer is not None
    assert [number - ((START.position + 9) << 16) for number, _ in answer[0]] == [1, 2]


@pytest.mark.long
def test_the_entries_keep_their_promises() -> None:
    """They are pure, never raise, and change nothing but the task store."""
    entries = {"taskstore.claim": claim, "taskstore.set_limits": set_limits, "taskstore.update": update}
    assert check_extension(entries) == []
