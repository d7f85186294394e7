"""Planted bugs of what tasks may say of themselves: keys, dependencies, deadlines, and of what queues do with them."""

from __future__ import annotations

from simulation.planted.planted import Planted

RULE_BUGS: tuple[Planted, ...] = (
    # --- ordering keys
    Planted(
        "the head of a key by kind instead of time",
        "onyxq/store/facets.py",
        "if key[:19] == prefix + flag and (best is None or key[19:] < best[0]):",
        "if key[:19] == prefix + flag and best is None:",
        "tasks due at once overtake one of their key that was due earlier",
        "keys_handed_over",
        quick=3,
    ),
    Planted(
        "order by this leader's clock alone",
        "onyxq/partition/keyed.py",
        "due_ms = max(now_ms, self._host.store.last_immediate_ms(leader.partition, digest))",
        "due_ms = now_ms",
        "a successor whose clock is behind puts new tasks before older ones",
        "keys_handed_over",
    ),
    Planted(
        "a dead letter lets its key go on",
        "onyxq/partition/headers.py",
        "return STOPPED if stops else FAILED",
        "return FAILED",
        "what a failed task was to prepare is not there",
        "keys_handed_over",
    ),
    Planted(
        "a task in front of those of its key that it depends on",
        "onyxq/partition/keyed.py",
        "if behind_ms > due_ms:",
        "if behind_ms < 0:",
        "each waits for the other, and everything behind them for both",
        "after_their_own",
    ),
    # --- unique keys
    Planted(
        "a repeat of a unique key is another task",
        "onyxq/partition/keyed.py",
        "if standing is None or standing == first:",
        "if standing != first:",
        "the same thing is done twice",
        "same_again",
        quick=3,
    ),
    Planted(
        "data replaced behind the first grant",
        "onyxq/partition/keyed.py",
        "if await self._was_had(standing):",
        "if not await self._was_had(standing) and False:",
        "who looks finds other data than what was run with",
        "same_again",
    ),
    Planted(
        "granted with the data that was replaced",
        "onyxq/partition/bodies.py",
        "epoch, payload = replaced.mark.epoch, replaced.payload",
        "epoch = replaced.mark.epoch",
        "an acknowledged replacement is ignored",
        "same_again",
    ),
    # --- dependencies
    Planted(
        "one dependency is enough",
        "onyxq/partition/dependencies.py",
        'return "run" if all(one is None or one in ENDS for one in said) else ""',
        'return "run" if any(one is None or one in ENDS for one in said) else ""',
        "a task runs before all that it depends on is done",
        "after_others",
        quick=3,
    ),
    Planted(
        "a failed dependency counts as done",
        "onyxq/partition/dependencies.py",
        'if policy != "run" and any(one in ("failed", "cancelled") for one in said):',
        'if policy == "fail" and any(one in ("failed", "cancelled") for one in said):',
        "a task that was to be cancelled runs",
        "after_others",
    ),
    # --- limits and pauses
    Planted(
        "limits known to leaders only",
        "log_entries/grant_limited_claims.py",
        "if left is not None and asked.count > left:",
        "if left is not None and asked.count > left + 3:",
        "leaders that grant at the same time go over the limit together",
        "limits_under_fire",
    ),
    Planted(
        "grants of limited queues are not counted",
        "onyxq/partition/limits.py",
        "return queue in replica.queues and queues.is_limited(replica.queues[queue])",
        "return False",
        "limits do not hold",
        "limits_under_fire",
        quick=3,
    ),
    Planted(
        "pauses unknown to leaders",
        "onyxq/queues.py",
        "if settings.paused:",
        "if settings.paused and settings.concurrency:",
        "a paused queue without limits goes on",
        "standard",
    ),
    # --- deadlines
    Planted(
        "granted behind the deadline",
        "onyxq/partition/bodies.py",
        "if isinstance(expires_ms, int) and expires_ms <= now_ms:",
        "if isinstance(expires_ms, int) and expires_ms <= now_ms - 60_000:",
        "a task that expired while nobody led is run all the same",
        "due_at_a_takeover",
    ),
    Planted(
        "expired although it was granted",
        "onyxq/store/facets.py",
        "expiring = live & ~stretch.granted if rules.expires_ms is not None else 0",
        "expiring = live if rules.expires_ms is not None else 0",
        "a task that was begun in time and is to be tried again fails",
        "due_at_a_takeover",
        quick=3,
    ),
    # --- dead letters
    Planted(
        "completions of an earlier life count",
        "onyxq/store/stretches.py",
        "if state.counts_from > token:",
        "if state.ended > token:",
        "a requeued dead letter stays dead",
        "opened_again",
        quick=3,
    ),
    Planted(
        "retries counted from the first life",
        "onyxq/partition/claims_kept.py",
        "if policy.retries is not None and attempts - piece.base > policy.retries:",
        "if policy.retries is not None and attempts > policy.retries:",
        "a requeued dead letter dies at its first failure",
        "opened_again",
    ),
    Planted(
        "a discarded dead letter is merely failed",
        "onyxq/partition/dead.py",
        "return Finish(Run(task_id, 1), token, facts.CANCELLED, [])",
        "return Finish(Run(task_id, 1), token, facts.FAILED, [])",
        "it comes up again and again, and may be requeued",
        "opened_again",
    ),
    # --- transactions
    Planted(
        "committed although a claim was lost",
        "log_entries/commit_transaction.py",
        "if gone:",
        "if len(gone) > 1:",
        "an input counts twice",
        "late_commits",
    ),
    # --- periodic tasks
    Planted(
        "missed times run once though all are wanted",
        "onyxq/periodic.py",
        "most = RUNS_MAX if periodic.missed == ALL else 1",
        "most = 1",
        "what was due while nobody could fire is lost",
        "ticking",
        quick=3,
    ),
    Planted(
        "fired although it could not be enqueued",
        "onyxq/peer/firing.py",
        "entries = [one.entry for place, one in enumerate(firings) if place not in waiting]",
        "entries = [one.entry for place, one in enumerate(firings) if place not in waiting or firings]",
        "a planned time is lost",
        "ticking",
    ),
)
"""Planted bugs about these, by part."""
