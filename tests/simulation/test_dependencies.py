"""Dependencies on a whole cluster: tasks that run when others in any partition are done."""

from __future__ import annotations

import pytest
import trio

from onyxq.core.ids import make_id, partition_of
from onyxq.errors import BadRequest
from onyxq.leader.dependencies import LOOK_EVERY_S
from simulation.world.clients import RecordingClient
from simulation.world.world import World, simulate
from tests.simulation.scheduled import STEADY, Tasks
from tests.simulation.simulated import simulated


async def finish(tasks: Tasks, wanted: bytes, *, fail: bool = False) -> None:
    """Claim the only task and end it."""
    claim = await tasks.take(wait_ms=15_000)
    assert claim is not None and claim.data == wanted
    if fail:
        await tasks.client.fail(claim, "broken")
    else:
        await tasks.done(claim)


@simulated(seed=1, options=STEADY)
async def test_a_task_waits_for_all_that_it_depends_on(client: RecordingClient, tasks: Tasks) -> None:
    """They may be in any partition; soon after the last is done, the task is ready."""
    first = [await tasks.put(b"first") for _ in range(4)]
    last = await tasks.put(b"last", depends=first)
    for _ in first:
        assert await tasks.state(last) == "waiting"
        assert (await client.client.count("q"))["q"]["waiting"] == 1
        await finish(tasks, b"first")
    done_s = trio.current_time()
    await finish(tasks, b"last")
    assert trio.current_time() - done_s < 0.5
    assert (await tasks.get(last))["depends"] == first


@simulated(seed=1, options=STEADY)
async def test_a_completion_counts_for_others_once_a_majority_has_what_its_leader_found(
    world: World, tasks: Tasks
) -> None:
    """Otherwise only a new leader may have it, and may be lost a moment later."""
    first = await tasks.put(b"first")
    last = await tasks.put(b"last", depends=[first])
    led = [node.running.node.leaders for node in world.nodes if node.running and node.running.node]
    (leader,) = (found[partition_of(first)] for found in led if partition_of(first) in found)
    assert leader.backed
    leader.backed = False
    await finish(tasks, b"first")
    await trio.sleep(LOOK_EVERY_S + 1)
    assert not leader.backed and await tasks.state(last) == "waiting"
    leader.backed = True
    await finish(tasks, b"last")


@simulated(seed=1, options=STEADY)
async def test_a_task_whose_dependencies_are_done_already_is_ready_at_once(tasks: Tasks) -> None:
    """The check at its enqueue finds nothing to wait for."""
    first = await tasks.put(b"first")
    await finish(tasks, b"first")
    last = await tasks.put(b"last", depends=[first])
    assert await tasks.state(last) == "ready"
    await finish(tasks, b"last")


@simulated(seed=1, options=STEADY)
async def test_a_dependency_that_does_not_exist_is_refused_by_name(client: RecordingClient, tasks: Tasks) -> None:
    """Nothing is stored, and the error names run and field."""
    nothing = make_id(tasks.now_ms(), 1, 77, 0)
    runs = [tasks.run(b"fine"), tasks.run(b"bad", depends=[nothing])]
    good, bad = await tasks.send(runs)
    assert good >= 2 and (bad["code"], bad["field"]) == ("bad_request", "runs[1].depends")
    assert (await client.client.count("q"))["q"]["total"] == 1


