"""Free a lock whose lease expired; the first peer of the ring submits it, and lets log time pass meanwhile."""

from attrs import frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.extensions import state_of, with_state
from onyxq.core.replica import Replica, first_peer
from onyxq.system.extensions import Context

VERSION = 1


@frozen
class Args:
    """``token``: the token of the expired lease."""

    name: str
    token: int


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Free the lock unless it was renewed, released or taken by another owner since."""
    locks = state_of(replica, "lock")
    _, token, deadline_ms = locks.get(args.name, ("", 0, 0))
    if args.name not in locks or token != args.token or stamp.log_time_ms <= deadline_ms:
        return replica, "not overdue"
    return with_state(replica, "lock", locks.remove(args.name)), APPLIED


def owed(replica: Replica, me: str) -> list[Args]:
    """Return an expiry for every lock whose lease is over."""
    locks = sorted(state_of(replica, "lock").items()) if first_peer(replica) == me else []
    return [Args(name, token) for name, (_, token, deadline_ms) in locks if deadline_ms < replica.log_time_ms]


def duties(replica: Replica, me: str) -> list[str]:
    """Return the duty that lets log time pass while a lock is held."""
    return ["let time pass"] if state_of(replica, "lock") and first_peer(replica) == me else []


async def run(duty: str, context: Context) -> None:
    """Append a record every second."""
    while True:
        await context.sleep(1.0)
        context.let_time_pass()
