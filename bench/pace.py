"""Simulates the outboxes of busy peers on one log, to see how many records they write together.

`bench.scale` keeps the result in its document. The outboxes are the real ones; the log is in memory,
on a clock that jumps, and takes a fixed time for each append. Processor time costs nothing here.

    python -m bench.pace FREE_PER_S PAUSE_PER_RATE_S PAUSE_MAX_S peer start ...

runs ``onyxq`` with another pace. So the effect shows on a machine whose peers share two processors, and
cannot write as many records a second as peers with a processor of their own.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import trio

from log_entries import set_slots
from log_entries.registry import ENTRIES
from onyxq.core.log.clock import Measured
from onyxq.core.log.interface import Record
from onyxq.core.log.record import decode_record, encode_entry
from onyxq.core.step import Outcome
from onyxq.log import outbox as outboxes
from onyxq.log.outbox import Outbox
from onyxq.system.clock import SystemClock
from simulation.world.clock import SimulatedClock, mock_clock
from simulation.world.log import MemoryBackend

WARMUP_S = 1.0
APPEND_S = 0.004
ENTRIES_PER_S = 3_000.0
SECONDS = 2.0
PEERS = (3, 6, 12, 30, 100)


class Crowd:
    """Peers that submit entries all the time, in turns, and ``idle`` ones after them that submit none."""

    def __init__(self, peers: int, *, entries_per_s: float, append_s: float, idle: int = 0) -> None:
        self._busy = peers
        self._count = peers + idle
        self._pause_s = peers / entries_per_s
        self._backend = MemoryBackend(SimulatedClock(), append_delay_s=lambda: append_s)
        self.outboxes: list[Outbox] = []
        self.records_per_s = 0.0
        self.waits_s: list[float] = []
        """Time from submitting each entry until its record was read."""

    @property
    def entries(self) -> int:
        """Return the number of entries that were written, except those of the warm-up."""
        return len(self.waits_s)

    async def run(self, seconds: float) -> None:
        """Let them write, and measure after the warm-up."""
        async with trio.open_nursery() as nursery:
            for number in range(self._count):
                session = await self._backend.session()
                outbox = Outbox(
                    session,
                    peer=f"peer-{number}",
                    clock=SystemClock(),
                    measure=Measured,
                    on_append=lambda _: None,
                    encode=partial(encode_entry, entries=ENTRIES),
                )
                self.outboxes.append(outbox)
                nursery.start_soon(outbox.run)
                if number < self._busy:
                    nursery.start_soon(self._submit, outbox, number)
            nursery.start_soon(self._follow)
            await trio.sleep(WARMUP_S)
            self.waits_s.clear()
            before = self._backend.following
            await trio.sleep(seconds)
            self.records_per_s = (self._backend.following - before) / seconds
            nursery.cancel_scope.cancel()

    async def sent(self, outbox: Outbox) -> None:
        """Submit one entry, and return when its record was read."""
        read = trio.Event()
        outbox.submit([set_slots.Args(outbox.peer, 0)], lambda position, verdicts: read.set())
        await read.wait()

    async def _submit(self, outbox: Outbox, number: int) -> None:
        await trio.sleep(self._pause_s * number / self._busy)
        entry = set_slots.Args(outbox.peer, 1)
        while True:
            outbox.submit([entry], partial(self._note, trio.current_time()))
            await trio.sleep(self._pause_s)

    def _note(self, since_s: float, position: int, verdicts: Sequence[str] | None) -> None:
        self.waits_s.append(trio.current_time() - since_s)

    async def _follow(self) -> None:
        session = await self._backend.session()
        by_peer = {outbox.peer: outbox for outbox in self.outboxes}
        position = 0
        while True:
            record = await session.read(position)
            assert isinstance(record, Record)
            content = decode_record(record.data)
            assert content is not None
            for outbox in self.outboxes:
                outbox.note_read(content.peer)
            applied = Outcome(0, "set_slots", set_slots.Args(content.peer, 1), "applied", 1)
            by_peer[content.peer].applied(content.number, position, [applied] * len(content.entries))
            position += 1


def simulated(peers: int) -> dict[str, Any]:
    """Return records per second, entries per record and the median wait, as they are and without a pause."""
    found: dict[str, Any] = {"peers": peers}
    kept = outboxes.PAUSE_MAX_S
    for name, pause_max_s in (("paced", kept), ("unpaced", 0.0)):
        outboxes.PAUSE_MAX_S = pause_max_s
        crowd = Crowd(peers, entries_per_s=ENTRIES_PER_S, append_s=APPEND_S)
        trio.run(crowd.run, SECONDS, clock=mock_clock())
        found[name] = {
            "records_per_s": round(crowd.records_per_s),
            "entries_per_record": round(crowd.entries / SECONDS / crowd.records_per_s, 1),
            "wait_ms": round(1000 * statistics.median(crowd.waits_s), 1),
        }
    outboxes.PAUSE_MAX_S = kept
    return found


if __name__ == "__main__":
    outboxes.FREE_PER_S, outboxes.PAUSE_PER_RATE_S, outboxes.PAUSE_MAX_S = map(float, sys.argv[1:4])
    del sys.argv[1:4]
    from onyxq.interfaces.cli.main import main

    main()
