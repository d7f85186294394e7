"""All workloads and faults, each as a documented value.

A workload turns a seed into a run: the seed draws the size and delays of the cluster, the load and the faults, within
the bounds of the workload's values. ``onyxq simulate --workload NAME`` plays them. A new workload is a new value in
`WORKLOADS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

from attrs import evolve, frozen

from simulation.checkers import Broken, Course
from simulation.probes import Probes
from simulation.results import Result
from simulation.scenes.ahead import AHEAD_SCENES
from simulation.scenes.backup import BACKUP_SCENES
from simulation.scenes.base import SCENES
from simulation.scenes.batches import BATCH_SCENES
from simulation.scenes.callbacks import CALLBACK_SCENES
from simulation.scenes.cancelling import CANCELLING_SCENES
from simulation.scenes.copies import COPY_SCENES
from simulation.scenes.early_grants import EARLY_SCENES
from simulation.scenes.flows import FLOW_SCENES
from simulation.scenes.leases import LEASE_SCENES
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
from simulation.search.facts import FactsSearch
from simulation.search.jobs_search import JobSearch
from simulation.search.moves.search import MovesSearch
from simulation.search.search import Search
from simulation.search.transactions.search import TransactionsSearch
from simulation.world.failing_disks import failing_disks
from simulation.world.faults import EPISODES, storm
from simulation.world.load import Mix, under_load
from simulation.world.load_rules import RulesMix
from simulation.world.moves import MovesMix, under_moves
from simulation.world.restored_log import restored_log
from simulation.world.workload import Draw, Workload
from simulation.world.world import Options, Script, World


class Playable(Protocol):
    """A workload in which a seed can be played."""

    @property
    def name(self) -> str:
        """The name that ``--workload`` takes."""
        ...

    @property
    def about(self) -> str:
        """One line about it."""
        ...

    def play(self, seed: int) -> Result:
        """Play one seed; raise what broke."""
        ...


@frozen
class Faults:
    """Faults of a cluster: ``rounds`` times, up to ``at_once`` of the episodes at the same time."""

    name: str
    about: str
    episodes: tuple[str, ...]
    """Names in `simulation.world.faults.EPISODES`; a name that is here twice is drawn twice as often."""
    rounds: int = 4
    at_once: int = 2
    rest_s: float = 5.0
    """Longest time between two rounds, in simulated seconds."""

    async def befall(self, world: World) -> None:
        """Cause the faults, and undo them all."""
        if self.episodes:
            await storm(world, names=self.episodes, rounds=self.rounds, at_once=self.at_once, rest_s=self.rest_s)


@frozen
class FailingDisks(Faults):
    """The disk of one machine after the other fails; see `simulation.world.failing_disks`."""

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
HALF_OPEN = Faults(
    "half open",
    "nodes hear and are not heard, or the reverse; connections die unnoticed or break, processes are killed",
    ("half_open", "half_open", "dead_connections", "dead_connections", "cut_connections", "crash"),
    rounds=5,
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
    for one in (
        NO_FAULTS,
        CHURN,
        MESSAGES,
        HALF_OPEN,
        CHURN_AND_MESSAGES,
        MEMBERSHIP,
        CLOCKS,
        DISKS,
        LOG,
        EVERYTHING,
    )
}


def loaded(
    name: str, about: str, faults: Faults, options: Callable[[Draw], Options], mix: Callable[[Draw], Mix]
) -> Workload:
    """Return a workload with a cluster under load and faults; afterwards it must recover and complete everything."""

    def drawn(draw: Draw) -> tuple[Script, Options]:
        found = mix(draw)
        return partial(under_load, faults=faults.befall, mix=found), options(draw)

    return Workload(name, about, drawn)


def moving(name: str, about: str, faults: Faults, options: Callable[[Draw], Options]) -> Workload:
    """Return a workload in which transactions turn inputs into outputs under faults; each must count once."""

    def drawn(draw: Draw) -> tuple[Script, Options]:
        mix = MovesMix(mappers=draw.choice((2, 3)), pause_s=draw.choice((1.0, 4.0)), near=draw.choice((0.05, 0.3)))
        return partial(under_moves, faults=faults.befall, mix=mix), options(draw)

    return Workload(name, about, drawn)


def _restored_log(draw: Draw) -> tuple[Script, Options]:
    options = evolve(_three(draw), gc_records=draw.choice((60, 20_000)))
    return partial(restored_log, draw=draw), options


def _explored(draw: Draw) -> tuple[Script, Options]:
    mix = Mix(
        producers=draw.choice((1, 1, 2)),
        workers=draw.choice((2, 3, 4)),
        batch_max=draw.choice((1, 8, 8, 40)),
        claim_max=draw.choice((1, 8, 8, 60)),
        pause_s=draw.choice((0.5, 1.0, 2.0)),
        forget=draw.choice((0.0, 0.04, 0.15)),
        late=draw.choice((0.0, 0.04, 0.15)),
        renew=draw.choice((0.1, 0.1, 0.5)),
    )
    options = Options(
        nodes=draw.choice((1, 2, 3, 3, 3, 3, 5)),
        partitions=draw.choice((1, 4, 8, 8, 16)),
        replicas=draw.choice((1, 2, 3, 3, 3)),
        absent_after_ms=draw.choice((8_000, 60_000)),
        append_delay_ms=draw.choice(((1, 4), (1, 4), (5, 80))),
        read_delay_ms=draw.choice(((0, 3), (0, 3), (5, 200))),
        disk_delay_ms=draw.choice(((0, 2), (0, 2), (5, 60))),
        network_delay_ms=draw.choice((1, 1, 1, 25)),
        clock_offset_ms=draw.choice((0, 200, 2_000)),
        client_clock_ms=draw.choice(((0,), (0,), (-4_000, 0, 4_000), (-600_000, 600_000))),
        zones=draw.choice((0, 0, 2, 3)),
    )
    return partial(under_load, faults=EVERYTHING.befall, mix=mix), options


@frozen
class InTurn:
    """Other workloads in turn, one per seed."""

    name: str
    about: str
    workloads: tuple[Workload, ...]

    def play(self, seed: int) -> Result:
        """Play one seed; raise what broke."""
        return self.workloads[seed % len(self.workloads)].play(seed)


class Searched(Protocol):
    """What a search found."""

    broken: Broken | None

    @property
    def course(self) -> Course:
        """The log."""
        ...

    @property
    def probes(self) -> Probes:
        """How often each rare branch was reached."""
        ...


class Searching(Protocol):
    """A search from one seed."""

    def run(self) -> Searched:
        """Make the moves of the seed."""
        ...


@frozen
class SearchWorkload:
    """A seeded search without an event loop: of the pure cluster, or of what its leaders decide."""

    name: str
    about: str
    search: Callable[[int], Searching]

    def play(self, seed: int) -> Result:
        """Play one seed; raise what broke."""
        run = self.search(seed).run()
        if run.broken is not None:
            raise run.broken
        return Result.of(self.name, seed, run.course, run.probes)


# --- the values -------------------------------------------------------------------------------


def _five(draw: Draw) -> Options:
    """Return five nodes, three copies, and the delays of a good or a busy data centre."""
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
    """Three to five nodes with room to move, whose copies are soon given up."""
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


_SCENES = tuple(
    scene.workload
    for scene in (
        *SCENES.values(),
        *COPY_SCENES.values(),
        *LOST_DISK_SCENES.values(),
        *RULE_SCENES.values(),
        *CANCELLING_SCENES.values(),
        *FLOW_SCENES.values(),
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
        *CALLBACK_SCENES.values(),
        *TOKEN_SCENES.values(),
        *SHARE_SCENES.values(),
        *LEASE_SCENES.values(),
        *EARLY_SCENES.values(),
    )
)

_ALL: tuple[Playable, ...] = (
    loaded(
        "standard",
        "five peers, churn, message faults, leases near their end",
        CHURN_AND_MESSAGES,
        _five,
        _standard_mix,
    ),
    loaded(
        "retries", "tasks fail, are given back and forgotten until they are dead letters", CHURN, _three, _retries_mix
    ),
    loaded(
        "leases",
        "claims are renewed, completed and forgotten around their deadlines",
        MESSAGES,
        _three,
        _leases_mix,
    ),
    loaded("half_open", "links that work in one direction only, or not at all", HALF_OPEN, _three, _plain_mix),
    loaded("membership", "machines come and go, partitions move", MEMBERSHIP, _some, _plain_mix),
    loaded("clocks", "every clock is wrong at some time", CLOCKS, _three, _leases_mix),
    loaded("disks", "bit rot, full and slow disks, crashes", DISKS, _three, _plain_mix),
    loaded(
        "failing_disk",
        "writes that are refused and may have landed, pages that are damaged, disks that take nothing",
        FailingDisks("failing disks", "one machine's disk after the other fails", ()),
        _some,
        _plain_mix,
    ),
    loaded("log", "outages, lost sessions, collections under slow readers", LOG, _three, _plain_mix),
    loaded("everything", "any fault at any time", EVERYTHING, _five, _standard_mix),
    Workload("exploration", "any cluster, any load, any fault", _explored),
    moving("transactions", "moves by transactions, churn and message faults", CHURN_AND_MESSAGES, _five),
    moving("transactions_everything", "moves by transactions, any fault at any time", EVERYTHING, _three),
    Workload("restored_log", "the log is set back, wiped or overtaken by others; every node says so", _restored_log),
    InTurn("scenes", "known bad situations, one after the other", _SCENES),
    *_SCENES,
    SearchWorkload("jobs", "twenty jobs under each scheduler, while peers come, go, and offer other slots", JobSearch),
    SearchWorkload("explorer", "a search through interleavings of the pure cluster", Search),
    SearchWorkload("facts", "a search through what leaders decide about tasks", FactsSearch),
    SearchWorkload("facts_moves", "the same while copies move, nodes stay away and partitions are forced", MovesSearch),
    SearchWorkload("facts_transactions", "the same while clients commit transactions of tasks", TransactionsSearch),
)
WORKLOADS: Mapping[str, Playable] = {one.name: one for one in _ALL}
"""Every workload by name."""
