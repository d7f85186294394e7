"""Waits for an answer: their ends, their deadlines, and tasks that are cancelled meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio
import pytest
from trio.testing import MockClock

from onyxq.wire.background import Background
from onyxq.wire.waits import Wait, Waits

BACKENDS = pytest.mark.parametrize("backend", ["trio", "asyncio"])


def play(scenario: Callable[[Waits], Awaitable[None]], backend: str) -> None:
    """Run a scenario with waits whose deadlines are watched."""

    async def main() -> None:
        waits = Waits()
        async with Background() as background:
            background.start_soon(waits.watch)
            await scenario(waits)

    options = {"clock": MockClock(autojump_threshold=0)} if backend == "trio" else {}
    anyio.run(main, backend=backend, backend_options=options)


@BACKENDS
def test_a_wait_returns_when_it_is_ended(backend: str) -> None:
    """Whether that was before the wait began or during it."""

    async def scenario(waits: Waits) -> None:
        early, late = (Wait(anyio.current_time() + 3600) for _ in range(2))
        early.end()
        assert await waits.wait(early)
        async with anyio.create_task_group() as group:
            group.start_soon(_end_soon, late)
            assert await waits.wait(late)
        late.end()

    play(scenario, backend)


@BACKENDS
def test_each_wait_ends_at_its_own_deadline(backend: str) -> None:
    """A wait that begins later may end earlier."""

    async def scenario(waits: Waits) -> None:
        start, ends = anyio.current_time(), list[float]()

        async def wait(after_s: float) -> None:
            assert not await waits.wait(Wait(start + after_s))
            assert anyio.current_time() >= start + after_s
            ends.append(after_s)

        async with anyio.create_task_group() as group:
            for after_s in (0.06, 0.02, 0.04, -1.0):
                group.start_soon(wait, after_s)
        assert ends == [-1.0, 0.02, 0.04, 0.06]

    play(scenario, backend)


@BACKENDS
def test_a_cancelled_wait_can_still_be_ended(backend: str) -> None:
    """The answer that comes too late finds no task to wake."""

    async def scenario(waits: Waits) -> None:
        wait = Wait(anyio.current_time() + 3600)
        with anyio.move_on_after(0.01) as scope:
            await waits.wait(wait)
        assert scope.cancelled_caught and not wait.over
        wait.end()
        assert await waits.wait(wait)

    play(scenario, backend)


@BACKENDS
def test_an_answer_at_the_moment_of_a_cancellation_is_not_lost(backend: str) -> None:
    """Its wait is over, whether the task that waited returns or is cancelled."""

    async def scenario(waits: Waits) -> None:
        wait = Wait(anyio.current_time() + 3600)
        async with anyio.create_task_group() as group:
            group.start_soon(waits.wait, wait)
            await anyio.wait_all_tasks_blocked()
            wait.end()
            group.cancel_scope.cancel()
        assert wait.over

    play(scenario, backend)


@BACKENDS
def test_waits_end_when_nothing_watches_their_deadlines(backend: str) -> None:
    """Calls of a client that is closed do not hang, neither those that wait nor later ones."""

    async def main() -> None:
        waits, ended = Waits(), list[bool]()

        async def wait() -> None:
            ended.append(await waits.wait(Wait(anyio.current_time() + 3600)))

        async with anyio.create_task_group() as group:
            async with Background() as background:
                background.start_soon(waits.watch)
                group.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
            await wait()
        assert ended == [False, False]

    anyio.run(main, backend=backend)


async def _end_soon(wait: Wait) -> None:
    await anyio.wait_all_tasks_blocked()
    wait.end()
