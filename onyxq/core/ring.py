"""The watch ring: which peer watches which while peers join, leave and die (design: ring).

Pure functions on `onyxq.core.replica.Ring`, used by the entries that change membership.
Every member is watched by exactly one other.  A join has three phases, so that at each
step a member watches the joiner S and S watches a member:

1. *prepared*: a member T that is not part of another join watches S, and S watches T;
2. *accepted*: S watches T's successor W, T still watches both;
3. *joined*: the ring is T -> S -> W, T stops watching W.

Joiners that find no free member wait in ``Ring.queue``.  Every step that frees a member also
prepares the first of them (`fill`), so no member is free while a joiner waits.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve
from pyrsistent import PMap

from onyxq.core import placement
from onyxq.core.entry import Stamp
from onyxq.core.jobs.allocation import allocated
from onyxq.core.replica import CLOCK_SKEW_MAX_MS, Node, Replica, Ring

# --- reading -------------------------------------------------------------------


def stitching(ring: Ring) -> frozenset[str]:
    """Return the peers on either side of a join in phase 1 or 2."""
    return frozenset(peer for joins in (ring.prepared, ring.accepted) for pair in joins.items() for peer in pair)


def stitcher(joins: PMap[str, str], joiner: str) -> str:
    """Return the member T with ``joins[T] == joiner``, or an empty string."""
    return next((host for host, found in sorted(joins.items()) if found == joiner), "")


def free_members(ring: Ring) -> list[str]:
    """Return the sorted members that can take in a joiner."""
    busy = stitching(ring)
    return sorted(peer for peer in ring.members if peer not in busy)


def is_joining(ring: Ring, peer: str) -> bool:
    """Return whether the peer is prepared, accepted or queued, but not a member yet."""
    return peer in ring.queue or peer in ring.prepared.values() or peer in ring.accepted.values()


def contains(ring: Ring, peer: str) -> bool:
    """Return whether the peer is a member or joining."""
    return peer in ring.members or is_joining(ring, peer)


def state_of(ring: Ring, peer: str) -> str:
    """Return the peer's state: ``joined``, ``prepared``, ``accepted``, ``queued``, or ``unknown``."""
    if peer in ring.members:
        return "joined"
    if peer in ring.queue:
        return "queued"
    if stitcher(ring.prepared, peer):
        return "prepared"
    return "accepted" if stitcher(ring.accepted, peer) else "unknown"


def watches(replica: Replica, me: str) -> tuple[str, ...]:
    """Return the sorted peers whose pulse ``me`` must watch now.

    If a watched pulse is absent, even from the start, ``me`` must append ``leave_cluster``.
    This rule alone removes several dead neighbours in a row, and repairs clusters that died during joins.
    """
    ring = replica.ring
    if me in ring.members:
        found = {ring.pairs.get(me), ring.prepared.get(me), ring.accepted.get(me)}
    elif me in ring.queue:
        place = ring.queue.index(me)
        found = {*stitching(ring), *ring.queue[max(place - 1, 0) : place]}
    elif host := stitcher(ring.prepared, me):
        found = {host}
    elif host := stitcher(ring.accepted, me):
        found = {ring.pairs.get(host, host)}
    else:
        found = set()
    return tuple(sorted(peer for peer in found if peer and peer != me))


def last_member(replica: Replica, node: str) -> str:
    """Return the node's last peer that was a member of the ring, else an empty string."""
    known = replica.nodes.get(node)
    return known.latest_peer if known is not None else ""


def latest_peer(replica: Replica, node: str) -> str:
    """Return the node's peer that is in the ring or joining, else its last member peer, else an empty string."""
    here = [peer.id for peer in replica.peers.values() if peer.node == node]
    return min(here) if here else last_member(replica, node)  # a node has at most one here


def is_closed(ring: Ring) -> bool:
    """Return whether the pairs are one cycle through all members; a single member has no pair."""
    if len(ring.members) < 2:
        return not ring.pairs
    start = min(ring.members)
    seen, peer = {start}, ring.pairs.get(start, "")
    while peer in ring.members and peer not in seen:
        seen.add(peer)
        peer = ring.pairs.get(peer, "")
    return peer == start and len(seen) == len(ring.members) == len(ring.pairs)


# --- changing --------------------------------------------------------------------


def fill(ring: Ring, position: int) -> Ring:
    """Prepare queued joiners, oldest first, while a member is free to take one in.

    If the ring is empty, the first joiner joins at once.  ``position`` spreads joiners
    over the members without random numbers.
    """
    while ring.queue:
        joiner, queue = ring.queue[0], ring.queue[1:]
        if not ring.members:
            ring = evolve(ring, members=ring.members.set(joiner, None), queue=queue)
            continue
        free = free_members(ring)
        if not free:
            break
        host = free[position % len(free)]
        ring = evolve(ring, prepared=ring.prepared.set(host, joiner), queue=queue)
    return ring


def enter(ring: Ring, joiner: str, position: int) -> Ring:
    """Enter phase 1 with a peer that is not in the ring: it joins at once, or is prepared or queued."""
    return fill(evolve(ring, queue=(*ring.queue, joiner)), position)


def notify(ring: Ring, joiner: str) -> Ring | None:
    """Enter phase 2; return None if the joiner is not prepared."""
    host = stitcher(ring.prepared, joiner)
    if not host:
        return None
    return evolve(ring, prepared=ring.prepared.remove(host), accepted=ring.accepted.set(host, joiner))


