"""Log time never goes back, and between two records runs at most the slack ahead of the fastest right clock."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from attrs import define

from onyxq.core.log.clock import LOG_TIME_SLACK_MS, LOG_TIME_STEP_MAX_MS
from onyxq.core.replica import Replica
from onyxq.core.step import Step
from simulation.checkers import LogChecker
from simulation.checkers.leases_last import FAST_PPM


@define(eq=False)
class LogTime(LogChecker):
    """See the module's first paragraph; also, every record counts towards the next collection."""

    name: ClassVar[str] = "log time"
    true_ms: Callable[[], int] | None = None
    """True time of the record that is judged; None if it is not known."""
    ahead_ms: int = 0
    """Smallest lead of log time over true time after a record that counted; others grant no claims."""
    grown: int = 0
    """Records since the last collection."""

    def step(self, before: Replica, step: Step) -> None:
        """Judge the times of one record."""
        rise_ms = step.replica.log_time_ms - before.log_time_ms
        if not 0 <= rise_ms <= LOG_TIME_STEP_MAX_MS:
            raise self.broken(f"it moved by {rise_ms} ms at position {step.replica.position}")
        if self.true_ms is not None:
            true_ms = self.true_ms()
            ahead_ms = step.replica.log_time_ms - true_ms - true_ms * FAST_PPM // 1_000_000
            if ahead_ms > self.ahead_ms + LOG_TIME_SLACK_MS:
                raise self.broken(f"it ran {ahead_ms - self.ahead_ms} ms ahead of true time, and of a fast clock")
            if step.replica.counted_position == step.replica.position:
                self.ahead_ms = min(self.ahead_ms, ahead_ms)
        collected = any(outcome.name == "gc" and outcome.verdict == "applied" for outcome in step.outcomes)
        self.grown = 0 if collected else self.grown + 1
        if step.replica.grown_records != self.grown:
            raise self.broken(f"{step.replica.grown_records} records are counted, not {self.grown}")
