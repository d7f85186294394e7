"""The fields of task headers that leaders read, with the queue's settings as defaults."""

from __future__ import annotations

from typing import Any, NamedTuple

from onyxq.core.facts import FAILED, STOPPED
from onyxq.core.ids import ms_of
from onyxq.core.limits import UniqueUntil
from onyxq.core.queues import settings_of
from onyxq.core.replica import Replica

ORDERING_KEY, UNIQUE_KEY, DEPENDS, EXPIRES_MS = "ordering_key", "unique_key", "depends", "expires_ms"
UNIQUE_UNTIL, UNIQUE_PERIOD_MS, ON_CONFLICT = "unique_until", "unique_period_ms", "on_conflict"
REPLACE = "replace"
"""The choice of an enqueue that says nothing of ``on_conflict``."""
DUE_MS, MARK, CHANGED_BY = "due_ms", "mark", "changed_by"
"""Fields that only leaders write, when they change a task: its new due time, the mark of the change, and the id of the
enqueue that asked for it, by which a repeat is recognised.
"""
CALLBACK = "callback"
JOINS = "joins"
"""Field of a task that no worker runs: it ends once all tasks that it depends on have ended. Only nodes set it."""
FLOW = "flow"
"""Field of a task of a flow: the flow's id. Only nodes set it."""
SPECIAL = frozenset({ORDERING_KEY, UNIQUE_KEY, DEPENDS, EXPIRES_MS, CALLBACK})
"""Fields of tasks that require more than storing and granting."""

UNSTORED: dict[str, Any] = {"retries": None}
"""Taken as the header of a claimed task whose row is not stored: no claim on it ends in a dead letter."""


class Policy(NamedTuple):
    """How failures of a task are handled."""

    retries: int | None
    """Counted attempts after the first; None: until one succeeds."""
    backoff_ms: int
    failure: int
    """The outcome of a task that fails for good; it decides whether its ordering key stops."""

    def is_spent(self, attempts: int, base: int) -> bool:
        """Return whether no retry is left after ``attempts``; the first ``base`` were before the last reopening."""
        return self.retries is not None and attempts - base > self.retries


def policy_of(replica: Replica, header: dict[str, Any]) -> Policy:
    """Return a task's policy: from its header or, if that sets nothing, from its queue."""
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


def until_of(header: dict[str, Any]) -> UniqueUntil:
    """Return when the unique key of a task is free again.

    A key with a period is taken until the task is purged, because a period has one task.
    """
    until: UniqueUntil = header.get(UNIQUE_UNTIL) or ("purged" if header.get(UNIQUE_PERIOD_MS) else "finished")
    return until


def unique_options(header: dict[str, Any]) -> dict[str, Any]:
    """Return what users see of a task's unique key beside the key itself."""
    if UNIQUE_KEY not in header:
        return dict.fromkeys((UNIQUE_UNTIL, UNIQUE_PERIOD_MS, ON_CONFLICT))
    return {
        UNIQUE_UNTIL: until_of(header),
        UNIQUE_PERIOD_MS: header.get(UNIQUE_PERIOD_MS),
        ON_CONFLICT: header.get(ON_CONFLICT, REPLACE),
    }


def due_of(header: dict[str, Any], first: bytes) -> int:
    """Return when a task is due in ms, retries aside: its id names the time, unless its leader changed it."""
    changed: int | None = header.get(DUE_MS)
    return ms_of(first) if changed is None else changed


def may_say(body: bytes, *fields: str) -> bool:
    """Return whether a task row's header may contain one of these fields.

    This is a quick search for bytes. It can be wrong only if other text in the header contains a field's name.
    """
    head = body[8 : 8 + int.from_bytes(body[:4], "little")]
    return any(field.encode() in head for field in fields)
