"""Claims ahead: workers get tasks a moment before they are due, and start them when they are due."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from onyxq.client import Claim
from onyxq.core.ids import ms_of
from onyxq.errors import BadRequest, Conflict
from onyxq.leader.grants.granter import ClaimRequest
from onyxq.worker import Worker
from simulation.world.world import Options, World, simulate
from tests.interfaces.worker_world import until

CALM = Options(partitions=2, clock_offset_ms=0)
AHEAD_MS = 500


def test_a_timer_is_claimed_ahead_and_begun_when_it_is_due() -> None:
    """It starts on time on a cluster that grants it early; ready tasks run meanwhile."""
    begun: dict[bytes, float] = {}

    async def script(world: World) -> None:
        async def work(claim: Claim) -> None:
            begun[claim.data] = world.audit.true_ms() - ms_of(claim.id)

        worker = Worker(work, queues=["q"], concurrency=4)
        async with world.client() as client, trio.open_nursery() as nursery:
            nursery.start_soon(worker.serve, client.client)
            await client.enqueue("q", [b"now"])
            for number in range(6):
                await client.enqueue("q", [b"later %d" % number], delay_ms=1_000 + 40 * number)
            await until(lambda: worker.held > worker.running)
            await client.enqueue("q", [b"meanwhile"])
            await until(lambda: worker.finished == 8)
            worker.stop()

    simulate(script, seed=1, options=CALM)
    assert len(begun) == 8
    assert 0 <= min(begun.values()) <= max(begun.values()) < 1_000
    assert sorted(late for data, late in begun.items() if data.startswith(b"later"))[3] < 20


def test_what_is_not_due_yet_is_given_back_by_a_worker_that_stops() -> None:
    """The release is not counted, and no worker gets the task before it is due."""

    async def script(world: World) -> None:
        async def work(claim: Claim) -> None:
            raise AssertionError("it is not due yet")

        worker = Worker(work, queues=["q"], concurrency=4)
        async with world.client() as client:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(worker.serve, client.client)
                (task_id,) = await client.enqueue("q", [b"later"], delay_ms=2_000)
                await until(lambda: worker.held == 1)
                worker.stop()
            assert worker.held == worker.finished == worker.failed == 0
            assert not await client.claim("q", maximum=1)
            (claim,) = await client.claim("q", maximum=1, wait_ms=5_000)
            assert (claim.id, claim.attempts) == (task_id, 0)
            assert world.audit.true_ms() >= ms_of(task_id)
            await client.complete(claim)

    simulate(script, seed=2, options=CALM)


def test_whoever_claims_ahead_is_told_when_to_begin() -> None:
    """At its due time it belongs to the worker: it cannot be cancelled as unclaimed, and its lease starts then."""

    async def script(world: World) -> None:
        async with world.client() as client, world.client() as other:
            (task_id,) = await client.enqueue("q", [b"later"], delay_ms=2_000)
            (claim,) = await client.claim("q", lease_ms=5_000, wait_ms=5_000, ahead_ms=AHEAD_MS)
            ahead_ms = (claim.due - trio.current_time()) * 1000
            assert 100 < ahead_ms <= AHEAD_MS
            assert claim.expires > claim.due
            assert abs(world.audit.true_ms() + ahead_ms - ms_of(task_id)) < 20
            with pytest.raises(Conflict, match="is claimed"):
                await other.cancel(task_id)
            assert not await other.claim("q", wait_ms=1_000)
            await trio.sleep(max(0.0, claim.expires - 0.05 - trio.current_time()))
            await client.complete(claim)

    simulate(script, seed=3, options=CALM)


def test_what_is_ready_comes_before_what_is_not_due() -> None:
    """This holds for any priority, and half of the room stays free."""

    async def script(world: World) -> None:
        async with world.client() as client:
            for number in range(8):
                await client.enqueue("q", [b"later %d" % number], delay_ms=2_000, priority=5)
            first = await client.claim("q", maximum=8, lease_ms=60_000, wait_ms=5_000, ahead_ms=AHEAD_MS)
            assert 1 <= len(first) <= 4 and all(claim.due for claim in first)
            await client.enqueue("q", [b"now"], priority=-5)
            second = await client.claim("q", maximum=1, lease_ms=60_000, wait_ms=5_000, ahead_ms=AHEAD_MS)
            assert [claim.data for claim in second] == [b"now"] and not second[0].due
            left = 8 - len(first)
            while left:
                claims = await client.claim("q", maximum=8, lease_ms=60_000, wait_ms=5_000)
                assert claims and not any(claim.due for claim in claims)
                left -= len(claims)
                for claim in claims:
                    await client.complete(claim)
            for claim in (*first, *second):
                await client.complete(claim)

    simulate(script, seed=4, options=CALM)


def test_a_claim_that_looks_less_far_ahead_is_answered_in_its_time() -> None:
    """It asks at intervals about offered tasks that are due too late for it, and otherwise as often as others."""
    asked: list[float] = []

    async def script(world: World) -> None:
        for node in world.nodes:
            granter = node.running.node.granter
            submit = granter.submit

            def noted(request: ClaimRequest, submit: Callable[[ClaimRequest], None] = submit) -> None:
                asked.append(trio.current_time())
                submit(request)

            granter.submit = noted  # type: ignore[method-assign]
        async with world.client() as client, world.client() as other:
            (task_id,) = await client.enqueue("q", [b"later"], delay_ms=2_000)
            due_s = trio.current_time() + (ms_of(task_id) - world.audit.true_ms()) / 1000
            # Another coordinator was notified of it.
            async with trio.open_nursery() as nursery:
                nursery.start_soon(lambda: other.claim("other", wait_ms=4_000, ahead_ms=AHEAD_MS))
                await trio.sleep(due_s - 0.15 - trio.current_time())
                began = trio.current_time()
                assert not await client.claim("q", wait_ms=0, ahead_ms=20)
                assert trio.current_time() - began < 0.1
                (claim,) = await client.claim("q", wait_ms=5_000, ahead_ms=20)
                await client.complete(claim)
        assert len(asked) < 20

    simulate(script, seed=6, options=CALM)


@pytest.mark.parametrize("ahead_ms", [0, AHEAD_MS])
def test_the_lowest_priority_is_ready_all_the_same(ahead_ms: int) -> None:
    """Tasks that are not due come after it."""

    async def script(world: World) -> None:
        async with world.client() as client:
            await client.enqueue("q", [b"lowest"], priority=-(1 << 31))
            (claim,) = await client.claim("q", wait_ms=2_000, ahead_ms=ahead_ms)
            assert not claim.due
            await client.complete(claim)

    simulate(script, seed=7, options=CALM)


def test_a_worker_claims_the_next_timer_ahead_too() -> None:
    """It does so although it had enough of them when it began to wait."""
    ahead: list[bool] = []

    async def script(world: World) -> None:
        async def work(claim: Claim) -> None:
            ahead.append(claim.due > 0)

        worker = Worker(work, queues=["q"], concurrency=2, wait_ms=20_000)
        async with world.client() as client, trio.open_nursery() as nursery:
            nursery.start_soon(worker.serve, client.client)
            for number in range(5):
                await client.enqueue("q", [b"later %d" % number], delay_ms=2_000 + 1_000 * number)
            await until(lambda: worker.finished == 5)
            worker.stop()

    simulate(script, seed=8, options=CALM)
    assert ahead == [True] * 5


@pytest.mark.parametrize("ahead_ms", [-1, 1_001, "5", True])
def test_a_wrong_time_is_refused(ahead_ms: object) -> None:
    """The error names the field."""

    async def script(world: World) -> None:
        async with world.client() as client:
            args = {"queues": ["q"], "max": 1, "lease_ms": 5_000, "wait_ms": 0, "worker": "w", "ahead_ms": ahead_ms}
            with pytest.raises(BadRequest) as caught:
                await client.client.call("claim", args)
            assert caught.value.field == "ahead_ms"
            with pytest.raises(BadRequest) as caught:
                await client.client.claim("q", ahead_ms=ahead_ms)  # type: ignore[arg-type]
            assert caught.value.field == "ahead_ms"

    simulate(script, seed=5, options=CALM)
