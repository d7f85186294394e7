"""What a client sends of tasks with keys, dependencies and times, and what it makes of the answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest

from onyxq.client import OF_QUEUE, AsyncClient, Step
from onyxq.client.policy import Policy
from onyxq.core.facts import partition_of_keys, task_header
from onyxq.core.ids import TaskId, make_id, ms_of, partition_of
from onyxq.errors import BadRequest, NotFound, OnyxqError, Unavailable
from onyxq.operations.table.operation import plain
from onyxq.operations.table.task import task_result
from onyxq.wire.server import Request
from simulation.world.network import SimulatedNetwork
from tests.interfaces.fake_service import PARTITIONS, FakeCluster, FakePeer, client_of, led_by, play, played, together

SOME = make_id(5, 1, 7, 0)
OTHER = make_id(5, 2, 7, 0)


def runs_sent(peer: FakePeer) -> list[list[Any]]:
    """Every run that a peer was asked to store, in order."""
    return [run for args in peer.arguments("enqueue") for run in args["runs"]]


def answering(peer: FakePeer, acks: Callable[[list[Any]], Iterator[Any]]) -> None:
    """Let a peer answer enqueues with the acks that a function makes of the runs."""

    def intercept(request: Request) -> bool:
        if request.method != "enqueue":
            return False
        request.reply({"acks": list(acks(request.args["runs"]))})
        return True

    peer.intercept = intercept


@played
async def test_a_keyed_task_lies_in_the_partition_of_its_key(cluster: FakeCluster, network: SimulatedNetwork) -> None:
    """The ordering key decides, else the unique key."""
    await cluster.start(network.host("a"), "a:1")
    async with client_of(network) as client:
        ordered = await client.enqueue("mail", b"x", ordering_key="k", unique_key="u")
        unique = await client.enqueue("mail", b"x", unique_key="u")
    assert partition_of(ordered) == partition_of_keys("mail", "k", PARTITIONS)
    assert partition_of(unique) == partition_of_keys("mail", "u", PARTITIONS)


@played
async def test_keyed_tasks_are_runs_of_their_own_in_the_order_given(
    cluster: FakeCluster, network: SimulatedNetwork, peer: FakePeer
) -> None:
    """Many of one key leave in few requests, one after the other."""
    led_by(cluster, peer)
    payloads = [b"%d" % n for n in range(600)]
    async with client_of(network) as client:
        ids = await client.enqueue_many("mail", payloads, ordering_key="k")
    sent = runs_sent(peer)
    assert [run[0] for run in sent] == ids
    assert [task_header(run[1])[1] for run in sent] == [1] * 600
    assert len(peer.arguments("enqueue")) == 3


@played
async def test_keys_may_be_one_for_each_task(network: SimulatedNetwork, peer: FakePeer) -> None:
    """As many as there are payloads."""
    async with client_of(network) as client:
        await client.enqueue_many("mail", [b"a", b"b"], ordering_key=["x", "y"], unique_key=["u", "v"])
    found = [task_header(run[1])[0] for run in runs_sent(peer)]
    assert sorted((one["ordering_key"], one["unique_key"]) for one in found) == [("x", "u"), ("y", "v")]


@played
async def test_a_large_keyed_task_goes_where_its_key_is(cluster: FakeCluster, network: SimulatedNetwork) -> None:
    """Its size changes nothing about that."""
    await cluster.start(network.host("a"), "a:1")
    async with client_of(network) as client:
        ids = [await client.enqueue("mail", bytes(2_000_000), ordering_key=key) for key in "abcd"]
    assert [partition_of(one) for one in ids] == [partition_of_keys("mail", key, PARTITIONS) for key in "abcd"]


@played
async def test_the_id_that_stands_for_a_unique_key_comes_back(network: SimulatedNetwork, peer: FakePeer) -> None:
    """This includes the case that another task is the current one."""
    answering(peer, lambda runs: iter([[2, SOME, "exists"] for _ in runs]))
    async with client_of(network) as client:
        assert await client.enqueue("mail", b"x", unique_key="u") == SOME
        assert await client.enqueue_many("mail", [b"x"], unique_key=["u"]) == [SOME]


@played
async def test_only_what_is_said_is_in_the_header(network: SimulatedNetwork, peer: FakePeer) -> None:
    """What is left to the queue is not; a retry limit that is said is, whatever it is."""
    async with client_of(network) as client:
        await client.enqueue_many("a", [b""], retries=25, backoff_ms=1000)
        await client.enqueue_many("a", [b""], retries=OF_QUEUE, backoff_ms=None, on_dependency_failed="fail")
        await client.enqueue(
            "a", b"", retries=None, depends=[SOME, OTHER.hex()], on_dependency_failed="run", expires_ms=9_000
        )
    headers = [task_header(run[1])[0] for run in runs_sent(peer)]
    assert headers == [
        {"backoff_ms": 1000, "queue": "a", "retries": 25},
        {"queue": "a"},
        {
            "depends": [SOME, OTHER],
            "expires_ms": 9_000,
            "on_dependency_failed": "run",
            "queue": "a",
            "retries": None,
        },
    ]
    assert all(list(header) == sorted(header) for header in headers)


@played
async def test_the_leader_is_told_a_time_that_it_cannot_see_in_the_id(
    network: SimulatedNetwork, peer: FakePeer
) -> None:
    """One that has passed, for the queue's grace; and any of a keyed task, for the order."""
    async with client_of(network) as client:
        await client.enqueue("a", b"", at_ms=77_000)
        await client.enqueue("a", b"", at_ms=5)
        await client.enqueue("a", b"", at_ms=77_000, ordering_key="k")
        await client.enqueue("a", b"", delay_ms=500, ordering_key="k")
    sent = runs_sent(peer)
    assert [run[2:] for run in sent] == [[], [5], [77_000], []]
    assert [ms_of(run[0]) for run in sent] == [77_000, 1_000, 77_000, 1_500]


