"""The progress of a running query, in the form that the peer shows."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from onyxq.spark import java

WATERMARK = "watermark_ms"
"""Name of the metric with the watermark of a batch, from windows."""
SHARED = "onyxq_shared"
"""Name of a frame that Spark computes once for all its uses (`onyxq.spark.plan.inputs.shared`)."""
EVENT_TIME_MAX_MS = 253_402_300_799_000
"""The end of the year 9999: Spark's watermark once all inputs have ended."""
LATE = "late"
"""Name of the metric with the number of segments that came too late so far, from windows and joins."""


def uses_of(frame: Any) -> list[int]:
    """Return how many times Spark reads each source for the plan of a frame, in Spark's order of sources."""
    sources: list[Any] = []
    counts: list[int] = []
    for leaf, shared in java.leaves(frame, SHARED):
        if not leaf.isStreaming():
            continue
        known = next((at for at, source in enumerate(sources) if source.equals(leaf)), None)
        if known is None:
            sources.append(leaf)
            counts.append(1)
        elif not shared:
            counts[known] += 1
    return counts


def rows_of(progress: dict[str, Any], uses: list[int]) -> int:
    """Return how many rows a batch has read.

    Spark counts a row each time that it reads the source.
    """
    read = [0 if _is_end(source) else source.get("numInputRows", 0) for source in progress.get("sources") or []]
    if len(read) != len(uses):
        return sum(read)
    return int(sum(rows // count for rows, count in zip(read, uses, strict=True)))


def told(progress: dict[str, Any], uses: list[int]) -> dict[str, Any]:
    """Return the progress of one batch from Spark's report; ``uses``: the result of `uses_of`."""
    counted, rows = progress.get("numInputRows", 0), rows_of(progress, uses)
    per_s = (progress.get("processedRowsPerSecond") or 0.0) * (rows / counted if counted else 0.0)
    operators = progress.get("stateOperators") or []
    observed = [one.get(WATERMARK) for one in _observed(progress).values()] + [_sparks_watermark(progress)]
    return {
        "batch": progress["batchId"],
        "rows": rows,
        "rows_per_s": round(per_s, 1),
        "watermark_ms": min((mark for mark in observed if mark is not None), default=None),
        "state_rows": sum(one.get("numRowsTotal", 0) for one in operators),
        "state_bytes": sum(one.get("memoryUsedBytes", 0) for one in operators),
        "duration_ms": progress.get("batchDuration", 0),
        "at_ms": _ms(progress["timestamp"]),
    }


def late(progress: dict[str, Any]) -> dict[str, int]:
    """Return the numbers of segments that were too late so far, by window or join; only those that the batch has."""
    return {name: one[LATE] for name, one in _observed(progress).items() if one.get(LATE) is not None}


def dropped(progress: dict[str, Any]) -> int:
    """Return how many rows of the batch were too late for Spark's own operators, those of frame tasks."""
    return sum(one.get("numRowsDroppedByWatermark", 0) for one in progress.get("stateOperators") or [])


def _sparks_watermark(progress: dict[str, Any]) -> int | None:
    """Return Spark's watermark; None before it has one, and after the end of all inputs."""
    found = _ms((progress.get("eventTime") or {}).get("watermark"))
    return found if found and found < EVENT_TIME_MAX_MS else None


def _observed(progress: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: one or {} for name, one in (progress.get("observedMetrics") or {}).items()}


def has_ended(progress: dict[str, Any]) -> bool:
    """Return whether this batch or an earlier one had the end of all inputs (`onyxq.spark.plan.end_of_input`)."""
    return any(source.get("endOffset") == {"ended": 1} for source in progress.get("sources") or [])


def _is_end(source: dict[str, Any]) -> bool:
    """Return whether a source is `onyxq.spark.plan.end_of_input`, whose row does not count as input."""
    return set(source.get("endOffset") or ()) == {"ended"}


def _ms(said: str | None) -> int | None:
    return None if said is None else round(datetime.fromisoformat(said).timestamp() * 1000)
