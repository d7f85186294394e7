"""Scenes: each is the shortest way into a situation in which something broke, or might break.

A scene is a documented value. Its script runs in a cluster that serves, and the checkers judge the run. Storms of
faults (`simulation.world.faults`) reach the same situations, but seldom.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TypeAlias

import trio
from attrs import evolve, frozen

from onyxq.client.claims import Claim
from onyxq.core.errors import OnyxqError
from onyxq.core.remembered import PEER_MS
from simulation.checkers import Broken
from simulation.world.clients import RecordingClient, tried
from simulation.world.faults import collection
from simulation.world.workload import Draw, Workload, always
from simulation.world.world import Options, Script, SimulatedNode, World

Cut: TypeAlias = Callable[[], None]
ONE = Options(partitions=1, clock_offset_ms=0, absent_after_ms=600_000)
PROMPT_S = 0.5
"""A waiting claimer of a cluster without faults is answered within this time of the enqueue."""


@frozen
class Scene:
    """One situation; ``options`` draws the cluster that it needs."""

    name: str
    about: str
    script: Script
    options: Callable[[Draw], Options] = lambda draw: ONE

    @property
    def workload(self) -> Workload:
        """The workload that plays it."""
        return Workload(self.name, self.about, lambda draw: (self.script, self.options(draw)))


def by_name(*scenes: Scene) -> Mapping[str, Scene]:
    """Return scenes by name."""
    return {scene.name: scene for scene in scenes}


def slow_steps(draw: Draw) -> Options:
    """Three nodes and a few partitions; everything takes its time, so that a death finds something under way."""
    return Options(
        partitions=draw.choice((2, 4)),
        clock_offset_ms=0,
        absent_after_ms=600_000,
        append_delay_ms=(4, 12),
        disk_delay_ms=(2, 10),
        network_delay_ms=2,
    )


def leader_of(world: World, number: int = 0) -> SimulatedNode:
    """The node that leads a partition, as the log says."""
    leader = world.audit.replica.partitions[number].leader
    return next(node for node in world.nodes if node.peer_id == leader)


async def deposed(world: World, *, isolated: bool = True) -> tuple[SimulatedNode, SimulatedNode]:
    """Cut partition 0's leader off; it and its successor, once that one serves."""
    old = cut_off(world, isolated=isolated)
    return old, await successor(world, old)


def cut_off(world: World, *, isolated: bool = True) -> SimulatedNode:
    """Cut partition 0's leader off from the log (and all nodes); it, as long as it does not know."""
    old = leader_of(world)
    if isolated:
        world.isolate(old)
    world.disconnect_log(old)
    return old


async def successor(world: World, old: SimulatedNode) -> SimulatedNode:
    """Who leads partition 0 after ``old``, once it serves."""
    return await successor_of(world, old.peer_id)


async def successor_of(world: World, peer: str) -> SimulatedNode:
    """Who leads partition 0 after a peer, once it serves."""
    await world.until(
        lambda: (part := world.audit.replica.partitions[0]).ready and part.leader not in ("", peer),
        f"a successor of {peer}",
        within_s=20,
    )
    return leader_of(world)


async def back(world: World, node: SimulatedNode) -> None:
    """Undo `cut_off`."""
    world.network.heal()
    world.reconnect_log(node)
    await world.settle()


async def try_to_complete(client: RecordingClient, claims: Sequence[Claim]) -> list[bytes]:
    """Complete what can be completed at the nodes that the client knows; what was acknowledged."""
    done: list[bytes] = []
    for claim in claims:
        with suppress(OnyxqError):
            await client.complete(claim, b"done", timeout_ms=1_500)
            done.append(claim.id)
    return done


async def take_the_rest(client: RecordingClient, *, wait_ms: int = 10_000) -> None:
    """Claim and complete tasks until there are none."""
    while claims := await client.claim("q", maximum=20, wait_ms=wait_ms, lease_ms=60_000):
        for claim in claims:
            await tried(client.complete(claim, b"again"))


async def soon(condition: Callable[[], bool], *, within_s: float = 3.0, every_s: float = 0.001) -> None:
    """Return when the condition holds, or when the time is over."""
    with trio.move_on_after(within_s):
        while not condition():
            await trio.sleep(every_s)


def payloads(count: int) -> list[bytes]:
    """Return different payloads."""
    return [b"task %d" % number for number in range(count)]


# --- scripts ----------------------------------------------------------------------------------


