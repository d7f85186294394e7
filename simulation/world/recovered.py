"""A simulated cluster whose log is gone is recovered from the disks of its nodes, and judged by earlier answers.

The cluster has a new log then.  The audit continues where the newest replica of any
node was: nothing that was acknowledged is lost or run again, transactions are whole, tokens lie above all that the
lost log ever gave, also in its last part, which no node has.
"""

from __future__ import annotations

from collections.abc import Collection

from onyxq.core.log.interface import SEGMENT_RECORDS
from onyxq.core.replica import HELD_MS, Replica, claim_of
from onyxq.history.recovery.findings import Found, found_in, newest_of
from onyxq.history.recovery.new_log import begin_anew
from onyxq.history.recovery.new_replica import new_replica
from onyxq.store.memory import MemoryStore
from simulation.checkers import Broken, Course
from simulation.checkers.tokens_increase import TokensIncrease
from simulation.world.audit import Audit
from simulation.world.restored import continue_audit, standing
from simulation.world.world import SimulatedNode, World


def knowledge(node: SimulatedNode) -> Found:
    """What the disk of a node on which nothing runs says of the log."""
    return found_in(MemoryStore(node.disk), node.name)


async def recover(world: World, *, late: Collection[str] = ()) -> None:
    """Recover a cluster, on whose nodes nothing runs, and start it again; raises `Broken`.

    The world has another log, history and audit afterwards: clients of before must be gone.
    ``late``: names of unreachable nodes; they are started when the others serve.
    """
    newest = newest_of([knowledge(node) for node in world.nodes if node.name not in late])
    lost, told = world.audit, standing(world)
    asked = tuple(world.history.transactions.values())
    world.begin_log()
    world.backend.segment_records = 1
    made = await begin_anew(world.backend, newest, replace=True, now_ms=world.log_clock.wall_ms)
    world.backend.segment_records = SEGMENT_RECORDS
    replica = continue_audit(world.audit, lost, told=told, asked=asked, position=newest.replica.position)
    if replica != newest.replica:
        raise Broken("recovery: the replica that the nodes keep is not the one that the log made")
    if made != new_replica(replica, position=made.position, epochs=newest.epochs):
        raise Broken("recovery: the new log begins with another replica")
    _go_on(world.audit, lost, replica, made)
    world.nursery.start_soon(world.audit.run, world.replicas)
    for node in world.nodes:
        if node.name not in late:
            world.start_node(node)
    await world.settle()
    for node in world.nodes:
        if node.name in late:
            world.start_node(node)
    await world.settle()
    known = world.history.enqueued.keys() | world.history.completed.keys()
    world.audit.enough_copies.acknowledged(world.audit.replica, sorted(known))


def _go_on(audit: Audit, lost: Audit, replica: Replica, made: Replica) -> None:
    """Continue the audit with the new log: void claims have no holder, tokens of the lost part were granted."""
    tokens = next(checker for checker in audit.checkers if isinstance(checker, TokensIncrease))
    course = Course(lost.entries, replica, (tokens,))
    for record in lost.records:
        if record.position > course.replica.position:
            course.step(record)
    audit.replica = made
    for task_id in list(audit.one_claim.holders):
        claim = claim_of(made, task_id)
        if claim is None or claim[4] != HELD_MS:
            del audit.one_claim.holders[task_id]