@simulated(seed=1, options=STEADY)
async def test_a_whole_graph_goes_in_one_request_whatever_its_order(tasks: Tasks) -> None:
    """Runs may depend on later ones of the request; a circle is refused."""
    ids = [tasks.make_id({"queue": "q"}) for _ in range(4)]
    a, b, c, d = ids
    runs = [
        tasks.run(b"d", task_id=d, depends=[b, c]),
        tasks.run(b"c", task_id=c, depends=[a]),
        tasks.run(b"b", task_id=b, depends=[a]),
        tasks.run(b"a", task_id=a),
    ]
    assert all(ack in (2, 3) for ack in await tasks.send(runs))
    await finish(tasks, b"a")
    middle = [await tasks.take(), await tasks.take()]
    assert {claim.data for claim in middle if claim} == {b"b", b"c"}
    for claim in middle:
        assert claim is not None
        assert await tasks.state(d) == "waiting"
        await tasks.done(claim)
    await finish(tasks, b"d")
    e, f = (tasks.make_id({"queue": "q"}) for _ in range(2))
    with pytest.raises(BadRequest) as caught:
        await tasks.send([tasks.run(b"e", task_id=e, depends=[f]), tasks.run(b"f", task_id=f, depends=[e])])
    assert caught.value.field == "runs[0].depends"


@pytest.mark.parametrize(
    ("policy", "state", "reason"), [("fail", "failed", "failed"), ("cancel", "cancelled", None), ("run", "ready", None)]
)
def test_a_failed_dependency_ends_what_depends_on_it_as_its_policy_says(
    policy: str, state: str, reason: str | None
) -> None:
    """By default the task fails too, with the reason, and so on along the chain."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            tasks = Tasks(world, client)
            first = await tasks.put(b"first", retries=0)
            second = await tasks.put(b"second", depends=[first], on_dependency_failed=policy)
            third = await tasks.put(b"third", depends=[second])
            await finish(tasks, b"first", fail=True)
            await trio.sleep(1)
            found = await tasks.get(second)
            assert found["state"] == state
            if reason:
                assert first.hex() in found["error"] and reason in found["error"]
                assert await tasks.state(third) == "failed"
            elif policy == "cancel":
                assert await tasks.state(third) == "failed"
            else:
                await finish(tasks, b"second")
                await finish(tasks, b"third")

    simulate(workload, seed=1, options=STEADY)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
@simulated(options=STEADY)
async def test_waiting_tasks_are_found_again_by_the_next_leaders(world: World, tasks: Tasks, seed: int) -> None:
    """Nodes are killed in turn while a chain is processed."""
    ids = [await tasks.put(b"0")]
    for number in range(1, 6):
        ids.append(await tasks.put(b"%d" % number, depends=ids[-1:]))
    for number in range(6):
        node = world.nodes[number % 3]
        await world.crash_node(node)
        claim = None
        while claim is None:
            claim = await tasks.take(wait_ms=20_000)
        assert claim.data == b"%d" % number
        await tasks.done(claim)
        await world.bring_back(node)
    assert [await tasks.state(one) for one in ids] == ["completed"] * 6


@simulated(seed=1, options=STEADY)
async def test_a_task_comes_behind_those_of_its_key_that_it_depends_on(tasks: Tasks) -> None:
    """This holds for any due time: before them it could not run, nor could any other task of the key."""
    late = await tasks.put(b"late", ordering_key="k", delay_ms=8_000)
    early = await tasks.put(b"early", ordering_key="k", delay_ms=2_000)
    await tasks.put(b"now, after late", ordering_key="k", depends=[early, late])
    await tasks.put(b"soon, after late", ordering_key="k", depends=[late], delay_ms=1_000)
    await tasks.put(b"now", ordering_key="k")
    for wanted in (b"now", b"early", b"late", b"now, after late", b"soon, after late"):
        await finish(tasks, wanted)


@simulated(seed=1, options=STEADY)
async def test_a_transaction_orders_tasks_that_depend_on_others_of_their_key(
    client: RecordingClient, tasks: Tasks
) -> None:
    """This includes tasks of the transaction and earlier ones."""
    before = await tasks.put(b"before", ordering_key="k", delay_ms=5_000)
    own = tasks.run(b"own", ordering_key="k", delay_ms=8_000)
    last = tasks.run(b"last", ordering_key="k", depends=sorted([before, own[0]]))
    await client.client.call("transact", {"name": "n", "enqueue": [own, last]})
    for wanted in (b"before", b"own", b"last"):
        await finish(tasks, wanted)
