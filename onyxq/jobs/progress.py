"""The progress of a job: the rows that its batches have read, each counted once, in a form that the log keeps.

A Spark host reports each batch that is committed (`BatchReport`). The peer that drives the job adds the reports up
(`Progress`), and records them in the log (`log_entries.report_job`), from where the job's next driver continues. After
a kill Spark may repeat the last batch. Its report has the same number then, and is not added again.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import msgspec

from onyxq.jobs.key_state import later

POINTS_MAX = 240
"""Points of a curve; beyond that each two neighbours become one point, so the curve covers the job's whole life."""
INPUTS_MAX = 100
"""Inputs that are counted one by one."""


class BatchReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a host reports of one batch."""

    batch: int
    at_ms: int = 0
    """Start, in ms since the epoch."""
    duration_ms: int = 0
    rows: int = 0
    rows_per_s: float = 0.0
    inputs: dict[str, int] = {}
    """Input -> rows that the batch has read."""
    lags: dict[str, int] = {}
    """Input -> rows that it had and the batch has not read; only inputs for which Spark reports that."""
    unread: dict[str, int] = {}
    """Input of files -> files that Spark has listed and not read."""
    watermark_ms: int | None = None
    late: dict[str, int] = {}
    """Window or join -> segments that were too late so far; only those that the batch has."""
    dropped: int = 0
    """Rows of this batch that were too late for Spark's own operators."""
    state_rows: int = 0
    state_bytes: int = 0

    def __post_init__(self) -> None:
        if not math.isfinite(self.rows_per_s):
            raise ValueError(f"rows_per_s is {self.rows_per_s}")


def reported(said: Any) -> BatchReport:
    """Return the report of a host; raises `msgspec.ValidationError`."""
    return msgspec.convert(said, BatchReport)


class Point(msgspec.Struct, frozen=True, array_like=True):
    """A batch, or several batches in a row, as a point of a curve."""

    batch: int
    """The last one."""
    at_ms: int
    """Start of the first one."""
    duration_ms: int
    """Of the longest one."""
    rows: int
    """Of all of them."""
    lag: int | None
    """After the last one."""
    lag_files: int | None = None
    """After the last one."""
    late: int | None = None
    """Rows of all of them that came too late; None if nothing in the job looks at times."""
    watermark_age_ms: int | None = None
    """From the watermark to the end of the last one."""
    state_bytes: int | None = None
    """After the last one; None without state."""


def _merged(one: Point, two: Point) -> Point:
    """Return two neighbours as one point."""
    return msgspec.structs.replace(
        two,
        at_ms=one.at_ms,
        duration_ms=max(one.duration_ms, two.duration_ms),
        rows=one.rows + two.rows,
        late=two.late if one.late is None else one.late + (two.late or 0),
    )


class InputProgress(msgspec.Struct):
    """What is known of one input."""

    rows: int = 0
    """Rows that the job has read."""
    lag: int | None = None
    """Rows that it has still to read; None if that is not known."""
    lag_files: int | None = None
    """Files that Spark has listed and not read; None if it is not an input of files."""


