"""Queues whose ready tasks do not run because no worker asks for them, as the answer of ``workers`` says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import frozen

from onyxq.core.limits import RESERVED
from onyxq.operations.table.cluster import WAITS_FOR_MAX
from onyxq.operations.table.queue import QueueRow, QueueView

START = "onyxq worker start MODULE:APP"
MORE_TIME = "Allow more time."
NAMED_MAX = 5
"""Most queues that the problem names."""


@frozen
class Missing:
    """What queues lack to run their ready tasks."""

    queues: Sequence[str]
    what: str
    """In two or three words."""
    problem: str
    hint: str


def missing_worker(queues: Iterable[str], workers: Mapping[str, Any]) -> Missing | None:
    """Return what some of these queues lack; None if none lacks a worker, or if that is not certain.

    ``workers``: the answer of the operation. A worker whose slots are full asks for nothing.
    """
    asking: Sequence[Sequence[str]] = [one["waits_for"] for one in workers["workers"]]
    if workers["silent"] or workers["all"] > len(asking) or any(len(names) >= WAITS_FOR_MAX for names in asking):
        return None
    lacking = [queue for queue in queues if not any(queue in names for names in asking)]
    if not lacking:
        return None
    named = f"queue{'s' if lacking[1:] else ''} {', '.join(map(repr, lacking[:NAMED_MAX]))}"
    named += f" and {len(lacking) - NAMED_MAX} more" if lacking[NAMED_MAX:] else ""
    if all(asking):
        return Missing(lacking, "no worker", f"no worker asks for {named}", f"Start one with: {START}")
    hint = f"{MORE_TIME} Or start another worker: {START}"
    return Missing(lacking, "no free worker", f"no worker that has a free slot asks for {named}", hint)


def still_queues(queues: Iterable[QueueView | QueueRow]) -> list[str]:
    """Return the queues with ready tasks that do not run although they are not paused, without those of peers."""
    return [one.queue for one in queues if one.stands_still and not one.queue.startswith(RESERVED)]
