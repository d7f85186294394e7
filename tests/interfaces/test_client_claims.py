"""The client and its claims: leases, stale tokens, updates, and completions as runs."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.to_thread
import pytest

from onyxq.client import AsyncClient, Claim
from onyxq.client.claims import ClaimBatch
from onyxq.client.held_claims import merged, narrowed, requests_of
from onyxq.core.facts import pack_task
from onyxq.core.ids import TaskId, make_id
from onyxq.errors import (
    BadRequest,
    BatchRefused,
    LogUnavailable,
    NotLeader,
    OnyxqError,
    Refused,
    StaleToken,
    TooLarge,
)
from onyxq.wire.server import Request
from simulation.world.network import SimulatedNetwork
from tests.interfaces.fake_service import (
    QUEUES_LEASE_MS,
    FakeCluster,
    FakePeer,
    client_of,
    played,
    refuse_once,
    together,
)

BACKENDS = pytest.mark.parametrize("backend", ["trio", "asyncio"])


@played
async def test_a_lease_counts_from_when_the_request_was_sent(cluster: FakeCluster, network: SimulatedNetwork) -> None:
    """This holds for any duration of the answer."""
    await cluster.start(network.host("a"), "a:1")
    network.delay("client", "a", delay_ms=400)
    async with client_of(network) as client:
        await client.enqueue_many("mail", [b"x"] * 2)
        sent_at = anyio.current_time()
        claims = await client.claim("mail", max=2, lease_ms=10_000)
        assert anyio.current_time() - sent_at > 0.79
        assert claims.expires == claims[0].expires == sent_at + 10
        sent_at = anyio.current_time()
        await client.renew(claims[0], lease_ms=60_000)
        assert (claims[0].expires, claims[1].expires) == (sent_at + 60, claims.expires)
        sent_at = anyio.current_time()
        await client.renew(claims)
        assert claims[1].expires == sent_at + 10


def test_a_lease_claimed_ahead_is_told_no_longer_than_a_renewed_one() -> None:
    """Its lease includes the time until the task is due, but a renewal is for the plain lease."""
    body = pack_task({"queue": "mail"}, [b"x"])
    answer = {"claims": [[1, 0, 0, make_id(1_000, 0, 1, 0), body]]}
    (ready,) = ClaimBatch.of(answer, sent_at=100.0, lease_ms=5_000, now=100.5)
    (ahead,) = ClaimBatch.of({**answer, "due_in_ms": [250]}, sent_at=100.0, lease_ms=5_000, now=100.5)
    assert (ready.due, ahead.due) == (0.0, 100.75)
    assert ready.expires == ahead.expires == 105.0


@played
async def test_a_long_wait_is_cut_so_that_the_lease_is_fresh(cluster: FakeCluster, network: SimulatedNetwork) -> None:
    """A grant after a minute's wait still has most of its lease."""
    await cluster.start(network.host("a"), "a:1")
    async with client_of(network) as client, anyio.create_task_group() as group:

        async def enqueue_later() -> None:
            await anyio.sleep(50)
            await client.enqueue("mail", b"x")

        group.start_soon(enqueue_later)
        claims = await client.claim("mail", lease_ms=20_000, wait_ms=60_000)
        assert len(claims) == 1
        assert claims.expires - anyio.current_time() >= 15


