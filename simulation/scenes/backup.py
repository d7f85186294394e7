"""Backups of a cluster that is in use while something goes wrong, and what is restored of them (design: simulation).

Each try to take one meets another fault.  A failed one must leave no trace: no file under the name that was
given, nothing that a restore would take, and no transactions that wait.  The first that does not fail is restored.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import trio
import trio.lowlevel

from onyxq.client import AsyncTransaction
from onyxq.core.errors import OnyxqError
from onyxq.core.ids import make_id
from onyxq.core.transactions import on_hold
from onyxq.history.backup.capture import HOLD_MS, take
from onyxq.history.backup.file import read
from simulation.checkers import Broken
from simulation.scenes.base import Scene, by_name, leader_of, soon, take_the_rest
from simulation.world.clients import RecordingClient, tried
from simulation.world.faults import collection
from simulation.world.history import Transacted
from simulation.world.load import Load, Mix
from simulation.world.moves import Moves, MovesMix
from simulation.world.restored import TakenBackup, judge_restored, standing
from simulation.world.workload import always
from simulation.world.world import Options, SimulatedNode, World

TRIES = 3
PAUSE_S = 0.3
"""Longest pause before each question of a backup."""
AWAY_S = 12.0
"""Longest time for which something is broken."""
HOLDS_MS = (1_500, 6_000, HOLD_MS)
"""How long transactions wait for a backup that is heard of no more."""
QUESTIONS = 8
"""How many a backup of these clusters asks, roughly."""
MISLED = 0.9
"""How often a page is asked of who does not know that it was deposed."""
SLOW_MS = 1_500
"""Duration of a write on the slow disk, in ms. A commit is visible only after such a write."""
MAKER = 0xBEEF
"""The maker in the ids of the tasks whose partitions are chosen."""
OVER_S = 60.0
"""Time after the end of a hold in which transactions continue, in simulated seconds."""


class Died(BaseException):
    """What the process meets that takes a backup and is killed."""


class Asking:
    """Asks for a backup as its process would; at a question that is drawn, something happens."""

    def __init__(self, world: World, client: RecordingClient, file: Path) -> None:
        self.world = world
        self.client = client
        self.file = file
        self.hold = f"{file.name} of seed {world.seed}"
        self.misled: RecordingClient | None = None
        """A client of a node that does not know that it was deposed: some pages are asked of that one."""
        self.begin = trio.Event()
        """Set by a fault that comes before the backup, once it has."""
        self.over = trio.Event()
        """Set when the backup has ended, well or not."""
        self._dead = False
        self._left = world.random.randrange(QUESTIONS)
        self._due = trio.Event()

    async def __call__(self, method: str, args: dict[str, Any]) -> Any:
        """Ask after a pause; raises the error of the answer, and `Died`."""
        draw = self.world.random
        await trio.sleep(draw.uniform(0, PAUSE_S))
        self._left -= 1
        if self._left < 0:
            self._due.set()
            await trio.lowlevel.checkpoint()
        if self._dead:
            raise Died
        client = self.client
        if method == "backup.rows" and self.misled is not None and draw.random() < MISLED:
            client = self.misled
        return await client.client.call(method, args)

    async def due(self) -> None:
        """Return at the question, or when there are no more."""
        await self._due.wait()

    def die(self) -> None:
        """The process is killed: what it has written up to now stays, and no more comes."""
        self._dead = True
        for part in self.file.parent.glob(f"{self.file.name}.*.part"):
            shutil.copy(part, self.left_behind)

    @property
    def left_behind(self) -> Path:
        """What a killed process has left."""
        return self.file.with_name(f"{self.file.name} left behind")

    def ended(self) -> None:
        """It has; a fault that was to come comes now."""
        self._due.set()
        self.over.set()


Act = Callable[[World, Asking], Awaitable[None]]


async def nothing(world: World, asking: Asking) -> None:
    """All is well."""


async def leader_killed(world: World, asking: Asking) -> None:
    """A leader is killed."""
    await asking.due()
    node = _some_leader(world)
    await world.crash_node(node)
    await _for_a_while(world)
    world.start_node(node)


async def leader_isolated(world: World, asking: Asking) -> None:
    """A leader loses contact to the other nodes, and perhaps to all clients."""
    await asking.due()
    world.isolate(_some_leader(world), clients=world.random.random() < 0.5)
    await _for_a_while(world)
    world.network.heal()


async def leader_deposed(world: World, asking: Asking) -> None:
    """Cut a leader off from the log until it is deposed, and ask it for most pages of the backup.

    In 7 of 10 cases it is also isolated from the other nodes, so that it does not learn of its successor.
    """
    draw, node = world.random, _some_leader(world)
    async with world.client(nodes=[node]) as misled:
        world.disconnect_log(node)
        await trio.sleep(world.options.session_timeout_ms / 1000 - draw.uniform(0, 2))
        if draw.random() < 0.7:
            world.isolate(node)  # so late that it does not find out before its successor serves
        asking.misled = misled
        await trio.sleep(draw.uniform(1, 6))
        asking.begin.set()
        await _for_a_while(world)
        asking.misled = None
        world.network.heal()
        world.reconnect_log(node)
        await asking.over.wait()


async def commit_interrupted(world: World, asking: Asking) -> None:
    """A leader is killed just when something was committed that it has not made visible, and the backup begins.

    The disks may be slow, so that the next leader takes long to make it visible.
    """
    draw = world.random
    slow_ms = draw.choice((0, 1_500, 4_000))
    await soon(lambda: bool(world.audit.replica.transactions), within_s=AWAY_S)
    parts = [number for one in world.audit.replica.transactions.values() for number in one.parts]
    node = leader_of(world, draw.choice([*sorted(parts), min(parts, default=0)]))  # the first is read first
    asking.begin.set()
    await world.crash_node(node)
    usual = [(one.disk, one.disk.delay_ms) for one in world.nodes]
    for disk, delay_ms in usual:
        disk.delay_ms = (lambda: draw.randint(slow_ms // 2, slow_ms)) if slow_ms else delay_ms
    await _for_a_while(world)
    for disk, delay_ms in usual:
        disk.delay_ms = delay_ms
    world.start_node(node)


async def all_killed(world: World, asking: Asking) -> None:
    """Every peer is killed."""
    await asking.due()
    for node in world.nodes:
        await world.crash_node(node)
    await trio.sleep(world.random.uniform(0, 8))
    for node in world.nodes:
        world.start_node(node)


async def asked_killed(world: World, asking: Asking) -> None:
    """Peers are killed one after the other, also the peer that takes the requests."""
    await asking.due()
    for node in world.random.sample(world.nodes, len(world.nodes)):
        await world.restart_node(node, after_s=world.random.uniform(0, 3))
        await trio.sleep(world.random.uniform(0, 2))


async def hold_ended(world: World, asking: Asking) -> None:
    """End the hold."""
    await asking.due()
    async with world.client() as client:
        await tried(client.client.call("backup.hold", {"name": asking.hold, "why": "", "for_ms": 0}))


async def unheard(world: World, asking: Asking) -> None:
    """The client that takes the backup has no contact, perhaps for longer than the hold lasts."""
    await asking.due()
    world.network.part([asking.client.name], [node.name for node in world.nodes])
    await trio.sleep(world.random.uniform(0, 40))
    world.network.heal()


async def log_away(world: World, asking: Asking) -> None:
    """The log is away."""
    await asking.due()
    world.log_down()
    await _for_a_while(world)
    world.log_up(sessions_lost=world.random.random() < 0.5)


async def collected(world: World, asking: Asking) -> None:
    """The log is collected."""
    await asking.due()
    await collection(world)


async def process_killed(world: World, asking: Asking) -> None:
    """The process that takes the backup is killed."""
    await asking.due()
    asking.die()


FAULTS: tuple[Act, ...] = (
    nothing,
    leader_killed,
    leader_isolated,
    leader_deposed,
    leader_deposed,
    leader_deposed,
    commit_interrupted,
    commit_interrupted,
    commit_interrupted,
    commit_interrupted,
    all_killed,
    asked_killed,
    hold_ended,
    unheard,
    log_away,
    collected,
    process_killed,
)
"""One that stands several times is drawn as often."""
BEFORE = (leader_deposed, commit_interrupted)
"""Faults that begin before the backup."""


def _some_leader(world: World) -> SimulatedNode:
    return leader_of(world, world.random.randrange(world.options.partitions))


async def _for_a_while(world: World) -> None:
    await trio.sleep(world.random.uniform(0, AWAY_S))


# --- taking -----------------------------------------------------------------------------------


async def backup_restored(world: World) -> None:
    """A cluster is backed up under load and faults; the restored cluster has all facts and no partial transaction."""
    load = Load(world, Mix(workers=2, pause_s=2.0, backlog_max=300, fail=0.15, update=0.25))
    moves = Moves(world, MovesMix(pause_s=1.0, backlog_max=300))
    with tempfile.TemporaryDirectory(prefix="onyxq-backup-") as place:
        async with trio.open_nursery() as nursery:
            load.start(nursery)
            moves.start(nursery)
            await trio.sleep(world.random.uniform(2, 8))
            taken = await _taken(world, Path(place))
            await world.settle()
            await _transact(world)
            nursery.cancel_scope.cancel()
        await judge_restored(world, taken)


async def _transact(world: World) -> None:
    """A transaction goes through at once: no backup is under way any more."""
    async with world.client() as client:
        await client.enqueue("behind", [b"behind the backup"])
        (claim,) = await client.claim("behind", lease_ms=60_000, wait_ms=30_000)
        await client.transact(complete=[(claim, b"done behind")], enqueue=[("behind", b"behind that")])


async def _taken(world: World, place: Path) -> TakenBackup:
    """The first backup that does not fail; the last try is made while nothing is broken."""
    for number in range(TRIES):
        fault, hold_ms = world.random.choice(FAULTS), world.random.choice(HOLDS_MS)
        taken = await _try(world, place / f"backup {number}", fault, hold_ms=hold_ms)
        await world.settle()
        if taken is not None:
            return taken
    taken = await _try(world, place / "backup", nothing)
    if taken is None:
        raise Broken("backup: none can be taken of a cluster that is well")
    return taken


async def _try(world: World, file: Path, fault: Act, *, hold_ms: int = HOLD_MS) -> TakenBackup | None:
    """Take a backup while one fault happens; return None if it fails and leaves no trace."""
    world.episodes.append((trio.current_time(), fault.__name__))
    taken: TakenBackup | None = None
    async with world.client() as client, trio.open_nursery() as nursery:
        asking = Asking(world, client, file)
        nursery.start_soon(fault, world, asking)
        if fault in BEFORE:
            await asking.begin.wait()
        known = standing(world)
        try:
            told = await take(asking, str(file), hold_ms=hold_ms, name=asking.hold)
        except (OnyxqError, Died):
            _check_refused(file)
            _check_refused(asking.left_behind)
        else:
            world.audit.catch_up()
            taken = TakenBackup(file, known, told["position"], tuple(world.history.transactions.values()))
        asking.ended()
    over = "transactions wait no longer for a backup that is over"
    await world.until(lambda: on_hold(world.audit.replica) is None, over, within_s=hold_ms / 1000 + OVER_S)
    return taken


async def commit_backed_up(world: World) -> None:
    """A backup begins between the commit of a transaction and its effect.

    The first partition waits for the last one, whose leader's disk is slow: a task of the transaction depends on
    another one there. Rows of the last partition are asked for once all of the transaction is visible.
    """
    first, last = 0, world.options.partitions - 1
    slow = leader_of(world, last)
    slow.disk.delay_ms = lambda: SLOW_MS
    with tempfile.TemporaryDirectory(prefix="onyxq-backup-") as place:
        async with world.client(nodes=[node for node in world.nodes if node is not slow]) as client:

            async def ask(method: str, args: dict[str, Any]) -> Any:
                if method == "backup.rows" and args["partition"] == last:
                    await world.until(lambda: not any(one.transactions for _, one in world.replicas()), "it is visible")
                return await client.client.call(method, args)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(_depending(world, client, first, last).commit)
                await world.until(lambda: bool(world.audit.replica.transactions), "it is committed")
                known, file = standing(world), Path(place) / "backup"
                told = await take(ask, str(file))
            world.audit.catch_up()
            await take_the_rest(client)
        taken = TakenBackup(file, known, told["position"], tuple(world.history.transactions.values()))
        await judge_restored(world, taken)


def _depending(world: World, client: RecordingClient, first: int, last: int) -> AsyncTransaction:
    """Return a transaction whose task in the partition ``first`` depends on its task in ``last``."""
    transaction, now_ms = client.client.transaction(), world.nodes[0].clock.wall_ms()
    needed, waiting = make_id(now_ms, last, MAKER, 0), make_id(now_ms, first, MAKER, 0)
    payloads = (b"needed", b"waiting")
    transaction.enqueue("q", payloads[0], id=needed)
    transaction.enqueue("q", payloads[1], id=waiting, depends=[needed])
    noted = world.history.transactions[transaction.name] = Transacted(transaction.name, {}, payloads)
    for payload in payloads:
        world.history.payloads[payload] = 1
        world.history.transaction_of[payload] = noted
    return transaction


def _check_refused(file: Path) -> None:
    """Raise `Broken` if what a failed backup left would be restored."""
    with suppress(OnyxqError):
        read(file)
        raise Broken(f"backup: {file.name!r} failed, and would be restored")


def _options(draw: random.Random) -> Options:
    return Options(
        nodes=draw.choice((3, 3, 4)),
        partitions=draw.choice((2, 4)),
        absent_after_ms=draw.choice((8_000, 600_000)),
        append_delay_ms=draw.choice(((1, 4), (5, 80))),
        read_delay_ms=draw.choice(((0, 3), (5, 200))),
        disk_delay_ms=draw.choice(((0, 2), (5, 60))),
    )


_SPREAD = always(Options(nodes=3, partitions=2, clock_offset_ms=0, absent_after_ms=600_000))

BACKUP_SCENES = by_name(
    Scene(
        "backups",
        "a cluster is backed up while it is used and broken, and restored elsewhere",
        backup_restored,
        _options,
    ),
    Scene("commit_backed_up", "a backup begins while a commit is not visible yet", commit_backed_up, _SPREAD),
)
