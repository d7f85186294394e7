"""Transactions in the replica: which claims are valid, which are held, what is settled (design: transactions).

Pure.  A committed transaction holds the claims that it completes.  Their pieces carry its
position as token, a worker name that contains its name, and a deadline that never comes.
So only the settling of their partition ends them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from attrs import evolve

from onyxq.core.claims import Pieces, change, gather, merged, split, under, window
from onyxq.core.ids import Run, TaskId, runs_of
from onyxq.core.limits import NAME_KEEP_MS
from onyxq.core.remembered import recall, remember_all
from onyxq.core.replica import HELD_MS, Hold, Replica, Transaction, altered, claimed_bits

KIND = "transaction"
"""The kind under which names of settled transactions are remembered.

A repeat gets the position of the commit and the note that came with it.
"""
NOTE_BYTES_MAX = 64


class Claim(NamedTuple):
    """Runs of a partition that are claimed under one token."""

    partition: int
    token: int
    runs: tuple[Run, ...]


class Part(NamedTuple):
    """What a partition must make visible: the number of its pending facts, and their digest."""

    partition: int
    count: int  # type: ignore[assignment]  # shadows the tuple's method
    digest: bytes


class Prepared(NamedTuple):
    """A transaction whose pending facts are stored, in the form that its commit entries use.

    See ``log_entries.commit_transaction``.
    """

    name: str
    deadline_ms: int
    claims: tuple[Claim, ...]
    require: tuple[Claim, ...]
    parts: tuple[Part, ...]
    keep_ms: int = NAME_KEEP_MS
    note: bytes = b""


class Stale(NamedTuple):
    """A task whose token is not valid."""

    id: TaskId
    token: int


def on_hold(replica: Replica) -> Hold | None:
    """Return the hold that blocks commits now; None if there is none, or it is over."""
    found = replica.hold
    return found if found is not None and replica.clock_ms < found.until_ms else None


def worker_of(name: str) -> str:
    """Return the worker name of the claims that a transaction completes."""
    return f"transaction {name}"


def well_formed(claims: Iterable[Claim]) -> bool:
    """Return whether each run is in its partition and within one stretch."""
    return all(gather(claim.partition, [("", claim.runs)]) is not None for claim in claims)


def stale(replica: Replica, claims: Iterable[Claim], *, position: int | None = None) -> list[Stale]:
    """Return the tasks of well-formed claims that are no longer held under their token, in order.

    ``position``: of the record that asks. A token equal to it is always stale, because no worker can know
    a position before it exists.
    """
    found: list[Stale] = []
    for claim in claims:
        held = replica.claims.get(claim.partition)
        for stretch, masks in (gather(claim.partition, [("", claim.runs)]) or {}).items():
            pieces = held.get(stretch, ()) if held is not None else ()
            pieces = pieces[slice(*window(pieces, masks[""]))]
            standing = claimed_bits(tuple(piece for piece in pieces if piece[4] != HELD_MS), claim.token)
            gone = masks[""] & ~standing if claim.token != position else masks[""]
            found += [Stale(TaskId(run.first), claim.token) for run in runs_of(stretch, gone)]
    return found


def held(replica: Replica, name: str, position: int, claims: Iterable[Claim]) -> Replica:
    """Return the replica with valid claims moved into the transaction ``name`` committed at ``position``."""
    worker = worker_of(name)

    def take(pieces: Pieces, token: int, bits: int) -> Pieces | None:
        outside, inside = split(pieces, bits, under(token))
        taken = [(offset, count, position, worker, HELD_MS) for offset, count, *_ in inside]
        return merged([*outside, *taken]) if inside else None

    for claim in claims:
        wanted = gather(claim.partition, [(claim.token, claim.runs)]) or {}
        replica = change(replica, claim.partition, wanted, take) or replica
    return replica


def settled(replica: Replica, parts: Mapping[str, Transaction], partition: int) -> Replica:
    """Return the replica without the claims that these transactions held in a partition that made them visible.

    After its last part, a transaction itself is removed and its name is remembered. ``parts``: by name.
    """
    mine = [claim for found in parts.values() for claim in found.claims if claim[0] == partition]
    runs = [Run(TaskId(first), count) for _, _, held_runs in mine for first, count in held_runs]
    replica = change(replica, partition, gather(partition, [("", runs)]) or {}, _without_held) or replica
    transactions, over = replica.transactions.evolver(), dict[str, tuple[int, tuple[int, bytes]]]()
    for name, found in parts.items():
        if len(found.parts) > 1:
            left = tuple(claim for claim in found.claims if claim[0] != partition)
            transactions[name] = evolve(found, parts=found.parts.remove(partition), claims=left)
        else:
            del transactions[name]
            over[name] = (found.keep_ms, (found.position, found.note))
    return remember_all(altered(replica, transactions=transactions.persistent()), KIND, over)


def _without_held(pieces: Pieces, kind: str, bits: int) -> Pieces | None:
    outside, inside = split(pieces, bits, lambda piece: True, held=True)
    return merged(outside) if inside else None


def answer_of(replica: Replica, name: str) -> int | None:
    """Return the position of the commit under this name, settled or not; None if it is unknown or forgotten."""
    known = known_as(replica, name)
    return known[0] if known is not None else None


def known_as(replica: Replica, name: str) -> tuple[int, bytes] | None:
    """Return the position of the commit under this name and the note that came with it, or None."""
    if name in replica.transactions:
        found = replica.transactions[name]
        return found.position, found.note
    kept = recall(replica, KIND, name)
    return (kept.answer[0], kept.answer[1]) if kept is not None else None
