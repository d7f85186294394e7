"""Claims: each entry in single cases, and any history compared with a plain model."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from pyrsistent import pmap

from log_entries import expire_claims, grant_claims, release_claims, renew_claims
from log_entries.expire_claims import Expiry
from log_entries.grant_claims import Grant
from log_entries.release_claims import COMPLETED_EVENT, Release
from log_entries.renew_claims import Renewal
from onyxq.core.claims import GRACE_MS, merged
from onyxq.core.entry import APPLIED, Stamp, decode_args, encode_args
from onyxq.core.facts import EXPIRED, RELEASED, RETRIED
from onyxq.core.ids import Run, TaskId, id_at, ids_of, make_id
from onyxq.core.invariants.placement import violations
from onyxq.core.limits import LEASE_MS_MAX
from onyxq.core.replica import Replica, claim_of, pieces_of
from tests.entries.cohorts import cluster, submit

BASE = make_id(1_000, 1, 7, 0)
OTHER = make_id(2_000, 1, 7, 1024)
EPOCH = 5


def start() -> Replica:
    """Two partitions, both ready at epoch 5 under one peer."""
    replica = cluster("a", partitions=2, replicas=1)
    ready = {number: evolve(found, epoch=EPOCH, ready=True) for number, found in replica.partitions.items()}
    return evolve(replica, partitions=pmap(ready), position=100)


def leader(replica: Replica) -> str:
    """The leader of partition 1."""
    return replica.partitions[1].leader


def run(offset: int, count: int, stretch: TaskId = BASE) -> Run:
    """Return a run of tasks of a stretch."""
    return Run(id_at(stretch, offset), count)


def grant(*runs: Run, worker: str = "w", lease_ms: int = 1_000) -> grant_claims.Args:
    """Return a grant to one worker."""
    return grant_claims.Args(1, EPOCH, (Grant(worker, lease_ms, runs),))


def renew(token: int, *runs: Run, lease_ms: int = 1_000) -> renew_claims.Args:
    """Return a renewal of one claim."""
    return renew_claims.Args(1, EPOCH, (Renewal(token, lease_ms, runs),))


def release(token: int, *runs: Run, event: int = RELEASED) -> release_claims.Args:
    """Return a release of one claim."""
    return release_claims.Args(1, EPOCH, (Release(token, event, 0, 0, "", runs),))


def expire(token: int, *runs: Run) -> expire_claims.Args:
    """Return an expiry of one claim."""
    return expire_claims.Args(1, EPOCH, (Expiry(token, 1, runs),))


def done(replica: Replica, args: Any, *, rise_ms: int = 0) -> Replica:
    """Apply an entry that must apply."""
    after, verdict = submit(replica, args, leader(replica), rise_ms=rise_ms)
    assert verdict == APPLIED
    return after


def refused(replica: Replica, args: Any, *, rise_ms: int = 0) -> str:
    """Return why the entry changes nothing."""
    after, verdict = submit(replica, args, leader(replica), rise_ms=rise_ms)
    assert after.claims is replica.claims and verdict != APPLIED
    return verdict


# --- grant ------------------------------------------------------------------


def test_a_grant_claims_its_runs_under_its_position() -> None:
    """Token: position of the record; deadline: log time plus lease."""
    replica = done(start(), grant(run(3, 4), run(0, 2, OTHER), worker="w1"), rise_ms=50)
    assert pieces_of(replica, BASE) == ((3, 4, 101, "w1", 1_050),)
    assert pieces_of(replica, OTHER) == ((0, 2, 101, "w1", 1_050),)
    assert claim_of(replica, id_at(BASE, 6)) == (3, 4, 101, "w1", 1_050)
    assert claim_of(replica, id_at(BASE, 7)) is None


def test_a_grant_is_all_or_nothing() -> None:
    """A single claimed task refuses the whole grant."""
    replica = done(start(), grant(run(5, 1)))
    assert refused(replica, grant(run(10, 10), run(0, 6))) == "not free"


def test_a_task_cannot_be_granted_twice_by_one_entry() -> None:
    """This holds within one grant and over two of them."""
    assert refused(start(), grant(run(0, 3), run(2, 3))) == "not free"
    two = grant_claims.Args(1, EPOCH, (Grant("v", 1_000, (run(0, 3),)), Grant("w", 1_000, (run(2, 3),))))
    assert refused(start(), two) == "not free"


def test_neighbours_that_are_alike_are_one_piece() -> None:
    """Single tasks of one worker and record become one piece; those of two workers do not."""
    replica = done(start(), grant(*(run(offset, 1) for offset in (2, 0, 1, 5))))
    assert pieces_of(replica, BASE) == ((0, 3, 101, "w", 1_000), (5, 1, 101, "w", 1_000))
    two = grant_claims.Args(1, EPOCH, (Grant("v", 9, (run(10, 1),)), Grant("w", 9, (run(11, 1),))))
    assert len(pieces_of(done(start(), two), BASE)) == 2


def test_all_grants_of_a_record_share_its_token() -> None:
    """The token is the position for each entry of the record."""
    replica, me = start(), leader(start())
    for index in (0, 1):
        stamp = Stamp(position=101, index=index, peer=me, log_time_ms=0, wall_ms=0)
        replica, verdict = grant_claims.apply(replica, grant(run(index, 1)), stamp)
        assert verdict == APPLIED
    assert pieces_of(replica, BASE) == ((0, 2, 101, "w", 1_000),)


def test_a_released_task_gets_a_higher_token_next_time() -> None:
    """Tokens rise strictly per task."""
    replica = done(start(), grant(run(0, 1)))
    replica = done(done(replica, release(101, run(0, 1))), grant(run(0, 1)))
    assert pieces_of(replica, BASE)[0][2] == 103


# --- who may, and what is malformed --------------------------------------------

ENTRIES = [grant(run(0, 1)), renew(101, run(0, 1)), release(101, run(0, 1)), expire(101, run(0, 1))]
by_name = pytest.mark.parametrize("args", ENTRIES, ids=lambda args: type(args).__module__.rpartition(".")[2])


@by_name
def test_only_the_ready_leader_of_the_epoch_is_heard(args: Any) -> None:
    """A deposed leader's entries are void immediately."""
    replica = start() if isinstance(args, grant_claims.Args) else done(start(), grant(run(0, 1)))
    me = leader(replica)
    for wrong in (EPOCH - 1, EPOCH + 1):
        assert refused(replica, evolve(args, epoch=wrong)) == "stale epoch"
    assert refused(replica, evolve(args, partition=9)) == "no such partition"
    assert submit(replica, args, "somebody")[1] == "not the leader"
    waiting = replica.partitions.set(1, evolve(replica.partitions[1], ready=False))
    assert submit(evolve(replica, partitions=waiting), args, me)[1] == "not ready"


