"""Planted bugs of rules of tasks and queues: keys, dependencies, limits, deadlines, requeues."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any

from attrs import evolve

from onyxq.core.facts import FAILED
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
from onyxq.store.index.facets import free_bits
from onyxq.store.index.stretches import Stretch, owners
from onyxq.store.interface import Piece
from onyxq.store.key_reads import RuledReads
from simulation.planted.planted import Planted
from simulation.planted.seams import instead, returning

_Verdict = Callable[[Dependencies, dict[str, Any], dict[TaskId, Outcome]], str]


def _free_pieces(
    original: Callable[[RuledReads, Stretch], list[Piece]],
) -> Callable[[RuledReads, Stretch], list[Piece]]:
    def moved(reads: RuledReads, record: Stretch) -> list[Piece]:
        free = 0
        for owner in owners(reads._tables, record, record.known):
            free |= free_bits(reads._head, record, owner)
        return [piece for piece in original(reads, record) if piece.bits & free]

    return moved


def _never_granted(
    original: Callable[[TaskKeys, TaskId], Awaitable[bool]],
) -> Callable[[TaskKeys, TaskId], Awaitable[bool]]:
    async def was_granted(keys: TaskKeys, task_id: TaskId) -> bool:
        await original(keys, task_id)
        return False

    return was_granted


def _never_locked(_: Callable[..., Awaitable[None]]) -> Callable[[TaskKeys, bytes], Awaitable[None]]:
    async def lock(keys: TaskKeys, digest: bytes) -> None:
        keys._locks.setdefault(digest, deque())

    return lock


def _unchanged(_: object, __: object, body: bytes, ___: object) -> bytes:
    """Return the row as it was."""
    return body


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
    def wanted(bodies: Bodies, piece: Piece, bits: int, header: dict[str, object]) -> int:
        expires_ms = header.get("expires_ms")
        if isinstance(expires_ms, int):
            header = {**header, "expires_ms": expires_ms + 60_000}
        return original(bodies, piece, bits, header)

    return wanted


def _void_after_an_end(stretch: Stretch, token: int) -> int:
    return sum(bits for state, bits in stretch.moved.items() if state.ended > token)


def _since_the_enqueue(original: Callable[[Policy, int, int], bool]) -> Callable[[Policy, int, int], bool]:
    return lambda policy, attempts, base: original(policy, attempts, 0)


def _discarded_is_failed(original: Callable[..., Finish]) -> Callable[..., Finish]:
    def discarded(*args: object) -> Finish:
        finish = original(*args)
        return finish if finish.rows is not None else finish._replace(outcome=FAILED)

    return discarded


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
        "immediate tasks of a key come before delayed ones",
        "onyxq.store.index.facets:_earliest",
        instead(_immediate_first),
        "immediate tasks overtake a task of their key that was due earlier",
        "keys_handed_over",
        quick=3,
    ),
    Planted(
        "the order of a key follows the leader's clock alone",
        "onyxq.store.key_reads:RuledReads.last_immediate_ms",
        returning(0),
        "a successor with a slow clock puts new tasks before older ones",
        "keys_handed_over",
    ),
    Planted(
        "a dead letter does not stop its key",
        "onyxq.core.task_headers:failure_of",
        returning(FAILED),
        "later tasks of the key run without the work of the failed one",
        "keys_handed_over",
    ),
    Planted(
        "attempts are forgotten if another task of the key comes first",
        "onyxq.store.key_reads:RuledReads._moved",
        _free_pieces,
        "a requeued dead letter before the claimed task of its key takes an attempt from that task",
        "overtaken_in_a_key",
    ),
    Planted(
        "a task comes before tasks of its key on which it depends",
        "onyxq.leader.task_keys:TaskKeys._latest_dependency_ms",
        returning(0),
        "each waits for the other, and later tasks of the key wait for both",
        "after_their_own",
    ),
    # --- unique keys
    Planted(
        "the repeat of a change makes another task",
        "onyxq.leader.task_keys:TaskKeys._changed_before",
        returning(None),
        "the data of an enqueue that replaced another's is executed twice",
        "said_again",
        quick=3,
    ),
    Planted(
        "a repeated unique key makes another task",
        "onyxq.leader.task_keys:TaskKeys._other_holder",
        returning(None),
        "the same work is done twice",
        "same_again",
        quick=3,
    ),
    Planted(
        "a key is free again within its period once its task has ended",
        "onyxq.store.index.heads:until_of",
        returning("finished"),
        "the work of a period is done twice",
        "once_per_period",
        quick=3,
    ),
    Planted(
        "enqueues of a key do not wait for each other",
        "onyxq.leader.task_keys:TaskKeys._lock",
        _never_locked,
        "enqueues at the same time make two tasks in one period",
        "once_per_period",
    ),
    Planted(
        "a choice other than replace is not read",
        "onyxq.leader.task_keys:ON_CONFLICT",
        instead("no such field"),
        "a repeat that is to keep the task changes its data",
        "once_per_period",
    ),
    Planted(
        "data is replaced after the first grant",
        "onyxq.leader.task_keys:TaskKeys._has_started",
        _never_granted,
        "the stored data is not the data with which the task ran",
        "same_again",
    ),
    Planted(
        "a task is granted with replaced data",
        "onyxq.leader.task_keys:TaskKeys._changed",
        instead(_unchanged),
        "an acknowledged replacement is ignored",
        "same_again",
    ),
    # --- dependencies
    Planted(
        "one dependency is enough",
        "onyxq.leader.dependencies:Dependencies._verdict",
        _one_is_enough,
        "a task runs before all of its dependencies are done",
        "after_others",
        quick=3,
    ),
    Planted(
        "a failed dependency counts as done",
        "onyxq.leader.dependencies:Dependencies._verdict",
        _failed_is_done,
        "a task runs that should be cancelled",
        "after_others",
    ),
    # --- limits and pauses
    Planted(
        "only leaders check limits",
        "log_entries.grant_limited_claims:room",
        _three_more,
        "leaders that grant at the same time exceed the limit together",
        "limits_under_fire",
    ),
    Planted(
        "grants of limited queues are not counted",
        "onyxq.leader.grants.limits:Limits.limited",
        returning(False),
        "limits are exceeded",
        "limits_under_fire",
        quick=3,
    ),
    Planted(
        "leaders ignore pauses of queues without limits",
        "onyxq.core.queues:room",
        _pauses_of_limited_queues,
        "tasks of a paused queue are granted",
        "standard",
    ),
    # --- deadlines
    Planted(
        "tasks are granted after their deadline",
        "onyxq.leader.grants.bodies:Bodies._wanted",
        _a_minute_late,
        "a task that expired without a leader runs",
        "due_at_a_takeover",
    ),
    Planted(
        "tasks that were granted in time expire",
        "onyxq.store.index.key_index:Ruled.grant",
        returning(None),
        "a task that was started in time and waits for a retry fails",
        "due_at_a_takeover",
        quick=3,
    ),
    # --- dead letters
    Planted(
        "completions from before a requeue count",
        "onyxq.store.index.stretches:void_bits",
        instead(_void_after_an_end),
        "a requeued dead letter stays failed",
        "opened_again",
        quick=3,
    ),
    Planted(
        "attempts from before a requeue count",
        "onyxq.core.task_headers:Policy.is_spent",
        _since_the_enqueue,
        "a requeued dead letter fails for good at its first failure",
        "opened_again",
    ),
    Planted(
        "a discarded dead letter stays failed",
        "onyxq.leader.dead_letters:DeadLetters._discarded",
        _discarded_is_failed,
        "it is still listed and may be requeued",
        "opened_again",
    ),
    Planted(
        "a requeue that was never sent stays pending for ever",
        "onyxq.leader.dead_letters:DeadLetters._not_sent",
        returning(None),
        "a dead letter cannot be requeued or discarded, and later tasks of its key wait for ever",
        "opened_again",
    ),
    Planted(
        "a finished requeue stays pending",
        "onyxq.leader.dead_letters:DeadLetters._reopened",
        returning(None),
        "the task cannot be requeued a second time, and is never purged",
        "opened_again",
    ),
    # --- transactions
    Planted(
        "a transaction commits although a claim was lost",
        "log_entries.commit_transaction:stale",
        _if_two_are_stale,
        "an input counts twice",
        "late_commits",
    ),
    # --- periodic tasks
    Planted(
        "missed times run once although all should run",
        "onyxq.core.periodic:plan",
        _last_time_only,
        "times that were due without a leader are lost",
        "ticking",
        quick=3,
    ),
    Planted(
        "a periodic task counts as fired although its enqueue failed",
        "onyxq.node.periodic_duty:_enqueue",
        _enqueued_or_not,
        "a planned time is lost",
        "ticking",
    ),
)
"""The planted bugs of these rules, by topic."""
