"""A leader that does not know it was deposed can acknowledge nothing that its successor lacks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import trio

from log_entries import grant_claims, renew_claims, yield_partition
from onyxq.core.facts import pack_task, task_row
from onyxq.core.ids import Run, id_at, partition_of, stretch_of
from onyxq.core.replica import claim_of
from onyxq.errors import Behind, OnyxqError
from simulation.scenes.base import ONE, back, deposed, leader_of, misled_clients, promise_kept
from simulation.world.world import Options, World, simulate


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("isolated", [True, False])
def test_it_is_asked_to_complete_while_its_successor_grants(seed: int, isolated: bool) -> None:
    """Every acknowledged completion survives.

    Without contact to all but clients, it has no majority. Without contact to the log only, its cohort has
    promised another epoch and refuses its writes.
    """
    simulate(partial(misled_clients, isolated=isolated), seed=seed, options=ONE)


@pytest.mark.parametrize("seed", range(3))
def test_cut_off_from_the_log_while_a_follower_restarts(seed: int) -> None:
    """A promise survives its process: the old leader finds no majority with that follower."""
    simulate(promise_kept, seed=seed, options=ONE)


def test_once_it_has_heard_of_it_a_majority_is_read_instead() -> None:
    """It cannot read the log, but a node that refused its write reported the epoch: its own store is outdated."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            (task,) = await client.enqueue("q", [b"x"])
            old, new = await deposed(world, isolated=False)
            world.network.part([old.name], [new.name])
            async with world.client(nodes=[old]) as misled, world.client(nodes=[new]) as served:
                with pytest.raises(OnyxqError):
                    await misled.enqueue("q", [b"y"], timeout_ms=1_000)
                (claim,) = await served.claim("q", maximum=1, wait_ms=10_000)
                assert claim.id == task
                await served.complete(claim, b"done")
                assert old.running is not None and old.running.service is not None
                found = await old.running.service.call("get", {"id": task})
                assert (found["state"], found["result"]) == ("completed", b"done")
            await back(world, old)

    simulate(workload, seed=1, options=ONE)


def test_what_it_granted_before_it_was_deposed_holds_nothing_when_it_leads_again() -> None:
    """A grant is void under any epoch except its own, even if its writer leads again."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            (task,) = await client.enqueue("q", [b"x"])
            node = leader_of(world)
            stale = grant_claims.Grant("w", 60_000, (Run(task, 1),))
            epoch = first_epoch = world.audit.replica.partitions[0].epoch
            while epoch == first_epoch or leader_of(world) is not node:
                await give_way(world)
                epoch = world.audit.replica.partitions[0].epoch
            assert node.running is not None and node.running.node is not None
            _, verdicts = await node.running.node.verdicts([grant_claims.Args(0, first_epoch, (stale,))])
            assert verdicts == ["stale epoch"]
            (claim,) = await client.claim("q", wait_ms=5_000)
            await client.complete(claim)

    simulate(workload, seed=1, options=ONE)


def test_a_renewal_that_its_successor_makes_void_is_made_anew() -> None:
    """A renewal is acknowledged only once it is valid; the claim itself stays valid.

    Seed 516 of the standard workload found a worker with a wrong belief about it.
    """

    async def workload(world: World) -> None:
        async with world.client() as client:
            await client.enqueue("q", [b"x"])
            (claim,) = await client.claim("q", wait_ms=20_000, lease_ms=15_000)
            led_by = leader_of(world)
            assert led_by.running is not None and led_by.running.node is not None
            node = led_by.running.node
            submit, epoch = node.verdicts, world.audit.replica.partitions[0].epoch

            async def yield_before(entries: Sequence[Any]) -> tuple[int, Sequence[str]]:
                if isinstance(entries[0], renew_claims.Args):
                    monkeypatch.undo()
                    await submit([yield_partition.Args(0, epoch)])
                return await submit(entries)

            monkeypatch = pytest.MonkeyPatch()
            monkeypatch.setattr(node, "verdicts", yield_before)
            await client.renew(claim, 600_000)
            assert world.audit.replica.partitions[0].epoch > epoch
            held = claim_of(world.audit.replica, claim.id)
            assert held is not None and held[4] > world.audit.replica.log_time_ms + 500_000

    simulate(workload, seed=1, options=ONE)


def test_what_fails_before_its_successor_grants_is_tried_again_at_its_time() -> None:
    """The successor serves, and its slow disk has yet to store the records before. The failure is stored after that."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            await client.enqueue("q", [b"x"])
            (claim,) = await client.claim("q", wait_ms=5_000, lease_ms=60_000)
            for node in world.nodes:
                node.disk.delay_ms = lambda: 500
            await give_way(world)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.fail, claim, "not yet", 60_000)
                assert not await client.claim("q", wait_ms=3_000)
            for node in world.nodes:
                node.disk.delay_ms = lambda: 1

    simulate(workload, seed=1, options=ONE)


