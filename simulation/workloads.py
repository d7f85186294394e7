"""What is simulated: every workload and every choice of faults is one documented value (design: simulation).

A workload turns a seed into a run: the seed draws the cluster's size and delays, the load
and the faults within the bounds that the workload's values give.  ``onyxq simulate
--workload NAME`` runs them; another one is another value in `WORKLOADS`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Protocol

from attrs import evolve, field, frozen

from simulation.explorer import under_load
from simulation.scenes.ahead import AHEAD_SCENES
from simulation.scenes.backup import BACKUP_SCENES
from simulation.scenes.base import SCENES, Scene
from simulation.scenes.batches import BATCH_SCENES
from simulation.scenes.cancelling import CANCELLING_SCENES
from simulation.scenes.copies import COPY_SCENES
from simulation.scenes.looks import LOOK_SCENES
from simulation.scenes.lost_disks import LOST_DISK_SCENES
from simulation.scenes.recovery import RECOVERY_SCENES
from simulation.scenes.retention import RETENTION_SCENES
from simulation.scenes.rules import RULE_SCENES
from simulation.scenes.shares import SHARE_SCENES
from simulation.scenes.taskstore import TASKSTORE_SCENES
from simulation.scenes.timers import TIMER_SCENES
from simulation.scenes.tokens import TOKEN_SCENES
from simulation.scenes.transactions import TRANSACTION_SCENES
from simulation.scenes.withdrawn import WITHDRAWN_SCENES
from simulation.scenes.workers import WORKER_SCENES
from simulation.world.failing_disks import failing_disks
from simulation.world.faults import EPISODES, storm
from simulation.world.load import Mix
from simulation.world.load_rules import RulesMix
from simulation.world.moves import MovesMix, under_moves
from simulation.world.restored_log import restored_log
from simulation.world.world import Options, World, simulate

Draw = random.Random


@frozen
class Played:
    """A run that broke nothing."""

    simulated_s: float
    """0 for what has no clock."""
    records: int
    applied: int
    """Entries of the log that changed something."""
    probes: Mapping[str, int] = field(factory=dict)
    """How often rare branches were reached."""


class Workload(Protocol):
    """Something that a seed can be played in."""

    @property
    def name(self) -> str:
        """What ``--workload`` calls it."""
        ...

    @property
    def about(self) -> str:
        """In a line."""
        ...

    def play(self, seed: int) -> Played:
        """Play one seed; raises what broke."""
        ...


@frozen
class Faults:
    """Which faults befall a cluster: ``rounds`` times up to ``at_once`` of the episodes together."""

    name: str
    about: str
    episodes: tuple[str, ...]
    """Names in `simulation.world.faults.EPISODES`; one that stands twice is drawn twice as often."""
    rounds: int = 4
    at_once: int = 2
    rest_s: float = 5.0
    """Longest time between two rounds."""

    async def befall(self, world: World) -> None:
        """Let them happen; afterwards nothing is broken."""
        if self.episodes:
            await storm(world, names=self.episodes, rounds=self.rounds, at_once=self.at_once, rest_s=self.rest_s)


@frozen
class FailingDisks(Faults):
    """Machine after machine has a disk that fails; see `simulation.world.failing_disks`."""

    async def befall(self, world: World) -> None:
        """See `Faults.befall`."""
        await failing_disks(world)


NO_FAULTS = Faults("none", "nothing goes wrong", ())
CHURN = Faults(
    "churn",
    "processes are killed and restarted, sessions end, machines freeze and thaw",
    ("crash", "crash", "restart", "session_expiry", "dead_to_the_world", "crash_all"),
)
MESSAGES = Faults(
    "messages",
    "connections break, nodes are cut off or heard late, appends are repeated or lost",
    ("partition", "cut_connections", "slow_network", "broken_appends", "clients_only", "log_unreachable"),
)
CHURN_AND_MESSAGES = Faults(
    "churn and messages",
    "both, often at the same time",
    (*CHURN.episodes, *MESSAGES.episodes, "giving_up"),
    rounds=6,
    rest_s=30.0,
)
MEMBERSHIP = Faults(
    "membership",
    "machines join for good, stay away for longer than they are waited for, leave by themselves",
    ("new_node", "away", "away", "restart", "crash", "crash_all", "session_expiry"),
    rounds=5,
)
CLOCKS = Faults(
    "clocks",
    "clocks of machines and of the log jump to and fro",
    ("log_clock_jump", "log_clock_flaps", "node_clock_jump", "node_clock_jump", "wrong_clock", "late_appends"),
    rounds=5,
)
DISKS = Faults(
    "disks",
    "disks are full, rot, and lose what was not synced",
    ("full_disk", "full_disk", "bit_rot", "crash", "slow_disk"),
    rounds=5,
)
LOG = Faults(
    "log",
    "the log is away, loses sessions, repeats appends, is collected under slow readers",
    (
        "log_outage",
        "session_expiry",
        "broken_appends",
        "late_appends",
        "collection",
        "behind_a_trim",
        "log_unreachable",
    ),
    rounds=5,
)
EVERYTHING = Faults("everything", "any fault there is", tuple(sorted(EPISODES)))

FAULTS: Mapping[str, Faults] = {
    one.name: one
    for one in (NO_FAULTS, CHURN, MESSAGES, CHURN_AND_MESSAGES, MEMBERSHIP, CLOCKS, DISKS, LOG, EVERYTHING)
}


@frozen
class LoadWorkload:
    """A cluster under load while faults befall it; then it must recover and work everything off."""

    name: str
    about: str
    faults: Faults
    options: Callable[[Draw], Options]
    mix: Callable[[Draw], Mix]

    def play(self, seed: int) -> Played:
        """See `Workload.play`."""
        draw = Draw(f"{self.name} {seed}")
        mix = self.mix(draw)

        async def script(world: World) -> None:
            await under_load(world, self.faults.befall, mix)

        return played(simulate(script, seed=seed, options=self.options(draw)))


@frozen
class MovesWorkload:
    """Inputs become outputs by transactions while faults befall the cluster; each must count once."""

    name: str
    about: str
    faults: Faults
    options: Callable[[Draw], Options]

    def play(self, seed: int) -> Played:
        """See `Workload.play`."""
        draw = Draw(f"{self.name} {seed}")
        mix = MovesMix(mappers=draw.choice((2, 3)), pause_s=draw.choice((1.0, 4.0)), near=draw.choice((0.05, 0.3)))

        async def script(world: World) -> None:
            await under_moves(world, self.faults.befall, mix)

        return played(simulate(script, seed=seed, options=self.options(draw)))


@frozen
class SceneWorkload:
    """Scenes in turn, each the shortest way to a fault that storms rarely meet; the seed draws which and how."""

    name: str
    about: str
    scenes: tuple[Scene, ...]

    def play(self, seed: int) -> Played:
        """See `Workload.play`."""
        scene = self.scenes[seed % len(self.scenes)]
        return played(simulate(scene.script, seed=seed, options=scene.options(Draw(f"{scene.name} {seed}"))))


@frozen
class RestoredLogWorkload:
    """The log is set back, wiped or overtaken under a cluster; see `simulation.world.restored_log`."""

    name: str
    about: str

    def play(self, seed: int) -> Played:
        """See `Workload.play`."""
        draw = Draw(f"{self.name} {seed}")
        options = evolve(_three(draw), gc_records=draw.choice((60, 20_000)))

        async def script(world: World) -> None:
            await restored_log(world, draw)

        return played(simulate(script, seed=seed, options=options))


@frozen
class JobsWorkload:
    """Jobs of the pure cluster under a seeded search; see `simulation.search.jobs_search`."""

    name: str
    about: str

    def play(self, seed: int) -> Played:
        """See `Workload.play`."""
        from simulation.search.jobs_search import JobSearch

        run = JobSearch(seed).run()
        if run.broken is not None:
            raise run.broken
        return Played(0.0, run.checks.records, run.checks.applied, dict(run.checks.jobs.probes.counts))


@frozen
class ExplorerWorkload:
    """The pure cluster under a seeded search; see `simulation.search.search`."""

    name: str
    about: str
    steps: int = 3_000

    def play(self, seed: int) -> Played:
        """See `Workload.play`."""
        from simulation.search.search import Search

        run = Search(seed).run(self.steps)
        if run.broken is not None:
            raise run.broken
        checks = run.checks
        return Played(0.0, checks.records, checks.applied, dict(run.cluster.probes.counts))


def played(world: World) -> Played:
    """What a world that has ended comes to."""
    return Played(world.ended_s, len(world.audit.records), world.audit.applied, dict(world.probes.counts))


# --- the values -------------------------------------------------------------------------------


def _five(draw: Draw) -> Options:
    """Five nodes, three copies, delays of a good or a busy data centre."""
    return Options(
        nodes=5,
        partitions=draw.choice((4, 8)),
        absent_after_ms=draw.choice((8_000, 60_000)),
        append_delay_ms=draw.choice(((1, 4), (1, 4), (5, 80))),
        read_delay_ms=draw.choice(((0, 3), (0, 3), (5, 200))),
        disk_delay_ms=draw.choice(((0, 2), (5, 60))),
        network_delay_ms=draw.choice((1, 1, 25)),
        client_clock_ms=draw.choice(((0,), (-4_000, 0, 4_000))),
    )


def _three(draw: Draw) -> Options:
    """Three nodes, as most clusters have."""
    return evolve(_five(draw), nodes=3, partitions=draw.choice((1, 4)))


def _some(draw: Draw) -> Options:
    """Three to five nodes with room to move, which are not waited for long."""
    return evolve(
        _five(draw), nodes=draw.choice((3, 4, 5)), partitions=draw.choice((2, 4)), absent_after_ms=8_000, zones=0
    )


def _standard_mix(draw: Draw) -> Mix:
    return Mix(
        producers=1,
        workers=2,
        batch_max=draw.choice((6, 12)),
        pause_s=draw.choice((5.0, 10.0)),
        idle_s=draw.choice((0.5, 8.0)),
        lease_ms=(1_500, 6_000),
        forget=0.05,
        late=0.06,
        renew=0.15,
        near=0.1,
        rules=RulesMix(),
    )


def _leases_mix(draw: Draw) -> Mix:
    return Mix(
        workers=4,
        pause_s=1.5,
        batch_max=6,
        lease_ms=(1_000, 3_000),
        forget=0.1,
        late=0.2,
        near=0.35,
        renew=0.2,
        fail=0.02,
    )


def _retries_mix(draw: Draw) -> Mix:
    return Mix(workers=3, pause_s=1.5, batch_max=6, fail=0.4, release=0.15, forget=0.1, late=0.05, retries=(1, 4))


def _plain_mix(draw: Draw) -> Mix:
    return Mix(workers=draw.choice((2, 3)), pause_s=draw.choice((1.0, 3.0)), update=0.3)


_SCENES: tuple[Scene, ...] = (
    *SCENES.values(),
    *COPY_SCENES.values(),
    *LOST_DISK_SCENES.values(),
    *RULE_SCENES.values(),
    *CANCELLING_SCENES.values(),
    *WITHDRAWN_SCENES.values(),
    *AHEAD_SCENES.values(),
    *TRANSACTION_SCENES.values(),
    *BATCH_SCENES.values(),
    *RETENTION_SCENES.values(),
    *WORKER_SCENES.values(),
    *TASKSTORE_SCENES.values(),
    *BACKUP_SCENES.values(),
    *RECOVERY_SCENES.values(),
    *LOOK_SCENES.values(),
    *TIMER_SCENES.values(),
    *TOKEN_SCENES.values(),
    *SHARE_SCENES.values(),
)

_ALL: tuple[Workload, ...] = (
    LoadWorkload(
        "standard",
        "five peers, churn, message faults, leases near their end",
        CHURN_AND_MESSAGES,
        _five,
        _standard_mix,
    ),
    LoadWorkload(
        "retries", "tasks fail, are given back and forgotten until they are dead letters", CHURN, _three, _retries_mix
    ),
    LoadWorkload(
        "leases",
        "claims are renewed, completed and forgotten around their deadlines",
        MESSAGES,
        _three,
        _leases_mix,
    ),
    LoadWorkload("membership", "machines come and go, partitions move", MEMBERSHIP, _some, _plain_mix),
    LoadWorkload("clocks", "every clock is wrong at some time", CLOCKS, _three, _leases_mix),
    LoadWorkload("disks", "bit rot, full and slow disks, crashes", DISKS, _three, _plain_mix),
    LoadWorkload(
        "failing_disk",
        "writes that are refused and may have landed, pages that are damaged, disks that take nothing",
        FailingDisks("failing disks", "one machine's disk after the other fails", ()),
        _some,
        _plain_mix,
    ),
    LoadWorkload("log", "outages, lost sessions, collections under slow readers", LOG, _three, _plain_mix),
    LoadWorkload("everything", "any fault at any time", EVERYTHING, _five, _standard_mix),
    MovesWorkload("transactions", "moves by transactions, churn and message faults", CHURN_AND_MESSAGES, _five),
    MovesWorkload("transactions_everything", "moves by transactions, any fault at any time", EVERYTHING, _three),
    RestoredLogWorkload("restored_log", "the log is set back, wiped or overtaken by others; every node says so"),
    SceneWorkload("scenes", "known bad situations, one after the other", _SCENES),
    *(SceneWorkload(scene.name, scene.about, (scene,)) for scene in _SCENES),
    JobsWorkload("jobs", "twenty jobs under each scheduler, while peers come, go, and offer other slots"),
    ExplorerWorkload("explorer", "a search through interleavings of the pure cluster"),
)
WORKLOADS: Mapping[str, Workload] = {one.name: one for one in _ALL}
"""Every workload by name."""

__all__ = ["FAULTS", "WORKLOADS", "Faults", "Played", "Workload"]
