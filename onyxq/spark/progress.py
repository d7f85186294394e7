"""What a running query says of itself, as the peer shows it."""

from __future__ import annotations

from datetime import datetime
from typing import Any

WATERMARK = "watermark_ms"
"""What is observed at windows: the watermark that a batch brought."""
LATE = "late"
"""What is observed behind windows and joins: how many segments came too late so far."""


def told(progress: dict[str, Any]) -> dict[str, Any]:
    """The progress of one batch out of what Spark says of it."""
    operators = progress.get("stateOperators") or []
    observed = [one.get(WATERMARK) for one in _observed(progress).values()]
    return {
        "batch": progress["batchId"],
        "rows": progress.get("numInputRows", 0),
        "rows_per_s": round(progress.get("processedRowsPerSecond") or 0.0, 1),
        "watermark_ms": min((mark for mark in observed if mark is not None), default=None),
        "state_rows": sum(one.get("numRowsTotal", 0) for one in operators),
        "state_bytes": sum(one.get("memoryUsedBytes", 0) for one in operators),
        "duration_ms": progress.get("batchDuration", 0),
        "at_ms": _ms(progress["timestamp"]),
    }


def late(progress: dict[str, Any]) -> dict[str, int]:
    """How many segments came too late so far, by the name of what observed it; only what the batch tells of."""
    return {name: one[LATE] for name, one in _observed(progress).items() if one.get(LATE) is not None}


def _observed(progress: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: one or {} for name, one in (progress.get("observedMetrics") or {}).items()}


def has_ended(progress: dict[str, Any]) -> bool:
    """Whether the end of all inputs (`onyxq.spark.ending`) was part of that batch, or of one before."""
    return any(source.get("endOffset") == {"ended": 1} for source in progress.get("sources") or [])


def _ms(said: str | None) -> int | None:
    return None if said is None else round(datetime.fromisoformat(said).timestamp() * 1000)
