"""A node's time follows its machine's clock only if the ring agrees, and goes back slowly."""

from __future__ import annotations

from collections.abc import Callable

import trio

from onyxq.system.clock import RingClock
from simulation.world.clock import SimulatedClock, mock_clock


def with_clock(body: Callable[[SimulatedClock, RingClock], None]) -> None:
    """Run ``body`` with a machine's clock and the time that its node derives from it, believed once."""

    async def main() -> None:
        own = SimulatedClock()
        clock = RingClock(own)
        clock.judged(said_ms=own.wall_ms(), off_ms=0, shared=True)
        await trio.sleep(10)
        body(own, clock)

    trio.run(main, clock=mock_clock())


def test_of_two_clocks_that_disagree_none_is_believed_anew() -> None:
    """The one that jumped by an hour keeps its earlier course, until both agree again."""

    def body(own: SimulatedClock, clock: RingClock) -> None:
        now_ms = clock.wall_ms()
        own.jump(3_600_000)
        assert not clock.judged(said_ms=own.wall_ms(), off_ms=0, shared=False)
        assert clock.wall_ms() == now_ms
        assert not clock.judged(said_ms=own.wall_ms(), off_ms=0, shared=True)
        assert clock.wall_ms() == now_ms + 3_600_000

    with_clock(body)


def test_small_steps_are_followed_forward_and_waited_for_back() -> None:
    """Up to five seconds."""

    def body(own: SimulatedClock, clock: RingClock) -> None:
        now_ms = clock.wall_ms()
        own.jump(3_000)
        assert clock.wall_ms() == now_ms + 3_000
        own.jump(-4_000)
        assert clock.wall_ms() == now_ms + 3_000

    with_clock(body)


def test_a_jump_is_not_followed_until_the_ring_agrees() -> None:
    """This holds for a record that was made before the jump and for a late one."""

    def body(own: SimulatedClock, clock: RingClock) -> None:
        now_ms = clock.wall_ms()
        own.jump(3_600_000)
        assert clock.wall_ms() == now_ms
        assert not clock.judged(said_ms=now_ms, off_ms=0, shared=True)
        assert clock.wall_ms() == now_ms
        assert not clock.judged(said_ms=own.wall_ms(), off_ms=3_600_000, shared=True)
        assert clock.wall_ms() == now_ms
        assert not clock.judged(said_ms=own.wall_ms(), off_ms=100, shared=True)
        assert clock.wall_ms() == now_ms + 3_600_000

    with_clock(body)


def test_going_back_far_is_told() -> None:
    """This is so if the ring agrees with a clock that was set back."""

    def body(own: SimulatedClock, clock: RingClock) -> None:
        now_ms = clock.wall_ms()
        own.jump(-60_000)
        assert clock.wall_ms() == now_ms
        assert clock.judged(said_ms=own.wall_ms(), off_ms=0, shared=True)
        assert clock.wall_ms() == now_ms - 60_000

    with_clock(body)


def test_a_clock_that_is_wrong_from_the_start_is_corrected_by_the_rings() -> None:
    """It is corrected once the first record shows the difference."""

    async def main() -> None:
        own = SimulatedClock(offset_ms=600_000)
        clock = RingClock(own)
        clock.judged(said_ms=own.wall_ms(), off_ms=600_000, shared=True)
        assert clock.wall_ms() == own.wall_ms() - 600_000

    trio.run(main, clock=mock_clock())
