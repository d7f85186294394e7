"""Scenes about transactions: who coordinates or leads dies, lags or hands over at a bad time (design: simulation)."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from log_entries import commit_transaction, drain_node
from onyxq.client.claims import Claim
from onyxq.core.facts import pack_task
from onyxq.core.ids import TaskId, make_id
from onyxq.core.transactions import Part
from onyxq.leader.transaction_parts import PartRequest
from simulation.scenes.base import PROMPT_S, Scene, by_name, leader_of, slow_steps, soon, successor_of
from simulation.scenes.rules import finished, working
from simulation.world.clients import RecordingClient, tried
from simulation.world.history import Transacted
from simulation.world.workload import always
from simulation.world.world import Options, SimulatedNode, World

COMMIT_S = 0.12
"""Longest time after the beginning of a transaction at which something dies."""
DEADLINE_MS = 600_000
INPUTS = 8
GIVE_BACK_S = 0.03
"""Longest time after the beginning of a transaction at which what it is to complete is given back."""
SOON_S = 30.0
"""Within this what was given back is worked off, where nothing dies."""
LAG_S = 350.0
"""More than a transaction has to be committed in, although a late reader holds log time back."""


async def try_to_move(
    world: World, client: RecordingClient, claims: list[Claim], number: int, *, timeout_ms: int = 12_000
) -> bool:
    """Complete claims and enqueue what they become; return whether that was acknowledged."""
    said = b"by move %d" % number
    moved = await tried(
        client.transact(
            complete=[(claim, said) for claim in claims],
            enqueue=[("out", b"%s, %d" % (said, place)) for place in range(3)],
            timeout_ms=timeout_ms,
            insist=world.random.random() < 0.5,
        )
    )
    return moved is not None


async def move_all(world: World, client: RecordingClient, *, number: int = 1_000_000) -> None:
    """Move what is left of the inputs, one transaction for each."""
    while claims := await client.claim("in", maximum=10, lease_ms=60_000, wait_ms=12_000):
        for claim in claims:
            number += 1
            await try_to_move(world, client, [claim], number)


async def _inputs(client: RecordingClient, count: int, *, lease_ms: int = 60_000) -> list[Claim]:
    """Claimed inputs; each enqueue goes to another partition."""
    for number in range(count):
        await client.enqueue("in", [b"input %d" % number], retries=None, backoff_ms=100)
    claims: list[Claim] = []
    while len(claims) < count:
        claims += await client.claim("in", maximum=count, lease_ms=lease_ms, wait_ms=5_000)
    return claims


# --- deaths -----------------------------------------------------------------------------------


async def dying(world: World) -> None:
    """One process after the other, or all, die some milliseconds into a transaction."""
    async with world.client() as client:
        claims = await _inputs(client, 24)
        for number in range(12):
            mine = [claims.pop(), claims.pop()]
            nodes = list(world.nodes) if world.random.random() < 0.2 else [world.random.choice(world.nodes)]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(try_to_move, world, client, mine, number)
                await trio.sleep(world.random.uniform(0, COMMIT_S))
                for node in nodes:
                    await world.crash_node(node)
                await trio.sleep(world.random.choice((0.0, 1.0, 8.0)))
                for node in nodes:
                    world.start_node(node)
            await world.settle()
        await move_all(world, client)


async def _committed(world: World, before: int, *, within_s: float = 3.0) -> None:
    """Return when more transactions are committed, or when the time is over."""
    await soon(lambda: len(world.audit.all_or_nothing.committed) != before, within_s=within_s)


async def dead_leaders(world: World) -> None:
    """The leaders of a transaction's parts die as soon as it is committed, before it is visible."""
    async with world.client() as client:
        claims = await _inputs(client, 12)
        for number in range(6):
            before = len(world.audit.all_or_nothing.committed)
            mine = [claims.pop(), claims.pop()]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(try_to_move, world, client, mine, number)
                await _committed(world, before, within_s=5.0)
                await trio.sleep(world.random.choice((0.0, 0.0, 0.005, 0.02)))
                victims = {node.name: node for claim in mine if (node := _leader(world, claim.id)) is not None}
                for node in victims.values():
                    await world.crash_node(node)
                await trio.sleep(world.random.choice((0.0, 7.0)))
                for node in victims.values():
                    world.start_node(node)
            await world.settle()
        await move_all(world, client)


