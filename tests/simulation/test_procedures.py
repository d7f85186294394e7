"""Procedures wait, end and are cancelled like tasks of trio, but without a task."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Coroutine
from itertools import count
from random import Random
from typing import Any, TypeAlias

import anyio
import pytest
import trio
from trio.testing import MockClock

from onyxq.system import procedures
from onyxq.system.procedures import (
    CANCELLED,
    Procedures,
    Wait,
    beside,
    gather,
    is_procedure,
    now,
    pause,
    procedure,
    shielded,
)
from onyxq.system.signal import Signal

Steps: TypeAlias = Callable[[], Coroutine[Any, Any, Any]]
Runner: TypeAlias = Callable[..., Any]


def as_procedure(steps: Steps, *, cancel_s: float = math.inf) -> Any:
    """Run a procedure in simulated time, withdraw it after ``cancel_s``, and return its result."""
    ended: list[tuple[Any, BaseException | None]] = []

    async def main() -> None:
        running = Procedures()
        over = trio.Event()

        def done(result: Any, error: BaseException | None) -> None:
            ended.append((result, error))
            over.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(running.run)
            one = running.start(steps(), done)
            with trio.move_on_after(cancel_s):
                await over.wait()
            one.withdraw()
            await over.wait()
            nursery.cancel_scope.cancel()

    in_simulated_time(main)
    ((result, error),) = ended
    if error is not None:
        raise error
    return result


def as_task(steps: Steps, *, cancel_s: float = math.inf) -> Any:
    """Run the same coroutine as a task of trio."""
    found: list[Any] = []

    async def main() -> None:
        with trio.move_on_after(cancel_s) as scope:
            found.append(await steps())
        if scope.cancelled_caught:
            raise procedures.Withdrawn

    in_simulated_time(main)
    return found[0]


def in_simulated_time(main: Steps) -> None:
    """Run a main task while sleeps take no time."""
    trio.run(main, clock=MockClock(autojump_threshold=0))


both = pytest.mark.parametrize("run", [as_procedure, as_task])


# --- the same as a procedure and as a task


@both
@pytest.mark.parametrize(("asked", "took"), [(2.5, 2.5), (0.0, 0.0), (-1.0, 0.0)])
def test_a_pause_takes_its_time(run: Runner, asked: float, took: float) -> None:
    """Without time, it is over at once."""

    async def steps() -> float:
        since = now()
        await pause(asked)
        return now() - since

    assert run(steps) == took


@both
@pytest.mark.parametrize(
    ("ends_s", "timeout_s", "came", "took"),
    [
        (1.0, math.inf, True, 1.0),
        (1.0, 2.0, True, 1.0),
        (2.0, 1.0, False, 1.0),
        (0.0, 0.0, False, 0.0),
        (1.0, -1.0, False, 0.0),
        (-1.0, 0.0, True, 0.0),
        (-1.0, -1.0, True, 0.0),
    ],
)
@pytest.mark.parametrize("kind", ["wait", "signal"])
def test_a_wait_ends_when_it_comes_or_its_time_is_over(
    run: Runner, kind: str, ends_s: float, timeout_s: float, came: bool, took: float
) -> None:
    """One that ended before it began returns at once; a signal is only the next change."""

    async def steps() -> tuple[bool, float]:
        one = Wait() if kind == "wait" else Signal()
        end = one.end if isinstance(one, Wait) else one.fire

        async def later() -> None:
            await pause(ends_s)
            end()

        if ends_s < 0:
            end()
        async with beside() as start:
            if ends_s >= 0:
                start(later())
            since = now()
            return await one.wait(timeout_s), now() - since

    assert run(steps) == ((came and (kind == "wait" or ends_s >= 0)), took)


@both
def test_a_signal_wakes_all_that_wait_and_knows_whether_any_do(run: Runner) -> None:
    """After a change, none waits; those that wait no longer are forgotten."""

    async def steps() -> list[Any]:
        signal = Signal()
        seen: list[Any] = [signal.awaited]

        async def fire() -> None:
            await pause(1)
            seen.append(signal.awaited)
            signal.fire()

        seen += await gather([signal.wait(), signal.wait(5), signal.wait(0.5), _none(fire())])
        return [*seen, signal.awaited]

    assert run(steps) == [False, True, True, True, False, None, False]


async def _none(steps: Coroutine[Any, Any, Any]) -> None:
    await steps


@both
def test_results_are_gathered_in_order(run: Runner) -> None:
    """All run beside each other; of several errors, the first in order is raised once all are over."""

    async def one(number: int) -> int:
        await pause(5 - number)
        return number

    async def fail(number: int) -> int:
        await one(number)
        raise ValueError(number)

    async def steps() -> tuple[list[int], str, float]:
        found = [*await gather([]), *await gather([one(4)]), *await gather([one(1), one(2), one(3)])]
        with pytest.raises(ValueError) as error:
            await gather([one(1), fail(2), fail(3)])
        return found, str(error.value), now()

    assert run(lambda: from_zero(steps)) == ([4, 1, 2, 3], "2", 9.0)


async def from_zero(steps: Steps) -> Any:
    """Return what a procedure returns, with a last number as the time since its start."""
    since = now()
    *found, at_s = await steps()
    return (*found, at_s - since)


@both
def test_one_that_fails_ends_those_beside_it_and_the_caller(run: Runner) -> None:
    """Background work that failed never stays unnoticed."""
    seen: list[str] = []

    async def fail() -> None:
        await pause(1)
        raise ValueError("mine")

    async def forever() -> None:
        try:
            await pause(math.inf)
        finally:
            seen.append("beside")

    async def steps() -> str:
        try:
            async with beside() as start:
                start(forever())
                start(fail())
                await Wait().wait()
        except ValueError as error:
            seen.append(str(error))
        await pause(1)  # the caller was cancelled in the context alone
        return "went on"

    assert run(steps) == "went on" and seen == ["beside", "mine"]


# --- generated: the same program as a procedure and as a task


def program(random: Random, depth: int) -> list[Any]:
    """Make up a list of operations. No two of its times are the same."""
    kinds = ["pause", "pause", "wait", "fail"] + ["beside", "gather", "shield", "catch", "finally"] * (depth > 0)
    made: list[Any] = []
    for _ in range(random.randint(1, 3)):
        kind = random.choice(kinds)
        if kind in ("pause", "fail"):
            made.append((kind, random.random()))
        elif kind == "wait":
            made.append((kind, random.random(), random.choice([math.inf, random.random(), 0.0, -1.0])))
        elif kind in ("beside", "gather"):
            made.append((kind, *(program(random, depth - 1) for _ in range(random.randint(0, 3)))))
        else:
            made.append((kind, program(random, depth - 1)))
    return made


class Interpreter:
    """Runs a program, and notes when each operation began and how it ended."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, int, str]] = []
        self._since = now()

    async def run(self, operations: list[Any], path: int = 1) -> int:
        """Run a program."""
        for place, operation in enumerate(operations):
            number = path * 10 + place
            self._note(number, "begins")
            try:
                await self._perform(number, *operation)
            except CANCELLED:
                self._note(number, "cancelled")
                raise
            except ValueError as error:
                self._note(number, f"failed: {error}")
                raise
            self._note(number, "ended")
        return path

    def _note(self, number: int, what: str) -> None:
        self.seen.append((round(now() - self._since, 9), number, what))

    async def _perform(self, number: int, kind: str, *given: Any) -> None:
        if kind == "pause":
            await pause(given[0])
        elif kind == "fail":
            await pause(given[0])
            raise ValueError(number)
        elif kind == "wait":
            await self._wait(number, *given)
        elif kind == "beside":
            async with beside() as start:
                for place, one in enumerate(given[1:]):
                    start(self._child(one, number * 10 + place + 4))
                if given:
                    await self.run(given[0], number * 10)
        elif kind == "gather":
            found = await gather([self.run(one, number * 10 + place) for place, one in enumerate(given)])
            self._note(number, f"found {found}")
        else:
            await self._protect(number, kind, given[0])

    async def _child(self, operations: list[Any], path: int) -> None:
        await self.run(operations, path)

    async def _wait(self, number: int, ends_s: float, timeout_s: float) -> None:
        wait = Wait()

        async def end() -> None:
            await pause(ends_s)
            wait.end()

        async with beside() as start:
            start(end())
            self._note(number, f"came: {await wait.wait(timeout_s)}")

    async def _protect(self, number: int, kind: str, operations: list[Any]) -> None:
        if kind == "shield":
            with shielded():
                await self.run(operations, number * 10)
        elif kind == "catch":
            try:
                await self.run(operations, number * 10)
            except ValueError:
                self._note(number, "caught")
        else:
            try:
                await self.run(operations, number * 10)
            finally:
                await self.run([("pause", 0.001 * number / 10 ** len(str(number)))], number * 10 + 9)


