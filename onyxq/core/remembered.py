"""The memory of things that ended, which recognises repeats (design: log collection).

Pure.  ``Replica.remembered`` maps ``<kind>/<name>`` to a `Remembered`: the earliest time, by the log's
clock, at which it may be forgotten, and the answer to a repeat.  Only ``gc`` forgets.

Peers that left are remembered under the kind `PEER`.  Their outbox numbers stay in
``Replica.outbox``, so that a late record of theirs is a repeat and not a new peer's
first.  Nothing is noted when they leave: the next ``gc`` finds them, and a ``gc`` at least
`PEER_MS` later forgets them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onyxq.core.replica import Remembered, Replica, altered

PEER = "peer"
PEER_MS = 120_000
"""How long a departed peer's records could still arrive, with a margin, in ms: sessions end within a minute."""


def remember(replica: Replica, kind: str, name: str, *, for_ms: int, answer: Any = None) -> Replica:
    """Keep ``answer`` (msgpack types, tuples, persistent maps) for repeats of ``name``, for ``for_ms``."""
    return remember_all(replica, kind, {name: (for_ms, answer)})


def remember_all(replica: Replica, kind: str, ended: Mapping[str, tuple[int, Any]]) -> Replica:
    """Keep an answer for repeats of each name, as `remember` does: name -> ``for_ms`` and answer."""
    remembered = replica.remembered.evolver()
    for name, (for_ms, answer) in ended.items():
        remembered[f"{kind}/{name}"] = Remembered(until_ms=replica.clock_ms + for_ms, answer=answer)
    return altered(replica, remembered=remembered.persistent())


def recall(replica: Replica, kind: str, name: str) -> Remembered | None:
    """Return what is remembered of ``name``; None if it is new or forgotten."""
    return replica.remembered.get(f"{kind}/{name}")


def forget_old(replica: Replica) -> Replica:
    """Return the replica without entries that may be forgotten now."""
    old = [key for key in sorted(replica.remembered) if replica.remembered[key].until_ms <= replica.clock_ms]
    if not old:
        return replica
    remembered = replica.remembered.evolver()
    for key in old:
        del remembered[key]
    return altered(replica, remembered=remembered.persistent())


def forget_departed(replica: Replica) -> Replica:
    """Return the replica without the outbox numbers of peers that left long ago.

    Other departed peers are noted, so that a later ``gc`` can forget them.
    """
    outbox = replica.outbox.evolver()
    for peer in sorted(replica.outbox):
        if peer in replica.peers:
            continue
        kept = recall(replica, PEER, peer)
        if kept is None:
            replica = remember(replica, PEER, peer, for_ms=PEER_MS)
        elif kept.until_ms <= replica.clock_ms:
            del outbox[peer]
    return altered(replica, outbox=outbox.persistent())
