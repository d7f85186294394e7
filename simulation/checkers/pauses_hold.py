"""A paused queue grants nothing: the log's own entry says so at once, the leaders once they have read it."""

from __future__ import annotations

from typing import ClassVar

from attrs import define

from log_entries import grant_limited_claims
from onyxq.core.step import Outcome, Step
from simulation.checkers.queues_followed import NEVER_S, QueuesFollowed


@define(eq=False)
class PausesHold(QueuesFollowed):
    """See the module's first paragraph."""

    name: ClassVar[str] = "pauses hold"

    def applied(self, outcome: Outcome, step: Step) -> None:
        """Compare a grant that names its queue."""
        args = outcome.args
        if isinstance(args, grant_limited_claims.Args) and self._paused(args.queue):
            raise self.broken(f"tasks of {args.queue} were granted at {step.replica.position} though it is paused")

    def _paused(self, queue: str) -> bool:
        return bool(self.settings.get(queue, {}).get("paused"))

    def heard(self, queue: str, token: int, sent_s: float) -> None:
        """A worker was given a task for which it had asked then; the log is caught up with."""
        if self._paused(queue) and self.known_s.get(queue, NEVER_S) < sent_s and self.set_at[queue] < token:
            raise self.broken(
                f"a task of {queue} was granted under {token} to who asked at {sent_s:.3f}; "
                f"it is paused since {self.set_at[queue]}, which all nodes knew at {self.known_s[queue]:.3f}"
            )
