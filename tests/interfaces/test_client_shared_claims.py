"""Concurrent claims of one client share requests; each caller gets its own tasks."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from onyxq.client import AsyncClient
from onyxq.client.claim_requests import dealt
from onyxq.client.claims import ClaimBatch, ClaimedRun
from onyxq.core.facts import pack_task
from onyxq.core.ids import ids_of, make_id
from onyxq.errors import Forbidden, LogUnavailable, OnyxqError, Unavailable
from onyxq.wire.server import Request
from simulation.world.network import SimulatedNetwork
from tests.interfaces.fake_service import FakeCluster, FakePeer, client_of, played, refuse_once, together

BACKENDS = pytest.mark.parametrize("backend", ["trio", "asyncio"])


def run_of(count: int) -> ClaimedRun:
    """Return a claimed run whose payloads are their indices."""
    body = pack_task({"queue": "mail"}, [b"%d" % number for number in range(count)])
    return ClaimedRun(token=7, first=make_id(1_000, 0, 1, 0), count=count, body=body, expires=100.0)


@BACKENDS
@played
async def test_claims_of_one_turn_are_one_request(
    cluster: FakeCluster, peer: FakePeer, client: AsyncClient, backend: str
) -> None:
    """Each caller gets up to its own maximum, and each task has one caller."""
    await client.enqueue_many("mail", [b"%d" % number for number in range(6)])
    batches = await together(*(client.claim("mail", max=most) for most in (1, 3, 2, 1)))
    assert sorted(one for batch in batches for one in batch.payloads) == [b"%d" % number for number in range(6)]
    assert all(len(batch) <= most for batch, most in zip(batches, (1, 3, 2, 1), strict=True))
    assert [args["max"] for args in peer.arguments("claim")] == [7]
    await together(*(client.complete(batch, b"done") for batch in batches if batch))
    assert len(cluster.outcomes) == 6


@played
async def test_claims_with_other_options_or_a_named_worker_are_requests_of_their_own(
    peer: FakePeer, client: AsyncClient
) -> None:
    """A worker has claims of its own, and options hold for the whole request."""
    named = [client.claim("mail", worker="w") for _ in range(2)]
    await together(*named, client.claim("mail"), client.claim("post"), client.claim("mail", lease_ms=5_000))
    assert [args["max"] for args in peer.arguments("claim")] == [1] * 5


@played
async def test_callers_without_a_task_share_the_next_request_while_their_wait_lasts(
    peer: FakePeer, client: AsyncClient
) -> None:
    """One task serves one caller; the others wait on, and end empty at their time."""
    start, ends = anyio.current_time(), list[tuple[int, float]]()

    async def claim() -> None:
        batch = await client.claim("mail", lease_ms=60_000, wait_ms=10_000)
        ends.append((len(batch), anyio.current_time() - start))

    async def enqueue() -> None:
        await anyio.sleep(4)
        await client.enqueue("mail", b"x")

    await together(claim(), claim(), claim(), enqueue())
    assert [most["max"] for most in peer.arguments("claim")] == [3, 2]
    assert [count for count, _ in ends] == [1, 0, 0]
    assert [at for _, at in ends] == pytest.approx([4, 10, 10], abs=0.01)


@BACKENDS
@played
async def test_tasks_of_a_caller_that_is_gone_are_given_back(
    cluster: FakeCluster, network: SimulatedNetwork, client: AsyncClient, backend: str
) -> None:
    """The other callers keep theirs."""
    await client.enqueue_many("mail", [b"x"] * 3)
    network.delay("client", "a", delay_ms=50)

    async def leave() -> None:
        with anyio.move_on_after(0.06):
            await client.claim("mail")

    one, _, other = await together(client.claim("mail"), leave(), client.claim("mail"))
    while len(cluster.tokens) > 2:
        await anyio.sleep(0.01)
    assert set(cluster.tokens) == {one[0].id, other[0].id}


@BACKENDS
@played
async def test_a_request_is_withdrawn_when_all_its_callers_are_gone(
    network: SimulatedNetwork, peer: FakePeer, backend: str
) -> None:
    """No task is claimed without a caller."""
    withdrawn = anyio.Event()

    def hold(request: Request) -> bool:
        request.on_cancel = withdrawn.set
        return request.method == "claim"

    async with client_of(network) as client:
        await client.make_ids(1)
        peer.intercept = hold
        async with anyio.create_task_group() as group:
            for _ in range(3):
                group.start_soon(client.claim, "mail")
            while not peer.arguments("claim"):
                await anyio.sleep(0.001)
            group.cancel_scope.cancel()
        await withdrawn.wait()


@BACKENDS
@played
async def test_the_first_caller_may_leave_at_once(peer: FakePeer, client: AsyncClient, backend: str) -> None:
    """Those that joined it are still served."""
    await client.enqueue_many("mail", [b"x"] * 3)
    scope = anyio.CancelScope()

    async def first() -> None:
        with scope:
            await client.claim("mail")

    async def second() -> ClaimBatch:
        scope.cancel()
        return await client.claim("mail")

    _, batch, other = await together(first(), second(), client.claim("mail"))
    assert (len(batch), len(other)) == (1, 1)
    assert [args["max"] for args in peer.arguments("claim")] == [2]


@played
async def test_an_error_is_raised_in_every_call_that_shared_the_request(peer: FakePeer, client: AsyncClient) -> None:
    """A final error ends all of them; a passing one those whose wait is over."""
    await client.enqueue_many("mail", [b"x"] * 2)
    for error in (Forbidden("not yours"), LogUnavailable()):
        refuse_once(peer, "claim", error, times=2)
        found = await together(client.claim("mail"), client.claim("mail"))
        assert [type(one) for one in found] == [type(error)] * 2
        peer.intercept = None
    assert [len(batch) for batch in await together(client.claim("mail"), client.claim("mail"))] == [1, 1]


@played
async def test_more_tasks_than_a_request_may_ask_for_take_several(peer: FakePeer, client: AsyncClient) -> None:
    """The limit of a request stays that of the wire."""
    await client.enqueue_many("mail", [b"x"] * 1_500)
    batches = await together(*(client.claim("mail", max=500) for _ in range(3)))
    assert [len(batch) for batch in batches] == [500] * 3
    assert sorted(args["max"] for args in peer.arguments("claim")) == [500, 1_000]


@BACKENDS
@played
async def test_claims_end_when_their_client_is_closed(
    cluster: FakeCluster, network: SimulatedNetwork, backend: str
) -> None:
    """Calls in other tasks get an error and do not hang."""
    await cluster.start(network.host("a"), "a:1")
    errors: list[OnyxqError] = []

    async def claim(client: Any) -> None:
        try:
            await client.claim("mail", wait_ms=60_000)
        except OnyxqError as error:
            errors.append(error)

    async with anyio.create_task_group() as group:
        async with client_of(network) as client:
            for _ in range(3):
                group.start_soon(claim, client)
            await anyio.sleep(0.05)
    assert [type(error) for error in errors] == [Unavailable] * 3


def test_a_part_of_a_run_has_its_own_ids_payloads_and_lease() -> None:
    """It renews alone, and shares the unpacked row."""
    whole = run_of(5)
    part = whole.part(1, 3).part(1, 2)
    assert [part.payload(number) for number in range(2)] == [b"2", b"3"]
    assert [part.id_at(0), part.id_at(1)] == list(ids_of(whole.first, 5))[2:4]
    assert part.header is whole.header
    part.expires = 200.0
    assert whole.expires == 100.0


def test_runs_are_dealt_in_order_and_the_rest_is_left() -> None:
    """No task is dealt twice, and none is lost."""
    runs = [run_of(3), run_of(2)]
    shares = dealt(runs, [1, 3])
    assert [[run.count for run in share] for share in shares] == [[1], [2, 1], [1]]
    assert [run.payload(0) for share in shares for run in share] == [b"0", b"1", b"0", b"1"]
    assert dealt([runs[0]], [3])[0][0] is runs[0]
    assert dealt(runs, [9, 1]) == [runs, [], []]