@pytest.mark.parametrize("seed", range(8))
def test_a_procedure_does_what_a_task_does(seed: int) -> None:
    """The same programs, cancelled at any time or never, do the same at the same times, and end in the same way."""
    random = Random(seed)
    for number in range(40):
        operations = program(random, depth=3)
        cancel_s = random.choice([math.inf, random.random() * 3])
        assert trace(as_procedure, operations, cancel_s) == trace(as_task, operations, cancel_s), (number, operations)


def trace(run: Runner, operations: list[Any], cancel_s: float) -> tuple[list[Any], str]:
    """Return what a program did, and how it ended."""
    seen: list[tuple[float, int, str]] = []

    async def steps() -> int:
        interpreter = Interpreter()
        interpreter.seen = seen
        return await interpreter.run(operations)

    try:
        ended = f"returned {run(steps, cancel_s=cancel_s)}"
    except ValueError as error:
        ended = f"failed: {error}"
    except procedures.Withdrawn:
        ended = "cancelled"
    return sorted(seen), ended


# --- steps


@pytest.fixture
def stepped() -> Procedures:
    """Procedures that a test runs turn by turn, by a clock that stands still."""
    return Procedures(clock=lambda: 0.0)


def test_what_was_woken_and_then_withdrawn_makes_one_step(stepped: Procedures) -> None:
    """It learns that its wait is over, and is cancelled where it waits next."""
    first, seen = Wait(), list[str]()

    async def steps() -> None:
        seen.append(f"came: {await first.wait()}")
        try:
            await Wait().wait()
        finally:
            seen.append("cancelled")

    ends: list[Any] = []
    one = stepped.start(steps(), lambda *end: ends.append(end))
    first.end()
    one.withdraw()
    one.withdraw()
    while stepped.turn():
        pass
    one.withdraw()
    assert seen == ["came: True", "cancelled"]
    assert len(ends) == 1 and isinstance(ends[0][1], procedures.Withdrawn)


