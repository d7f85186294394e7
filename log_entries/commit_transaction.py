"""Commit a transaction: all of it, or nothing.

Submitted by the peer that coordinates it, once a majority of each partition has stored the pending
facts of its part. Applies only if every token of ``claims`` and ``require`` is still valid, log
time has not passed the deadline, and transactions are not on hold. The claims move into the
transaction. Until their partition has settled they cannot be expired, released, renewed or granted.
A repeat of a name changes nothing while the transaction is under way or remembered. It is
remembered for ``keep_ms`` of the log's clock after its last part has settled. A node may drop
pending facts if its replica does not know their transaction after the deadline in log time.
"""

from __future__ import annotations

from attrs import frozen
from pyrsistent import pmap

from onyxq.core.claims import BAD_RUN
from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.limits import DEADLINE_AHEAD_MS_MAX, NAME_CHARACTERS_MAX, NAME_KEEP_MS, NAME_KEEP_MS_MAX
from onyxq.core.remembered import remember
from onyxq.core.replica import Replica, Transaction, TransactionClaim, altered
from onyxq.core.transactions import (
    KIND,
    NOTE_BYTES_MAX,
    Claim,
    Part,
    answer_of,
    held,
    on_hold,
    stale,
    well_formed,
)

VERSION = 1

REPEAT = "repeat"
HELD = "held"
"""Start of the verdict while transactions wait (`log_entries.hold_transactions`)."""
TOO_LATE = "too late"
STALE = "stale token"
"""Start of the verdict if a claim is not valid: ``stale token 7 on <hexadecimal id>``."""
DIGEST_BYTES_MAX = 64


@frozen
class Args:
    """``deadline_ms``: in log time; ``claims``: claims whose tasks it completes or updates, and that it ends.

    ``require``: other claims that must be valid; ``parts``: every partition with rows to make visible or claims
    to end; ``note``: kept with the name, for the coordinator of a repeat.
    """

    name: str
    deadline_ms: int
    claims: tuple[Claim, ...]
    require: tuple[Claim, ...]
    parts: tuple[Part, ...]
    keep_ms: int = NAME_KEEP_MS
    note: bytes = b""


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Move the claims into the transaction, if all are valid."""
    problem = _problem(replica, args, stamp)
    if problem:
        return replica, problem
    gone = stale(replica, _needed(args), position=stamp.position)
    if gone:
        return replica, f"{STALE} {gone[0].token} on {gone[0].id.hex()}"
    if not args.parts:
        answer = (stamp.position, args.note)
        return remember(replica, KIND, args.name, for_ms=args.keep_ms, answer=answer), APPLIED
    committed = Transaction(
        position=stamp.position,
        deadline_ms=args.deadline_ms,
        parts=pmap({part.partition: (part.count, part.digest) for part in args.parts}),
        claims=tuple(map(_plain, args.claims)),
        keep_ms=args.keep_ms,
        note=args.note,
    )
    replica = held(replica, args.name, stamp.position, args.claims)
    return altered(replica, transactions=replica.transactions.set(args.name, committed)), APPLIED


def _needed(args: Args) -> tuple[Claim, ...]:
    """Return the claims that must be valid: those that the commit completes, and those that it only requires."""
    return (*args.claims, *args.require)


def _problem(replica: Replica, args: Args, stamp: Stamp) -> str:
    """Return why the transaction cannot be committed, apart from its claims; empty if it can."""
    if not 1 <= len(args.name) <= NAME_CHARACTERS_MAX:
        return "bad name"
    if answer_of(replica, args.name) is not None:
        return REPEAT
    if (hold := on_hold(replica)) is not None:
        return f"{HELD}: {hold.why}"
    if stamp.log_time_ms > args.deadline_ms:
        return TOO_LATE
    if args.deadline_ms > stamp.log_time_ms + DEADLINE_AHEAD_MS_MAX or not 0 <= args.keep_ms <= NAME_KEEP_MS_MAX:
        return "bad time"
    return _misfit(replica, args)


def _misfit(replica: Replica, args: Args) -> str:
    if len(args.note) > NOTE_BYTES_MAX:
        return "bad note"
    numbers = {part.partition for part in args.parts}
    if len(numbers) < len(args.parts) or not all(_fits(replica, part) for part in args.parts):
        return "bad parts"
    if any(claim.partition not in numbers for claim in args.claims):
        return "bad parts"
    known = all(claim.partition in replica.partitions for claim in args.require)
    return "" if known and well_formed((*args.claims, *args.require)) else BAD_RUN


def _fits(replica: Replica, part: Part) -> bool:
    return part.partition in replica.partitions and part.count >= 0 and len(part.digest) <= DIGEST_BYTES_MAX


def _plain(claim: Claim) -> TransactionClaim:
    return claim.partition, claim.token, tuple((run.first, run.count) for run in claim.runs)
