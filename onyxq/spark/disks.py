"""Which disk is full when a job fails for want of room: Spark says that one is, and not which."""

from __future__ import annotations

import shutil
from collections.abc import Mapping

from attrs import evolve

from onyxq.spark.failures import Failure

SAID = ("No space left on device", "Disk quota exceeded")
FULL_BYTES = 1 << 20
"""With less than so much room a disk counts as full."""


def told(failure: Failure, places: Mapping[str, str]) -> Failure:
    """The failure with the place that is full, of those that a job writes to (what it is -> its path or URI).

    What a task's own function failed with is left as it is.
    """
    text = f"{failure.error}\n{failure.traceback}"
    said = next((one for one in SAID if one in text), None)
    if said is None or failure.task is not None:
        return failure
    full = [f"{what} ({path}) has {room >> 10} KiB left" for what, path in places.items() if (room := _room(path)) >= 0]
    if not full:
        return failure
    return evolve(failure, error=f"{said}: {', '.join(full)}. Once there is room the job goes on from its last batch.")


def _room(path: str) -> int:
    """Bytes that are free on a full disk; -1 for one that is not full, or cannot be asked."""
    try:
        room = shutil.disk_usage(path.removeprefix("file://")).free
    except OSError:
        return -1
    return room if room < FULL_BYTES else -1