@played
async def test_a_repeated_request_does_not_name_a_time_that_lay_ahead_at_first(
    network: SimulatedNetwork, peer: FakePeer
) -> None:
    """However long it took to be heard, it was in time."""
    turns = iter(["lost"])

    def acks(runs: list[Any]) -> Iterator[Any]:
        lost = next(turns, None)
        return iter([Unavailable("no quorum").to_map() if lost else 2 for _ in runs])

    answering(peer, acks)
    async with client_of(network) as client:
        await client.enqueue("a", b"", at_ms=77_000, ordering_key="k")
    assert [run[2:] for run in runs_sent(peer)] == [[77_000], []]


@played
async def test_a_bad_task_does_not_spoil_those_that_leave_with_it(network: SimulatedNetwork, peer: FakePeer) -> None:
    """Each caller gets the outcome of its own task, with the field's name in that call."""

    def acks(runs: list[Any]) -> Iterator[Any]:
        refused = BadRequest("there is no such task", field="runs[7].depends").to_map()
        return iter([refused if "depends" in task_header(run[1])[0] else 2 for run in runs])

    answering(peer, acks)
    async with client_of(network) as client:
        good, bad = await together(
            client.enqueue("a", b"", ordering_key="k"),
            client.enqueue("a", b"", ordering_key="k", depends=[SOME]),
        )
    assert isinstance(good, bytes)
    assert isinstance(bad, BadRequest) and bad.field == "depends"


@played
async def test_nothing_more_of_a_key_is_sent_once_one_was_not_stored(network: SimulatedNetwork, peer: FakePeer) -> None:
    """The rest would overtake it."""
    answering(peer, lambda runs: iter([BadRequest("no", field="priority").to_map() for _ in runs]))
    async with client_of(network) as client:
        with pytest.raises(BadRequest):
            await client.enqueue_many("a", [b""] * 600, ordering_key="k")
    assert len(runs_sent(peer)) == 256


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"ordering_key": ""}, "ordering_key"),
        ({"ordering_key": "k" * 201}, "ordering_key"),
        ({"unique_key": 5}, "unique_key"),
        ({"depends": SOME}, "depends"),
        ({"depends": ["zz"]}, "depends"),
        ({"depends": [SOME, SOME.hex()]}, "depends"),
        ({"depends": [make_id(1, 1, 1, n) for n in range(101)]}, "depends"),
        ({"on_dependency_failed": "panic"}, "on_dependency_failed"),
        ({"expires_ms": 0}, "expires_ms"),
        ({"expires_ms": "soon"}, "expires_ms"),
        ({"retries": -1}, "retries"),
        ({"retries": True}, "retries"),
        ({"retries": 1 << 64}, "retries"),
        ({"backoff_ms": -1}, "backoff_ms"),
        ({"backoff_ms": 1 << 64}, "backoff_ms"),
        ({"delay_ms": -1}, "delay_ms"),
        ({"delay_ms": timedelta.max}, "delay_ms"),
        ({"delay_ms": 1, "at_ms": 1}, "delay_ms"),
        ({"at_ms": -1}, "at_ms"),
        ({"at_ms": datetime(2031, 5, 1)}, "at_ms"),
        ({"at_ms": datetime(1960, 5, 1, tzinfo=UTC)}, "at_ms"),
        ({"expires_ms": datetime(2031, 5, 1)}, "expires_ms"),
        ({"delay": "soon"}, "delay"),
        ({"delay": -1}, "delay"),
        ({"delay": float("inf")}, "delay"),
        ({"delay": 1, "delay_ms": 1}, "delay"),
        ({"delay": 1, "at_ms": 1}, "delay_ms"),
        ({"priority": 1 << 31}, "priority"),
    ],
)
@played
async def test_what_no_server_would_take_is_not_sent(
    network: SimulatedNetwork, peer: FakePeer, options: dict[str, Any], field: str
) -> None:
    """The field is named, and nothing leaves."""
    async with client_of(network) as client:
        for call in (client.enqueue("a", b"", **options), client.enqueue_many("a", [b"", b""], **options)):
            with pytest.raises(BadRequest) as refused:
                await call
            assert refused.value.field == field
    assert runs_sent(peer) == []


