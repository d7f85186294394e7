"""Restoring a backup: the log of a new cluster, and a data directory for each of its nodes.

The result is a cluster in which every node was switched off at once; peers that start on the directories
recover as after any such stop. The cluster has a new id, so it and the old cluster refuse each other. Its log
begins in a later segment. Its positions, and therefore its tokens, are greater than all that the old cluster
gave before the backup.

The replica is newer than the rows. Claims on tasks that the backup does not have are dropped. History rows
are derived from the records of the backup, as each node would have done.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias

from attrs import evolve, frozen

from onyxq.core import snapshot
from onyxq.core.errors import Conflict
from onyxq.core.facts import Row, partition_of_key
from onyxq.core.log.interface import START, LogSession, segment_of
from onyxq.core.placement import holders
from onyxq.core.replica import ClaimPiece, Replica, with_pieces, without
from onyxq.core.ring import latest_peer
from onyxq.history.backup.file import Backup
from onyxq.history.claim_rows import history_rows, returned_runs
from onyxq.history.recovery.new_log import begin_log
from onyxq.history.replay import steps
from onyxq.store.interface import ADMITTED_META, CLUSTER_META, NODE_META, PEERS_META, STORE_META, Batch
from onyxq.store.row_checks import Prepared
from onyxq.store.store import Store
from onyxq.system.clock import SystemClock, WallClock

WRITER = "restore"
"""Writer of the record with which the new log begins."""
ROWS_BATCH = 2_000

NewStores: TypeAlias = Callable[[Sequence[str]], AbstractAsyncContextManager[Mapping[str, Store]]]
"""Opens a new store for each of some node ids.

The stores are kept only if the block ends without an error.
"""


@frozen
class Restored:
    """The result of a restore."""

    cluster: str
    cluster_id: str
    rows: int
    position: int
    """Position of the new log's origin."""


async def restore(
    backup: Backup,
    session: LogSession,
    *,
    name: str,
    new_stores: NewStores,
    cluster_id: str = "",
    clock: WallClock | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Restored:
    """Make the stores, then the log of the new cluster.

    ``session``: of an empty log whose segments may be closed after one record. ``cluster_id``: of the new
    cluster, by default random.

    Raises `Conflict` if the cluster or a directory exists already.
    """
    await _check_empty(session, name)
    replica = backup.last
    cluster_id = cluster_id or secrets.token_hex(8)
    async with new_stores(backup.nodes) as stores:
        for node, store in stores.items():
            peers = " ".join(dict.fromkeys((replica.nodes[node].latest_peer, latest_peer(replica, node))))
            store_id = replica.nodes[node].store
            meta = {NODE_META: node, CLUSTER_META: cluster_id, PEERS_META: peers}
            meta |= {STORE_META: store_id, ADMITTED_META: store_id}
            await store.write(Batch(meta=tuple((key, value.encode()) for key, value in meta.items())))
        rows = 0
        for partition, page in backup.pages():
            await _write_copies(holders(replica.partitions[partition]), page, stores)
            rows += len(page)
            progress(f"{rows} rows")
        await _write_history(backup, stores)
        replica = known_claims(replica, lambda number: stores[holders(replica.partitions[number])[0]])
        now_ms, segment = (clock or SystemClock()).wall_ms, segment_of(replica.position) + 1
        position = await begin_log(session, cluster_id, WRITER, segment=segment, now_ms=now_ms)
        for store in stores.values():
            await store.write(Batch(log_position=position, log_digest=replica.digest))
    made = _first_replica(replica, position=position, cluster_id=cluster_id, name=name)
    if not await session.store_origin(position, snapshot.pack(made), expected_version=-1):
        raise Conflict(f"another process created cluster {name!r} meanwhile", field="name")
    await session.trim(position)
    return Restored(name, cluster_id, rows, position)


async def _write_copies(nodes: Iterable[str], rows: Sequence[Row], stores: Mapping[str, Store]) -> None:
    """Write rows of a partition to each of its nodes, because any of them may start first."""
    for node in nodes:
        await stores[node].write(Batch(rows=rows))


def _first_replica(last: Replica, *, position: int, cluster_id: str, name: str) -> Replica:
    """Return the replica with which the restored cluster begins; nothing waits for the backup there."""
    assert last.cluster is not None
    return evolve(last, position=position, cluster=evolve(last.cluster, id=cluster_id, name=name), hold=None)


def known_claims(replica: Replica, store_of: Callable[[int], Store]) -> Replica:
    """Return the replica without claims on tasks that have no row."""
    for partition, stretches in sorted(replica.claims.items()):
        store = store_of(partition)
        changes: dict[bytes, tuple[ClaimPiece, ...]] = {}
        for stretch, pieces in sorted(stretches.items()):
            known = without(pieces, ~store.known_bits(stretch))
            if known != pieces:
                changes[stretch] = known
        if changes:
            replica = with_pieces(replica, partition, changes)
    return replica


# --- before anything is made


async def _check_empty(session: LogSession, name: str) -> None:
    if await session.tail() != START or await session.origin() is not None:
        raise Conflict(
            f"there is a cluster {name!r} already", field="name", hint="Choose another name, or destroy that one."
        )


# --- stores


async def _write_history(backup: Backup, stores: Mapping[str, Store]) -> None:
    """Write the history rows that the backup's records add to the tasks in the backup."""
    rows: list[Prepared] = []
    before = backup.origin
    for done in steps(before, backup.file):
        returned = returned_runs(before, done.replica, done.outcomes)
        rows += history_rows(done.replica, done.outcomes, returned, lambda _: True)
        before = done.replica
        if len(rows) >= ROWS_BATCH:
            await _keep_known(rows, backup.last, stores)
            rows = []
    await _keep_known(rows, backup.last, stores)


async def _keep_known(rows: Sequence[Prepared], last: Replica, stores: Mapping[str, Store]) -> None:
    kept: dict[str, list[Prepared]] = {}
    for row in rows:
        nodes = holders(last.partitions[partition_of_key(row.key)])
        if _known(row, stores[nodes[0]]):
            for node in nodes:
                kept.setdefault(node, []).append(row)
    for node, some in sorted(kept.items()):
        await stores[node].write(Batch(rows=some))


def _known(row: Prepared, store: Store) -> bool:
    return store.known_bits(row.stretch) & row.mask == row.mask
