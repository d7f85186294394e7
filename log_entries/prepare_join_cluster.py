"""First phase of a join: a peer asks to enter the ring.

Submitted by the joiner itself, once its pulse exists. If the ring is empty, the peer joins at once.
Otherwise a member that takes in no other joiner, chosen by the record's position, must take it in
and watches it from now on. If no such member is free, the peer waits in the queue. The entry that
frees a place prepares it. Another peer of the same node, member or joining, leaves in the same
entry, because a node has at most one peer.

The request names the node's latest peer, which the joiner's data directory must know. So two
directories with one node id (a copy, or a directory restored from an older copy) cannot take turns:
the second request names a peer that is not the latest any more, and is refused. It also names the
directory's store: if that is not the one that the node had, the node's copies are void from the
moment at which the peer joins, and are made again. A peer is also
refused if it does not know an enabled entry, or not in the enabled version: it is older than the
cluster.
"""

from __future__ import annotations

from attrs import evolve, frozen
from pyrsistent import PMap

from onyxq.core import ring
from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.limits import NAME_CHARACTERS_MAX
from onyxq.core.placement import LOST
from onyxq.core.replica import Peer, Replica

VERSION = 1
SLOTS_MAX = 1 << 16
OLDER = "older than the cluster"
OVERTAKEN = "another peer of this node asked first"


@frozen
class Args:
    """``address``, ``http``: HOST:PORT; ``versions``: entry name -> highest version that the peer knows.

    ``previous``: the node's latest peer before this one (`onyxq.core.ring.latest_peer`), empty if it had none.
    ``store``: random id of the peer's store.
    """

    peer: str
    node: str
    address: str
    http: str
    zone: str
    slots: int
    tags: tuple[str, ...]
    versions: PMap[str, int]
    previous: str
    store: str


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Take the peer in, prepare it or queue it."""
    if args.peer != stamp.peer:
        return replica, "not its own join"
    if args.peer in replica.ring.members:
        return replica, "already joined"
    if args.peer in replica.peers:
        return replica, "already joining"
    refused = _refused(replica, args)
    if refused:
        return replica, refused
    others = sorted(peer.id for peer in replica.peers.values() if peer.node == args.node)
    replica = evolve(replica, peers=replica.peers.set(args.peer, _peer(args)))
    after = replica.ring
    for other in others:
        after = ring.remove(after, other, stamp.position)
    return ring.move(replica, ring.enter(after, args.peer, stamp.position), stamp), APPLIED


def _refused(replica: Replica, args: Args) -> Verdict:
    """Return what is wrong with the peer; empty if nothing is."""
    names = (args.peer, args.node)
    if not all(0 < len(name) <= NAME_CHARACTERS_MAX for name in names) or len(args.store) > NAME_CHARACTERS_MAX:
        return "bad name"
    if LOST in args.node:
        return "bad name"
    if not 0 <= args.slots <= SLOTS_MAX:
        return "bad slots"
    if args.previous != ring.latest_peer(replica, args.node):
        return OVERTAKEN
    older = any(args.versions.get(name, 0) < version for name, version in replica.enabled.items())
    return OLDER if older else ""


def _peer(args: Args) -> Peer:
    return Peer(
        id=args.peer,
        node=args.node,
        address=args.address,
        http=args.http,
        zone=args.zone,
        slots=args.slots,
        tags=args.tags,
        versions=args.versions,
        store=args.store,
    )