@played
async def test_a_claim_that_names_no_lease_has_its_queues(peer: FakePeer, client: AsyncClient) -> None:
    """The answer has the lease; renewals use the same, and later waits are cut to fit it."""
    await client.enqueue("mail", b"x")
    sent_at = anyio.current_time()
    claims = await client.claim("mail")
    assert claims.expires == sent_at + QUEUES_LEASE_MS / 1000
    await client.renew(claims)
    (renewal,) = peer.arguments("renew")
    assert renewal["items"][0][3] == QUEUES_LEASE_MS
    assert len(await client.claim("mail", wait_ms=10_000)) == 0
    waits = [args["wait_ms"] for args in peer.arguments("claim")]
    assert waits[:3] == [0, QUEUES_LEASE_MS // 4, QUEUES_LEASE_MS // 4]


@played
async def test_an_update_may_say_how_many_nodes_are_to_have_it(peer: FakePeer, client: AsyncClient) -> None:
    """Without it the request has no number."""
    await client.enqueue("mail", b"x")
    (claim,) = await client.claim("mail")
    await client.update(claim, b"one")
    await client.update(claim, b"two", w=1)
    assert [args.get("w") for args in peer.arguments("update")] == [None, 1]


@played
async def test_a_claim_without_tasks_is_empty_when_the_wait_is_over(client: AsyncClient) -> None:
    """Not earlier, not later."""
    start = anyio.current_time()
    claims = await client.claim(["mail", "other"], wait_ms=5_000)
    assert list(claims) == []
    assert anyio.current_time() - start == pytest.approx(5.0, abs=0.01)


@played
async def test_claiming_is_tried_again_while_the_wait_lasts(peer: FakePeer, client: AsyncClient) -> None:
    """If the wait is over, the reason is raised."""
    await client.enqueue("mail", b"x")
    refuse_once(peer, "claim", LogUnavailable(), times=3)
    with pytest.raises(LogUnavailable):
        await client.claim("mail")
    assert len(await client.claim("mail", wait_ms=5_000)) == 1


@played
async def test_claims_that_arrive_for_nobody_are_given_back(
    cluster: FakeCluster, network: SimulatedNetwork, client: AsyncClient
) -> None:
    """The claim was cancelled while its answer was in flight."""
    await client.enqueue("mail", b"x")
    network.delay("client", "a", delay_ms=100)
    with anyio.move_on_after(0.15):
        await client.claim("mail")
    assert cluster.tokens
    await anyio.sleep(1)
    assert not cluster.tokens


@BACKENDS
@played
async def test_a_stale_claim_is_raised_for_one_and_named_for_many(
    cluster: FakeCluster, client: AsyncClient, backend: str
) -> None:
    """The others of the batch are completed."""
    await client.enqueue_many("mail", [b"x"] * 5)
    claims = await client.claim("mail", max=5)
    cluster.steal(claims[2].id)
    with pytest.raises(StaleToken):
        await client.complete(claims[2])
    with pytest.raises(BatchRefused) as caught:
        await client.complete(claims)
    assert [(part.first, part.count) for part in caught.value.refused] == [(claims[2].id, 1)]
    assert isinstance(caught.value.refused[0].error, StaleToken)
    assert sorted(cluster.outcomes) == [claims[n].id for n in (0, 1, 3, 4)]


@played
async def test_parts_refused_for_a_passing_reason_are_sent_again_alone(
    network: SimulatedNetwork, peer: FakePeer
) -> None:
    """They are sent with their own results."""
    async with client_of(network) as client:
        await client.enqueue_many("mail", [b"x"] * 5)
        claims = await client.claim("mail", max=5)
        once = [True]

        def refuse_part(request: Request) -> bool:
            if request.method != "complete" or not once:
                return False
            once.clear()
            request.reply({"results": [[[claims[1].id, 2, NotLeader().to_map()]]]})
            return True

        peer.intercept = refuse_part
        await client.complete(claims, results=[b"0", b"1", None, b"3", b"4"])
    again = peer.arguments("complete")[1]["items"]
    assert again == [[claims[1].id, 2, 1, None, [b"1", None]]]


@played
async def test_of_two_claims_of_one_task_the_refused_one_is_sent_again(peer: FakePeer, client: AsyncClient) -> None:
    """The other one, which has ended, must not be sent in its place: the task would be left claimed."""
    await client.enqueue("mail", b"x")
    valid = (await client.claim("mail"))[0]
    ended = Claim.of(valid.id, valid.token - 1)
    stale, passing = StaleToken("it has ended").to_map(), NotLeader().to_map()
    answers = [[[[valid.id, 1, stale]], [[valid.id, 1, passing]]], [[]]]

    def intercept(request: Request) -> bool:
        if request.method == "complete":
            request.reply({"results": answers.pop(0)})
        return request.method == "complete"

    peer.intercept = intercept
    with pytest.raises(BatchRefused) as caught:
        await client.complete([ended, valid], b"done")
    assert [type(part.error) for part in caught.value.refused] == [StaleToken]
    assert peer.arguments("complete")[1]["items"] == [[valid.id, 1, valid.token, None, [b"done"]]]


@played
async def test_claims_in_a_list_go_back_as_runs_where_they_can(network: SimulatedNetwork, peer: FakePeer) -> None:
    """Consecutive claims of one grant are one item."""
    async with client_of(network) as client:
        await client.enqueue_many("mail", [b"x"] * 6)
        claims = await client.claim("mail", max=6)
        await client.fail([claims[0], claims[1], claims[3]], "broken", 50, traceback="at")
        await client.release(claim for claim in claims[4:])
    assert peer.arguments("fail")[0]["items"] == [
        [claims[0].id, 2, 1, "broken", 50, "at"],
        [claims[3].id, 1, 1, "broken", 50, "at"],
    ]
    assert peer.arguments("release")[0]["items"] == [[claims[4].id, 2, 1]]


@played
async def test_a_claim_known_by_id_and_token_is_enough(cluster: FakeCluster, network: SimulatedNetwork) -> None:
    """The command line has only these."""
    await cluster.start(network.host("a"), "a:1")
    async with client_of(network) as client:
        task_id = await client.enqueue("mail", b"x")
        token = (await client.claim("mail"))[0].token
        await client.complete(Claim.of(task_id, token), b"done")
    assert cluster.outcomes == {task_id: b"done"}


@played
async def test_a_value_of_a_wrong_type_ends_its_own_call_only(cluster: FakeCluster, client: AsyncClient) -> None:
    """Calls leave together, and a request that cannot be made would end the client, with all its other calls."""
    await client.enqueue_many("mail", [b"x"] * 2)
    first, second = await client.claim("mail", max=2)
    wrong: Any = 5
    for given in ({"result": wrong}, {"results": [wrong]}):
        with pytest.raises(BadRequest, match="bytes or None, not int"):
            await client.complete(first, **given)
    wrong = str(first.token)
    with pytest.raises(BadRequest, match="whole number, not str"):
        Claim.of(first.id, wrong)
    await client.complete(second, b"done")
    assert cluster.outcomes == {second.id: b"done"}


@played
async def test_updates_of_a_claim_are_numbered_from_zero(
    cluster: FakeCluster, network: SimulatedNetwork, peer: FakePeer
) -> None:
    """A completion has their number."""
    async with client_of(network) as client:
        await client.enqueue_many("mail", [b"x"] * 3)
        claims = await client.claim("mail", max=3)
        await together(*(client.update(claims[1], b"%d" % n) for n in range(3)))
        await client.complete(claims)
    assert [update[:3] for update in cluster.updates] == [[claims[1].id, 1, n] for n in range(3)]
    assert sorted(update[3] for update in cluster.updates) == [b"0", b"1", b"2"]
    assert [item[1:4] for item in peer.arguments("complete")[0]["items"]] == [[1, 1, None], [1, 1, 3], [1, 1, None]]


@played
async def test_an_update_of_unknown_outcome_is_sent_again_before_the_next(
    cluster: FakeCluster, network: SimulatedNetwork, peer: FakePeer
) -> None:
    """Its number may be used up, so no other update may have it."""
    async with client_of(network) as client:
        await client.enqueue("mail", b"x")
        claim = (await client.claim("mail"))[0]
        peer.intercept = lambda request: request.method == "update"
        with pytest.raises(OnyxqError):
            await client.update(claim, b"first", timeout_ms=1_000)
        peer.intercept = None
        assert await client.update(claim, b"second") == 1
    assert [update[2:] for update in cluster.updates] == [[0, b"first"], [1, b"second"]]


@played
async def test_an_update_that_is_refused_as_a_whole_leaves_its_number_to_the_next(
    cluster: FakeCluster, peer: FakePeer, client: AsyncClient
) -> None:
    """For example, it is too large. One of unknown outcome is kept if its repeat is refused for another reason."""
    await client.enqueue("mail", b"x")
    claim = (await client.claim("mail"))[0]
    refuse_once(peer, "update", TooLarge("too large"))
    with pytest.raises(TooLarge):
        await client.update(claim, b"far too large")
    assert await client.update(claim, b"small") == 0
    peer.intercept = lambda request: request.method == "update"
    with pytest.raises(OnyxqError):
        await client.update(claim, b"unsure", timeout_ms=1_000)
    refuse_once(peer, "update", BadRequest("w must be 1 to 3, not 9"))
    with pytest.raises(BadRequest):
        await client.update(claim, b"last", w=9)
    assert await client.update(claim, b"last") == 2
    assert [update[2:] for update in cluster.updates] == [[0, b"small"], [1, b"unsure"], [2, b"last"]]


def item(counter: int, count: int, *more: Any) -> list[Any]:
    """An item of some request."""
    return [make_id(1, 2, 3, counter), count, 9, *more]


def test_neighbouring_items_are_merged_with_their_results() -> None:
    """Items are merged only if token and everything else agree."""
    found = merged([item(2, 1, None, [b"2"]), item(0, 2, None, [b"0", None]), item(5, 1, None, None)])
    assert found == [item(0, 3, None, [b"0", None, b"2"]), item(5, 1, None, None)]
    assert merged([item(0, 1, "a", 5), item(1, 1, "b", 5), item(2, 1, "b", 6)]) == [
        item(0, 1, "a", 5),
        item(1, 1, "b", 5),
        item(2, 1, "b", 6),
    ]


def test_items_are_not_merged_across_the_border_of_a_stretch() -> None:
    """A peer refuses such an item, and with it the whole transaction."""
    items = [item(1_000, 24, None, None), item(1_024, 10, None, None)]
    assert merged(items) == items
    assert merged([*items, item(1_034, 1, None, None)]) == [items[0], item(1_024, 11, None, None)]


def test_completions_that_name_their_updates_stay_apart() -> None:
    """The number belongs to one claim's updates, even if an adjacent claim has as many."""
    items = [item(0, 1, 4, None), item(1, 1, 4, None), item(2, 1, 0, [b"r"]), item(3, 1, 0, [b"r"])]
    assert merged(items) == items


def test_a_refused_part_is_cut_out_of_its_item() -> None:
    """With its part of the results."""
    whole = item(0, 4, None, [b"0", b"1", b"2", b"3"])
    part = Refused(TaskId(whole[0][:16] + b"\0\0\0\1"), 2, NotLeader())
    assert narrowed(whole, part) == item(1, 2, None, [b"1", b"2"])
    with pytest.raises(BadRequest):
        narrowed(item(10, 2, None, None), part)


def test_large_results_are_spread_over_requests() -> None:
    """No request comes near the size of a frame."""
    results = [bytes(1024 * 1024)] * 10
    requests = requests_of([item(0, 10, None, results)])
    assert sum(one[1] for request in requests for one in request) == 10
    assert all(sum(len(one[4]) for one in request) <= 4 for request in requests)