@pytest.mark.parametrize(("payload", "hint"), [({"to": "ann"}, "json.dumps(value).encode()"), ("ann", "text.encode()")])
@played
async def test_a_payload_that_is_not_bytes_is_answered_with_how_to_encode_it(
    client: AsyncClient, payload: Any, hint: str
) -> None:
    """This is so for each call that takes one."""
    with pytest.raises(BadRequest, match="a payload is bytes") as refused:
        await client.enqueue("a", payload)
    assert hint in refused.value.advice and 'format="json"' in refused.value.advice
    with pytest.raises(BadRequest) as refused:
        Step("a", payload)
    assert hint in refused.value.advice


@played
async def test_keys_that_do_not_fit_the_payloads_are_refused(client: AsyncClient) -> None:
    """One each, or one ordering key for all; a unique key has one task."""
    for options, field in (({"ordering_key": ["k"]}, "ordering_key"), ({"unique_key": "u"}, "unique_key")):
        with pytest.raises(BadRequest) as refused:
            await client.enqueue_many("a", [b"", b""], **options)
        assert refused.value.field == field


def test_a_plain_policy_says_nothing_but_its_queue() -> None:
    """What tasks cost that use none of this: one field."""
    assert Policy("a").header() == {"queue": "a"}


@played
async def test_dead_letters_are_changed_by_ids_or_by_a_filter(network: SimulatedNetwork, peer: FakePeer) -> None:
    """Never both, and the error of one id is raised."""

    def intercept(request: Request) -> bool:
        if request.method != "dead.requeue":
            return False
        wrong = plain(task_result(TaskId(OTHER), OnyxqError("no").to_map()))
        results = [plain(task_result(TaskId(SOME), None)), wrong]
        request.reply({"count": 1, "results": results} if "ids" in request.args else {"count": 3})
        return True

    peer.intercept = intercept
    async with client_of(network) as client:
        assert await client.requeue_dead(queue="a", where="x") == 3
        with pytest.raises(OnyxqError, match="no"):
            await client.requeue_dead([SOME, OTHER])
        with pytest.raises(BadRequest):
            await client.requeue_dead([SOME], queue="a")
    assert peer.arguments("dead.requeue") == [{"queue": "a", "where": "x"}, {"ids": [SOME, OTHER]}]


@pytest.mark.parametrize("change", [AsyncClient.requeue_dead, AsyncClient.discard_dead])
@played
async def test_many_dead_letters_are_changed_by_one_request(
    peer: FakePeer, client: AsyncClient, change: Callable[..., Any]
) -> None:
    """If the request were cut off and repeated, the number would lack those that were changed before."""
    left = [90_000]

    async def answer(request: Request) -> None:
        await anyio.sleep(20)
        request.reply({"count": left.pop() if left else 0})

    def intercept(request: Request) -> bool:
        if not request.method.startswith("dead."):
            return False
        group.start_soon(answer, request)
        return True

    async with anyio.create_task_group() as group:
        peer.intercept = intercept
        assert await change(client, queue="a") == 90_000


def task_answer(task_id: bytes, **more: Any) -> dict[str, Any]:
    """A task as peers answer it."""
    said = {"queue": "a", "data": b"", "format": "bytes", "priority": 0, "state": "completed", "at_ms": 1}
    return {"id": task_id, **said, "attempts": 0, "claims": [], "updates": 0, **more}


def test_all_tasks_are_listed_page_by_page() -> None:
    """Each page begins after the previous one."""
    ids = [make_id(5, 1, 7, n) for n in range(3)]

    async def scenario(cluster: FakeCluster, network: SimulatedNetwork) -> None:
        peer = await cluster.start(network.host("a"), "a:1")

        def intercept(request: Request) -> bool:
            if request.method != "list":
                return False
            place = 0 if request.args["after"] is None else ids.index(request.args["after"]) + 1
            more = ids[place] if place < 2 else None
            request.reply({"tasks": [task_answer(ids[place])], "after": more})
            return True

        peer.intercept = intercept
        async with client_of(network) as client:
            assert [task.id async for task in client.list_all("a", state="completed")] == ids
        assert [args["after"] for args in peer.arguments("list")] == [None, ids[0], ids[1]]

    play(scenario)


def test_results_come_in_the_order_of_the_ids() -> None:
    """However many are read at a time; a task that is not there raises its own error."""
    ids = [make_id(5, 1, 7, n) for n in range(40)]

    async def scenario(cluster: FakeCluster, network: SimulatedNetwork) -> None:
        peer = await cluster.start(network.host("a"), "a:1")

        def intercept(request: Request) -> bool:
            if request.method != "get":
                return False
            if request.args["id"] not in ids:
                raise NotFound("there is no such task", field="id")
            request.reply(task_answer(request.args["id"], result=request.args["id"][-1:]))
            return True

        peer.intercept = intercept
        async with client_of(network) as client:
            assert await client.results(ids) == [task_id[-1:] for task_id in ids]
            assert await client.results([]) == []
            with pytest.raises(NotFound):
                await client.results([*ids, OTHER])

    play(scenario)
