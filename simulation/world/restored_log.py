"""A cluster whose log is set back, wiped or overtaken under it; every node must say so and grant nothing.

The log that the nodes reach is swapped for a damaged one: an older copy, an empty log, or an older copy that
others have written on.  The audit still reads the true log, so a grant that the damaged log knows and the
true one does not is found as soon as a client hears of it.  Then the true log is brought back, as an operator
would do with the newest copy: nodes that stayed join again, nodes that ended are started, and everything is
worked off.  Or there is no newer copy: all nodes are stopped, and a new log is made from what they have.
"""

from __future__ import annotations

import random
from typing import Any

import trio
from attrs import frozen

from onyxq.client.claims import Claim
from onyxq.core.errors import ClusterMismatch
from onyxq.store.index.records import unpack_number
from simulation.checkers import Broken
from simulation.world.load import Load, Mix
from simulation.world.log import MemoryBackend, MemorySession
from simulation.world.recovered import recover
from simulation.world.restored import use
from simulation.world.world import SimulatedNode, World

SET_BACK, WIPED, OVERTAKEN = "set back", "wiped", "overtaken"
REFUSED, LOST, KEPT = "refused", "lost", "kept"
"""Fate of the sessions: ZooKeeper refuses them for ever as they saw more than it has; it does not know them;
or it knows them, as the copy does."""
RESTART_S = 0.3
"""How long the damaged log is away before it answers."""
STORED_S = 6.0
"""After this time without a fault every store has how far its node has read."""
NOTICE_S = 8.0
"""Within this time every node must have said that the log went back."""
LOST_BEFORE_S = 0.2
"""How long before the copy a node loses the log."""
NOISE = b"not a record"


@frozen
class Plan:
    """What happens in a run."""

    damage: str
    sessions: str
    records_first: int
    """Records that a stranger writes before the copy is made, so that the log has milestones."""
    copy_s: float
    """When the copy is made."""
    damage_s: float
    """How long after it the log is damaged."""
    behind: int | None
    """A node that loses the log just before the copy is made, so that it has read no more than the copy has."""
    evicted: bool
    """Whether the others notice that, so that it leads nothing in the true log."""
    killed: tuple[int, ...]
    """Nodes that are killed when the log is damaged."""
    killed_at_once: bool
    """Whether they are started before the others can have noticed."""
    newcomer: bool
    """Whether a new machine, which has read nothing, joins the damaged log."""
    ahead: int
    """Records by which others overtake what the nodes have read."""
    recovered: bool
    """Whether a new log is made at the end, instead of bringing the newest copy back."""


def plan_of(draw: random.Random, nodes: int) -> Plan:
    """Return the run of a seed."""
    damage = draw.choice((SET_BACK, SET_BACK, WIPED, OVERTAKEN, OVERTAKEN))
    behind = draw.choice((None, draw.randrange(nodes)))
    return Plan(
        damage=damage,
        sessions=draw.choice((REFUSED, REFUSED, LOST, KEPT)),
        records_first=draw.choice((0, 0, 0, 2_100)),
        copy_s=draw.uniform(0.5, 12.0),
        damage_s=STORED_S + draw.uniform(0.5, 12.0),
        behind=behind,
        evicted=draw.random() < 0.5,
        killed=_killed(draw, nodes, behind),
        killed_at_once=draw.random() < 0.5,
        newcomer=draw.random() < 0.4,
        ahead=draw.choice((1, 3, 50, 3_000)),
        recovered=draw.random() < 0.5,
    )


def _killed(draw: random.Random, nodes: int, behind: int | None) -> tuple[int, ...]:
    """Return the nodes to kill: any, but if one is behind, half of the others live, as only they can tell it."""
    others = [number for number in range(nodes) if number != behind]
    most = nodes if behind is None else len(others) // 2
    killed = draw.sample(others, min(most, draw.choice((0, 0, 1, nodes - 1, nodes))))
    return tuple(sorted(killed))


