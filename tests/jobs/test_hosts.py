"""A Spark host is started when a job needs it, restarted when it dies, and stopped when no job needs it."""

from __future__ import annotations

import functools
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest
import trio
from attrs import evolve
from trio.testing import MockClock

from onyxq.node.jobs import hosts, suspects
from onyxq.node.jobs.hosts import HostEnded, HostStopped, KeptHost, Plan, Run
from tests.jobs.fake_host import FakeHosts, FakeLink

PLAN = Plan(connect="127.0.0.1:1", slots=2, work="nowhere")
KEY = ("j1", 7)
RUN_S_MAX = 100_000


def simulated(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Run an async test on a clock that jumps."""

    @functools.wraps(test)
    def run() -> None:
        async def bounded() -> None:
            with trio.fail_after(RUN_S_MAX):
                await test()

        trio.run(bounded, clock=MockClock(autojump_threshold=0))

    return run


@asynccontextmanager
async def kept(fakes: FakeHosts, plan: Plan = PLAN) -> AsyncIterator[KeptHost]:
    """Run a manager of a host during the test."""
    host = KeptHost(plan, fakes.launch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.run)
        yield host
        nursery.cancel_scope.cancel()


@simulated
async def test_a_host_is_started_by_the_first_job_that_needs_it() -> None:
    """Without a job there is no process; later jobs share the host."""
    fakes = FakeHosts()
    async with kept(fakes) as host:
        await trio.sleep(10)
        assert (fakes.links, host.state) == ([], "off")
        one, other = await host.begin(KEY), await host.begin(("j2", 8))
        await one.order("start", slots=1)
        await other.order("start", slots=1)
        assert (await one.event())["job"] == "j1" and (await other.event())["job"] == "j2"
        assert len(fakes.links) == 1 and host.state == "up"


@simulated
async def test_a_warm_host_is_started_at_once_and_stays() -> None:
    """It runs without a job, and is replaced when it dies."""
    fakes = FakeHosts()
    async with kept(fakes, evolve(PLAN, warm=True)) as host:
        await trio.sleep(10 * hosts.IDLE_S)
        assert len(fakes.links) == 1 and host.state == "up"
        fakes.last.die()
        await trio.sleep(10)
        assert len(fakes.links) == 2 and host.state == "up"


@simulated
async def test_a_host_that_nobody_needs_is_stopped_after_a_while() -> None:
    """A job soon after still finds it; later ones get a new one."""
    fakes = FakeHosts()
    async with kept(fakes) as host:
        host.forget(await host.begin(KEY))
        await trio.sleep(hosts.IDLE_S / 2)
        host.forget(await host.begin(KEY))
        assert len(fakes.alive) == 1
        await trio.sleep(2 * hosts.IDLE_S)
        assert (fakes.alive, host.state) == ([], "off")
        await host.begin(KEY)
        assert len(fakes.links) == 2


@simulated
async def test_a_host_that_is_expected_to_be_needed_is_started_and_stopped_as_any_other() -> None:
    """It stays for a while; if it cannot be started, it is not tried again before a job needs it."""
    fakes = FakeHosts()
    fakes.refusals = ["no memory"]
    async with kept(fakes) as host:
        host.expect()
        await trio.sleep(100 * hosts.PAUSE_MAX_S)
        assert (fakes.links, host.state) == ([], "off")
        host.expect()
        await trio.sleep(hosts.IDLE_S / 2)
        assert len(fakes.alive) == 1 and host.state == "up"
        await trio.sleep(2 * hosts.IDLE_S)
        assert (fakes.alive, host.state) == ([], "off")


@simulated
async def test_a_job_hears_of_the_death_of_its_host() -> None:
    """The job gets the reason; its next run uses a new host."""
    fakes = FakeHosts()
    async with kept(fakes) as host:
        run = await host.begin(KEY)
        fakes.last.die("killed by SIGKILL")
        with pytest.raises(HostEnded, match="killed by SIGKILL"):
            await run.event()
        with pytest.raises(HostEnded):
            await run.order("stop")
        again = await host.begin(KEY)
        await again.order("start")
        assert (await again.event())["event"] == "ready" and len(fakes.links) == 2


async def ends_of(*runs: Run) -> list[str]:
    """Return how jobs learn that their host ended."""
    found = []
    for run in runs:
        try:
            while (await run.event())["event"] != "never":
                continue
        except HostEnded as ended:
            found.append(type(ended).__name__)
    return found


@simulated
async def test_the_death_of_a_shared_host_counts_against_who_is_tried_when_it_dies_again() -> None:
    """After the first death no job is blamed. Then jobs start one by one, and other jobs are not delayed."""
    fakes = FakeHosts()
    async with kept(fakes) as host:
        runs = [await host.begin(key) for key in (("bad", 1), ("good", 2))]
        fakes.last.die()
        assert await ends_of(*runs) == ["HostStopped", "HostStopped"]
        begun: dict[str, Run] = {}

        async def begin(name: str, version: int) -> None:
            begun[name] = await host.begin((name, version))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(begin, "bad", 1)
            await trio.sleep(hosts.PAUSE_MAX_S)
            nursery.start_soon(begin, "good", 2)
            nursery.start_soon(begin, "new", 3)
            await trio.sleep(suspects.TRIAL_S)
            assert sorted(begun) == ["bad", "new"]  # it is not ready, so its trial goes on
            fakes.last.die()
            assert await ends_of(begun["bad"], begun["new"]) == ["HostEnded", "HostStopped"]
            await trio.sleep(hosts.PAUSE_MAX_S)
            assert sorted(begun) == ["bad", "good", "new"]
            await begun["good"].order("start")
            nursery.start_soon(begin, "bad", 1)
            await trio.sleep(2)
            before = begun["bad"]
            await trio.sleep(2 * suspects.TRIAL_S)
            assert begun["bad"] is not before  # the other one has run long enough by then


@simulated
async def test_who_kills_late_is_found_and_nobody_else_blamed_in_the_end() -> None:
    """It runs longer than the first trial; later trials are longer."""
    fakes = FakeHosts()
    blamed = []
    async with kept(fakes) as host:

        async def goes_on(name: str, version: int, dies_after_s: float) -> None:
            while len(blamed) < 5:
                run = await host.begin((name, version))
                await run.order("start")
                with trio.move_on_after(dies_after_s):
                    blamed.extend(name for end in await ends_of(run) if end == "HostEnded")
                    continue
                fakes.last.die()
                blamed.extend(name for end in await ends_of(run) if end == "HostEnded")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(goes_on, "bad", 1, suspects.TRIAL_S + 5)
            nursery.start_soon(goes_on, "good", 2, math.inf)
            while len(blamed) < 5:
                await trio.sleep(1)
            nursery.cancel_scope.cancel()
    assert blamed.count("good") <= 1 and blamed[2:] == ["bad"] * 3, blamed


@simulated
async def test_a_suspect_that_does_not_come_to_run_is_not_waited_for_for_ever() -> None:
    """The next one starts after a minute."""
    fakes = FakeHosts()
    async with kept(fakes) as host:
        runs = [await host.begin(key) for key in (("one", 1), ("two", 2))]
        fakes.last.die()
        assert await ends_of(*runs) == ["HostStopped", "HostStopped"]
        await host.begin(("one", 1))
        began = trio.current_time()
        await host.begin(("two", 2))
        assert suspects.BEGUN_S <= trio.current_time() - began <= suspects.BEGUN_S + 1


@simulated
async def test_a_shared_host_that_dies_again_and_again_counts_against_all() -> None:
    """Even if none of them is the cause, the number of starts is limited."""
    fakes = FakeHosts()
    async with kept(fakes) as host:
        told = []
        for _ in range(3):
            runs = []
            for key in (("one", 1), ("two", 2)):
                runs.append(await host.begin(key))
                await runs[-1].order("start")
            await trio.sleep(5 * suspects.TRIAL_S)
            fakes.last.die()
            told.append(await ends_of(*runs))
        assert told == [["HostStopped"] * 2, ["HostEnded"] * 2, ["HostEnded"] * 2]
        await trio.sleep(suspects.STEADY_S + hosts.PAUSE_MAX_S)
        runs = [await host.begin(("one", 1))]
        await runs[0].order("start")
        await trio.sleep(suspects.TRIAL_S_MAX + 2 * suspects.STEADY_S)
        runs.append(await host.begin(("three", 3)))
        fakes.last.die()
        assert await ends_of(*runs) == ["HostStopped"] * 2


@simulated
async def test_pauses_between_starts_double_up_to_a_limit() -> None:
    """A host that cannot be started is tried with pauses; each failed start is reported to the waiting jobs."""
    fakes = FakeHosts()
    fakes.refusals = [f"no memory {number}" for number in range(8)]
    at = []
    async with kept(fakes) as host:
        for number in range(8):
            with pytest.raises(HostEnded, match=f"no memory {number}"):
                await host.begin(KEY)
            at.append(trio.current_time())
        await host.begin(KEY)
        at.append(trio.current_time())
    assert [later - earlier for earlier, later in zip(at, at[1:], strict=False)] == [1, 2, 4, 8, 16, 30, 30, 30]


@simulated
async def test_a_host_that_never_comes_up_is_killed() -> None:
    """The waiting jobs learn of it in the end."""
    fakes = FakeHosts()
    fakes.up_by_themselves = False
    async with kept(fakes) as host:
        with pytest.raises(HostEnded, match="not up within"):
            await host.begin(KEY)
        assert not fakes.last.running


@simulated
async def test_whatever_keeps_a_host_from_running_is_told_and_tried_again() -> None:
    """After a full disk or a bug, the peer continues, and the next start may succeed."""
    fakes = FakeHosts()
    errors: list[Exception] = [OSError("no space left"), ZeroDivisionError("a bug")]

    def launch(plan: Plan) -> AbstractAsyncContextManager[FakeLink]:
        if errors:
            raise errors.pop(0)
        return fakes.launch(plan)

    host = KeptHost(PLAN, launch)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(host.run)
        for what in ("no space left", "a bug"):
            with pytest.raises(HostEnded, match=what):
                await host.begin(KEY)
        assert (await host.begin(KEY)).key == KEY
        nursery.cancel_scope.cancel()


@simulated
async def test_a_query_that_does_not_stop_takes_its_host_with_it() -> None:
    """Other jobs of the host get no failure, and a new host at once."""
    fakes = FakeHosts(lambda link, order: None)
    async with kept(fakes) as host:
        stuck, other = await host.begin(KEY), await host.begin(("j2", 8))
        began = trio.current_time()
        await host.end(stuck)
        assert trio.current_time() - began == hosts.STOP_TIMEOUT_S
        with pytest.raises(HostStopped, match="j1 did not stop"):
            await other.event()
        began = trio.current_time()
        await host.begin(("j2", 8))
        assert trio.current_time() == began and len(fakes.links) == 2


@simulated
async def test_events_of_an_older_version_are_not_heard() -> None:
    """Reports of an earlier run of the job are ignored."""
    fakes = FakeHosts()
    async with kept(fakes) as host:
        run = await host.begin(KEY)
        fakes.last.say("completed", "j1", 6)
        fakes.last.say("ready", "j1", 7)
        assert (await run.event())["event"] == "ready"
