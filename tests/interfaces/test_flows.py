"""Flows: the dependencies of chains and groups, and how they are sent."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onyxq import Step
from onyxq.client.flows import Enqueued, Flow, chain, group
from onyxq.core.facts import partition_of_keys, task_header, unpack_task
from onyxq.core.ids import ids_of, make_id, partition_of
from onyxq.errors import BadRequest
from simulation.world.network import SimulatedNetwork
from tests.interfaces.fake_service import PARTITIONS, FakeCluster, FakePeer, client_of, played

OUTSIDE = make_id(1, 1, 1, 1)


def sent(flow: Flow[None]) -> None:
    """Fail, because the flow must not be enqueued."""


def follows(flow: Flow[Any]) -> list[tuple[bytes, tuple[int, ...]]]:
    """Return payload and predecessors of each step."""
    return [(one.step.payload, one.follows) for one in flow.plan.steps]


def a_chain(*parts: Any) -> Flow[None]:
    """Return a chain that is not sent."""
    return chain(sent, parts)


def a_group(*parts: Any) -> Flow[None]:
    """Return a group that is not sent."""
    return group(sent, parts)


def steps(text: str) -> list[tuple[str, bytes]]:
    """Return a part for each letter."""
    return [("q", letter.encode()) for letter in text]


def test_a_chain_is_one_after_the_other() -> None:
    """Each step depends on the one before."""
    assert follows(a_chain(*steps("abc"))) == [(b"a", ()), (b"b", (0,)), (b"c", (1,))]


def test_a_join_follows_on_all_of_a_group() -> None:
    """Steps after one step run side by side."""
    flow = a_chain(("q", b"a"), a_group(*steps("bc")), ("q", b"d"))
    assert follows(flow) == [(b"a", ()), (b"b", (0,)), (b"c", (0,)), (b"d", (1, 2))]
    assert flow.plan.tails == (3,)


def test_groups_hold_chains() -> None:
    """Later steps wait for the ends of the chains; the starts wait for earlier steps."""
    flow = a_chain(("q", b"a"), a_group(a_chain(*steps("bc")), ("q", b"d"))).then(("q", b"e"))
    assert follows(flow) == [(b"a", ()), (b"b", (0,)), (b"c", (1,)), (b"d", (0,)), (b"e", (2, 3))]


def test_two_groups_in_a_row_are_tied_crosswise() -> None:
    """Each of the second group depends on all of the first."""
    flow = a_chain(a_group(*steps("ab")), a_group(*steps("cd")))
    assert follows(flow)[2:] == [(b"c", (0, 1)), (b"d", (0, 1))]


def test_then_leaves_the_flow_as_it_was() -> None:
    """It returns a new flow."""
    first = a_group(*steps("ab"))
    assert first.then(("q", b"c")).plan.steps[:2] == first.plan.steps
    assert len(first.plan.steps) == 2


Nested = st.recursive(
    st.just("step"),
    lambda inner: st.tuples(st.sampled_from(["chain", "group"]), st.lists(inner, min_size=1, max_size=3)),
    max_leaves=12,
)


@given(Nested)
def test_every_flow_is_in_an_order_in_which_it_can_be_stored(shape: Any) -> None:
    """No step depends on a later one, and there is a beginning and an end."""

    def made(part: Any) -> Any:
        if part == "step":
            return ("q", b"")
        return (a_chain if part[0] == "chain" else a_group)(*map(made, part[1]))

    flow = a_chain(made(shape))
    assert all(before < place for place, one in enumerate(flow.plan.steps) for before in one.follows)
    followed = {before for one in flow.plan.steps for before in one.follows}
    assert set(flow.plan.tails) == set(range(len(flow.plan.steps))) - followed
    assert [place for place, one in enumerate(flow.plan.steps) if not one.follows] == sorted(flow.plan.heads)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Step("q", b"", unique_key="u"), "unique_key"),
        (lambda: Step("q", b"", colour=1), "colour"),
        (lambda: Step("", b""), "queue"),
        (lambda: Step("q", b"", priority=1 << 31), "priority"),
        (lambda: Step("q", "text"), "data"),  # type: ignore[arg-type]
        (lambda: a_chain("q"), "parts"),
        (lambda: a_group(*steps("a" * 101)).then(("q", b"")), "depends"),
        (lambda: a_group(*steps("a" * 10_001)), "parts"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_written(make: Any, field: str) -> None:
    """The error comes before anything is sent."""
    with pytest.raises(BadRequest) as refused:
        make()
    assert refused.value.field == field


@played
async def test_a_flow_is_stored_with_its_dependencies(network: SimulatedNetwork, peer: FakePeer) -> None:
    """Equal parallel steps are one run; each header has the tasks on which it depends."""
    async with client_of(network) as client:
        middle = client.group(*(Step("mid", b"%d" % n, priority=2) for n in range(3)))
        flow = client.chain(Step("a", b"in", depends=[OUTSIDE]), middle, Step("z", b"out", ordering_key="k"))
        stored = await flow.enqueue()
    runs = [run for args in peer.arguments("enqueue") for run in args["runs"]]
    headers = [task_header(run[1])[0] for run in runs]
    assert [unpack_task(run[1]).all_payloads() for run in runs] == [[b"in"], [b"0", b"1", b"2"], [b"out"]]
    first, last = stored.ids[0], stored.ids[-1]
    assert headers[0] == {"depends": [OUTSIDE], "queue": "a"}
    assert headers[1] == {"depends": [first], "priority": 2, "queue": "mid"}
    assert headers[2] == {"depends": list(stored.ids[1:4]), "ordering_key": "k", "queue": "z"}
    assert stored == Enqueued(stored.ids, (last,))
    assert [task_id for run in runs for task_id in ids_of(run[0], task_header(run[1])[1])] == list(stored.ids)
    assert partition_of(last) == partition_of_keys("z", "k", PARTITIONS)


@played
async def test_a_flow_enqueued_again_is_the_same_tasks(cluster: FakeCluster, network: SimulatedNetwork) -> None:
    """After an error it can simply be repeated."""
    await cluster.start(network.host("a"), "a:1")
    async with client_of(network) as client:
        flow = client.chain(*steps("ab"))
        assert await flow.enqueue() == await flow.enqueue()
    assert len(cluster.tasks()) == 2