def _leader(world: World, task_id: TaskId) -> SimulatedNode | None:
    peer = world.audit.replica.partitions[int.from_bytes(task_id[6:8], "big")].leader
    return next((node for node in world.nodes if node.peer_id == peer and node.running is not None), None)


# --- time -------------------------------------------------------------------------------------


async def log_away(world: World) -> None:
    """The log goes away when a transaction is prepared, for longer than nodes look for what is over."""
    async with world.client() as client:
        claims = await _inputs(client, 8)
        for number in range(4):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(try_to_move, world, client, [claims.pop(), claims.pop()], number)
                await soon(lambda: bool(world.pending()))
                world.log_down()
                await trio.sleep(world.random.uniform(6, 12))
                world.log_up()
            await world.settle()
        await move_all(world, client)


async def _others_write(world: World, late: SimulatedNode, seconds: float) -> None:
    """Log time passes by records of the other nodes; ``late`` cannot measure it without reading."""
    until = trio.current_time() + seconds
    while trio.current_time() < until:
        for node in world.nodes:
            if node is not late and node.inner is not None and node.inner.outbox is not None:
                node.inner.outbox.submit_empty()
        await trio.sleep(1.0)


async def lagging(world: World) -> None:
    """Who leads and coordinates has not read the log for longer than a transaction may take."""
    async with world.client() as client:
        await _inputs(client, 2, lease_ms=600_000)
        late = leader_of(world)
        session = late.log.session_now
        assert session is not None
        session.paused = True
        await _others_write(world, late, LAG_S)
        async with world.client(nodes=[late]) as misled, trio.open_nursery() as nursery:
            nursery.start_soon(_move_requiring, misled, [], [], 0)
            await soon(lambda: bool(world.pending()))
            # Between prepare and commit the others find that what is pending is over.
            world.disconnect_log(late)
            await trio.sleep(5.6)
            world.reconnect_log(late)
            await trio.sleep(3)
        await world.crash_node(late)
        session.paused = False
        await trio.sleep(8)
        await world.until(lambda: not world.audit.replica.transactions, "nothing that only one node has is committed")
        await world.bring_back(late)


async def late_commits(world: World) -> None:
    """Who coordinates cannot write its commits until the claims have run out and others hold the tasks."""
    async with world.client() as client, world.client() as other:
        for number in range(5):
            leader = leader_of(world)
            late = world.random.choice([node for node in world.nodes if node is not leader])
            async with world.client(nodes=[late]) as misled:
                await client.enqueue("in", [b"%d, %d" % (number, place) for place in range(2)], backoff_ms=0)
                mine, required = list(await client.claim("in", maximum=2, lease_ms=1_000, wait_ms=5_000))
                again = world.random.random() < 0.5
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_move_requiring, misled, [] if again else [mine], [required], number)
                    await soon(lambda: bool(world.pending()))
                    world.disconnect_log(late)
                    if again:
                        await client.renew(mine, 30_000)
                    nursery.start_soon(_ask_for_inputs, other)
                    await trio.sleep(world.random.uniform(2.5, 4.5))
                    world.reconnect_log(late)
            await world.settle()
        await move_all(world, client)


async def _move_requiring(client: RecordingClient, claims: list[Claim], required: list[Claim], number: int) -> None:
    said = b"by move %d" % number
    await tried(
        client.transact(
            complete=[(claim, said) for claim in claims],
            enqueue=[("out", b"%s, 0" % said)],
            require=required,
            timeout_ms=3_000,
        )
    )


async def asked_twice(world: World) -> None:
    """The same transaction reaches two nodes; one can write its commit only when all is over."""
    async with world.client() as client:
        await client.client.make_ids(1)
        for number in range(4):
            early, late = world.random.sample(world.nodes, 2)
            async with world.client(nodes=[late]) as slow, world.client(nodes=[early]) as fast:
                args = _new_tasks(world, client, number)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_send, slow, args)
                    await soon(lambda: bool(world.pending()))
                    world.disconnect_log(late)
                    await _send(fast, args)
                    await trio.sleep(world.random.uniform(0, 3))
                    world.reconnect_log(late)
            await world.settle()


