"""Views of the replica as plain maps for people and programs. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Any

import attrs

from onyxq.core.placement import holders
from onyxq.core.replica import Node, Peer, Replica, live_nodes, unserved
from onyxq.core.ring import clock_skew_ms, contains, is_closed, state_of, watches


def cluster(replica: Replica) -> dict[str, Any]:
    """Return the name, id, settings and health of the cluster."""
    found = replica.cluster
    return {
        "name": found.name if found else None,
        "id": found.id if found else None,
        "position": replica.position,
        "log_time_ms": replica.log_time_ms,
        "settings": attrs.asdict(replica.settings),
        "peers": len(replica.ring.members),
        "members": sorted(replica.ring.members),
        "under_replicated": sum(1 for number in replica.partitions if under_replicated(replica, number)),
        "not_ready": sum(1 for placed in replica.partitions.values() if not placed.ready),
        "moving": sum(1 for placed in replica.partitions.values() if placed.members != placed.target),
        "leaving": [
            {"node": node.id, "peer": node.peer, "partitions_left": partitions_left(replica, node.id)}
            for _, node in sorted(replica.nodes.items())
            if is_leaving(node)
        ],
    }


def is_leaving(node: Node) -> bool:
    """Return whether a node of the cluster hands its copies over for good."""
    return bool(node.peer) and node.draining and node.replaced


def partitions_left(replica: Replica, node: str) -> int:
    """Return the partitions that have, or will have, a copy on the node."""
    return sum(1 for placed in replica.partitions.values() if node in placed.members or node in placed.target)


def under_replicated(replica: Replica, number: int) -> bool:
    """Return whether fewer live nodes hold the partition than the cluster wants copies."""
    placed = replica.partitions[number]
    live = sum(1 for node in placed.members if node in replica.nodes and replica.nodes[node].peer)
    return live < replica.settings.replicas


def ring(replica: Replica) -> dict[str, Any]:
    """Return members and joiners with the peers that they watch, in ring order."""
    joining = [peer for peer in sorted(replica.peers) if peer not in replica.ring.members]
    shown = [*ring_order(replica), *(peer for peer in joining if contains(replica.ring, peer))]
    members = [
        {
            "peer": peer,
            "node": replica.peers[peer].node,
            "watches": list(watches(replica, peer)),
            "state": state_of(replica.ring, peer),
        }
        for peer in shown
    ]
    return {
        "position": replica.position,
        "members": members,
        "queue": list(replica.ring.queue),
        "closed": is_closed(replica.ring) and not joining,
    }


def ring_order(replica: Replica) -> list[str]:
    """Return the members, each followed by the one that it watches."""
    members = sorted(replica.ring.members)
    if not members:
        return []
    order, seen = [members[0]], {members[0]}
    while (after := replica.ring.pairs.get(order[-1])) is not None and after not in seen:
        order.append(after)
        seen.add(after)
    return order + [peer for peer in members if peer not in seen]


def partitions(replica: Replica) -> dict[str, Any]:
    """Return the nodes of every partition."""
    return {
        "position": replica.position,
        "partitions": [partition(replica, number) for number in sorted(replica.partitions)],
    }


def partition(replica: Replica, number: int) -> dict[str, Any]:
    """Return the nodes of one partition."""
    placed = replica.partitions[number]
    leader = replica.peers.get(placed.leader)
    return {
        "partition": number,
        "members": list(placed.members),
        "target": list(placed.target),
        "holders": list(holders(placed)),
        "leader": placed.leader or None,
        "leader_node": leader.node if leader else None,
        "epoch": placed.epoch,
        "ready": placed.ready,
        "under_replicated": under_replicated(replica, number),
        "purged_before_ms": placed.purged_ms or None,
        "kept_stretches": len(placed.kept),
    }


def leader_addresses(replica: Replica) -> dict[int, str]:
    """Return the address of each partition's leader, without partitions that are not served now."""
    away = set(unserved(replica, live_nodes(replica)))
    leaders = {}
    for number, placed in replica.partitions.items():
        peer = replica.peers.get(placed.leader)
        if peer is not None and number not in away:
            leaders[number] = peer.address
    return leaders


def peers(replica: Replica) -> dict[str, Any]:
    """Return peers and nodes, with the number of copies and of led partitions of each."""
    copies = Counter(node for placed in replica.partitions.values() for node in holders(placed))
    leads = Counter(placed.leader for placed in replica.partitions.values())
    return {
        "position": replica.position,
        "peers": [
            {
                **_peer(replica, replica.peers[peer]),
                "copies": copies.get(replica.peers[peer].node, 0),
                "leads": leads.get(peer, 0),
            }
            for peer in sorted(replica.peers)
        ],
        "nodes": [
            {
                "node": node.id,
                "peer": node.peer or None,
                "zone": node.zone,
                "absent_since_ms": node.absent_since_ms if node.absent_since_ms >= 0 else None,
                "draining": node.draining,
                "replaced": node.replaced,
                "leaving": is_leaving(node),
                "copies": copies.get(node.id, 0),
                "leads": leads.get(node.peer, 0) if node.peer else 0,
            }
            for _, node in sorted(replica.nodes.items())
        ],
    }


def _peer(replica: Replica, peer: Peer) -> dict[str, Any]:
    node = replica.nodes.get(peer.node)
    return {
        "peer": peer.id,
        "node": peer.node,
        "address": peer.address,
        "http": peer.http,
        "zone": peer.zone,
        "slots": peer.slots,
        "tags": list(peer.tags),
        "state": state_of(replica.ring, peer.id),
        "draining": bool(node and node.draining),
        "leaving": bool(node and is_leaving(node)),
        "clock_skew_ms": clock_skew_ms(replica, peer.id),
    }
