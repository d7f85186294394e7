"""Create the log's cluster: name, random id, settings and the entries enabled from the start.

Submitted by the first peer that finds the log empty, in a record that carries the new cluster's id.
Sets ``cluster`` and ``enabled`` and creates the partitions, which have no node until one joins.
Only the first such entry applies. All later records must carry its id.
"""

from __future__ import annotations

from attrs import asdict, evolve, frozen
from pyrsistent import PMap, pmap

from onyxq.core.cluster_settings import DEFAULTS, SETTINGS_LIMITS, Settings
from onyxq.core.entry import APPLIED, Stamp, Verdict
from onyxq.core.limits import NAME_CHARACTERS_MAX
from onyxq.core.replica import Cluster, Partition, Replica

VERSION = 1


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
    gc_records: int = DEFAULTS.gc_records
    gc_bytes: int = DEFAULTS.gc_bytes


def creation(name: str, cluster_id: str, settings: Settings, enabled: PMap[str, int]) -> Args:
    """Return the arguments that create a cluster with these settings."""
    return Args(name=name, id=cluster_id, enabled=enabled, **asdict(settings))


def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Create the cluster unless it exists."""
    if replica.cluster is not None:
        return replica, "already created"
    if not (0 < len(args.name) <= NAME_CHARACTERS_MAX and 0 < len(args.id) <= NAME_CHARACTERS_MAX):
        return replica, "bad name"
    if not all(0 < getattr(args, name) <= high for name, (_, high) in SETTINGS_LIMITS.items()):
        return replica, "bad settings"
    settings = Settings(**{name: getattr(args, name) for name in SETTINGS_LIMITS})
    created = evolve(
        replica,
        cluster=Cluster(name=args.name, id=args.id, settings=settings),
        enabled=args.enabled,
        partitions=pmap({number: Partition() for number in range(args.partitions)}),
    )
    return created, APPLIED
