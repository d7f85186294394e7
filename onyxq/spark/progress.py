"""The progress of a running query, in the form that the peer adds up (`onyxq.jobs.progress`)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from attrs import evolve, frozen

from onyxq.spark import java

WATERMARK = "watermark_ms"
"""Name of the metric with the watermark of a batch, from windows."""
SHARED = "onyxq_shared"
"""Name of a frame that Spark computes once for all its uses (`onyxq.spark.plan.inputs.shared`)."""
EVENT_TIME_MAX_MS = 253_402_300_799_000
"""The end of the year 9999: Spark's watermark once all inputs have ended."""
LATE = "late"
"""Name of the metric with the number of segments that came too late so far, from windows and joins."""


INPUT = "onyxq_input:"
"""Prefix of the alias that an input's frame has in a plan; its name follows."""


@frozen
class Use:
    """A source of a plan."""

    name: str
    """The input; empty if it is not an input of the job."""
    count: int = 1
    """How many times Spark reads it in each batch."""


def _streams(frame: Any) -> Iterator[tuple[Any, tuple[str, ...], str]]:
    """Yield each use of a source in a plan, in Spark's order: the source, the aliases above it, and the input."""
    for leaf, aliases in java.leaves(frame):
        if leaf.isStreaming():
            names = [one.removeprefix(INPUT) for one in aliases if one.startswith(INPUT)]
            yield leaf, aliases, names[-1] if names else ""


def names_of(frame: Any) -> list[str]:
    """Return the input of each use of a source, in the order in which Spark notes their offsets; empty for others."""
    return [name for _, _, name in _streams(frame)]


def uses_of(frame: Any) -> list[Use]:
    """Return the sources of the plan of a frame, in Spark's order."""
    sources: list[Any] = []
    uses: list[Use] = []
    for leaf, aliases, name in _streams(frame):
        known = next((at for at, source in enumerate(sources) if source.equals(leaf)), None)
        if known is None:
            sources.append(leaf)
            uses.append(Use(name))
        elif SHARED not in aliases:
            uses[known] = evolve(uses[known], count=uses[known].count + 1)
    return uses


def rows_of(progress: dict[str, Any], uses: list[Use]) -> tuple[int, dict[str, int]]:
    """Return how many rows a batch has read, and how many of each input.

    Spark counts a row each time that it reads the source. A join of an input with itself has two sources.
    """
    sources = progress.get("sources") or []
    if len(sources) != len(uses):
        return sum(_read(source) for source in sources), {}
    inputs: dict[str, int] = {}
    others = 0
    for source, use in zip(sources, uses, strict=True):
        rows = _read(source) // use.count
        if use.name:
            inputs.setdefault(use.name, rows)
        else:
            others += rows
    return sum(inputs.values()) + others, inputs


def report(progress: dict[str, Any], uses: list[Use]) -> dict[str, Any]:
    """Return Spark's report of one batch in the form of `onyxq.jobs.progress.BatchReport`; ``uses``: of its plan."""
    rows, inputs = rows_of(progress, uses)
    counted = progress.get("numInputRows", 0)
    per_s = (progress.get("processedRowsPerSecond") or 0.0) * (rows / counted if counted else 0.0)
    operators = progress.get("stateOperators") or []
    observed = [one.get(WATERMARK) for one in _observed(progress).values()] + [_sparks_watermark(progress)]
    named = zip(progress.get("sources") or [], uses, strict=False)
    lags = {use.name: _lag(source) for source, use in named if use.name}
    return {
        "batch": progress["batchId"],
        "at_ms": _ms(progress["timestamp"]),
        "duration_ms": progress.get("batchDuration", 0),
        "rows": rows,
        "rows_per_s": round(per_s, 1),
        "inputs": inputs,
        "lags": {name: lag for name, lag in lags.items() if lag is not None},
        "watermark_ms": min((mark for mark in observed if mark is not None), default=None),
        "late": {name: one[LATE] for name, one in _observed(progress).items() if one.get(LATE) is not None},
        "dropped": sum(one.get("numRowsDroppedByWatermark", 0) for one in operators),
        "state_rows": sum(one.get("numRowsTotal", 0) for one in operators),
        "state_bytes": sum(one.get("memoryUsedBytes", 0) for one in operators),
    }


def _sparks_watermark(progress: dict[str, Any]) -> int | None:
    """Return Spark's watermark; None before it has one, and after the end of all inputs."""
    found = _ms((progress.get("eventTime") or {}).get("watermark"))
    return found if found and found < EVENT_TIME_MAX_MS else None


def _observed(progress: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {name: one or {} for name, one in (progress.get("observedMetrics") or {}).items()}


def is_empty(progress: dict[str, Any]) -> bool:
    """Return whether a batch read nothing. Files that are older than ``since_ms`` have no rows, and move a place."""
    sources = progress.get("sources") or []
    moved = any(source.get("startOffset") != source.get("endOffset") for source in sources)
    return not progress["numInputRows"] and not moved


def began_ms(progress: dict[str, Any]) -> int:
    """Return when Spark began to plan a batch, in ms since the epoch."""
    return _ms(progress["timestamp"]) or 0


def has_ended(progress: dict[str, Any]) -> bool:
    """Return whether this batch or an earlier one had the end of all inputs (`onyxq.spark.plan.end_of_input`)."""
    return any(source.get("endOffset") == {"ended": 1} for source in progress.get("sources") or [])


def _is_end(source: dict[str, Any]) -> bool:
    """Return whether a source is `onyxq.spark.plan.end_of_input`, whose row does not count as input."""
    offset = source.get("endOffset")  # of the format rate, a number
    return isinstance(offset, dict) and set(offset) == {"ended"}


def _read(source: dict[str, Any]) -> int:
    rows: int = 0 if _is_end(source) else source.get("numInputRows", 0)
    return rows


def _lag(source: dict[str, Any]) -> int | None:
    """Return how many rows a topic of Kafka had beyond the batch; None for sources that do not report that."""
    ends, latest = source.get("endOffset"), source.get("latestOffset")
    if not (isinstance(ends, dict) and isinstance(latest, dict)):
        return None
    if not all(isinstance(one, dict) for one in (*ends.values(), *latest.values())):
        return None
    lags: list[int] = [
        max(0, end - ends.get(topic, {}).get(partition, 0))
        for topic, partitions in latest.items()
        for partition, end in partitions.items()
    ]
    return sum(lags)


def _ms(said: str | None) -> int | None:
    return None if said is None else round(datetime.fromisoformat(said).timestamp() * 1000)
