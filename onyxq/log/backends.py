"""The log of a cluster: the one place that chooses between ZooKeeper and the embedded log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from onyxq.access.credentials import ANONYMOUS, ZookeeperCredentials
from onyxq.core.cluster_settings import DEFAULTS
from onyxq.core.log.interface import SEGMENT_RECORDS, LogBackend


@asynccontextmanager
async def opened(
    zookeeper: str | None,
    cluster: str,
    directory: Path,
    *,
    credentials: ZookeeperCredentials = ANONYMOUS,
    session_timeout_ms: int = DEFAULTS.session_timeout_ms,
    segment_records: int = SEGMENT_RECORDS,
) -> AsyncIterator[LogBackend]:
    """Open a cluster's log on the ZooKeeper ensemble, or, without one, the embedded log in ``directory``/log."""
    if zookeeper is not None:
        from onyxq.log.zookeeper import ZookeeperBackend

        yield ZookeeperBackend(
            zookeeper,
            cluster,
            session_timeout_ms=session_timeout_ms,
            segment_records=segment_records,
            credentials=credentials,
        )
        return
    from onyxq.log.embedded import EmbeddedBackend

    embedded = EmbeddedBackend.open(directory / "log", segment_records=segment_records)
    try:
        yield embedded
    finally:
        with trio.CancelScope(shield=True):
            await embedded.aclose()