BAD_RUNS = [
    (),
    (run(0, 0),),
    (run(0, -1),),
    (run(0, 1025),),
    (run(1000, 25),),
    (Run(make_id(1_000, 0, 7, 0), 1),),
    (Run(TaskId(b"short"), 1),),
    (Run(TaskId(BASE + b"x"), 1),),
    (run(0, 1), run(0, 0)),
]


@by_name
@pytest.mark.parametrize("runs", BAD_RUNS)
def test_a_bad_run_refuses_the_whole_entry(args: Any, runs: tuple[Run, ...]) -> None:
    """A run is bad if it is of another partition, crosses a stretch, is empty, or has a wrong size."""
    field = next(name for name in ("grants", "renewals", "releases", "expirations") if hasattr(args, name))
    (item,) = getattr(args, field)
    bad = evolve(args, **{field: (item._replace(runs=runs),)})
    assert refused(start(), bad) == "bad run"
    assert refused(start(), evolve(args, **{field: ()})) == "bad run"


@pytest.mark.parametrize("lease_ms", [0, -1, LEASE_MS_MAX + 1, 1 << 62])
def test_a_lease_is_one_millisecond_to_a_day(lease_ms: int) -> None:
    """For grants and renewals."""
    assert refused(start(), grant(run(0, 1), lease_ms=lease_ms)) == "bad lease"
    replica = done(start(), grant(run(0, 1)))
    assert refused(replica, renew(101, run(0, 1), lease_ms=lease_ms)) == "bad lease"


@pytest.mark.parametrize("event", [-1, 0, EXPIRED, 5])
def test_a_release_names_one_of_its_events(event: int) -> None:
    """The events are completed, retried and released; an expiry is an entry of its own."""
    replica = done(start(), grant(run(0, 1)))
    assert refused(replica, release(101, run(0, 1), event=event)) == "bad event"