async def misled_follower(world: World, promise: str, restart: Callable[[SimulatedNode, Cut], Awaitable[None]]) -> None:
    """A follower that promised a new epoch restarts, and then only hears the deposed leader.

    ``promise``: what the scene is about; ``restart`` restarts the follower and calls its second argument, which cuts
    it off from the new leader.
    """
    async with world.client() as client:
        await client.enqueue("q", payloads(6), backoff_ms=0)
        claims = list(await client.claim("q", maximum=6, lease_ms=2_000))
        old, new = await deposed(world)
        (follower,) = [node for node in world.nodes if node not in (old, new)]

        def cut() -> None:
            world.network.heal()
            world.network.part([old.name, follower.name], [new.name])

        async with world.client(nodes=[old]) as misled, world.client(nodes=[new]) as served:
            newer: list[Claim] = []
            while len(newer) < 6:
                newer += await served.claim("q", maximum=6, wait_ms=10_000, lease_ms=120_000)
            await restart(follower, cut)
            for _ in range(8):
                if done := await try_to_complete(misled, claims):
                    raise Broken(f"{promise}: a deposed leader acknowledged {len(done)} completions")
                await trio.sleep(0.5)
            await back(world, old)
            await try_to_complete(served, newer)
            await take_the_rest(served)


async def promise_kept(world: World) -> None:
    """A follower that promised a new epoch restarts, and then only hears the deposed leader."""

    async def restart(follower: SimulatedNode, cut: Cut) -> None:
        await world.crash_node(follower)
        cut()
        world.start_node(follower)
        await world.until(lambda: bool(follower.node_id), "the follower runs")

    await misled_follower(world, "promise kept", restart)


async def misled_clients(world: World, *, isolated: bool | None = None) -> None:
    """A leader that is cut off is asked to complete, and told of new tasks, while its successor grants.

    ``isolated``: it loses the other nodes too, not only the log and its successor; None: by chance.
    """
    async with world.client() as client:
        await client.enqueue("q", payloads(12))
        claims = list(await client.claim("q", maximum=12, lease_ms=2_000))
        if isolated is None:
            isolated = world.random.random() < 0.5
        old, new = await deposed(world, isolated=isolated)
        if not isolated:
            world.network.part([old.name], [new.name])
        async with world.client(nodes=[old]) as misled, world.client(nodes=[new]) as served:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(try_to_complete, misled, claims)
                nursery.start_soon(_enqueue_some, misled)
                await take_the_rest(served)
        await back(world, old)
        await take_the_rest(client)


async def successors_claims(world: World) -> None:
    """A leader that is cut off is asked about claims that its successor granted: it cannot tell."""
    async with world.client() as client:
        await client.enqueue("q", payloads(6), backoff_ms=0)
        await client.claim("q", maximum=6, lease_ms=1_000)
        old, new = await deposed(world)
        async with world.client(nodes=[old]) as misled, world.client(nodes=[new]) as served:
            claims = list(await served.claim("q", maximum=3, lease_ms=60_000, wait_ms=10_000))
            for claim in claims:
                await tried(misled.renew(claim, 60_000, timeout_ms=1_500))
            await try_to_complete(served, claims)
        await back(world, old)
        await take_the_rest(client)


async def _enqueue_some(client: RecordingClient) -> None:
    for number in range(6):
        await tried(client.enqueue("q", [b"more %d" % number], timeout_ms=1_000))


async def successor_knew_nothing(world: World) -> None:
    """The next leader was cut off while tasks were completed, and is asked for tasks as soon as it takes over."""
    async with world.client() as client:
        await client.enqueue("q", payloads(12))
        claims = list(await client.claim("q", maximum=8, lease_ms=60_000, wait_ms=3_000))
        old = leader_of(world)
        behind = world.random.choice([node for node in world.nodes if node is not old])
        others = [node for node in world.nodes if node is not behind]
        world.network.part([behind.name], [node.name for node in others])
        async with world.client(nodes=others) as served:
            await try_to_complete(served, claims)
            await served.enqueue("q", [b"later %d" % number for number in range(4)])
        await world.crash_node(old)
        world.network.heal()
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(take_the_rest, client)
        world.start_node(old)
        await world.settle()
        await take_the_rest(client)