def accept(ring: Ring, joiner: str, position: int) -> Ring | None:
    """Enter phase 3, which makes the joiner a member; return None if the joiner is not accepted.

    After that, the joiner and the member that took it in can each take in another joiner.
    """
    host = stitcher(ring.accepted, joiner)
    if not host:
        return None
    successor = ring.pairs.get(host, host)
    joined = evolve(
        ring,
        members=ring.members.set(joiner, None),
        pairs=ring.pairs.set(host, joiner).set(joiner, successor),
        accepted=ring.accepted.remove(host),
    )
    return fill(joined, position)


def remove(ring: Ring, peer: str, position: int) -> Ring:
    """Close the ring around a peer, in any state.

    If the peer was taking in a joiner, this joiner goes to the head of the queue.  Free members
    take in queued joiners at once, so it usually gets another member immediately.
    """
    held = ring.prepared.get(peer) or ring.accepted.get(peer)
    queue = tuple(other for other in ring.queue if other != peer)
    return fill(
        evolve(
            ring,
            members=ring.members.discard(peer),
            pairs=_bridge(ring.pairs, peer),
            prepared=_without(ring.prepared, peer),
            accepted=_without(ring.accepted, peer),
            queue=(held, *queue) if held else queue,
        ),
        position,
    )


def _bridge(pairs: PMap[str, str], peer: str) -> PMap[str, str]:
    """Return the pairs without ``peer``: its watcher now watches its successor."""
    successor = pairs.get(peer)
    if successor is None:
        return pairs
    watcher = stitcher(pairs, peer)
    rest = pairs.remove(peer)
    return rest.remove(watcher) if watcher == successor else rest.set(watcher, successor)


def _without(joins: PMap[str, str], peer: str) -> PMap[str, str]:
    """Return the joins in which ``peer`` is on neither side."""
    host = stitcher(joins, peer)
    return joins.discard(peer).discard(host) if host else joins.discard(peer)


# --- the replica around the ring ---------------------------------------------------


def move(replica: Replica, ring: Ring, stamp: Stamp) -> Replica:
    """Return the replica with another ring and all its consequences.

    Peers that left the ring are removed and their nodes marked absent.  New
    members are stamped and their nodes marked present.  The copies of a node that comes with another
    store are void.  If membership changed, partitions are placed and jobs allocated again.
    """
    before = replica.ring
    peers, nodes = replica.peers, replica.nodes
    for gone in sorted(peer for peer in peers if not contains(ring, peer)):
        node = nodes.get(peers[gone].node)
        if node is not None and node.peer == gone:
            nodes = nodes.set(node.id, evolve(node, peer="", absent_since_ms=stamp.log_time_ms))
        peers = peers.remove(gone)
    lost = []
    for new in sorted(peer for peer in ring.members if peer not in before.members):
        peer = evolve(peers[new], joined_position=stamp.position)
        peers = peers.set(new, peer)
        known = nodes.get(peer.node)
        if known is not None and known.store != peer.store:
            lost.append(known)
        nodes = nodes.set(peer.node, Node(peer.node, peer.zone, peer=new, latest_peer=new, store=peer.store))
    moved = evolve(replica, ring=ring, peers=peers, nodes=nodes)
    for node in lost:
        moved = placement.voided(moved, node.id, node.store)
    if sorted(ring.members) == sorted(before.members):
        return moved
    return allocated(placement.reconcile(moved), stamp.position)


def clock_error_ms(replica: Replica, peer: str, *, among: Sequence[str] | None = None) -> int:
    """Return how far the peer's clock is ahead of the median of the members' clocks, in ms.

    Negative if it is behind the median; 0 if it is within it.  ``among``: the members to compare with, if not all.
    With an even number of members, the whole range between the two middle clocks counts as the median.
    Two clocks alone cannot show which one is wrong.
    """
    if peer not in replica.ring.members:
        return 0
    skews = sorted(replica.peers[member].clock_skew_ms for member in among or replica.ring.members)
    low, high = _middle(skews)
    mine = replica.peers[peer].clock_skew_ms
    return min(mine - low, 0) + max(mine - high, 0)


def clock_is_shared(replica: Replica, peer: str) -> bool:
    """Return whether most members' clocks, including the peer's own, are within `CLOCK_SKEW_MAX_MS` of the peer's."""
    mine, members = replica.peers[peer].clock_skew_ms, replica.ring.members
    near = sum(abs(replica.peers[member].clock_skew_ms - mine) <= CLOCK_SKEW_MAX_MS for member in members)
    return 2 * near > len(members)


def worst_clock_error_ms(replica: Replica) -> int:
    """Return the largest absolute `clock_error_ms` of a member; 0 without members."""
    skews = sorted(replica.peers[member].clock_skew_ms for member in replica.ring.members)
    if not skews:
        return 0
    low, high = _middle(skews)
    return max(low - skews[0], skews[-1] - high)


def _middle(skews: Sequence[int]) -> tuple[int, int]:
    return skews[(len(skews) - 1) // 2], skews[len(skews) // 2]


def clock_skew_ms(replica: Replica, peer: str) -> int:
    """Return how far a known peer's clock is ahead of the members' lower median, in ms, for display.

    It is calculated from their last records.
    """
    skews = sorted(replica.peers[member].clock_skew_ms for member in replica.ring.members)
    return replica.peers[peer].clock_skew_ms - (skews[(len(skews) - 1) // 2] if skews else 0)