@by_name
def test_arguments_survive_the_log(args: Any) -> None:
    """Decoded arguments equal the encoded ones."""
    assert decode_args(type(args), encode_args(args)) == args


# --- renew, release, expire -----------------------------------------------------


def test_a_renewal_moves_the_deadline_of_what_is_named() -> None:
    """The rest of the claim keeps its deadline."""
    replica = done(start(), grant(run(0, 10)))
    replica = done(replica, renew(101, run(3, 2), lease_ms=5_000), rise_ms=100)
    assert pieces_of(replica, BASE) == (
        (0, 3, 101, "w", 1_000),
        (3, 2, 101, "w", 5_100),
        (5, 5, 101, "w", 1_000),
    )


def test_a_claim_can_be_renewed_after_its_deadline() -> None:
    """This holds until it has been expired."""
    replica = done(start(), grant(run(0, 1)))
    replica = done(replica, renew(101, run(0, 1)), rise_ms=5_000)
    assert refused(replica, expire(101, run(0, 1)), rise_ms=1_000) == "nothing held"


def test_pieces_that_become_alike_again_are_one() -> None:
    """If a part was renewed and then the whole claim, its pieces are one again."""
    replica = done(start(), grant(run(0, 10)))
    replica = done(replica, renew(101, run(3, 2), lease_ms=5_000))
    replica = done(replica, renew(101, run(0, 10), lease_ms=7_000))
    assert pieces_of(replica, BASE) == ((0, 10, 101, "w", 7_000),)


@pytest.mark.parametrize("event", [RELEASED, RETRIED, COMPLETED_EVENT])
def test_a_release_frees_what_is_named_and_held(event: int) -> None:
    """Parts held under another token, and unclaimed ones, stay as they are."""
    replica = done(done(start(), grant(run(0, 4))), grant(run(4, 4)))
    replica = done(replica, release(101, run(2, 8), event=event))
    assert pieces_of(replica, BASE) == ((0, 2, 101, "w", 1_000), (4, 4, 102, "w", 1_000))


def test_nothing_is_left_behind_when_all_is_released() -> None:
    """No empty stretch, no empty partition."""
    replica = done(start(), grant(run(0, 4), run(0, 4, OTHER)))
    replica = done(replica, release(101, run(0, 4), run(0, 4, OTHER)))
    assert not replica.claims


@pytest.mark.parametrize("make", [renew, release, expire])
def test_another_token_holds_nothing(make: Any) -> None:
    """This holds for older and newer tokens, and for unclaimed tasks."""
    replica = done(start(), grant(run(0, 4)))
    for token in (100, 102, -1):
        assert refused(replica, make(token, run(0, 4)), rise_ms=5_000) == "nothing held"
    assert refused(replica, make(101, run(4, 4), run(0, 4, OTHER)), rise_ms=5_000) == "nothing held"


def test_a_claim_expires_only_after_its_deadline_in_log_time() -> None:
    """It does not expire at the deadline, nor within the grace for workers' clocks."""
    replica = done(start(), grant(run(0, 1)))
    assert refused(replica, expire(101, run(0, 1)), rise_ms=1_000 + GRACE_MS) == "nothing held"
    assert not done(replica, expire(101, run(0, 1)), rise_ms=1_001 + GRACE_MS).claims


def test_an_expiry_takes_only_the_parts_that_are_over() -> None:
    """Parts that were renewed in time stay."""
    replica = done(start(), grant(run(0, 10)))
    replica = done(replica, renew(101, run(0, 5), lease_ms=5_000))
    replica = done(replica, expire(101, run(0, 10)), rise_ms=2_000)
    assert pieces_of(replica, BASE) == ((0, 5, 101, "w", 5_000),)


def test_a_token_cannot_be_released_by_the_record_that_made_it() -> None:
    """Otherwise the next grant in that record would give the task the same token again."""
    replica, me = start(), leader(start())
    stamp = Stamp(position=101, index=0, peer=me, log_time_ms=0, wall_ms=0)
    replica, _ = grant_claims.apply(replica, grant(run(0, 1)), stamp)
    after, verdict = release_claims.apply(replica, release(101, run(0, 1)), evolve(stamp, index=1))
    assert (after, verdict) == (replica, "nothing held")


