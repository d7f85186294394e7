"""Gives the log its cluster: name, random id, settings and the entries enabled from the start.

Submitted by the first peer that finds the log empty, in a record that carries the new
cluster's id.  Sets ``cluster`` and ``enabled`` and makes the partitions, which live
nowhere until a node joins.  Only the first one is applied; all later records must carry
its id.
"""

from __future__ import annotations

from attrs import evolve, frozen
from pyrsistent import PMap, pmap

from onyxq.entry import APPLIED, Stamp, Verdict
from onyxq.ids import PARTITIONS_MAX
from onyxq.replica import Cluster, Partition, Replica, Settings

VERSION = 1
NAME_CHARACTERS_MAX = 200
REPLICAS_MAX = 9
TIME_MAX_MS = 86_400_000
GC_RECORDS_MAX = 100_000_000
GC_BYTES_MAX = 1 << 40


@frozen
class Args:
    """``enabled``: entry name -> version that may be used."""

    name: str
    id: str
    partitions: int
    replicas: int
    session_timeout_ms: int
    absent_after_ms: int
    yield_after_ms: int
    enabled: PMap[str, int]
    gc_records: int = 20_000
    gc_bytes: int = 4 << 20


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Create the cluster unless there is one."""
    if replica.cluster is not None:
        return replica, "already created"
    if not (0 < len(args.name) <= NAME_CHARACTERS_MAX and 0 < len(args.id) <= NAME_CHARACTERS_MAX):
        return replica, "bad name"
    times = (args.session_timeout_ms, args.absent_after_ms, args.yield_after_ms)
    if not (1 <= args.partitions <= PARTITIONS_MAX and 1 <= args.replicas <= REPLICAS_MAX):
        return replica, "bad settings"
    if not all(0 < time_ms <= TIME_MAX_MS for time_ms in times):
        return replica, "bad settings"
    if not (0 < args.gc_records <= GC_RECORDS_MAX and 0 < args.gc_bytes <= GC_BYTES_MAX):
        return replica, "bad settings"
    settings = Settings(
        partitions=args.partitions,
        replicas=args.replicas,
        session_timeout_ms=args.session_timeout_ms,
        absent_after_ms=args.absent_after_ms,
        yield_after_ms=args.yield_after_ms,
        gc_records=args.gc_records,
        gc_bytes=args.gc_bytes,
    )
    created = evolve(
        replica,
        cluster=Cluster(name=args.name, id=args.id, settings=settings),
        enabled=args.enabled,
        partitions=pmap({number: Partition() for number in range(args.partitions)}),
    )
    return created, APPLIED
