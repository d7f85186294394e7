"""Runs of the pure cluster: from actions to what broke, and from that to as few actions as break it.

What the search, scenario files and their tests share (design: simulation).
"""

from __future__ import annotations

from collections.abc import Sequence

from simulation.probes import Probes
from simulation.search.calm import calm
from simulation.search.checks import Broken, Checks
from simulation.search.cluster import Action, Cluster, Options
from simulation.search.log import START_MS, Unreadable
from simulation.search.peer import Differs
from simulation.search.probes import pure_probes


def new_cluster(options: Options, probes: Probes | None = None) -> tuple[Cluster, Checks]:
    """An empty cluster and the checks that listen to its log."""
    cluster = Cluster(options, probes=probes or pure_probes())
    log = cluster.log
    checks = Checks(cluster.probes, elapsed_ms=lambda: log.now_ms - START_MS)
    log.listener = checks
    return cluster, checks


def perform(cluster: Cluster, checks: Checks, action: Action) -> bool:
    """Carry out one action; raises `Broken` for whatever goes wrong in it."""
    try:
        return cluster.act(*action)
    except Broken:
        raise
    except Unreadable as error:
        raise Broken("readable log", str(error)) from error
    except Differs as error:
        raise Broken("equal replicas", str(error)) from error
    except Exception as error:  # whatever an entry raises is a broken property of its own
        raise Broken("no errors", f"{type(error).__name__}: {error}") from error


def finish(cluster: Cluster, checks: Checks) -> None:
    """Faults stop; the cluster must recover. Raises `Broken`."""
    try:
        calm(cluster)
    except (Unreadable, Differs) as error:
        raise Broken("readable log" if isinstance(error, Unreadable) else "equal replicas", str(error)) from error


def replay(options: Options, actions: Sequence[Action]) -> Broken | None:
    """Carry actions out in a new cluster, then let the faults stop; what broke."""
    cluster, checks = new_cluster(options)
    try:
        for action in actions:
            perform(cluster, checks, action)
        finish(cluster, checks)
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