async def moved_away(world: World) -> None:
    """One of three holders missed what was acknowledged, another goes for good: a third takes its place.

    The disks of all that may take the place are slow, so that a leader must wait for the copy.
    """
    draw = world.random
    async with world.client() as client:
        placed = world.audit.replica.partitions[0]
        holders = [node for node in world.nodes if node.node_id in placed.members]
        for node in world.nodes:
            if node not in holders:
                node.disk.delay_ms = lambda: draw.randint(300, 1_200)
        missing, gone = world.random.sample([node for node in holders if node is not leader_of(world)], 2)
        world.isolate(missing)
        async with world.client(nodes=[node for node in world.nodes if node is not missing]) as served:
            await served.enqueue("q", payloads(30))
            await try_to_complete(served, list(await served.claim("q", maximum=10, lease_ms=60_000, wait_ms=3_000)))
        await world.crash_node(gone)
        await world.until(
            lambda: gone.known_id not in world.audit.replica.partitions[0].target,
            "another takes its place",
            within_s=40,
        )
        world.network.heal()
        await world.settle()
        await take_the_rest(client)
        await world.bring_back(gone)


async def late_completions(world: World) -> None:
    """Workers complete lapsed claims just when the tasks are being granted to others."""
    async with world.client() as client, world.client() as other:
        await client.enqueue("q", payloads(20), backoff_ms=0)
        for _ in range(6):
            claims = list(await client.claim("q", maximum=6, lease_ms=1_000, wait_ms=2_000))
            if not claims:
                break
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_grab, other)
                for claim in claims:
                    nursery.start_soon(_complete_when_expired, world, client, claim)
        await take_the_rest(other, wait_ms=3_000)


async def _complete_when_expired(world: World, client: RecordingClient, claim: Claim) -> None:
    """Once the log has taken the claim back, or a little later."""
    with trio.move_on_after(8):
        while claim.token in _tokens(world):
            await trio.sleep(0.002)
        await trio.sleep(world.random.uniform(0, 0.08))
    await try_to_complete(client, [claim])


def _tokens(world: World) -> set[int]:
    claims = world.audit.replica.claims.get(0)
    return {piece[2] for pieces in (claims.values() if claims is not None else ()) for piece in pieces}


async def _grab(client: RecordingClient) -> None:
    for _ in range(3):
        await tried(client.claim("q", maximum=3, lease_ms=1_500, wait_ms=3_000))


async def prompt_answers(world: World) -> None:
    """Without faults a claimer that waits is answered as soon as a task comes, is given back or falls due."""
    async with world.client() as worker, world.client() as producer:
        for number in range(12):
            queue = f"q{number % 3}"
            answered_s: list[float] = []

            async def wait(queue: str, answered_s: list[float]) -> None:
                while not answered_s:
                    for claim in await worker.claim(queue, lease_ms=30_000, wait_ms=30_000):
                        answered_s.append(trio.current_time())
                        await worker.complete(claim)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait, queue, answered_s)
                await trio.sleep(world.random.uniform(0.05, 3))
                delay_ms = world.random.choice((0, 0, 700))
                await producer.enqueue(queue, [b"task %d" % number], delay_ms=delay_ms)
                due_s = trio.current_time() + delay_ms / 1000
            if answered_s[0] - due_s > PROMPT_S:
                raise Broken(f"prompt answers: a waiting claim was answered {answered_s[0] - due_s:.3f} s late")


async def leads_behind_a_trim(world: World) -> None:
    """A node that reads on from the origin finds that it leads, joins or watches, and does so."""
    async with world.client() as client:
        await client.enqueue("q", payloads(4))
        late = world.random.choice(world.nodes)
        session = late.log.session_now
        assert session is not None
        session.paused = True
        for node in world.nodes:
            if node is not late and world.random.random() < 0.7:
                await world.restart_node(node, after_s=world.random.uniform(0, 2))
        await trio.sleep(world.random.uniform(0, 6))
        await collection(world)
        session.paused = False
        world.backend.notify()
        await world.settle()
        await take_the_rest(client, wait_ms=2_000)


async def overtaken_joiner(world: World) -> None:
    """A joiner that neither reads nor answers is put out, and the log collected past all that it wrote."""
    await overtake_a_joiner(world, forgotten=world.random.random() < 0.5)


async def overtake_a_joiner(world: World, *, forgotten: bool) -> str:
    """See `overtaken_joiner`; ``forgotten``: it reads on so late that the origin does not even have its number.

    Returns the peer that was put out, once its node has another one in the ring.
    """
    member = world.nodes[0].running
    assert member is not None and member.service is not None
    node = world.add_node()
    world.start_node(node)
    with trio.fail_after(20):
        while not node.peer_id or node.peer_id not in world.audit.replica.peers:
            await world.backend.wait_grown()
            world.audit.catch_up()
    peer, session = node.peer_id, node.log.session_now
    assert session is not None
    session.paused = True
    world.isolate(node)
    await trio.sleep(1)
    await member.service.call("leave", {"peer": peer})
    await collection(world)
    if forgotten:
        await trio.sleep(PEER_MS / 1000 + 10)
        await collection(world)
    world.network.heal()
    session.paused = False
    world.backend.notify()
    await world.settle()
    return peer


