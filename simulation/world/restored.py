"""A backup of a simulated cluster is restored into another one, which is judged by what stood when it was taken.

The other cluster has a log, network and disks of its own, and an audit that continues where the first cluster's log
was when the backup ended: a task's tokens rise, attempts are counted on, what was done is never granted again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio
from attrs import evolve, frozen

from onyxq.core import snapshot
from onyxq.core.log.interface import SEGMENT_RECORDS
from onyxq.core.replica import Replica
from onyxq.history.backup.file import read
from onyxq.history.backup.restore import restore
from onyxq.store.memory import MemoryStore
from onyxq.store.store import Store
from simulation.checkers import Broken, Course, LogChecker
from simulation.checkers.attempts_counted import AttemptsCounted
from simulation.checkers.counted_once import CountedOnce
from simulation.checkers.invariants_hold import InvariantsHold
from simulation.checkers.leaders_only import LeadersOnly
from simulation.checkers.ring_watched import RingWatched
from simulation.checkers.tokens_increase import TokensIncrease
from simulation.world.audit import Audit
from simulation.world.history import OK, UNKNOWN, History, Transacted
from simulation.world.load import Load, Mix
from simulation.world.moves import Moves, MovesMix
from simulation.world.world import World

NAME = "restored"
USED_S = 1.0
"""How long the other cluster is used for, before all is worked off."""
FIRST = 1_000_000
"""No task and no move of the first cluster has this number."""


@frozen
class Standing:
    """What clients had been told when a backup began."""

    history: History
    transactions: Mapping[str, Transacted]
    """Those that were known to be committed."""


@frozen
class TakenBackup:
    """A backup, what it must contain, and the position of the log after its last record."""

    path: Path
    standing: Standing
    position: int
    asked: tuple[Transacted, ...]
    """All transactions that had been asked for when it ended."""


def standing(world: World) -> Standing:
    """What clients of a cluster have been told up to now."""
    known = world.history
    history = History(
        operations={task: list(map(evolve, calls)) for task, calls in known.operations.items()},
        enqueued=dict(known.enqueued),
        completed=dict(known.completed),
        updates={task: dict(numbers) for task, numbers in known.updates.items()},
        payloads=dict(known.payloads),
        sent=dict(known.sent),
    )
    return Standing(history, {name: one for name, one in known.transactions.items() if one.outcome == OK})


async def judge_restored(first: World, taken: TakenBackup) -> None:
    """Restore a backup, use what comes of it, work all of it off; raises `Broken`."""
    async with trio.open_nursery() as nursery:
        options = evolve(first.options, nodes=0)
        world = World(seed=first.random.getrandbits(32), options=options, nursery=nursery)
        made = await _restore(world, taken)
        last = continue_audit(world.audit, first.audit, told=taken.standing, asked=taken.asked, position=taken.position)
        if evolve(last, position=made.position, cluster=made.cluster, claims=made.claims, hold=None) != made:
            raise Broken("backup: the replica that is restored is not the one that the log makes")
        world.audit.replica = made
        await world.serve()
        known = world.history.enqueued.keys() | world.history.completed.keys()
        world.audit.enough_copies.acknowledged(world.audit.replica, sorted(known))
        await use(world)
        await world.judge()
        world.end()
        nursery.cancel_scope.cancel()


async def _restore(world: World, taken: TakenBackup) -> Replica:
    """Fill a world that has no nodes yet; the replica from which its peers start."""

    @asynccontextmanager
    async def new_stores(nodes: Sequence[str]) -> AsyncIterator[Mapping[str, Store]]:
        stores: dict[str, Store] = {}
        for node_id in nodes:
            node = world.add_node()
            node.known_id = node_id
            stores[node_id] = MemoryStore(node.disk, now_ms=node.clock.wall_ms)
        yield stores
        for store in stores.values():
            await store.aclose()

    found = read(taken.path)
    world.backend.segment_records = 1
    session = await world.backend.session()
    cluster_id = f"{world.random.getrandbits(64):016x}"
    await restore(found, session, name=NAME, new_stores=new_stores, cluster_id=cluster_id, clock=world.log_clock)
    await session.aclose()
    world.backend.segment_records = SEGMENT_RECORDS
    assert world.backend.stored is not None
    return snapshot.unpack(world.backend.stored.data)


def continue_audit(
    audit: Audit, first: Audit, *, told: Standing, asked: Sequence[Transacted], position: int
) -> Replica:
    """Continue the audit of another log where the first log was at a position; return the replica there.

    ``told``: what clients had been told; ``asked``: all transactions that had been asked for.
    """
    history, known = audit.history, told.history
    history.operations, history.enqueued = known.operations, known.enqueued
    history.completed, history.updates = known.completed, known.updates
    history.payloads, history.sent = known.payloads, known.sent
    history.transactions = {
        one.name: told.transactions.get(one.name) or Transacted(one.name, one.completes, one.payloads, UNKNOWN)
        for one in asked
    }
    history.transaction_of = {data: one for one in history.transactions.values() for data in one.payloads}
    continued: tuple[LogChecker, ...] = (
        CountedOnce(),
        TokensIncrease(),
        audit.one_claim,
        AttemptsCounted(history, audit.one_claim),
        audit.all_or_nothing,
    )
    course = Course(first.entries, checkers=continued)
    for record in first.records:
        if record.position <= position:
            course.step(record)
    audit.checkers = (
        *continued,
        audit.replicas_equal,
        InvariantsHold(),
        RingWatched(),
        LeadersOnly(),
        audit.leases_last,
        audit.done_stays_done,
        audit.nothing_lost,
        audit.copies_equal,
        audit.enough_copies,
    )
    return course.replica


async def use(world: World) -> None:
    """Enqueue, claim, complete and move tasks for `USED_S`. Then finish all tasks, including those from before."""
    load = Load(world, Mix(workers=1), first=FIRST)
    moves = Moves(world, MovesMix(mappers=1), first=FIRST)
    async with trio.open_nursery() as nursery:
        load.start(nursery)
        moves.start(nursery)
        await trio.sleep(USED_S)
        await moves.drain()
        await load.drain()
        nursery.cancel_scope.cancel()
