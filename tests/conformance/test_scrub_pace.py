"""The speed of a scrub: at once after a start, in turns with clients, and then rarely."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import trio
import trio.testing

from onyxq.core.replica import EMPTY
from onyxq.leader.cohort import row_repair
from onyxq.leader.cohort.row_repair import BUSY_PAUSE_S, QUIET_PAUSE_S, REST, SLICE_S, Repair
from onyxq.store.integrity.audit import PHASES, WORK, progress
from onyxq.store.interface import Piece
from onyxq.store.memory import MemoryStore
from onyxq.system.metrics import Metrics
from simulation.world.disk import SimulatedDisk
from tests.conformance.store_world import NOW_MS, first_id, put, tasks


class Host:
    """A node with a store and no other nodes."""

    def __init__(self) -> None:
        self.node_id = "n"
        self.disk = SimulatedDisk()
        self.store = MemoryStore(self.disk, now_ms=lambda: NOW_MS)
        self.replica = EMPTY
        self.metrics = Metrics()
        self.quiet = True

    async def call(self, node: str, method: str, args: dict[str, Any], *, timeout_s: float) -> Any:
        """Fail, because there is no other node."""
        raise AssertionError

    def reads_index(self, partition: int) -> bool:
        """Return False, because no partition is led here."""
        return False

    async def give_up(self, partition: int) -> None:
        """Nothing is led from here."""

    def pieces_added(self, pieces: Sequence[Piece]) -> None:
        """Do nothing, because no claimer waits."""

    def repaired(self, partition: int) -> None:
        """Do nothing, because nothing is damaged."""


def in_a_host(monkeypatch: pytest.MonkeyPatch, check: Callable[[Host], Any]) -> None:
    """Scrub a store one item at a time while ``check`` runs, with a clock that jumps."""
    monkeypatch.setattr(row_repair, "SCRUB_BYTES", 1)

    async def main() -> None:
        host = Host()
        await put(host.store, *(tasks(first_id(maker=number), 1) for number in range(200)))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(Repair(host).run)
            await check(host)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def round_s(host: Host) -> float:
    """Return how long the present round, or the next, takes."""
    began, rounds = trio.current_time(), host.metrics.scrub_rounds.value()
    while host.metrics.scrub_rounds.value() == rounds:
        await trio.sleep(QUIET_PAUSE_S)
    return trio.current_time() - began


@pytest.mark.long
def test_a_round_begins_at_once_and_rests_in_proportion(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large store must not keep a core busy for ever."""

    async def check(host: Host) -> None:
        first_s = await round_s(host)
        slices = first_s / QUIET_PAUSE_S
        assert slices > 600  # rows, stretches, entries
        assert await round_s(host) > slices * SLICE_S * REST * 0.8

    in_a_host(monkeypatch, check)


def test_a_round_takes_its_time_while_clients_are_served(monkeypatch: pytest.MonkeyPatch) -> None:
    """It becomes fast again when no client is served."""

    async def check(host: Host) -> None:
        host.quiet = False
        until = trio.current_time() + 20
        while trio.current_time() < until:
            await trio.sleep(BUSY_PAUSE_S)
        reached = host.metrics.scrub_progress.value()
        assert host.metrics.scrub_rounds.value() == 0 and reached is not None
        assert 20 / BUSY_PAUSE_S < 600
        host.quiet = True
        assert await round_s(host) < 20

    in_a_host(monkeypatch, check)


def test_progress_goes_from_nothing_to_all() -> None:
    """Progress rises through all tables and partitions."""
    assert len(WORK) == len(PHASES)
    places = [
        bytes([phase]) + partition.to_bytes(2, "big") + b"x" for phase in range(len(PHASES)) for partition in (0, 3, 7)
    ]
    found = [progress(place, 8) for place in places]
    assert found == sorted(found) and found[0] == 0.0 and found[-1] < 1.0
    assert progress(b"", 8) == 1.0


def test_pauses_are_as_long_as_what_was_looked_at_took() -> None:
    """An item that is larger than a slice does not increase the share of scrubbing."""
    host = Host()
    scrubbing = Repair(host)
    scrubbing._after = b"somewhere"
    for host.quiet, least in ((True, QUIET_PAUSE_S), (False, BUSY_PAUSE_S)):
        scrubbing._took_s = 0.0
        assert scrubbing._pause_s() == least
        scrubbing._took_s = 20 * SLICE_S
        assert scrubbing._pause_s() >= 20 * least


def test_a_round_that_is_over_has_told_what_it_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """When a round is counted, its damage is already visible, before any of it is repaired."""

    async def check(host: Host) -> None:
        monkeypatch.setattr(row_repair, "SCRUB_BYTES", 1 << 30)
        assert host.disk.rot(host.disk.row_keys()[-1])
        told: list[tuple[object, object]] = []
        count = host.metrics.scrub_rounds.add

        def counted(*labels: str, n: int = 1) -> None:
            told.append((host.metrics.damaged_rows.value(), len(host.store.damaged)))
            count(*labels, n=n)

        monkeypatch.setattr(host.metrics.scrub_rounds, "add", counted)
        await round_s(host)
        assert told == [(1, 1)]

    in_a_host(monkeypatch, check)
