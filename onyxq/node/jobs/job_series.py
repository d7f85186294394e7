"""The progress of jobs as series of metrics: of those that are driven here, and for some time of those that were.

The series have the labels ``spark_job`` and ``input``: Prometheus itself gives the label ``job`` to all series.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from onyxq.jobs.progress import Progress
from onyxq.system.metrics import Labels, Metrics, Number

KEPT_S = 900.0
"""How long the series of an ended job are kept, in seconds, so that each scrape sees its last values."""


class JobSeries:
    """The series of one peer."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._ended: dict[str, tuple[float, Progress]] = {}

    def keep(self, job: str, progress: Progress, now_s: float) -> None:
        """Keep the series of a job that has ended, for `KEPT_S`."""
        self._ended[job] = now_s, msgspec.structs.replace(progress, points=[])

    def show(self, driven: Mapping[str, Progress], now_s: float) -> None:
        """Set all series; ``driven``: jobs that are driven here."""
        self._ended = {job: kept for job, kept in self._ended.items() if now_s - kept[0] < KEPT_S and job not in driven}
        found = {**{job: progress for job, (_, progress) in self._ended.items()}, **driven}
        metrics = self._metrics
        inputs = [(job, name, one) for job, progress in found.items() for name, one in progress.inputs.items()]
        metrics.job_rows.replace({(job, name): one.rows for job, name, one in inputs})
        metrics.job_lag_rows.replace({(job, name): one.lag for job, name, one in inputs if one.lag is not None})
        metrics.job_lag_files.replace(
            {(job, name): one.lag_files for job, name, one in inputs if one.lag_files is not None}
        )
        late, watermarks, times, rows, sizes = _by_job(found)
        metrics.job_late_rows.replace(late)
        metrics.job_watermark_seconds.replace(watermarks)
        metrics.job_batch_seconds.replace(times)
        metrics.job_state_rows.replace(rows)
        metrics.job_state_bytes.replace(sizes)


def _by_job(found: Mapping[str, Progress]) -> list[dict[Labels, Number]]:
    """Return late rows, watermark, time of the last batch, and rows and bytes of state, each by job."""
    out: list[dict[Labels, Number]] = [{} for _ in range(5)]
    for job, progress in found.items():
        last = progress.last
        values = (
            progress.late_rows,
            None if progress.watermark_ms is None else progress.watermark_ms / 1000,
            None if last is None else last.duration_ms / 1000,
            None if last is None else last.state_rows,
            None if last is None else last.state_bytes,
        )
        for series, value in zip(out, values, strict=True):
            if value is not None:
                series[job,] = value
    return out
