"""Callers that wait for the log while their node is before a trim: none hangs or gets an unknown result."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import trio
import trio.testing

from log_entries import set_slots
from log_entries.registry import ENTRIES
from onyxq.core.log.clock import Measured
from onyxq.core.log.interface import LogSession
from onyxq.core.log.record import decode_record, encode_entry
from onyxq.core.step import Outcome
from onyxq.log.outbox import Outbox
from onyxq.system.clock import SystemClock
from simulation.world.clock import SimulatedClock, mock_clock
from simulation.world.log import MemoryBackend

PEER = "p"


class Heard:
    """Answers to submitters, by slot count."""

    def __init__(self, outbox: Outbox) -> None:
        self.verdicts: dict[int, tuple[int, Sequence[str] | None]] = {}
        self._outbox = outbox

    def submit(self, count: int, *, lazy: bool = False) -> None:
        """Submit an entry that names a count."""
        self._outbox.submit(
            [set_slots.Args(PEER, count)],
            lambda position, said: self.verdicts.__setitem__(count, (position, said)),
            lazy=lazy,
        )


async def sent(backend: MemoryBackend, count: int) -> None:
    """Wait until the log has a number of records."""
    while backend.following < count:
        await backend.wait_grown()


def numbers(backend: MemoryBackend) -> list[int]:
    """Return the outbox numbers in the log."""
    found = [decode_record(record.data) for record in backend.records.values()]
    return [content.number for content in found if content is not None]


def outbox_on(session: LogSession) -> Outbox:
    """Return an outbox that has sent nothing."""
    return Outbox(
        session,
        peer=PEER,
        clock=SystemClock(),
        measure=Measured,
        on_append=lambda _: None,
        encode=partial(encode_entry, entries=ENTRIES),
    )


def test_verdicts_among_skipped_records_are_unknown_and_later_ones_are_heard() -> None:
    """The snapshot has the last applied outbox number, not the verdicts."""

    async def scenario() -> None:
        backend = MemoryBackend(SimulatedClock())
        session = await backend.session()
        outbox = outbox_on(session)
        heard = Heard(outbox)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox.run)
            for count in (1, 2, 3):
                heard.submit(count)
                await sent(backend, count)
            outbox.skipped(2, 1)
            assert heard.verdicts == {1: (-1, None), 2: (-1, None)}
            outbox.applied(3, 2, [Outcome(0, "set_slots", set_slots.Args(PEER, 3), "applied", 1)])
            assert heard.verdicts[3] == (2, ["applied"])
            heard.submit(4)
            await sent(backend, 4)
            nursery.cancel_scope.cancel()
        assert numbers(backend) == [1, 2, 3, 4]

    trio.run(scenario, clock=mock_clock())


def test_verdicts_of_records_that_landed_behind_an_origin_that_forgot_their_writer_are_unknown() -> None:
    """It has no number of a peer that left long ago, but a position; later records are still to be read."""

    async def scenario() -> None:
        backend = MemoryBackend(SimulatedClock())
        outbox = outbox_on(await backend.session())
        heard = Heard(outbox)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox.run)
            for count in (1, 2):
                heard.submit(count)
                await sent(backend, count)
                await trio.testing.wait_all_tasks_blocked()
            outbox.skipped(0, 0)
            nursery.cancel_scope.cancel()
        assert heard.verdicts == {1: (-1, None)}

    trio.run(scenario, clock=mock_clock())


def test_every_submitter_learns_that_the_outcome_is_unknown_when_the_session_ends() -> None:
    """This includes entries that were never sent: otherwise their submitters would wait for ever."""

    async def scenario() -> None:
        backend = MemoryBackend(SimulatedClock())
        outbox = outbox_on(await backend.session())
        heard = Heard(outbox)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox.run)
            heard.submit(1)
            await sent(backend, 1)
            nursery.cancel_scope.cancel()
        heard.submit(2)
        heard.submit(3, lazy=True)
        outbox.close()
        assert heard.verdicts == dict.fromkeys((1, 2, 3), (-1, None))
        assert numbers(backend) == [1]

    trio.run(scenario, clock=mock_clock())


def test_an_entry_is_on_its_way_until_its_record_is_read() -> None:
    """What a peer owes is submitted once, not again after every record that it reads meanwhile."""

    async def scenario() -> None:
        backend = MemoryBackend(SimulatedClock())
        outbox = outbox_on(await backend.session())
        entry = set_slots.Args(PEER, 1)
        outbox.submit([entry])
        assert outbox.holds(entry) and not outbox.holds(set_slots.Args(PEER, 2))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox.run)
            await sent(backend, 1)
            assert outbox.holds(entry)
            outbox.applied(1, 0, [Outcome(0, "set_slots", entry, "applied", 1)])
            assert not outbox.holds(entry)
            nursery.cancel_scope.cancel()

    trio.run(scenario, clock=mock_clock())


def test_a_record_in_doubt_that_the_origin_holds_is_not_sent_again() -> None:
    """It would be a repeat; the waiting records are sent under the next number."""

    async def scenario() -> None:
        backend = MemoryBackend(SimulatedClock())
        session = await backend.session()
        outbox = outbox_on(session)
        heard = Heard(outbox)
        backend.break_append(session, landed=1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(outbox.run)
            heard.submit(1)
            await sent(backend, 1)
            heard.submit(2)
            outbox.skipped(1, 0)
            await sent(backend, 2)
            nursery.cancel_scope.cancel()
        assert heard.verdicts == {1: (-1, None)}
        assert numbers(backend) == [1, 2]

    trio.run(scenario, clock=mock_clock())
