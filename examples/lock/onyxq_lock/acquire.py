"""Take a lock for an owner, or renew the lease of its holder; submitted by clients."""

from attrs import frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.extensions import state_of, with_state
from onyxq.core.replica import Replica

VERSION = 1
SUBMIT = True


@frozen
class Args:
    """``owner``: the owner that asks; a name that no other client uses."""

    name: str
    owner: str
    lease_ms: int = 10_000


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Grant the lock unless another owner's lease is valid; each new holder gets a higher token."""
    if not (0 < len(args.name) <= 200 and 0 < len(args.owner) <= 200 and 0 < args.lease_ms <= 86_400_000):
        return replica, "bad arguments"
    locks, token = state_of(replica, "lock"), stamp.position * 65_536 + stamp.index
    owner, old_token, deadline_ms = locks.get(args.name, ("", 0, 0))
    if owner == args.owner:
        token = old_token
    elif owner and stamp.log_time_ms <= deadline_ms:
        return replica, "held by another"
    mine = (args.owner, token, stamp.log_time_ms + args.lease_ms)
    return with_state(replica, "lock", locks.set(args.name, mine)), APPLIED