class Progress(msgspec.Struct):
    """The sum of all batches of a job."""

    last: BatchReport | None = None
    """The latest batch."""
    rows: int = 0
    """Rows of all batches."""
    missed_batches: int = 0
    """Batches whose reports were lost with a process that was killed: their rows are not counted."""
    inputs: dict[str, InputProgress] = {}
    watermark_ms: int | None = None
    late: dict[str, int] = {}
    """Window or join -> segments that were too late."""
    dropped: int = 0
    """Rows that were too late for Spark's own operators."""
    points: list[Point] = []
    """Oldest first."""

    def add(self, report: BatchReport) -> bool:
        """Add a batch, and return whether it was not counted before."""
        before = self.last.batch if self.last is not None else report.batch - 1
        if report.batch <= before:
            return False
        late_before = self.late_rows or 0
        self.last = report
        self.missed_batches += report.batch - before - 1
        self.rows += report.rows
        self.dropped += report.dropped
        self.late |= report.late
        self.watermark_ms = later(self.watermark_ms, report.watermark_ms)
        for name, rows in report.inputs.items():
            if (one := self._input(name)) is not None:
                one.rows += rows
        for name, lag in report.lags.items():
            self.set_lag(name, lag)
        for name, files in report.unread.items():
            if (one := self._input(name)) is not None:
                one.lag_files = files
        self.points.append(self._point(report, late_before))
        if len(self.points) > POINTS_MAX:
            self._merge()
        return True

    def set_lag(self, name: str, lag: int | None) -> None:
        """Note how many rows an input has that are still to be read."""
        if (one := self._input(name)) is not None:
            one.lag = lag

    def _input(self, name: str) -> InputProgress | None:
        """Return the figures of an input; None if too many inputs are counted already."""
        if name in self.inputs or len(self.inputs) < INPUTS_MAX:
            return self.inputs.setdefault(name, InputProgress())
        return None

    def _point(self, report: BatchReport, late_before: int) -> Point:
        """Return the point of the batch that was added last."""
        end_ms, late = report.at_ms + report.duration_ms, self.late_rows
        return Point(
            batch=report.batch,
            at_ms=report.at_ms,
            duration_ms=report.duration_ms,
            rows=report.rows,
            lag=self.lag,
            lag_files=self.lag_files,
            late=None if late is None else max(0, late - late_before),
            watermark_age_ms=None if self.watermark_ms is None else max(0, end_ms - self.watermark_ms),
            state_bytes=report.state_bytes or None,
        )

    def finish(self) -> None:
        """Note that the job has read all its inputs to their end."""
        for one in self.inputs.values():
            one.lag = None if one.lag is None else 0
            one.lag_files = None if one.lag_files is None else 0

    @property
    def lag(self) -> int | None:
        """Rows of all inputs that are still to be read; None if that is known of none."""
        return _sum(one.lag for one in self.inputs.values())

    @property
    def lag_files(self) -> int | None:
        """Files of all inputs that are still to be read; None if that is known of none."""
        return _sum(one.lag_files for one in self.inputs.values())

    @property
    def late_rows(self) -> int | None:
        """Rows that were too late; None if nothing in the job looks at times."""
        return sum(self.late.values()) + self.dropped if self.late or self.dropped else None

    def _merge(self) -> None:
        """Make one point of each two, but for the last one if their number is odd."""
        points = self.points
        both = [_merged(one, two) for one, two in zip(points[::2], points[1::2], strict=False)]
        self.points = [*both, *points[2 * len(both) :]]

    def shown(self) -> dict[str, Any]:
        """Return the progress as answers have it."""
        if (last := self.last) is None:
            return {"inputs": self._inputs(), "batches": []}
        return {
            "batch": last.batch,
            "rows": last.rows,
            "rows_total": self.rows,
            "rows_per_s": last.rows_per_s,
            "watermark_ms": self.watermark_ms,
            "late": self.late_rows,
            "state_rows": last.state_rows,
            "state_bytes": last.state_bytes,
            "duration_ms": last.duration_ms,
            "at_ms": last.at_ms,
            "missed_batches": self.missed_batches,
            "inputs": self._inputs(),
            "batches": self._batches(),
        }

    def _inputs(self) -> dict[str, dict[str, int | None]]:
        return {name: msgspec.structs.asdict(one) for name, one in self.inputs.items()}

    def _batches(self) -> list[dict[str, Any]]:
        """Return the points, each with its rows per second until the next one began, or as long as the one before."""
        spans = [two.at_ms - one.at_ms for one, two in pairwise(self.points)]
        if self.points:
            spans.append(max([self.points[-1].duration_ms, *spans[-1:]]))
        return [
            {**msgspec.structs.asdict(one), "rows_per_s": round(1000 * one.rows / max(1, span), 1)}
            for one, span in zip(self.points, spans, strict=True)
        ]

    def pack(self, bytes_max: int, *, curves: bool = True) -> bytes:
        """Return the progress for the log, with fewer points or names if it would be larger than ``bytes_max``."""
        copy = msgspec.structs.replace(self, points=list(self.points) if curves else [])
        if self.last is not None:  # Its parts by name are in the sums.
            copy.last = msgspec.structs.replace(self.last, inputs={}, lags={}, unread={}, late={})
        while len(packed := msgspec.msgpack.encode(copy)) > bytes_max:
            if len(copy.points) > 1:
                copy._merge()
            elif copy.inputs:
                copy.inputs = dict(list(copy.inputs.items())[: len(copy.inputs) // 2])
            else:
                copy.late = {}
        return packed


def _sum(values: Iterable[int | None]) -> int | None:
    known = [one for one in values if one is not None]
    return sum(known) if known else None


def unpacked(packed: bytes) -> Progress:
    """Return the progress that the log has; without any, that of a job that has read nothing."""
    return msgspec.msgpack.decode(packed, type=Progress) if packed else Progress()


def shown_of(packed: bytes) -> dict[str, Any] | None:
    """Return the progress that the log has, as answers have it; None if the log has none."""
    return unpacked(packed).shown() if packed else None
