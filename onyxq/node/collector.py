"""Log collection: the duty `Snapshot` of one peer, and waiting for its end (design: log collection).

The collector stores the replica as the origin. It trims the log as far as the stores of all live nodes have
taken it in, opens the next segment if needed, and appends ``finish_gc``. It may die at any point, or be
considered dead while it works. The next collector continues from the origin's position. Every step may be
repeated.
"""

from __future__ import annotations

import logging

import trio

from log_entries import finish_gc, gc
from onyxq.core import snapshot
from onyxq.core.errors import LogUnavailable, OnyxqError
from onyxq.core.log.interface import START, LogSession
from onyxq.core.replica import Replica
from onyxq.node.node import Node

TRIM_PATIENCE_S = 10.0
"""How long the log is kept for a live node that does not answer or does not read on, in seconds."""
TRIM_LOOK_S = 0.2
ASK_TIMEOUT_S = 2.0
FINISH_AGAIN_S = 1.0
COLLECT_TIMEOUT_S = 60.0
STORE_TRIES_MAX = 5
SLICE_PAUSE_S = 0.002

log = logging.getLogger(__name__)


class Collector:
    """Collects the log for one peer."""

    def __init__(self, node: Node) -> None:
        self._node = node

    # --- the duty

    async def run(self, session: LogSession, replica: Replica) -> None:
        """Carry out the collection in progress in ``replica``; runs until it is cancelled."""
        position = replica.snapshot.position
        origin_bytes, upto = await self._store(session, replica)
        trimmed = await self._trim(session, upto)
        if await session.rotate():
            log.info("the log continues in a new segment")
        entry = finish_gc.Args(position, trimmed, origin_bytes)
        while True:  # The entry ends the duty. If it is lost, it is owed again.
            outbox = self._node.outbox
            if outbox is not None and not outbox.closed and not outbox.holds(entry):
                outbox.submit([entry])
            await trio.sleep(FINISH_AGAIN_S)

    async def _store(self, session: LogSession, replica: Replica) -> tuple[int, int]:
        """Ensure that there is an origin at or after the ``gc``, and return its size and position."""
        data = b""
        for _ in range(STORE_TRIES_MAX):
            old = await session.origin()
            if old is not None and old.position >= replica.snapshot.position:
                return len(old.data), old.position
            for archiver in self._node.archivers:
                await archiver.keep(old, replica.position)
            data = data or await packed(replica)
            version = old.version if old is not None else -1
            if await session.store_origin(replica.position, data, expected_version=version):
                return len(data), replica.position
        raise LogUnavailable("other peers replace the origin again and again")

    async def _trim(self, session: LogSession, position: int) -> int:
        """Trim up to ``position``, or as far as live stores have come within `TRIM_PATIENCE_S`."""
        upto = START
        with trio.move_on_after(TRIM_PATIENCE_S):
            while (upto := min([position, *await self._store_positions(position)])) < position:
                await trio.sleep(TRIM_LOOK_S)
        return await session.trim(upto) if upto > START else 0

    async def _store_positions(self, position: int) -> list[int]:
        """Return the position up to which each live node's store has the log on disk; `START` if it does not answer.

        Waits up to `ASK_TIMEOUT_S` for each node; for this one until its store has reached ``position``.
        """
        node = self._node
        live = {peer.node for peer in node.replica.peers.values()}
        found: list[int] = []

        async def ask(other: str) -> None:
            if other == node.node_id:
                with trio.move_on_after(ASK_TIMEOUT_S):
                    await node.history.reached(min(position, node.replica.position))
                found.append(node.history.stored)
                return
            try:
                found.append(await node.call(other, "cohort.position", {}, timeout_s=ASK_TIMEOUT_S))
            except OnyxqError as error:
                log.info("the collection waits for node %s: %s", other, error.message)
                found.append(START)

        async with trio.open_nursery() as nursery:
            for other in sorted(live):
                nursery.start_soon(ask, other)
        return found

    # --- on request

    async def collect(self) -> dict[str, int]:
        """Collect the log up to now, and return the result; raises `LogUnavailable`."""
        position, _ = await self._node.verdicts([gc.Args()])
        with trio.move_on_after(COLLECT_TIMEOUT_S):
            while True:
                taken = self._node.replica.snapshot
                if taken.finished and taken.position >= position:
                    return {
                        "position": taken.position,
                        "trimmed": taken.trimmed,
                        "origin_bytes": taken.origin_bytes,
                    }
                await self._node.moved()
        raise LogUnavailable(f"the collection did not end within {COLLECT_TIMEOUT_S:.0f} s; it continues")


# A large replica takes seconds to pack or build. It is done in slices of the event loop,
# not in a thread: that would hold the interpreter for longer at a time.


async def packed(replica: Replica) -> bytes:
    """Return the same as `snapshot.pack`, computed in slices with pauses.

    Calls take many turns of the event loop. The pauses leave some turns without a slice.
    """
    parts = []
    for part in snapshot.packing(replica):
        parts.append(part)
        await trio.sleep(SLICE_PAUSE_S)
    return snapshot.sealed(b"".join(parts))


async def unpacked(data: bytes) -> Replica:
    """Return the same as `snapshot.unpack`, computed in slices; raises `Corrupt`."""
    building = snapshot.unpacking(data)
    while True:
        try:
            next(building)
        except StopIteration as done:
            replica: Replica = done.value
            return replica
        await trio.lowlevel.checkpoint()
