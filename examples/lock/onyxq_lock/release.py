"""Release a lock; submitted by its holder."""

from attrs import frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.extensions import state_of, with_state
from onyxq.core.replica import Replica

VERSION = 1
SUBMIT = True


@frozen
class Args:
    """``token``: the token under which it is held."""

    name: str
    token: int


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Free the lock if the token still holds it."""
    locks = state_of(replica, "lock")
    if args.name not in locks or locks[args.name][1] != args.token:
        return replica, "not held"
    return with_state(replica, "lock", locks.remove(args.name)), APPLIED