def _new_tasks(world: World, client: RecordingClient, number: int) -> dict[str, object]:
    """A transaction that enqueues something, as it is sent; its outcome is not noted, so the log alone tells."""
    payloads = [b"twice %d, %d" % (number, place) for place in range(2)]
    noted = Transacted(f"twice {number}", {}, tuple(payloads))
    world.history.transactions[noted.name] = noted
    for payload in payloads:
        world.history.payloads[payload] = 1
        world.history.transaction_of[payload] = noted
    transaction = client.client.transaction(noted.name)
    transaction.enqueue_many("out", payloads)
    return transaction._arguments(client.client._enqueuer, world.options.partitions)


async def _send(client: RecordingClient, args: dict[str, object]) -> None:
    await tried(client.client.call("transact", args, timeout_ms=12_000))


async def slow_to_see(world: World) -> None:
    """What is committed cannot be made visible for longer than the claims' leases, and others wait for the tasks."""
    async with world.client() as client, world.client() as other:
        for number in range(4):
            claims = await _inputs_of(client, number)
            before = len(world.audit.all_or_nothing.committed)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(try_to_move, world, client, claims, number)
                await _committed(world, before)
                world.isolate(leader_of(world))
                nursery.start_soon(_ask_for_inputs, other)
                await trio.sleep(world.random.uniform(2.5, 4.5))
                world.network.heal()
            await world.settle()
        await move_all(world, client)


async def _inputs_of(client: RecordingClient, number: int) -> list[Claim]:
    await client.enqueue("in", [b"input %d" % number], retries=None, backoff_ms=0)
    return list(await client.claim("in", maximum=1, lease_ms=1_000, wait_ms=5_000))


async def _ask_for_inputs(client: RecordingClient) -> None:
    for _ in range(6):
        await tried(client.claim("in", maximum=1, lease_ms=1_500, wait_ms=1_500))


# --- copies -----------------------------------------------------------------------------------


async def handed_over(world: World) -> None:
    """Between prepare and commit the partition's nodes go for good, one by one: others have what is pending."""
    async with world.client() as client:
        await client.enqueue("q", [b"first"])
        leader = leader_of(world)
        placed = world.audit.replica.partitions[0]
        members = [node for node in world.nodes if node.node_id in placed.members]
        missing = world.random.choice([node for node in members if node is not leader])
        world.isolate(missing)
        await trio.sleep(PROMPT_S)
        commit = await _prepare_here(world, leader)
        gone = [leader, *(node for node in members if node not in (leader, missing))]
        for node in gone:
            await world.crash_node(node)
            world.network.heal()
            await world.until(
                lambda node=node: node.known_id not in world.audit.replica.partitions[0].members,  # type: ignore[misc]
                "another takes its place",
                within_s=60,
            )
        survivor = leader_of(world).inner
        assert survivor is not None
        await survivor.verdicts([commit])
        await world.until(lambda: not world.audit.replica.transactions, "it is visible", within_s=60)
        for node in gone:
            await world.bring_back(node)


async def drained_meanwhile(world: World) -> None:
    """Between prepare and commit the nodes that have the part drain. The heir fetches it after it made new copies."""
    async with world.client() as client:
        await client.enqueue("q", [b"first"])
        leader = leader_of(world)
        placed = world.audit.replica.partitions[0]
        members = [node for node in world.nodes if node.node_id in placed.members]
        heir = world.random.choice([node for node in members if node is not leader])
        going = [node for node in members if node is not heir]
        peer, going_ids = heir.peer_id, [node.node_id for node in going]
        world.isolate(heir)
        await trio.sleep(PROMPT_S)
        commit = await _prepare_here(world, leader)
        world.network.heal()
        world.network.part([heir.name], [node.name for node in going])
        assert leader.inner is not None
        await leader.inner.verdicts([drain_node.Args(node_id, permanent=False) for node_id in going_ids])
        await world.until(lambda: _copies(heir) == len(members), "the heir has made new copies")
        world.network.heal()
        await world.until(lambda: _are_gone(world, going_ids), "the partition has moved", within_s=60)
        await world.crash_node(heir)
        survivor = (await successor_of(world, peer)).inner
        assert survivor is not None
        await survivor.verdicts([commit])
        await world.until(lambda: not world.audit.replica.transactions, "it is visible", within_s=60)
        for node in going:
            await world.stop_node(node)
        for node in (heir, *going):
            await world.bring_back(node)


