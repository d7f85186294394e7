"""What a leader reads of task rows' headers, and what the queue says where they say nothing."""

from __future__ import annotations

from typing import Any, NamedTuple

from onyxq.core.facts import FAILED, STOPPED
from onyxq.core.queues import settings_of
from onyxq.core.replica import Replica

ORDERING_KEY, UNIQUE_KEY, DEPENDS, EXPIRES_MS = "ordering_key", "unique_key", "depends", "expires_ms"
SPECIAL = frozenset({ORDERING_KEY, UNIQUE_KEY, DEPENDS, EXPIRES_MS})
"""Fields of tasks that take more than storing and granting."""


class Policy(NamedTuple):
    """How the failures of a task are treated."""

    retries: int | None
    """Counted attempts after the first; None: until one succeeds."""
    backoff_ms: int
    failure: int
    """The outcome of its death: whether it stops its ordering key."""


def policy_of(replica: Replica, header: dict[str, Any]) -> Policy:
    """Return a task's policy: what its header says, else its queue."""
    settings = settings_of(replica, header.get("queue", ""))
    return Policy(
        header.get("retries", settings.retries),
        header.get("backoff_ms", settings.backoff_ms),
        failure_of(replica, header),
    )


def failure_of(replica: Replica, header: dict[str, Any]) -> int:
    """Return the outcome of a task that fails for good."""
    stops = ORDERING_KEY in header and settings_of(replica, header.get("queue", "")).on_dead == "stops"
    return STOPPED if stops else FAILED


def may_say(body: bytes, *fields: str) -> bool:
    """Return whether a task row's header may hold one of these fields: quick, and wrong only where other words hold them."""
    head = body[8 : 8 + int.from_bytes(body[:4], "little")]
    return any(field.encode() in head for field in fields)
