"""Change the settings of a queue: pause it, limit it, or set how its tasks are treated.

Submitted by any peer for a client. Sets the settings in ``numbers``, ``words`` and ``flags`` in the
queue's record in ``queues``. Resets the settings in ``cleared`` to their defaults. -1 for
``retries`` means no limit. A pause is stored with its requester and reason. If a setting is not
possible, the verdict names it and nothing changes. A queue with default settings takes no room in
the replica.
"""

from __future__ import annotations

from attrs import evolve, frozen
from pyrsistent import PMap

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.limits import REMARK_CHARACTERS_MAX
from onyxq.core.queue_settings import DEFAULTS
from onyxq.core.queues import QUEUES_MAX, changed, is_name, problem_of, settings_of
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
    """Set the named settings, if all of them are possible."""
    if not is_name(args.queue):
        return replica, "queue is no name of a queue"
    for name, said in (("by", args.by), ("why", args.why)):
        if len(said) > REMARK_CHARACTERS_MAX:
            return replica, f"{name} must have at most {REMARK_CHARACTERS_MAX} characters"
    given: dict[str, int | str | bool] = {**args.numbers, **args.words, **args.flags}
    problem = problem_of(given, args.cleared, VERSION)
    if problem:
        return replica, problem
    before = settings_of(replica, args.queue)
    after = changed(before, given, args.cleared, by=args.by, why=args.why)
    if after == before:
        return replica, "already so"
    if args.queue not in replica.queues and len(replica.queues) >= QUEUES_MAX:
        return replica, f"queue is one too many: {QUEUES_MAX} have settings"
    kept = replica.queues.discard(args.queue) if after == DEFAULTS else replica.queues.set(args.queue, after)
    rates = replica.rates if after.rate else replica.rates.discard(args.queue)
    return evolve(replica, queues=kept, rates=rates), APPLIED