# --- any history --------------------------------------------------------------

runs = st.lists(
    st.builds(run, st.integers(0, 8), st.integers(1, 6), st.sampled_from([BASE, OTHER])), min_size=1, max_size=4
)
entries = st.tuples(
    st.sampled_from(["grant", "grant", "renew", "release", "expire"]),
    runs,
    st.sampled_from([0, 0, 0, 1, 2, 6]),  # which of the latest tokens
    st.integers(1, 50),  # lease
    st.sampled_from([0, 0, 10, 40, GRACE_MS + 60]),  # rise of log time before; the last one ends any lease
    st.sampled_from([*9 * [0], -1, 1]),  # epoch off by
    st.sampled_from(["v", "w"]),
)
Model = dict[bytes, tuple[int, str, int]]


def shown(replica: Replica) -> Model:
    """Return every claimed task of the replica with token, worker and deadline."""
    out: Model = {}
    for stretch, pieces in replica.claims.get(1, {}).items():
        for offset, count, token, worker, deadline in pieces:
            for task in ids_of(id_at(stretch, offset), count):
                assert task not in out, "two claims on a task"
                out[task] = (token, worker, deadline)
    return out


def build(kind: str, token: int, lease_ms: int, worker: str, wanted: list[Run]) -> Any:
    """The entry's arguments."""
    if kind == "grant":
        return grant(*wanted, worker=worker, lease_ms=lease_ms)
    if kind == "renew":
        return renew(token, *wanted, lease_ms=lease_ms)
    return release(token, *wanted) if kind == "release" else expire(token, *wanted)


def expected(model: Model, args: Any, position: int, now: int) -> Model:
    """Apply the entry to the plain model."""
    (item,) = getattr(args, attrs.fields(type(args))[2].name)
    tasks = [task for first, count in item.runs for task in ids_of(first, count)]
    if isinstance(args, grant_claims.Args):
        if len(set(tasks)) < len(tasks) or any(task in model for task in tasks):
            return model
        return model | dict.fromkeys(tasks, (position, item.worker, now + item.lease_ms))
    held = {task for task in tasks if task in model and model[task][0] == item.token}
    if isinstance(args, renew_claims.Args):
        return {t: (c[0], c[1], now + item.lease_ms) if t in held else c for t, c in model.items()}
    if isinstance(args, expire_claims.Args):
        held = {task for task in held if model[task][2] + GRACE_MS < now}
    return {task: claim for task, claim in model.items() if task not in held}


@pytest.mark.long
@settings(max_examples=300)
@given(st.lists(entries, min_size=5, max_size=30))
def test_any_history_agrees_with_a_plain_model(script: list[Any]) -> None:
    """A task has one holder, its tokens rise, deadlines are in log time, and stale epochs are void."""
    replica, model, tokens = start(), Model(), [100]
    highest: dict[bytes, int] = {}
    for kind, wanted, back, lease_ms, rise_ms, off, worker in script:
        args = build(kind, tokens[-1 - back % len(tokens)], lease_ms, worker, wanted)
        after, verdict = submit(replica, evolve(args, epoch=EPOCH + off), leader(replica), rise_ms=rise_ms)
        position, now = replica.position + 1, replica.log_time_ms + rise_ms
        was, model = model, model if off else expected(model, args, position, now)
        assert shown(after) == model
        assert (verdict == APPLIED) or model == was
        assert (verdict == "stale epoch") == bool(off)
        if kind == "grant" and verdict == APPLIED:
            tokens.append(position)
            for task in set(model) - set(was):
                assert model[task][0] > highest.get(task, -1)
                highest[task] = model[task][0]
        replica = evolve(after, position=position, log_time_ms=now)
    assert violations(replica) == []


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=20))
def test_merging_keeps_every_task_and_is_idempotent(steps: list[tuple[int, bool]]) -> None:
    """This holds for any gaps and owners."""
    pieces, offset = [], 0
    for gap, mine in steps:
        pieces.append((offset + gap, 2, 1, "v" if mine else "w", 9))
        offset += gap + 2
    out = merged(reversed(pieces))
    assert merged(out) == out
    expanded = [(piece[0] + i, piece[3]) for piece in out for i in range(piece[1])]
    assert expanded == [(piece[0] + i, piece[3]) for piece in pieces for i in range(piece[1])]
