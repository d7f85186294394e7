"""Planted bugs of what tasks may say of themselves: keys, dependencies, deadlines, and of what queues do with them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from attrs import evolve

from onyxq.core.facts import FAILED, unpack_task
from onyxq.core.ids import TaskId
from onyxq.core.periodic import ALL, ONCE, Plan
from onyxq.core.queues import settings_of
from onyxq.core.replica import Periodic, Replica
from onyxq.core.task_headers import Policy
from onyxq.leader.completion_rows import Finish
from onyxq.leader.dependencies import Dependencies, Outcome
from onyxq.leader.grants.bodies import Bodies
from onyxq.leader.outcomes import ENDS, UNSERVED
from onyxq.leader.task_keys import TaskKeys
from onyxq.store.index.facets import Facets, free_bits
from onyxq.store.index.heads import Rules
from onyxq.store.index.stretches import Owner, Stretch, owners
from onyxq.store.interface import Piece
from onyxq.store.key_reads import RuledReads
from simulation.planted.planted import Planted
from simulation.planted.seams import instead, returning

_Verdict = Callable[[Dependencies, dict[str, Any], dict[TaskId, Outcome]], str]


def _free_pieces(original: Callable[[RuledReads, bytes], list[Piece]]) -> Callable[[RuledReads, bytes], list[Piece]]:
    def moved(reads: RuledReads, stretch: bytes) -> list[Piece]:
        record, free = reads._stretch(stretch), 0
        for owner in owners(reads._tables, record, record.known):
            free |= free_bits(reads._tables, record, owner)
        return [piece for piece in original(reads, stretch) if piece.bits & free]

    return moved


def _never_had(
    original: Callable[[TaskKeys, TaskId], Awaitable[bool]],
) -> Callable[[TaskKeys, TaskId], Awaitable[bool]]:
    async def was_had(keys: TaskKeys, task_id: TaskId) -> bool:
        await original(keys, task_id)
        return False

    return was_had


def _data_of_the_enqueue(
    original: Callable[[Bodies, TaskId, dict[str, Any], bytes], tuple[int, bytes]],
) -> Callable[[Bodies, TaskId, dict[str, Any], bytes], tuple[int, bytes]]:
    def latest(bodies: Bodies, first: TaskId, header: dict[str, Any], body: bytes) -> tuple[int, bytes]:
        epoch, _ = original(bodies, first, header, body)
        return epoch, unpack_task(body).payload(0)

    return latest


def _one_is_enough(original: _Verdict) -> _Verdict:
    def verdict(dependencies: Dependencies, header: dict[str, Any], found: dict[TaskId, Outcome]) -> str:
        said = [found.get(one, UNSERVED) for one in header["depends"]]
        done = any(one is None or one in ENDS for one in said)
        return original(dependencies, header, found) or ("run" if done else "")

    return verdict


def _failed_is_done(original: _Verdict) -> _Verdict:
    def verdict(dependencies: Dependencies, header: dict[str, Any], found: dict[TaskId, Outcome]) -> str:
        cancels = header.get("on_dependency_failed") == "cancel"
        return original(dependencies, {**header, "on_dependency_failed": "run"} if cancels else header, found)

    return verdict


def _three_more(original: Callable[..., int | None]) -> Callable[..., int | None]:
    def room(replica: Replica, queue: str, *, since_ms: int = 0) -> int | None:
        left = original(replica, queue, since_ms=since_ms)
        return left + 3 if left is not None else None

    return room


def _pauses_of_limited_queues(original: Callable[..., int | None]) -> Callable[..., int | None]:
    def room(replica: Replica, queue: str, *, since_ms: int = 0) -> int | None:
        settings = settings_of(replica, queue)
        if settings.paused and not settings.concurrency:
            replica = evolve(replica, queues=replica.queues.set(queue, evolve(settings, paused=False)))
        return original(replica, queue, since_ms=since_ms)

    return room


def _a_minute_late(original: Callable[..., int]) -> Callable[..., int]:
    def wanted(bodies: Bodies, piece: Piece, bits: int, header: dict[str, object], now_ms: int) -> int:
        return original(bodies, piece, bits, header, now_ms - 60_000)

    return wanted


def _granted_expire_too(
    original: Callable[[Stretch, Owner, Rules], Facets],
) -> Callable[[Stretch, Owner, Rules], Facets]:
    def facets(stretch: Stretch, owner: Owner, rules: Rules) -> Facets:
        found = original(stretch, owner, rules)
        return found._replace(expiring=found.live if rules.expires_ms is not None else 0)

    return facets


def _void_after_an_end(stretch: Stretch, token: int) -> int:
    return sum(bits for state, bits in stretch.moved.items() if state.ended > token)


def _since_the_enqueue(original: Callable[[Policy, int, int], bool]) -> Callable[[Policy, int, int], bool]:
    return lambda policy, attempts, base: original(policy, attempts, 0)


def _discarded_is_failed(original: Callable[..., Finish]) -> Callable[..., Finish]:
    def given_up(*args: object) -> Finish:
        finish = original(*args)
        return finish if finish.rows is not None else finish._replace(outcome=FAILED)

    return given_up


def _if_two_are_stale(original: Callable[..., list[object]]) -> Callable[..., list[object]]:
    def stale(*args: object, **options: object) -> list[object]:
        gone = original(*args, **options)
        return gone if len(gone) > 1 else []

    return stale


def _last_time_only(original: Callable[[Periodic, int], Plan]) -> Callable[[Periodic, int], Plan]:
    return lambda periodic, now_ms: original(
        evolve(periodic, missed=ONCE) if periodic.missed == ALL else periodic, now_ms
    )


def _enqueued_or_not(original: Callable[..., Awaitable[list[object]]]) -> Callable[..., Awaitable[list[None]]]:
    async def enqueue(*args: object) -> list[None]:
        return [None for _ in await original(*args)]

    return enqueue


def _immediate_first(heads: list[tuple[bytes, int]]) -> tuple[bytes, int]:
    return heads[0]


RULE_BUGS: tuple[Planted, ...] = (
    # --- ordering keys
    Planted(
        "the head of a key by kind instead of time",
        "onyxq.store.index.facets:_earliest",
        instead(_immediate_first),
        "tasks due at once overtake one of their key that was due earlier",
        "keys_handed_over",
        quick=3,
    ),
    Planted(
        "order by this leader's clock alone",
        "onyxq.store.key_reads:RuledReads.last_immediate_ms",
        returning(0),
        "a successor whose clock is behind puts new tasks before older ones",
        "keys_handed_over",
    ),
    Planted(
        "a dead letter lets its key go on",
        "onyxq.core.task_headers:failure_of",
        returning(FAILED),
        "what a failed task was to prepare is not there",
        "keys_handed_over",
    ),
    Planted(
        "attempts of what came to stand behind another of its key are forgotten",
        "onyxq.store.key_reads:RuledReads.moved",
        _free_pieces,
        "a dead letter that comes back before the claimed task of its key takes an attempt from it",
        "overtaken_in_a_key",
    ),
    Planted(
        "a task in front of those of its key that it depends on",
        "onyxq.leader.task_keys:TaskKeys._latest_dependency_ms",
        returning(0),
        "each waits for the other, and everything behind them for both",
        "after_their_own",
    ),
    # --- unique keys
    Planted(
        "a repeat of a unique key is another task",
        "onyxq.leader.task_keys:TaskKeys._other_task",
        returning(None),
        "the same thing is done twice",
        "same_again",
        quick=3,
    ),
    Planted(
        "data replaced behind the first grant",
        "onyxq.leader.task_keys:TaskKeys._was_granted",
        _never_had,
        "who looks finds other data than what was run with",
        "same_again",
    ),
    Planted(
        "granted with the data that was replaced",
        "onyxq.leader.grants.bodies:Bodies._latest",
        _data_of_the_enqueue,
        "an acknowledged replacement is ignored",
        "same_again",
    ),
    # --- dependencies
    Planted(
        "one dependency is enough",
        "onyxq.leader.dependencies:Dependencies._verdict",
        _one_is_enough,
        "a task runs before all that it depends on is done",
        "after_others",
        quick=3,
    ),
    Planted(
        "a failed dependency counts as done",
        "onyxq.leader.dependencies:Dependencies._verdict",
        _failed_is_done,
        "a task that was to be cancelled runs",
        "after_others",
    ),
    # --- limits and pauses
    Planted(
        "limits known to leaders only",
        "log_entries.grant_limited_claims:room",
        _three_more,
        "leaders that grant at the same time go over the limit together",
        "limits_under_fire",
    ),
    Planted(
        "grants of limited queues are not counted",
        "onyxq.leader.grants.limits:Limits.limited",
        returning(False),
        "limits do not hold",
        "limits_under_fire",
        quick=3,
    ),
    Planted(
        "pauses unknown to leaders",
        "onyxq.core.queues:room",
        _pauses_of_limited_queues,
        "a paused queue without limits goes on",
        "standard",
    ),
    # --- deadlines
    Planted(
        "granted behind the deadline",
        "onyxq.leader.grants.bodies:Bodies._wanted",
        _a_minute_late,
        "a task that expired while nobody led is run all the same",
        "due_at_a_takeover",
    ),
    Planted(
        "expired although it was granted",
        "onyxq.store.index.facets:facets",
        _granted_expire_too,
        "a task that was begun in time and is to be tried again fails",
        "due_at_a_takeover",
        quick=3,
    ),
    # --- dead letters
    Planted(
        "completions of an earlier life count",
        "onyxq.store.index.stretches:void_bits",
        instead(_void_after_an_end),
        "a requeued dead letter stays dead",
        "opened_again",
        quick=3,
    ),
    Planted(
        "retries counted from the first life",
        "onyxq.core.task_headers:Policy.is_spent",
        _since_the_enqueue,
        "a requeued dead letter dies at its first failure",
        "opened_again",
    ),
    Planted(
        "a discarded dead letter is merely failed",
        "onyxq.leader.dead_letters:DeadLetters._discarded",
        _discarded_is_failed,
        "it comes up again and again, and may be requeued",
        "opened_again",
    ),
    Planted(
        "a requeue that was never sent is under way for ever",
        "onyxq.leader.dead_letters:DeadLetters._not_sent",
        returning(None),
        "a dead letter cannot be requeued or discarded, and what waits behind it in its key does so for ever",
        "opened_again",
    ),
    Planted(
        "a requeue is under way although the task is open again",
        "onyxq.leader.dead_letters:DeadLetters._reopened",
        returning(None),
        "it cannot be requeued a second time, and is never purged",
        "opened_again",
    ),
    # --- transactions
    Planted(
        "committed although a claim was lost",
        "log_entries.commit_transaction:stale",
        _if_two_are_stale,
        "an input counts twice",
        "late_commits",
    ),
    # --- periodic tasks
    Planted(
        "missed times run once though all are wanted",
        "onyxq.core.periodic:plan",
        _last_time_only,
        "what was due while nobody could fire is lost",
        "ticking",
        quick=3,
    ),
    Planted(
        "fired although it could not be enqueued",
        "onyxq.node.periodic_duty:_enqueue",
        _enqueued_or_not,
        "a planned time is lost",
        "ticking",
    ),
)
"""Planted bugs about these, by part."""
