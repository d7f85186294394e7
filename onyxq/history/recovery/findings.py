"""What nodes know of a lost log, read from their stopped directories or from exported files.

The node that read furthest has the newest replica. The others must have read the same log. If a node's
digest differs at its position, it has read another log, and a person must decide between them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen

from onyxq.core import snapshot
from onyxq.core.errors import Conflict, Corrupt, NotFound, OnyxqError
from onyxq.core.log.interface import Record
from onyxq.core.placement import holders
from onyxq.core.replica import EMPTY, Replica, majority
from onyxq.core.step import step
from onyxq.history.file_format import NODE, Block, HistoryFileWriter, Kind, damaged, open_file
from onyxq.history.recovery.new_replica import expected_nodes
from onyxq.store.interface import CLUSTER_META, NODE_META
from onyxq.store.lmdb_store import LmdbStore
from onyxq.store.store import Store
from onyxq.system.extensions import installed

KIND = Kind(
    "export",
    (NODE,),
    what="node's part of a recovery",
    make="onyxq cluster recover --export",
    damaged="Export it again on that machine.",
)


@frozen
class Found:
    """What one node knows of the log."""

    source: str
    """The directory or file."""
    node: str
    cluster_id: str
    position: int
    """Position up to which the node has durably read the log."""
    digest: bytes
    """The log's digest at ``position``."""
    epochs: Mapping[int, int]
    """Promised epochs by partition."""
    start: Replica
    """The snapshot with which the node's copy of the log begins."""
    records: tuple[Record, ...]
    """The records after it."""

    @property
    def end(self) -> int:
        """The position at which the node's copy of the log ends."""
        return self.records[-1].position if self.records else self.start.position


@frozen
class Newest:
    """The newest replica of everything that was found."""

    of: Found
    replica: Replica
    epochs: Mapping[int, int]
    """The highest promised epoch of any node, by partition."""
    position: int
    """The highest position that any node has read."""
    missing: Mapping[str, int]
    """Nodes that were not given -> number of partitions in which they hold copies."""
    without_majority: int
    """Number of partitions with a majority of their copies on missing nodes."""


# --- reading


async def read_directory(path: Path) -> Found:
    """Return what a stopped node's directory holds.

    Raises `NotFound`, `Conflict` if the directory is in use, and `Corrupt`.
    """
    if not (path / "data.mdb").exists():
        raise NotFound(f"{path} is not the data directory of a node", field="data", hint="Give the peer's --data.")
    store = LmdbStore.open(path)
    try:
        return found_in(store, str(path))
    except Corrupt as error:
        raise Corrupt(f"{path}: {error.message}", field="data", hint="Leave this directory out.") from None
    finally:
        await store.aclose()


def found_in(store: Store, source: str) -> Found:
    """Return what a store knows of the log.

    Raises `NotFound` if its node never joined a cluster, and `Corrupt`.
    """
    node, cluster_id = store.meta(NODE_META), store.meta(CLUSTER_META)
    if node is None or cluster_id is None:
        raise NotFound(f"the node of {source} never joined a cluster", field="data", hint="Leave it out.")
    kept = store.kept_log()
    return Found(
        source=source,
        node=node.decode(),
        cluster_id=cluster_id.decode(),
        position=store.log_position(),
        digest=store.log_digest(),
        epochs=store.epochs(),
        start=snapshot.unpack(kept.snapshot) if kept.snapshot else EMPTY,
        records=kept.records,
    )


def export(found: Found, path: str | os.PathLike[str]) -> None:
    """Write what was found to a file, for the command on another machine."""
    origin = snapshot.pack(found.start) if found.start.position >= 0 else b""
    said = {
        "node": found.node,
        "position": found.position,
        "digest": found.digest,
        "epochs": sorted(found.epochs.items()),
    }
    with HistoryFileWriter(path, KIND, cluster="", cluster_id=found.cluster_id, origin=origin) as file:
        file.add_block(NODE, said)
        file.add_all(found.records)


def read_export(path: Path) -> Found:
    """Return what `export` wrote; raises `NotFound`, `BadRequest` for another kind of file, and `Corrupt`."""
    file = open_file(path, KIND)
    said: dict[str, Any] = {}
    records: list[Record] = []
    for found in file.contents():
        if isinstance(found, Block):
            said = found.map() if found.kind == NODE else said
        else:
            records += found
    try:
        return Found(
            source=str(path),
            node=said["node"],
            cluster_id=file.cluster_id,
            position=said["position"],
            digest=said["digest"],
            epochs=dict(said["epochs"]),
            start=file.origin or EMPTY,
            records=tuple(records),
        )
    except (KeyError, TypeError, ValueError):
        raise damaged(path, KIND, 1, "what the node has read is missing") from None


# --- comparing


def newest_of(found: Sequence[Found]) -> Newest:
    """Return the newest replica; raises `Conflict` if the findings are not of one cluster and one log."""
    _check_one_cluster(found)
    first = max(found, key=lambda one: (one.end, one.position))
    ahead = max(found, key=lambda one: one.position)
    if ahead.position > first.end:
        raise Conflict(
            f"{ahead.source} has read the log up to position {ahead.position}, and no node given keeps it beyond"
            f" {first.end}",
            field="data",
            hint="Give the directories of more nodes, or restore a backup.",
        )
    replica = _rebuilt(first, found)
    epochs: dict[int, int] = {}
    for one in found:
        for partition, epoch in one.epochs.items():
            epochs[partition] = max(epoch, epochs.get(partition, 0))
    given = {one.node for one in found}
    missing = {node: copies for node, copies in expected_nodes(replica).items() if node not in given}
    lost = sum(not majority(placed.members, given) for placed in replica.partitions.values() if holders(placed))
    return Newest(first, replica, epochs, max(first.end, ahead.position), missing, lost)


def _check_one_cluster(found: Sequence[Found]) -> None:
    first = found[0]
    seen: dict[str, Found] = {}
    for one in found:
        if one.cluster_id != first.cluster_id:
            raise Conflict(
                f"{first.source} belongs to cluster {first.cluster_id}, {one.source} to {one.cluster_id}", field="data"
            )
        if (other := seen.setdefault(one.node, one)) is not one:
            raise Conflict(
                f"{other.source} and {one.source} are both of node {one.node}",
                field="data",
                hint="One is a copy. Give the one that the node ran on last.",
            )


def _rebuilt(newest: Found, found: Sequence[Found]) -> Replica:
    """Return the replica at the end of a node's copy of the log; raises `Conflict` if another node read another log."""
    marks = {one.position for one in found}
    replica, entries = newest.start, installed()
    _compare(newest, [one for one in found if one.position <= replica.position], replica)
    for record in newest.records:
        try:
            replica = step(replica, record, entries).replica
        except OnyxqError as error:
            raise type(error)(f"{newest.source}: {error.message}", field="data") from None
        if record.position in marks:
            _compare(newest, [one for one in found if one.position == record.position], replica)
    return replica


def _compare(newest: Found, others: Sequence[Found], replica: Replica) -> None:
    """Raise unless the other nodes have read the same log up to the replica's position or before it."""
    digests = {**dict(replica.milestones), replica.position: replica.digest}
    for one in others:
        if digests.get(one.position, one.digest) == one.digest:
            continue
        if one is newest:
            raise Corrupt(f"{one.source}: its copy of the log is damaged", field="data", hint="Leave it out.")
        raise Conflict(
            f"{newest.source} and {one.source} contradict each other: they have read different records at or before"
            f" position {one.position}",
            field="data",
            hint="One of the nodes worked on another log. Decide whose tasks count, and leave the other one out.",
        )
