"""What a host asks of its peer about the queues that its jobs read."""

from __future__ import annotations

import logging
import os

from onyxq.errors import OnyxqError, Unavailable

UNFINISHED = ("scheduled", "waiting", "ready", "claimed")
TIMEOUT_MS = 10_000

_log = logging.getLogger(__name__)


def is_done(connect: str | None, queue: str) -> bool:
    """Whether a queue has no task left that is still to be done; False while nobody can tell."""
    from onyxq.spark.connecting import connection

    if connect is None:
        raise Unavailable("a job that reads a queue needs a peer to connect to", field="connect")
    try:
        counts = connection(connect, os.environ.get("ONYXQ_TOKEN", ""), TIMEOUT_MS).call(
            lambda client: client.count(queue)
        )
    except OnyxqError as error:
        _log.warning("queue %s: %s", queue, error.message)
        return False
    return not any(counts.get(queue, {}).get(state, 0) for state in UNFINISHED)