async def give_way(world: World) -> None:
    """Let the leader yield; return once the next one serves."""
    placed = world.audit.replica.partitions[0]
    node = leader_of(world)
    assert node.running is not None and node.running.node is not None
    await node.running.node.verdicts([yield_partition.Args(0, placed.epoch)])
    await world.until(
        lambda: (part := world.audit.replica.partitions[0]).ready and part.epoch > placed.epoch, "another leader"
    )


def test_a_node_takes_no_rows_of_an_epoch_that_it_has_not_promised() -> None:
    """It answers `Behind` to writes and to copies, stores nothing, and its promise is unchanged."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            (task,) = await client.enqueue("q", [b"x"])
        follower = next(node for node in world.nodes if node is not leader_of(world))
        assert follower.running is not None and follower.running.service is not None
        methods, epoch = follower.running.service.peer_methods, world.audit.replica.partitions[0].epoch
        row = task_row(id_at(stretch_of(task), 1023), pack_task({"queue": "q"}, [b"not promised"]))
        (answer,) = await methods["cohort.write"]({"writes": [[0, epoch + 1, [list(row)]]]})
        assert answer["code"] == Behind.code
        with pytest.raises(Behind):
            await methods["cohort.push"]({"partition": 0, "epoch": epoch + 1, "rows": [list(row)]})
        assert row.key not in follower.disk.row_keys()
        async with world.client() as client:
            await client.enqueue("q", [b"y"])  # under the present epoch

    simulate(workload, seed=1, options=ONE)


def test_failures_of_other_partitions_count_if_a_leader_is_deposed_while_tracebacks_are_written() -> None:
    """The request answers for the tasks of the lost partition alone that their outcome is unknown."""

    async def workload(world: World) -> None:
        async with world.client() as client:
            for number in range(24):
                await client.enqueue("q", [b"%d" % number])
            claims = await client.claim("q", maximum=24, wait_ms=10_000, lease_ms=60_000)
            led = {number: placed.leader for number, placed in world.audit.replica.partitions.items()}
            node = next(one for one in world.nodes if list(led.values()).count(one.peer_id) > 1)
            lost, kept = [number for number, leader in led.items() if leader == node.peer_id][:2]
            held = {partition_of(claim.id): claim for claim in claims}
            items = [[held[one].id, 1, held[one].token, "broken", 0, "a traceback"] for one in (lost, kept)]
            answers: list[Any] = []

            async def fail() -> None:
                answers.append(await client.client.call("fail", {"items": items}))

            for one in world.nodes:
                one.disk.delay_ms = lambda: 1_500
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail)
                await trio.sleep(0.5)
                assert node.inner is not None
                await node.inner.verdicts([yield_partition.Args(lost, world.audit.replica.partitions[lost].epoch)])
                for one in world.nodes:
                    one.disk.delay_ms = lambda: 0
            ((first, _, error),), others = answers[0]["results"]
            assert (first, error["code"], others) == (held[lost].id, "unknown", [])
            assert claim_of(world.audit.replica, held[kept].id) is None

    simulate(workload, seed=1, options=Options(nodes=2, partitions=3, clock_offset_ms=0))