def test_what_is_withdrawn_before_it_begins_begins(stepped: Procedures) -> None:
    """What it was given, such as a lock, it can give back."""
    seen: list[str] = []

    async def child() -> None:
        try:
            seen.append("began")
            await pause(0)
        finally:
            seen.append("gave back")

    async def steps() -> None:
        async with beside() as start:
            start(child())
            await Wait().wait()

    one = stepped.start(steps(), lambda *_: None)
    one.withdraw()
    while stepped.turn():
        pass
    assert seen == ["began", "gave back"] and one.over


def test_a_procedure_that_starts_another_goes_on_first(stepped: Procedures) -> None:
    """A caller that is not a procedure sees the first step of what it starts at once."""
    seen: list[int] = []
    numbers = count()

    async def inner() -> None:
        seen.append(next(numbers))

    async def outer() -> None:
        stepped.start(inner())
        assert not seen

    stepped.start(outer())
    assert not stepped.turn() and seen == [0]
    stepped.start(inner())
    assert seen == [0, 1]


def test_a_wait_has_one_waiter(stepped: Procedures) -> None:
    """The second one fails, rather than let the first wait forever."""
    shared = Wait()
    ends: list[Any] = []
    for _ in range(2):
        stepped.start(_none(shared.wait()), lambda *end: ends.append(end))
    assert len(ends) == 1 and isinstance(ends[0][1], AssertionError)
    shared.end()
    stepped.turn()
    assert ends[1] == (None, None)