async def leader_cannot_write(world: World) -> None:
    """The leader's own disk takes nothing, or its time, while its followers have what it sends them."""
    async with world.client() as client:
        await client.enqueue("q", payloads(6))
        claims = list(await client.claim("q", maximum=6, lease_ms=world.random.choice((1_000, 20_000)), wait_ms=3_000))
        await trio.sleep(8)  # some have lapsed: nobody holds what is completed
        node = leader_of(world)
        usual = node.disk.delay_ms
        if world.random.random() < 0.3:
            node.disk.failing = True
        else:
            node.disk.delay_ms = lambda: 2_500
        async with trio.open_nursery() as nursery:
            for claim in claims:
                nursery.start_soon(_complete_and_ask, world, client, claim)
            await trio.sleep(world.random.uniform(0.5, 3))
            node.disk.failing, node.disk.delay_ms = False, usual
        await world.settle()
        await take_the_rest(client)


async def _complete_and_ask(world: World, client: RecordingClient, claim: Claim) -> None:
    """Complete, and a little later see what there is: nothing that was completed."""
    await try_to_complete(client, [claim])
    await trio.sleep(world.random.uniform(0.1, 0.6))
    await tried(client.claim("q", maximum=2, lease_ms=60_000))


async def history_survives(world: World) -> None:
    """Nodes crash between what the log said of claims and its being stored; retries are still counted."""
    async with world.client() as client:
        await client.enqueue("q", payloads(8), backoff_ms=0)
        for _ in range(5):
            claims = list(await client.claim("q", maximum=8, lease_ms=20_000, wait_ms=8_000))
            for claim in claims:
                await tried(client.fail(claim, "did not work", retry_in_ms=0, timeout_ms=5_000))
            node = world.random.choice(world.nodes)
            if node.running is not None:
                await world.crash_node(node)
                await trio.sleep(world.random.uniform(0, 8))
                world.start_node(node)
        await world.settle()
        await take_the_rest(client, wait_ms=25_000)


async def lost_answers(world: World) -> None:
    """Enqueues are done, but their answers are lost and they are asked for again."""
    async with world.client() as client, trio.open_nursery() as nursery:
        nursery.start_soon(_cut_now_and_then, world)
        for number in range(40):
            await tried(client.enqueue("q", [b"task %d" % number], timeout_ms=8_000))
        nursery.cancel_scope.cancel()
    async with world.client() as client:
        await take_the_rest(client, wait_ms=2_000)


async def _cut_now_and_then(world: World) -> None:
    while True:
        await trio.sleep(world.random.uniform(0, 0.02))
        world.network.cut(world.random.choice(world.nodes).name)


_BUSY = always(Options(partitions=2, clock_offset_ms=0, network_delay_ms=3, disk_delay_ms=(0, 6)))
_SLOW_LOG = always(Options(partitions=1, clock_offset_ms=0, append_delay_ms=(5, 120), read_delay_ms=(0, 30)))
_SLOW_READS = always(Options(partitions=1, clock_offset_ms=0, read_delay_ms=(5, 30)))
_FAR_APART = always(evolve(ONE, network_delay_ms=60))
_SLOW_DISKS = always(evolve(ONE, disk_delay_ms=(0, 120)))
_FIVE = always(evolve(ONE, nodes=5, absent_after_ms=8_000, yield_after_ms=600_000, network_delay_ms=60))

SCENES = by_name(
    Scene("promises", "a promised epoch outlives the process that promised", promise_kept),
    Scene("misled", "a deposed leader goes on being asked", misled_clients),
    Scene("unheard", "a deposed leader is asked about its successor's claims", successors_claims),
    Scene("behind", "the next leader missed what was acknowledged", successor_knew_nothing, _FAR_APART),
    Scene("moved", "a holder goes for good while another is behind", moved_away, _FIVE),
    Scene("late", "completions come just when tasks are granted again", late_completions, _SLOW_LOG),
    Scene("prompt", "waiting claims are answered at once", prompt_answers, _BUSY),
    Scene("trimmed", "a reader behind a trim finds duties", leads_behind_a_trim, _BUSY),
    Scene("overtaken", "a joiner that was put out finds nothing of itself", overtaken_joiner, _SLOW_READS),
    Scene("own_disk", "a leader's own disk takes nothing, or its time", leader_cannot_write),
    Scene("attempts", "crashes between the log and the store", history_survives, _SLOW_DISKS),
    Scene("answers", "enqueues are repeated", lost_answers, _BUSY),
)
