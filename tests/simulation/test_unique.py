"""Unique keys on a whole cluster: a key has one current task, and repeats return it."""

from __future__ import annotations

import trio

from simulation.world.clients import RecordingClient
from simulation.world.world import World
from tests.simulation.scheduled import STEADY, Tasks
from tests.simulation.simulated import simulated


@simulated(seed=1, options=STEADY)
async def test_a_repeat_before_the_first_grant_replaces_the_data(tasks: Tasks) -> None:
    """The current task keeps its id and is granted with the newest data."""
    runs = [tasks.run(data, unique_key="u") for data in (b"one", b"two", b"three")]
    acks = [(await tasks.send([run]))[0] for run in runs]
    assert [(ack[1], ack[2]) for ack in acks] == [
        (runs[0][0], "new"),
        (runs[0][0], "replaced"),
        (runs[0][0], "replaced"),
    ]
    assert (await tasks.get(runs[0][0]))["data"] == b"three"
    claim = await tasks.take()
    assert claim is not None and (claim.id, claim.data) == (runs[0][0], b"three")
    assert await tasks.take(wait_ms=500) is None


@simulated(seed=1, options=STEADY)
async def test_a_repeat_after_the_first_grant_changes_nothing(client: RecordingClient, tasks: Tasks) -> None:
    """This holds while it is claimed, before a retry, and once it is done."""
    task_id = await tasks.put(b"one", unique_key="u", unique_until="purged", backoff_ms=0)
    claim = await tasks.take()
    assert claim is not None
    assert (await tasks.send([tasks.run(b"two", unique_key="u")]))[0][1:] == [task_id, "exists"]
    await client.fail(claim, "again")
    assert (await tasks.send([tasks.run(b"two", unique_key="u")]))[0][1:] == [task_id, "exists"]
    claim = await tasks.take()
    assert claim is not None and claim.data == b"one"
    await tasks.done(claim)
    assert (await tasks.send([tasks.run(b"two", unique_key="u")]))[0][1:] == [task_id, "exists"]
    assert await tasks.take(wait_ms=500) is None


@simulated(seed=1, options=STEADY)
async def test_the_repeat_of_an_enqueue_that_changed_a_task_is_no_new_task(tasks: Tasks) -> None:
    """The answer is the same while the task runs, and after it has ended and its key is free."""
    task_id = await tasks.put(b"one", unique_key="u")
    run = tasks.run(b"two", unique_key="u")
    for _ in range(2):
        assert (await tasks.send([run]))[0][1:] == [task_id, "replaced"]
    claim = await tasks.take()
    assert claim is not None and claim.data == b"two"
    assert (await tasks.send([run]))[0][1:] == [task_id, "replaced"]
    await tasks.done(claim)
    assert (await tasks.send([run]))[0][1:] == [task_id, "replaced"]
    assert await tasks.take(wait_ms=500) is None
    other = tasks.run(b"three", unique_key="u")
    assert (await tasks.send([other]))[0][1:] == [other[0], "new"]


@simulated(seed=1, options=STEADY)
async def test_repeats_in_one_request_and_at_the_same_time_make_one_task(world: World) -> None:
    """The first task is the current one, and all requests get its id."""
    async with world.client() as client, world.client() as other:
        stood: list[bytes] = []

        async def put(tasks: Tasks) -> None:
            acks = await tasks.send([tasks.run(b"%d" % number, unique_key="u") for number in range(5)])
            stood.extend(ack[1] for ack in acks)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(put, Tasks(world, client))
            nursery.start_soon(put, Tasks(world, other))
        assert len(stood) == 10 and len(set(stood)) == 1
        assert len(await client.claim("q", maximum=10)) == 1
        assert (await client.client.count("q"))["q"]["total"] == 1


@simulated(seed=2, options=STEADY)
async def test_the_task_that_stands_is_the_same_after_its_leader_is_killed(world: World, tasks: Tasks) -> None:
    """A repeat at the next leader finds it."""
    stood = {key: await tasks.put(b"x", unique_key=key) for key in ("u", "v", "w")}
    for node in world.nodes[:2]:
        await world.crash_node(node)
        for key, task_id in stood.items():
            assert await tasks.put(b"y", unique_key=key) == task_id
        await world.bring_back(node)
    taken = [await tasks.take() for _ in stood]
    assert {claim.id: claim.data for claim in taken if claim} == dict.fromkeys(stood.values(), b"y")
    assert await tasks.take(wait_ms=500) is None


@simulated(seed=1, options=STEADY)
async def test_a_repeat_does_what_it_chose_to_the_waiting_task(tasks: Tasks) -> None:
    """It keeps it, moves its due time, replaces data and priority, or is refused with the id of that task."""
    task_id = await tasks.put(b"one", unique_key="u", delay_ms=500)
    for choice, outcome, data in (("keep", "exists", b"one"), ("extend", "extended", b"one")):
        run = tasks.run(b"two", unique_key="u", on_conflict=choice, delay_ms=60_000)
        assert (await tasks.send([run]))[0][1:] == [task_id, outcome]
        assert (await tasks.get(task_id))["data"] == data
    assert await tasks.take(wait_ms=2_000) is None
    (refused,) = await tasks.send([tasks.run(b"three", unique_key="u", on_conflict="refuse")])
    assert (refused["code"], refused["field"]) == ("key_taken", "runs[0].unique_key")
    assert refused["details"] == [[task_id.hex()]]
    assert (await tasks.send([tasks.run(b"four", unique_key="u", priority=3)]))[0][1:] == [task_id, "replaced"]
    found = await tasks.get(task_id)
    assert (found["data"], found["priority"], found["state"]) == (b"four", 3, "ready")
    claim = await tasks.take()
    assert claim is not None and (claim.id, claim.data) == (task_id, b"four")


@simulated(seed=1, options=STEADY)
async def test_a_key_is_free_from_the_moment_that_its_task_names(tasks: Tasks) -> None:
    """Once the task has started, or once it has ended."""
    early = await tasks.put(b"a", unique_key="early", unique_until="started")
    late = await tasks.put(b"b", unique_key="late")
    claims = [await tasks.take(), await tasks.take()]
    assert {claim.id for claim in claims if claim} == {early, late}
    assert await tasks.put(b"c", unique_key="early", unique_until="started") != early
    assert await tasks.put(b"d", unique_key="late") == late
    for claim in claims:
        assert claim is not None
        await tasks.done(claim)
    assert await tasks.put(b"e", unique_key="late") != late
    assert (await tasks.get(late))["state"] == "completed"
