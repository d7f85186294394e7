"""Archiving tasks before they are purged: what to do for it around `onyxq.parquet` (design: retention)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

from onyxq.errors import Incomplete, OnyxqError
from onyxq.parquet.bucket import Bucket
from onyxq.parquet.writer import write_bucket
from onyxq.replica import Replica
from onyxq.store.interface import Store

log = logging.getLogger(__name__)


class ArchivingHost(Protocol):
    """What archiving needs of its node."""

    store: Store
    replica: Replica
    offload: Callable[..., Awaitable[Any]]


async def archive(host: ArchivingHost, bucket: Bucket, directory: Path) -> str:
    """Write the tasks of a bucket, those of queues that ask for it, to files below a directory; why that
    failed, or ""."""
    try:
        written = await write_bucket(host.replica, host.store, directory, bucket, offload=host.offload)
    except Incomplete as error:
        return f"{error.message}; {error.advice}"
    except OnyxqError as error:
        return error.message
    log.info("partition %d: %s in %s", bucket.partition, written, directory)
    return ""
