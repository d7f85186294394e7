"""Replicas with nodes that come and go, without the handshakes of the ring, for placement and claims."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

from attrs import evolve

from log_entries import ready_partition, settle_partition
from onyxq.core.cluster_settings import Settings
from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.invariants.placement import violations
from onyxq.core.placement import reconcile
from onyxq.core.replica import Cluster, Node, Peer, Replica


def cluster(*nodes: str, partitions: int = 64, replicas: int = 3) -> Replica:
    """A settled cluster; ``node@zone`` puts a node into a zone."""
    settings = Settings(partitions=partitions, replicas=replicas)
    replica = Replica(position=0, cluster=Cluster("test", "id", settings))
    return settle(reconcile(arrive(replica, *nodes)))


def arrive(replica: Replica, *nodes: str) -> Replica:
    """New peers of the nodes are members; placement has not run yet."""
    for name in nodes:
        node, _, zone = name.partition("@")
        replica = evolve(replica, position=replica.position + 1)
        known = replica.nodes.get(node)
        zone = zone or (known.zone if known else "")
        peer = f"{node}.{replica.position}"
        joined = Peer(
            id=peer,
            node=node,
            address="",
            http="",
            zone=zone,
            slots=1,
            tags=(),
            versions=replica.enabled,
            joined_position=replica.position,
        )
        replica = evolve(
            replica,
            nodes=replica.nodes.set(node, Node(node, zone, peer)),
            peers=replica.peers.set(peer, joined),
            ring=evolve(replica.ring, members=replica.ring.members.set(peer, None)),
        )
    return replica


def join(replica: Replica, *nodes: str) -> Replica:
    """Let peers of the nodes join one after the other; placement runs each time."""
    for node in nodes:
        replica = checked(reconcile(arrive(replica, node)))
    return replica


def leave(replica: Replica, *nodes: str) -> Replica:
    """Let peers of the nodes leave one after the other."""
    for name in nodes:
        node = replica.nodes[name]
        gone = evolve(node, peer="", absent_since_ms=replica.log_time_ms)
        replica = evolve(
            replica,
            position=replica.position + 1,
            nodes=replica.nodes.set(name, gone),
            peers=replica.peers.discard(node.peer),
            ring=evolve(replica.ring, members=replica.ring.members.discard(node.peer)),
        )
        replica = checked(reconcile(replica))
    return replica


def mark(replica: Replica, node: str, *, draining: bool = True, replaced: bool = False) -> Replica:
    """Drain the node, for good if ``replaced``."""
    marked = evolve(replica.nodes[node], draining=draining, replaced=replaced)
    return checked(reconcile(evolve(replica, nodes=replica.nodes.set(node, marked))))


def submit(replica: Replica, args: Any, peer: str, *, rise_ms: int = 0) -> tuple[Replica, Verdict]:
    """Submit one entry in a record of its own."""
    position, log_time_ms = replica.position + 1, replica.log_time_ms + rise_ms
    replica = evolve(replica, position=position, log_time_ms=log_time_ms)
    stamp = Stamp(position=position, index=0, peer=peer, log_time_ms=log_time_ms, wall_ms=0)
    after, verdict = sys.modules[type(args).__module__].apply(replica, args, stamp)
    assert isinstance(after, Replica)
    if verdict != APPLIED:
        assert after is replica
    return checked(after), verdict


def ready(replica: Replica, number: int) -> Replica:
    """The partition's leader becomes ready, if it is not."""
    found = replica.partitions[number]
    if not found.ready and found.leader:
        replica, verdict = submit(replica, ready_partition.Args(number, found.epoch), found.leader)
        assert verdict == APPLIED
    return replica


def settle(replica: Replica) -> Replica:
    """Let leaders become ready and settle until nothing is left to do."""
    for _ in range(10):
        for number in sorted(replica.partitions):
            replica = ready(replica, number)
            found = replica.partitions[number]
            if found.ready and found.members != found.target:
                replica, verdict = submit(replica, settle_partition.Args(number, found.epoch), found.leader)
                assert verdict == APPLIED
        if all(found.ready or not found.leader for found in replica.partitions.values()):
            return replica
    raise AssertionError("leaders never come to rest")


def checked(replica: Replica) -> Replica:
    """Return the replica after a check of its invariants."""
    assert violations(replica) == []
    return replica


def copies(replica: Replica) -> dict[str, int]:
    """Return the copies per node in targets; nodes without any have 0."""
    counts = Counter(node for found in replica.partitions.values() for node in found.target)
    return {node: counts[node] for node in sorted({*replica.nodes, *counts})}


def leaders(replica: Replica) -> dict[str, int]:
    """Return the partitions led per present node."""
    counts = Counter(found.leader for found in replica.partitions.values())
    return {node.id: counts[node.peer] for node in replica.nodes.values() if node.peer}


def targets(replica: Replica) -> dict[int, tuple[str, ...]]:
    """Return the target of every partition."""
    return {number: found.target for number, found in replica.partitions.items()}


def moves(before: Replica, after: Replica) -> int:
    """Return the copies that must be made."""
    old, new = targets(before), targets(after)
    return sum(len(set(new[number]) - set(old[number])) for number in new)