class RestoredLog:
    """One run; see the module's first paragraph."""

    def __init__(self, world: World, plan: Plan) -> None:
        self.world = world
        self.plan = plan
        self._true = world.backend
        self._granted = world.audit.claimed
        self._behind: MemorySession | None = None
        """The session of the node that is behind: no log refuses it, as it has seen less than each has."""
        self._pulses: dict[str, tuple[MemorySession, bytes]] = {}
        """Its pulses, which the copy has."""

    async def run(self) -> None:
        """Work, damage the log, judge, bring it back, work everything off."""
        world, plan = self.world, self.plan
        load = Load(world, Mix(workers=2, pause_s=1.0, update=0.2))
        async with trio.open_nursery() as nursery:
            load.start(nursery)
            for _ in range(plan.records_first):
                self._true.inject(NOISE)
            await trio.sleep(plan.copy_s)
            if plan.behind is not None:
                await self._lose_log(world.nodes[plan.behind])
                if plan.evicted:
                    nursery.start_soon(self._time_out)
            copy = _copied(self._true, wiped=plan.damage == WIPED)
            self._true.inject(NOISE)  # if the node that is behind leads everything, nothing else is written
            await trio.sleep(plan.damage_s)
            await self._damage(copy)
            await self._judge(copy)
            await self._part_with_newcomers()
            if not plan.recovered:
                await self._bring_back(copy)
                await world.settle()
                await load.drain()
            nursery.cancel_scope.cancel()
        if plan.recovered:
            await self._recover()

    # --- the log goes back

    async def _lose_log(self, node: SimulatedNode) -> None:
        """Cut a node off from the log, which continues; its session is in the copy that is made then."""
        session = self._behind = node.log.session_now
        if session is None:
            return
        self._true.disconnect(session)
        self._pulses = {peer: said for peer, said in self._true.pulse_owners.items() if said[0] is session}
        await trio.sleep(LOST_BEFORE_S)

    async def _time_out(self) -> None:
        """End the pulse of the node that is behind in the true log; the node does not hear of that."""
        await trio.sleep(self.world.options.session_timeout_ms / 1000)
        for peer in self._pulses:
            self._true.pulse_owners.pop(peer, None)
        self._true.notify()

    async def _damage(self, damaged: MemoryBackend) -> None:
        world, plan = self.world, self.plan
        world.audit.catch_up()
        world.audit.claimed = self._claimed  # type: ignore[method-assign]
        world.episodes.append((trio.current_time(), f"the log is {plan.damage}"))
        for node in world.nodes:
            node.may_end += 1
        self._last = self._true.last
        for number in plan.killed:
            await world.crash_node(world.nodes[number])
        sessions = list(self._true.sessions)
        self._true.available = damaged.available = False
        for session in sessions:
            self._true.disconnect(session)
        for node in world.nodes:
            node.log.backend = damaged
        await trio.sleep(RESTART_S)
        if plan.damage == OVERTAKEN:
            self._overtake(damaged)
        damaged.available = True
        for session in sessions:
            self._meet(session, damaged)

    def _overtake(self, damaged: MemoryBackend) -> None:
        """Others have written on the copy until it reaches beyond all that the nodes have read."""
        while damaged.last < self._last + self.plan.ahead:
            damaged.inject(NOISE)

    def _meet(self, session: MemorySession, damaged: MemoryBackend) -> None:
        """A session that the true log had meets the damaged one."""
        if self.plan.sessions == LOST:
            self._true.expire(session)
        elif (self.plan.sessions == KEPT or session is self._behind) and not session.lost.is_set():
            self._true.sessions.remove(session)
            damaged.sessions.append(session)
            pulses = self._pulses if session is self._behind else self._true.pulse_owners
            damaged.pulse_owners |= {peer: said for peer, said in pulses.items() if said[0] is session}
            session.backend = damaged
            damaged.reconnect(session)
            self._true.notify()  # calls that wait for the session to reconnect look at it again

    # --- what is judged

    def _claimed(self, claim: Claim, **said: Any) -> None:
        """A client was given a task while the log was damaged: the true log must have granted it."""
        if (claim.id, claim.token) not in self.world.audit.one_claim.granted:
            raise Broken(
                f"restored log: {claim.id.hex()} was granted under {claim.token}, which is not in the true log"
            )
        self._granted(claim, **said)

    async def _judge(self, damaged: MemoryBackend) -> None:
        world, plan = self.world, self.plan
        if plan.newcomer:
            node = world.add_node()
            node.log.backend, node.astray = damaged, True
            node.may_end += 1
            world.start_node(node)
        if not plan.killed_at_once:
            await trio.sleep(5.0)
        for number in plan.killed:
            world.start_node(world.nodes[number])
        await world.until(lambda: not self._silent(), "every node says that the log went back", within_s=NOTICE_S)
        await trio.sleep(world.random.uniform(1.0, 15.0))
        if silent := self._silent():
            raise Broken(f"restored log: {', '.join(silent)} went on with a log that went back")
        self._check_promises()

    def _check_promises(self) -> None:
        """Raise `Broken` if a node has promised an epoch that the true log does not have."""
        replica = self.world.audit.replica
        for node in self.world.nodes[: self.world.options.nodes]:
            for key, value in node.disk.tables.epochs.ascend(b""):
                partition, epoch = int.from_bytes(key, "big"), unpack_number(key, value)
                if epoch > replica.partitions[partition].epoch:
                    raise Broken(f"restored log: {node.name} promised epoch {epoch} of {partition} to a wrong leader")

    def _silent(self) -> list[str]:
        """Nodes that have read the true log and do not say that this is another one."""
        return [node.name for node in self.world.nodes[: self.world.options.nodes] if not self._says_so(node)]

    def _says_so(self, node: SimulatedNode) -> bool:
        running = node.running
        if running is None:
            return isinstance(node.error, ClusterMismatch)
        return running.node is not None and running.node.went_back is not None

    # --- the newest copy is brought back

    async def _part_with_newcomers(self) -> None:
        world = self.world
        for node in world.nodes[world.options.nodes :]:
            if node.running is not None:
                await world.crash_node(node)
            world.nodes.remove(node)

    async def _bring_back(self, damaged: MemoryBackend) -> None:
        world = self.world
        for session in list(damaged.sessions):
            damaged.expire(session)
        for session in list(self._true.sessions):
            self._true.expire(session)
        damaged.available = False
        for node in world.nodes:
            node.log.backend = self._true
        self._true.available = True
        world.audit.claimed = self._granted  # type: ignore[method-assign]
        for node in world.nodes:
            if node.running is None:
                world.start_node(node)
        await trio.sleep(5.0)
        for node in world.nodes:
            node.may_end -= 1

    # --- or the log is begun anew

    async def _recover(self) -> None:
        """There is no newer copy: every node is stopped, and the cluster recovered from what they keep."""
        world = self.world
        for node in world.nodes:
            if node.running is not None:
                await world.crash_node(node)
            node.may_end -= 1
        world.audit.claimed = self._granted  # type: ignore[method-assign]
        world.audit.catch_up()
        await recover(world)
        await use(world)


def _copied(backend: MemoryBackend, *, wiped: bool) -> MemoryBackend:
    """Return a log like ``backend`` now, or an empty one, without any session."""
    copy = MemoryBackend(
        backend.clock, append_delay_s=backend.append_delay_s, read_delay_s=backend.read_delay_s, probes=backend.probes
    )
    if not wiped:
        copy.records, copy.landed_s = dict(backend.records), dict(backend.landed_s)
        copy.ends, copy.following, copy.stored = list(backend.ends), backend.following, backend.stored
    return copy


async def restored_log(world: World, draw: random.Random) -> None:
    """The script of a run."""
    await RestoredLog(world, plan_of(draw, world.options.nodes)).run()
