"""Enable an entry, or a higher version of it, once every peer in the ring knows it.

Owed by the ring's first peer once all peers in the ring, members and joiners, have announced the
version when they asked to join. Sets ``enabled``. Before that, the entry (or its new version)
changes nothing on any peer. After that, a peer that does not know it cannot join. So you install a
new version of OnyxQ, or an extension, peer by peer, and all peers start to use it together.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve, frozen

from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.replica import Replica, first_peer

VERSION = 1


@frozen
class Args:
    """``name``: of an entry; ``version``: the highest that may be used."""

    name: str
    version: int


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Enable the version if every peer in the ring knows it."""
    if args.version <= replica.enabled.get(args.name, 0):
        return replica, "already enabled"
    if not _known_to_all(replica, args.name, args.version):
        return replica, "not known to every peer"
    return evolve(replica, enabled=replica.enabled.set(args.name, args.version)), APPLIED


def owed(replica: Replica, me: str) -> Sequence[Args]:
    """Return the versions that every peer knows and that are not enabled yet, by name."""
    if first_peer(replica) != me:
        return ()
    known = [peer.versions for _, peer in sorted(replica.peers.items())]
    if all(versions == replica.enabled for versions in known):
        return ()
    lowest = [(name, min(versions.get(name, 0) for versions in known)) for name in sorted(known[0])]
    return [Args(name, version) for name, version in lowest if version > replica.enabled.get(name, 0)]


def _known_to_all(replica: Replica, name: str, version: int) -> bool:
    """Return whether every peer in the ring knows a version of an entry."""
    return all(peer.versions.get(name, 0) >= version for peer in replica.peers.values())
