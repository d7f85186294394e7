"""Runs of the pure cluster: from actions to what broke, and from there to the fewest actions that break it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from simulation.checkers import Broken, LogChecker
from simulation.checkers.counted_once import CountedOnce
from simulation.checkers.invariants_hold import InvariantsHold, SnapshotsEqual
from simulation.checkers.leaders_only import LeadersOnly
from simulation.checkers.log_time import LogTime
from simulation.checkers.ring_watched import RingWatched
from simulation.checkers.tokens_increase import TokensIncrease
from simulation.log_probes import LogWatcher
from simulation.probes import Probes
from simulation.search.calm import calm
from simulation.search.claims import ClaimsModel
from simulation.search.cluster import Action, Cluster, Options
from simulation.search.extension import TallyModel
from simulation.search.jobs_model import JobsModel
from simulation.search.log import START_MS, Unreadable
from simulation.search.peer import Differs

SAMPLED_EVERY = 16
"""Records between checks of the invariants while ring, peers, nodes, partitions and jobs stay the same."""


def checkers_of(probes: Probes, elapsed_ms: Callable[[], int]) -> tuple[LogChecker, ...]:
    """Return the checkers of a search; ``elapsed_ms`` gives the true time since the start of the log."""
    return (
        LogWatcher(probes),
        CountedOnce(),
        LeadersOnly(),
        LogTime(elapsed_ms),
        TokensIncrease(),
        ClaimsModel(probes),
        TallyModel(probes),
        JobsModel(probes),
        InvariantsHold(SAMPLED_EVERY),
        RingWatched(),
        SnapshotsEqual(),
    )


def new_cluster(options: Options) -> Cluster:
    """Return an empty cluster whose log is checked."""
    cluster = Cluster(options)
    log = cluster.log
    log.course.checkers = checkers_of(cluster.probes, lambda: log.now_ms - START_MS)
    return cluster


@contextmanager
def told_as_broken() -> Iterator[None]:
    """Raise every error as `Broken`."""
    try:
        yield
    except Broken:
        raise
    except Unreadable as error:
        raise Broken(f"readable log: {error}") from error
    except Differs as error:
        raise Broken(f"equal replicas: {error}") from error
    except Exception as error:  # an error of an entry is a broken property too
        raise Broken(f"no errors: {type(error).__name__}: {error}") from error


def perform(cluster: Cluster, action: Action) -> bool:
    """Carry out one action; raises `Broken`."""
    with told_as_broken():
        return cluster.act(*action)


def finish(cluster: Cluster) -> None:
    """Stop the faults; the cluster must recover. Raises `Broken`."""
    with told_as_broken():
        calm(cluster)


def replay(options: Options, actions: Sequence[Action]) -> Broken | None:
    """Carry actions out in a new cluster, then stop the faults; return what broke."""
    cluster = new_cluster(options)
    try:
        for action in actions:
            perform(cluster, action)
        finish(cluster)
    except Broken as broken:
        return broken
    return None


def shrink(options: Options, actions: Sequence[Action], check: str, *, tries: int = 2_000) -> list[Action]:
    """Fewer actions that break the same check: chunks are left out while it still fails."""
    kept = list(actions)
    size = max(1, len(kept) // 2)
    while tries > 0:
        place, removed = 0, False
        while place < len(kept) and tries > 0:
            shorter = kept[:place] + kept[place + size :]
            tries -= 1
            broken = replay(options, shorter)
            if broken is not None and broken.check == check:
                kept, removed = shorter, True
            else:
                place += size
        if size == 1 and not removed:
            break
        size = max(1, size // 2)
    return kept


def trace(options: Options, actions: Sequence[Action], broken: Broken) -> str:
    """A failing run as a scenario file."""
    lines = [f"# {broken}", cluster_line(options)]
    lines += [" ".join(map(str, action)) for action in actions]
    return "\n".join([*lines, "calm", ""])


def cluster_line(options: Options) -> str:
    """The line of a scenario file that makes such a cluster."""
    return (
        f"cluster partitions={options.partitions} replicas={options.replicas} "
        f"absent_after_ms={options.absent_after_ms} zones={options.zones} gc_records={options.gc_records}"
    )
