"""Invariants of queues, limits, transactions and periodic tasks in every replica.

Pure.  They complement the invariants of the ring and of placement: checked after every step
in tests and simulation, sampled in production.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from onyxq.core.claims import gather
from onyxq.core.ids import Run, TaskId, spans
from onyxq.core.queue_settings import DEFAULTS
from onyxq.core.queues import is_name
from onyxq.core.remembered import recall
from onyxq.core.replica import HELD_MS, Counted, Replica, claimed_bits, pieces_of
from onyxq.core.transactions import KIND, worker_of


def violations(replica: Replica) -> list[str]:
    """Return every broken invariant of queues, limits, transactions and periodic tasks, in words."""
    return [*_of_queues(replica), *_of_limits(replica), *_of_transactions(replica), *_of_periodic(replica)]


def _of_queues(replica: Replica) -> Iterator[str]:
    for name in sorted(replica.queues):
        found = replica.queues[name]
        if not is_name(name) or found == DEFAULTS:
            yield f"queue {name!r} needs no settings, or has no name"
        if not found.paused and (found.paused_by or found.paused_why):
            yield f"queue {name} is not paused and says why"
    for name in sorted(replica.rates):
        left, at_ms = replica.rates[name]
        if not (name in replica.queues and replica.queues[name].rate):
            yield f"queue {name} has a bucket and no rate"
        if left < 0 or at_ms > replica.clock_ms:
            yield f"the bucket of queue {name} holds {left} at {at_ms}"


def _of_limits(replica: Replica) -> Iterator[str]:
    running: Counter[str] = Counter()
    for stretch in sorted(replica.limited):
        counted = replica.limited[stretch]
        for problem in _of_counted(replica, stretch, counted):
            yield f"limits on {stretch.hex()}: {problem}"
        for queue, _, count in counted:
            running[queue] += count
    if dict(running) != dict(replica.running):
        yield f"running are {sorted(replica.running.items())}, counted {sorted(running.items())}"


def _of_counted(replica: Replica, stretch: bytes, counted: tuple[Counted, ...]) -> Iterator[str]:
    bits, by_queue = 0, dict[str, int]()
    for queue, offset, count in counted:
        mine = ((1 << count) - 1) << offset
        if bits & mine:
            yield f"the task at {offset} counts twice"
        bits |= mine
        by_queue[queue] = by_queue.get(queue, 0) | mine
    tidy = [(queue, offset, count) for queue in sorted(by_queue) for offset, count in spans(by_queue[queue])]
    if not counted or list(counted) != tidy:
        yield "what counts is missing, unsorted or not merged"
    if bits & ~claimed_bits(pieces_of(replica, stretch)):
        yield "a task counts that is not claimed"


def _of_transactions(replica: Replica) -> Iterator[str]:
    held: dict[bytes, int] = {}
    for name in sorted(replica.transactions):
        for problem in _of_transaction(replica, name, held):
            yield f"transaction {name}: {problem}"
    for number in sorted(replica.claims):
        stretches = replica.claims[number]
        for stretch in sorted(stretches):
            bits = claimed_bits(tuple(piece for piece in stretches[stretch] if piece[4] == HELD_MS))
            if bits != held.get(stretch, 0):
                yield f"claims on {stretch.hex()} are held for ever, but not as the transactions say"


def _of_transaction(replica: Replica, name: str, held: dict[bytes, int]) -> Iterator[str]:
    """Yield the broken invariants of one transaction, and add its masks of stretches to ``held``."""
    found = replica.transactions[name]
    if not found.parts or found.position > replica.position:
        yield "it has no part, or was committed ahead of the log"
    if recall(replica, KIND, name) is not None:
        yield "it is remembered as settled"
    for number in sorted(found.parts):
        if number not in replica.partitions:
            yield f"it has a part in the unknown partition {number}"
    for number, _, runs in found.claims:
        if number not in found.parts:
            yield f"it holds claims of partition {number}, which has settled"
        wanted = gather(number, [("", [Run(TaskId(first), count) for first, count in runs])]) or {}
        for stretch, masks in wanted.items():
            mine = [piece for piece in pieces_of(replica, stretch) if piece[3] == worker_of(name)]
            standing = tuple(piece for piece in mine if piece[2] == found.position and piece[4] == HELD_MS)
            if masks[""] & ~claimed_bits(standing):
                yield f"it does not hold all that it completes on {stretch.hex()}"
            held[stretch] = held.get(stretch, 0) | masks[""]


def _of_periodic(replica: Replica) -> Iterator[str]:
    for name in sorted(replica.periodic):
        found = replica.periodic[name]
        if found.name != name or found.next_ms < 0 or found.fired < 0:
            yield f"periodic task {name} contradicts itself"
