"""Sizes clusters from what `bench.scale` measured: peers, ZooKeeper servers, bytes written, and logs.

Pure. A peer's processor does two kinds of work. It *reads*: every record of the log, of every writer.
And it *serves*: its share of the tasks, as leader, copy and coordinator. Reading does not shrink with
more peers, so one log has a limit. `plan` finds the fewest peers that stay below a use of their processor.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import frozen

from onyxq.history.claim_rows import LAZY_FLUSH_S
from onyxq.log.outbox import pause_at

USE = 0.6
"""Share of one core that a peer may use, so that bursts and takeovers have room."""
APPEND_S = 0.004
"""Time of an append in ZooKeeper."""
PEERS_MIN, PEERS_MAX = 3, 50
"""Peers on one log. Nothing was measured above 12."""
SERVER_CORES = 2
"""Cores of a ZooKeeper server, which may be used as much as those of peers."""
SERVERS_MIN = 3
LOADS = {"1x64/16": "single calls", "1x64/1": "grouped calls", "100x16/16": "batches of 100"}
"""Measured load -> its name; see `docs/scale.rst`."""

Map = Mapping[str, Any]
Points = tuple[tuple[float, float], ...]
"""``(rate, milliseconds each)``, sorted by rate."""


@frozen
class Costs:
    """What the log costs each of its readers, in milliseconds of processor time."""

    idle: float
    """Per second, without any record."""
    empty: Points
    """Per record without entries, by records per second."""
    commit: float
    """Per transaction of a reader's store: at most one in `LAZY_FLUSH_S`."""
    entry: float
    grant: float
    delivery: Points
    """Of ZooKeeper, per record and reader, by records per second."""

    def reading(self, records: float, *, entries: float, grants: float) -> float:
        """Return the share of a core that reading takes; all arguments are per second."""
        commits = min(records, 1 / LAZY_FLUSH_S)
        used = self.idle + records * at_rate(self.empty, records) + commits * self.commit
        return (used + entries * self.entry + grants * self.grant) / 1000


@frozen
class Load:
    """One way to use a cluster. All figures are per task."""

    name: str
    entries: float
    """Entries with grants in the log."""
    grants: float
    serving: float
    """Processor time of all peers together, without reading, in milliseconds."""
    client: float
    """Processor time of the clients, in milliseconds."""
    written_kib: float
    """Bytes that all peers together write to their disks, in KiB."""


@frozen
class Plan:
    """A cluster that is large enough."""

    groups: int
    """Partition groups, each with a log."""
    peers: int
    """In each group."""
    use: float
    """Share of a core that each peer uses."""
    reading: float
    """Part of it for reading the log."""
    records: float
    """Per second and log."""
    pause_ms: float
    """After each record of a peer."""
    servers: int
    """ZooKeeper servers of each log; those above `SERVERS_MIN` as observers."""
    peer_mb_s: float
    """What each peer writes to its disk."""

    @property
    def total(self) -> int:
        """Return the number of all peers."""
        return self.groups * self.peers


def at_rate(points: Points, rate: float) -> float:
    """Return the cost of each at a rate; between two measured rates, the cost per second is a straight line."""
    if rate <= points[0][0]:
        return points[0][1]
    for (low, cost_low), (high, cost_high) in zip(points, points[1:], strict=False):
        if rate <= high:
            share = (rate - low) / (high - low)
            return ((1 - share) * low * cost_low + share * high * cost_high) / rate
    return points[-1][1]


# --- what was measured


def costs_of(document: Map) -> Costs:
    """Return the costs of reading. Of repeated measurements the lowest counts: other programs only add."""
    readers = document["readers"]
    idle = min(_mean(one["idle"]["peers_cpu_ms"]) / one["idle"]["seconds"] for one in readers)
    empty: dict[float, float] = {}
    delivery: dict[float, float] = {}
    for one in document["empty"]:
        rate, count = one["per_s"], one["records"]
        cost = (_mean(one["peers_cpu_ms"]) - idle * one["seconds"]) / count
        empty[rate] = min(cost, empty.get(rate, math.inf))
        each = one["zookeeper_cpu_ms"] / count / len(one["peers_cpu_ms"])
        delivery[rate] = min(each, delivery.get(rate, math.inf))
    entry, grant = _fitted([(one["entries"], one["grants"], one["cpu_ms"]) for one in document["steps"]])
    free = Costs(idle, tuple(sorted(empty.items())), 0.0, entry, grant, tuple(sorted(delivery.items())))
    return Costs(idle, free.empty, _commit(document, free), entry, grant, free.delivery)


