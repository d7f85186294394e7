"""What the replica remembers of things that ended, so that repeats stay repeats (design: garbage collection).

Pure.  ``Replica.remembered`` maps ``<kind>/<name>`` to a `Remembered`: the time, by the log's
clock, until which it is kept at least, and what a repeat is to be told.  Only ``gc`` forgets.

Peers that left are remembered under the kind `PEER`: their outbox numbers stay in
``Replica.outbox``, so that a record of theirs that lands late is a repeat and no newcomer's
first.  Nothing is noted when they leave; the next ``gc`` finds them, and one after
`PEER_MS` lets them go.
"""

from __future__ import annotations

from typing import Any

from attrs import evolve

from onyxq.core.replica import Remembered, Replica

PEER = "peer"
PEER_MS = 120_000
"""For how long a departed peer's records could still land, with a margin: sessions end within a minute."""


def remember(replica: Replica, kind: str, name: str, *, for_ms: int, answer: Any = None) -> Replica:
    """Keep ``answer`` (msgpack types, tuples, persistent maps) for repeats of ``name``."""
    kept = Remembered(until_ms=replica.clock_ms + for_ms, answer=answer)
    return evolve(replica, remembered=replica.remembered.set(f"{kind}/{name}", kept))


def recall(replica: Replica, kind: str, name: str) -> Remembered | None:
    """Return what is remembered of ``name``; None if it is new, or long forgotten."""
    return replica.remembered.get(f"{kind}/{name}")


def forget_old(replica: Replica) -> Replica:
    """Return the replica without what was to be remembered until now."""
    old = [key for key in sorted(replica.remembered) if replica.remembered[key].until_ms <= replica.clock_ms]
    if not old:
        return replica
    remembered = replica.remembered.evolver()
    for key in old:
        del remembered[key]
    return evolve(replica, remembered=remembered.persistent())


def forget_departed(replica: Replica) -> Replica:
    """Return the replica without the outbox numbers of peers that left long ago; others that are gone are noted."""
    outbox = replica.outbox.evolver()
    for peer in sorted(replica.outbox):
        if peer in replica.peers:
            continue
        kept = recall(replica, PEER, peer)
        if kept is None:
            replica = remember(replica, PEER, peer, for_ms=PEER_MS)
        elif kept.until_ms <= replica.clock_ms:
            del outbox[peer]
    return evolve(replica, outbox=outbox.persistent())
