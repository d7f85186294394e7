"""Changes the settings of a queue: pauses it, limits it, says how its tasks are treated.

Submitted by any peer for a client.  Sets what ``numbers``, ``words`` and ``flags`` name in
the queue's record in ``queues`` and brings what ``cleared`` names back to its default; -1 for
``retries`` is no limit.  A pause is noted with who asked for it and why.  The verdict names a
setting that cannot be so, and then nothing changes.  A queue that is as all queues are
without settings takes no room in the replica.
"""

from __future__ import annotations

from attrs import evolve, frozen
from pyrsistent import PMap

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.queues import DEFAULTS, QUEUES_MAX, WHY_CHARACTERS_MAX, changed, is_name, problem_of, settings_of
from onyxq.core.replica import Replica

VERSION = 1


@frozen
class Args:
    """``numbers``, ``words``, ``flags``: setting -> value; ``cleared``: settings; ``by``, ``why``: of a pause."""

    queue: str
    numbers: PMap[str, int]
    words: PMap[str, str]
    flags: PMap[str, bool]
    cleared: tuple[str, ...]
    by: str
    why: str


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Set what is named, if all of it can be so."""
    if not is_name(args.queue):
        return replica, "queue is no name of a queue"
    for name, said in (("by", args.by), ("why", args.why)):
        if len(said) > WHY_CHARACTERS_MAX:
            return replica, f"{name} must have at most {WHY_CHARACTERS_MAX} characters"
    problem = problem_of(args.numbers, args.words, args.flags, args.cleared)
    if problem:
        return replica, problem
    before = settings_of(replica, args.queue)
    after = changed(
        before,
        numbers=args.numbers,
        words=args.words,
        flags=args.flags,
        cleared=args.cleared,
        by=args.by,
        why=args.why,
    )
    if after == before:
        return replica, "already so"
    if args.queue not in replica.queues and len(replica.queues) >= QUEUES_MAX:
        return replica, f"queue is one too many: {QUEUES_MAX} have settings"
    kept = replica.queues.discard(args.queue) if after == DEFAULTS else replica.queues.set(args.queue, after)
    rates = replica.rates if after.rate else replica.rates.discard(args.queue)
    return evolve(replica, queues=kept, rates=rates), APPLIED