def _commit(document: Map, free: Costs) -> float:
    """Return the cost of a commit: what readers used beyond all other costs of reading, per commit."""
    found: list[float] = []
    for one in document["readers"]:
        for text, load in one["modes"].items():
            records, seconds = load["records"] / load["seconds"], load["seconds"]
            calls = load["tasks"] / int(text.partition("x")[0]) / seconds
            known = free.reading(records, entries=records, grants=calls)
            used = min(load["peers_cpu_ms"]) / seconds / 1000
            found.append(1000 * (used - known) / min(records, 1 / LAZY_FLUSH_S))
    return sorted(found)[len(found) // 2]


def _fitted(rows: Sequence[tuple[float, float, float]]) -> tuple[float, float]:
    """Return ``(a, b)`` so that the squares of ``a * x + b * y - z`` over the rows ``(x, y, z)`` are least."""
    xx, xy, yy = (sum(p * q for p, q in pairs) for pairs in _products(rows))
    xz, yz = sum(x * z for x, _, z in rows), sum(y * z for _, y, z in rows)
    divisor = xx * yy - xy * xy
    return (xz * yy - yz * xy) / divisor, (yz * xx - xz * xy) / divisor


def _products(rows: Sequence[tuple[float, float, float]]) -> tuple[list[tuple[float, float]], ...]:
    return [(x, x) for x, _, _ in rows], [(x, y) for x, y, _ in rows], [(y, y) for _, y, _ in rows]


def best(document: Map, peers: int, load: str) -> Map:
    """Return the measurement of a load with a number of peers that needed least processor time per task."""
    every = [one["modes"][load] for one in document["clusters"] if one["peers"] == peers and load in one["modes"]]
    return min(every, key=lambda one: float(sum(one["peers_cpu_ms"]) / one["tasks"]))


def loads_of(document: Map) -> dict[str, Load]:
    """Return the loads as measured with the fewest peers, where each peer has most to do; by name."""
    costs = costs_of(document)
    few = min(one["peers"] for one in document["clusters"])
    shapes = {one["load"]: one for one in document["steps"]}
    found = {}
    for text, name in LOADS.items():
        one, shape = best(document, few, text), shapes[text]
        per_task = one["records"] / one["tasks"] / shape["records"]
        entries, grants = shape["entries"] * per_task, shape["grants"] * per_task
        read = _read(costs, one, entries, grants) * few
        found[name] = Load(
            name,
            entries=entries,
            grants=grants,
            serving=(sum(one["peers_cpu_ms"]) - read) / one["tasks"],
            client=one["clients_cpu_ms"] / one["tasks"],
            written_kib=sum(one["peers_written_kib"]) / one["tasks"],
        )
    return found


def _read(costs: Costs, one: Map, entries: float, grants: float) -> float:
    """Return the milliseconds in which each peer read during a measurement."""
    seconds, tasks = one["seconds"], one["tasks"] / one["seconds"]
    rate = costs.reading(one["records"] / seconds, entries=entries * tasks, grants=grants * tasks)
    return float(1000 * rate * seconds)


def checked(document: Map, load: str) -> list[tuple[int, float, float]]:
    """Return ``(peers, measured, modelled)`` milliseconds of all peers per task, for each measured size."""
    costs, known = costs_of(document), loads_of(document)[LOADS[load]]
    found = []
    for peers in sorted({one["peers"] for one in document["clusters"]}):
        one = best(document, peers, load)
        read = _read(costs, one, known.entries, known.grants) * peers / one["tasks"]
        found.append((peers, sum(one["peers_cpu_ms"]) / one["tasks"], known.serving + read))
    return found


# --- sizes


def records_per_s(peers: int, entries_per_s: float, *, append_s: float = APPEND_S) -> float:
    """Return the records per second of peers that share the entries equally.

    A peer writes its next record when it has an entry, its last record is written and its pause is over.
    """
    each = entries_per_s / peers
    low, high = 0.0, entries_per_s
    for _ in range(60):
        middle = (low + high) / 2
        cycle_s = append_s + pause_at(middle * (peers - 1) / peers)
        if peers * each / (1 + each * cycle_s) > middle:
            low = middle
        else:
            high = middle
    return low


def sized(costs: Costs, load: Load, tasks_per_s: float, *, groups: int, peers: int) -> Plan:
    """Return what a cluster of a number of peers in each group does at a rate of tasks."""
    tasks = tasks_per_s / groups
    records = records_per_s(peers, tasks * load.entries)
    reading = costs.reading(records, entries=tasks * load.entries, grants=tasks * load.grants)
    delivering = records * peers * at_rate(costs.delivery, records) / 1000
    return Plan(
        groups=groups,
        peers=peers,
        use=reading + tasks * load.serving / 1000 / peers,
        reading=reading,
        records=records,
        pause_ms=1000 * pause_at(records * (peers - 1) / peers),
        servers=max(SERVERS_MIN, math.ceil(delivering / (USE * SERVER_CORES))),
        peer_mb_s=tasks * load.written_kib / peers * 1024 / 1e6,
    )


def plan(costs: Costs, load: Load, tasks_per_s: float, *, groups: int = 1) -> Plan | None:
    """Return the fewest peers that carry a rate of tasks; None if `PEERS_MAX` on each log are too few."""
    for peers in range(PEERS_MIN, PEERS_MAX + 1):
        found = sized(costs, load, tasks_per_s, groups=groups, peers=peers)
        if found.use <= USE:
            return found
    return None


def limit(costs: Costs, load: Load) -> float:
    """Return the tasks per second that `PEERS_MAX` peers on one log carry."""
    return _most(lambda rate: sized(costs, load, rate, groups=1, peers=PEERS_MAX).use)


def reading_limit(costs: Costs, load: Load) -> float:
    """Return the tasks per second of one log at which peers have only time for reading."""
    return _most(lambda rate: sized(costs, load, rate, groups=1, peers=PEERS_MAX).reading)


def _most(used: Callable[[float], float]) -> float:
    """Return the highest rate at which no more than `USE` is used."""
    low, high = 0.0, 1e8
    for _ in range(60):
        middle = (low + high) / 2
        if used(middle) <= USE:
            low = middle
        else:
            high = middle
    return low


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
