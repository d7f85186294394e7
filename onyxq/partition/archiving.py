"""Archiving tasks before they are purged: what to do for it around `onyxq.parquet` (design: retention)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable, Callable, Container, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import trio

from onyxq.errors import OnyxqError
from onyxq.ids import TaskId
from onyxq.store.interface import Store

log = logging.getLogger(__name__)


class ArchivingHost(Protocol):
    """What archiving needs of its node."""

    store: Store
    offload: Callable[..., Awaitable[Any]]


class OnLoop:
    """A store as a worker thread can read it: each call is made on the event loop, between its writes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)

        def call(*args: Any, **named: Any) -> Any:
            if threading.get_ident() == self._loop:
                return _whole(method(*args, **named))
            return trio.from_thread.run_sync(lambda: _whole(method(*args, **named)))

        return call


def _whole(answer: Any) -> Any:
    return list(answer) if isinstance(answer, Iterator) else answer


async def archive(
    host: ArchivingHost, *, partition: int, stretches: Iterable[TaskId], queues: Container[str], directory: Path
) -> str:
    """Write the finished tasks of stretches of a partition, those of some queues, to files below a
    directory, in a worker thread; why that failed, or ""."""
    try:
        from onyxq.parquet import write_bucket  # needs the extra ``archive``

        store: Any = OnLoop(host.store)
        written = await host.offload(write_bucket, store, partition, list(stretches), queues, directory)
    except OnyxqError as error:
        return f"the archive: {error.message}"
    except ImportError as error:
        return f"the archive needs what is not installed: {error}; pip install 'onyxq[archive]'"
    except OSError as error:
        return f"the archive in {directory} cannot be written: {error}"
    log.info("partition %d: %s archived in %s", partition, written, directory)
    return ""