def test_long_times_of_waits_that_are_over_do_not_add_up(stepped: Procedures, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mostly a wait ends long before its time is over. The runner does not wake up at that time."""
    monkeypatch.setattr(procedures, "LIMITS_SPARE", 10)
    turns = [Wait() for _ in range(100)]
    lasting = stepped.start(_ignore_for(2_000))

    async def steps() -> None:
        for one in turns:
            await one.wait(1_000)

    stepped.start(steps())
    for one in turns:
        one.end()
        stepped.turn()
    assert len(stepped._limits) < 20
    assert any(limit[2] is lasting for limit in stepped._limits)
    assert stepped.lapse() == 2_000


def test_a_function_can_be_marked_as_a_procedure() -> None:
    """Its caller sees how to run it."""
    assert is_procedure(procedure(lambda: None)) and not is_procedure(lambda: None)


# --- what needs a task


async def _in_scope() -> None:
    with trio.CancelScope():
        await pause(0)


async def _in_nursery() -> None:
    async with trio.open_nursery():
        await pause(0)


EVENT = trio.Event()
TASKS_ONLY: dict[str, Steps] = {
    "sleep": lambda: trio.sleep(1),
    "event": EVENT.wait,
    "checkpoint": trio.lowlevel.checkpoint,
    "shielded checkpoint": trio.lowlevel.cancel_shielded_checkpoint,
    "lock": lambda: trio.Lock().acquire(),
    "scope": _in_scope,
    "nursery": _in_nursery,
    "thread": lambda: trio.to_thread.run_sync(int),
    "anyio": lambda: anyio.sleep(1),
}


@pytest.mark.parametrize("name", TASKS_ONLY)
def test_what_needs_a_task_fails_in_a_procedure(name: str) -> None:
    """The task in whose turn the procedure runs continues, and its cancel scopes are what they were."""
    ends: list[Any] = []

    async def steps() -> None:
        try:
            await TASKS_ONLY[name]()
        finally:
            await pause(1)

    async def main() -> None:
        running = Procedures()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(running.run)
            with trio.move_on_after(5) as scope:
                running.start(steps(), lambda *end: ends.append(end))
                EVENT.set()
                await trio.sleep(2)
                assert ends
                await trio.sleep_forever()
            assert scope.cancelled_caught
            nursery.cancel_scope.cancel()

    in_simulated_time(main)
    assert isinstance(ends[0][1], (TypeError, RuntimeError))


def test_another_thread_may_have_an_event_loop_too(stepped: Procedures) -> None:
    """Its tasks wait as tasks while a procedure makes a step here."""
    found: list[float] = []

    async def elsewhere() -> None:
        await gather([pause(1), _none(_ignore_for(1))])
        found.append(now())

    async def steps() -> None:
        thread = threading.Thread(target=in_simulated_time, args=(elsewhere,))
        thread.start()
        thread.join()

    stepped.start(steps())
    assert len(found) == 1


async def _ignore_for(seconds: float) -> None:
    await Wait().wait(seconds)


# --- the end


def test_an_exception_that_nobody_takes_ends_the_run() -> None:
    """A bug in background work ends the node."""

    async def fail() -> None:
        await pause(1)
        raise ValueError("a bug")

    async def main() -> None:
        running = Procedures()
        running.start(fail())
        await running.run()

    with pytest.raises(ExceptionGroup) as raised:
        in_simulated_time(main)
    assert raised.group_contains(ValueError, match="a bug")


def test_all_are_withdrawn_at_the_end_even_if_shielded() -> None:
    """Each runs its last steps; what is started after the end is withdrawn where it waits first."""
    seen: list[str] = []

    async def steps(name: str) -> None:
        with shielded():
            try:
                async with beside() as start:
                    start(child(name))
                    await pause(0)
                    await Wait().wait()
            finally:
                seen.append(name)

    async def child(name: str) -> None:
        try:
            await Wait().wait()
        finally:
            seen.append(f"beside {name}")

    async def main() -> None:
        running = Procedures()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(running.run)
            running.start(steps("one"))
            await trio.sleep(1)
            nursery.cancel_scope.cancel()
        running.start(steps("late"))

    in_simulated_time(main)
    assert seen == ["beside one", "one", "beside late", "late"]


def test_a_failure_at_the_end_is_raised() -> None:
    """A last step that fails is a bug like any other."""

    async def steps() -> None:
        try:
            await Wait().wait()
        finally:
            raise ValueError("at the end")

    async def main() -> None:
        running = Procedures()
        running.start(steps())
        with trio.move_on_after(1):
            await running.run()

    with pytest.raises(ValueError, match="at the end"):
        in_simulated_time(main)
