"""Invariants of every replica, at every position (design: ring, invariants).

`violations` is checked after every step in tests and in simulation.  In production it is sampled;
there a violation raises an alarm and changes nothing.
"""

from __future__ import annotations

from collections import Counter

from onyxq.core import ring
from onyxq.core.invariants import jobs, placement, queues
from onyxq.core.log.interface import START
from onyxq.core.replica import Replica
from onyxq.core.snapshot import misfits

STRUCTURE = ("ring", "peers", "nodes", "partitions", "settings")
"""The parts of a replica that `structure_violations` reads; few records change them."""


def violations(replica: Replica) -> list[str]:
    """Return every broken invariant in words; empty if all hold."""
    return [*structure_violations(replica), *other_violations(replica)]


def structure_violations(replica: Replica) -> list[str]:
    """Return every broken invariant that follows from the parts in `STRUCTURE` alone."""
    return [*ring_violations(replica), *membership_violations(replica), *placement.partition_violations(replica)]


def other_violations(replica: Replica) -> list[str]:
    """Return every broken invariant that `structure_violations` does not check."""
    return [
        *log_violations(replica),
        *extension_violations(replica),
        *placement.claim_violations(replica),
        *queues.violations(replica),
        *jobs.violations(replica),
    ]


def ring_violations(replica: Replica) -> list[str]:
    """Return violations of the ring.

    The pairs are one cycle through all members, no peer is in two states, and no joiner waits while a member is free.
    """
    now = replica.ring
    out = []
    if not ring.is_closed(now):
        out.append(f"the pairs {sorted(now.pairs.items())} are not one cycle through {sorted(now.members)}")
    hosts = [*now.prepared, *now.accepted]
    joiners = [*now.prepared.values(), *now.accepted.values(), *now.queue]
    out += [f"{peer} takes in two peers" for peer, times in sorted(Counter(hosts).items()) if times > 1]
    out += [f"{peer} takes a peer in but is not a member" for peer in sorted(set(hosts)) if peer not in now.members]
    states = Counter([*joiners, *now.members])
    out += [f"{peer} is in two states of the ring" for peer, times in sorted(states.items()) if times > 1]
    if now.queue and (not now.members or ring.free_members(now)):
        out.append(f"{now.queue[0]} is queued while there is a place")
    return out + _watch_violations(replica)


def _watch_violations(replica: Replica) -> list[str]:
    """Return violations of watching.

    Every peer that is a member or in a join is watched, and by only one peer unless a join requires two.
    """
    now, out = replica.ring, []
    watchers: Counter[str] = Counter()
    for peer in sorted(replica.peers):
        if peer not in now.queue:
            watchers.update(ring.watches(replica, peer))
    busy = ring.stitching(now)
    successors = {now.pairs.get(host, host) for host in now.accepted}
    for peer in sorted(replica.peers):
        lone = len(now.members) == 1 and peer in now.members and peer not in busy
        if peer not in now.queue and not lone and not watchers[peer]:
            out.append(f"no peer watches {peer}")
        if watchers[peer] > 1 and peer not in busy and peer not in successors:
            out.append(f"{peer} is watched {watchers[peer]} times")
    return out


def membership_violations(replica: Replica) -> list[str]:
    """Return where ring, peers and nodes disagree; a node has at most one peer."""
    now, out = replica.ring, []
    everyone = {*now.members, *now.prepared.values(), *now.accepted.values(), *now.queue}
    if everyone != set(replica.peers):
        out.append(f"the ring has {sorted(everyone)} but peers are {sorted(replica.peers)}")
    for peer_id, peer in sorted(replica.peers.items()):
        joined = peer_id in now.members
        node = replica.nodes.get(peer.node)
        if peer.id != peer_id or (peer.joined_position >= 0) != joined:
            out.append(f"the record of {peer_id} does not fit its place in the ring")
        if joined and (node is None or node.peer != peer_id):
            out.append(f"member {peer_id} is not the peer of its node {peer.node}")
    shared = Counter(peer.node for peer in replica.peers.values())
    out += [f"node {node} has {times} peers" for node, times in sorted(shared.items()) if times > 1]
    for node_id, node in sorted(replica.nodes.items()):
        if node.id != node_id or (node.absent_since_ms < 0) != bool(node.peer):
            out.append(f"the record of node {node_id} contradicts itself")
        if node.peer and node.peer not in now.members:
            out.append(f"node {node_id} names {node.peer}, which is not a member")
    return out


def log_violations(replica: Replica) -> list[str]:
    """Return where position, log time and outbox numbers are out of range."""
    out = []
    if replica.position < START or replica.log_time_ms < 0:
        out.append(f"position {replica.position} or log time {replica.log_time_ms} is out of range")
    if replica.snapshot.position > replica.position:
        out.append(f"the snapshot at {replica.snapshot.position} lies ahead of the log")
    out += [f"{peer}'s outbox number is {number}" for peer, number in sorted(replica.outbox.items()) if number < 1]
    if replica.cluster is None and (replica.peers or replica.partitions):
        out.append("peers or partitions without a cluster")
    return out


def extension_violations(replica: Replica) -> list[str]:
    """Return which states of extensions cannot be packed."""
    wrong = [(name, misfits(replica.extensions[name])) for name in sorted(replica.extensions)]
    return [f"the state of extension {name} holds {what}" for name, what in wrong if what]