def _copies(node: SimulatedNode) -> int:
    """How many copies of partition 0 are complete, as far as a node knows that leads it."""
    leader = node.inner.leaders.get(0) if node.inner is not None else None
    return len(leader.current) if leader is not None else 0


def _are_gone(world: World, node_ids: Sequence[str]) -> bool:
    """Whether none of some nodes is a member of partition 0."""
    return not {*node_ids} & {*world.audit.replica.partitions[0].members}


async def _prepare_here(world: World, node: SimulatedNode) -> commit_transaction.Args:
    """Have a leader keep a part, as a coordinator asks for it that then dies; the commit that would be next."""
    inner = node.inner
    assert inner is not None
    name, payload = "left behind", b"left behind, 0"
    noted = Transacted(name, {}, (payload,))
    world.history.transactions[name] = noted
    world.history.payloads[payload] = 1
    world.history.transaction_of[payload] = noted
    deadline_ms = inner.replica.log_time_ms + DEADLINE_MS
    first = make_id(inner.wall_ms(), 0, 0xBEEF, 0)
    item = ["T", first, pack_task({"queue": "out"}, [payload]), None]
    (answer,) = await inner.operations.transaction_parts.prepare([PartRequest(name, deadline_ms, 0, [item], [])])
    return commit_transaction.Args(name, deadline_ms, (), (), (Part(0, *answer),))


async def given_back_meanwhile(world: World) -> None:
    """Inputs are given back while they are about to be moved; others look for some all the time."""
    async with world.client() as client, world.client() as other:
        for number in range(4):
            await _give_back_meanwhile(world, client, other, number)


async def _give_back_meanwhile(world: World, client: RecordingClient, other: RecordingClient, number: int) -> None:
    claims = await _inputs(client, INPUTS)

    async def give_back(claim: Claim) -> None:
        await trio.sleep(world.random.uniform(0, GIVE_BACK_S))
        await tried(client.release(claim, timeout_ms=5_000))

    async with working(other, queue="in", pause_s=0.005):
        async with trio.open_nursery() as holders:
            for place, claim in enumerate(claims):
                holders.start_soon(try_to_move, world, client, [claim], INPUTS * number + place)
                holders.start_soon(give_back, claim)
        await finished(client, SOON_S, queue="in")


# --- the table --------------------------------------------------------------------------------


_FIVE = always(Options(nodes=5, partitions=1, clock_offset_ms=0, absent_after_ms=4_000, network_delay_ms=2))

TRANSACTION_SCENES = by_name(
    Scene("dying", "processes die in the middle of transactions", dying, slow_steps),
    Scene("dead_leaders", "leaders die before what was committed can be seen", dead_leaders, slow_steps),
    Scene("log_away", "the log goes between prepare and commit", log_away, slow_steps),
    Scene("lagging", "who coordinates has not read the log for long", lagging),
    Scene("late_commits", "a commit is written when its claims have run out", late_commits),
    Scene("asked_twice", "a transaction is coordinated by two nodes", asked_twice, slow_steps),
    Scene("slow_to_see", "what is committed cannot be seen before the leases end", slow_to_see),
    Scene("given_back_meanwhile", "what a transaction completes is given back", given_back_meanwhile, slow_steps),
    Scene("handed_over", "a partition's nodes go between prepare and commit", handed_over, _FIVE),
    Scene("drained_meanwhile", "nodes drain between prepare and commit", drained_meanwhile, _FIVE),
)
