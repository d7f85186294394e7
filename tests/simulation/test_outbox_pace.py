"""The pace of outboxes: many busy peers write few, large records, and nothing else is delayed."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from bench.pace import Crowd
from log_entries import set_slots
from onyxq.log.outbox import FREE_PER_S, PAUSE_MAX_S, RATE_S, Pace
from simulation.world.clock import mock_clock

APPEND_S = 0.003


def noted(per_s: float, seconds: float = 10.0) -> Pace:
    """Return the pace of a peer that has read the others' records at a rate, until second ``seconds``."""
    pace = Pace()
    for number in range(round(per_s * seconds)):
        pace.note((number + 1) / per_s)
    return pace


def test_the_rate_is_that_of_the_records_that_were_read() -> None:
    """It follows the log within seconds, and falls when the others stop."""
    pace = noted(400)
    assert pace.rate(10.0) == pytest.approx(400, rel=0.01)
    assert pace.rate(10.0 + RATE_S) == pytest.approx(400 / 2.718, rel=0.01)


def test_a_peer_pauses_only_above_the_free_rate_and_never_for_long() -> None:
    """The pause rises with the rate from there on."""
    assert Pace().pause_s(0.0) == 0.0
    assert noted(FREE_PER_S * 0.95).pause_s(10.0) == 0.0
    pauses = [noted(per_s).pause_s(10.0) for per_s in (1_020, 1_040, 1_100, 1_300, 10_000)]
    assert pauses == sorted(pauses) and pauses[0] > 0.0
    assert pauses[-1] == PAUSE_MAX_S


@pytest.mark.long
@pytest.mark.parametrize(("peers", "at_most"), [(6, 1_250), (12, 1_200), (30, 1_250)])
def test_the_records_of_busy_peers_grow_instead_of_multiplying(peers: int, at_most: int) -> None:
    """Without a pause each of them would write up to 300 per second; all entries are written nevertheless."""
    crowd = Crowd(peers, entries_per_s=3_000, append_s=APPEND_S)
    trio.run(crowd.run, 3.0, clock=mock_clock())
    assert FREE_PER_S * 0.95 < crowd.records_per_s < at_most
    assert crowd.entries == pytest.approx(3_000 * 3, rel=0.1)


def test_a_busy_peer_that_is_alone_does_not_pause() -> None:
    """Its own records do not multiply, because only one is in flight."""
    crowd = Crowd(1, entries_per_s=3_000, append_s=APPEND_S)
    trio.run(crowd.run, 3.0, clock=mock_clock())
    assert crowd.records_per_s > 0.9 / APPEND_S


@pytest.mark.long
def test_a_lone_entry_is_sent_at_once_beside_busy_peers() -> None:
    """A pause begins with the peer's own last record, so a peer that writes seldom waits for none."""

    async def scenario() -> float:
        crowd = Crowd(12, entries_per_s=3_000, append_s=APPEND_S, idle=1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(crowd.run, 3.0)
            await trio.sleep(2.0)
            assert crowd.outboxes[-1].pause_s() > 0.005
            began = trio.current_time()
            await crowd.sent(crowd.outboxes[-1])
            return trio.current_time() - began

    assert trio.run(scenario, clock=mock_clock()) <= APPEND_S


@pytest.mark.long
def test_entries_that_wait_for_the_end_of_a_pause_join_the_next_record() -> None:
    """So grants are chosen when their record is written, also while other entries wait all the time."""

    async def scenario() -> None:
        crowd = Crowd(12, entries_per_s=3_000, append_s=APPEND_S)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(crowd.run, 4.0)
            await trio.sleep(2.0)
            outbox = crowd.outboxes[0]
            for count in range(3):
                outbox.submit([set_slots.Args(outbox.peer, count)])
                await outbox.flushed()
                number = outbox.number
                outbox.submit([set_slots.Args(outbox.peer, 1_000 + count)])
                await trio.sleep(2 * APPEND_S)
                assert outbox.number == number + 1 and not outbox.holds(set_slots.Args(outbox.peer, 1_000 + count))

    trio.run(scenario, clock=mock_clock())
