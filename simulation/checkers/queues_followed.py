"""Settings of queues as the log says them, for the checkers of what they promise.

Entries that set them are read from the verdicts alone.  A leader that has not read a setting
yet cannot keep it, so the time is noted at which all nodes that run had read it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attrs import define, field

from log_entries import set_queue
from onyxq.core.entry import APPLIED
from onyxq.core.replica import Replica
from onyxq.core.step import Outcome, Step
from simulation.checkers import Checker

NEVER_S = float("inf")


@define(eq=False)
class QueuesFollowed(Checker):
    """Follows the settings of queues; see the module's first paragraph."""

    settings: dict[str, dict[str, Any]] = field(factory=dict)
    set_at: dict[str, int] = field(factory=dict)
    """Position of each queue's last change."""
    known_s: dict[str, float] = field(factory=dict)
    """Since when all nodes know of it."""

    def step(self, before: Replica, step: Step) -> None:
        """Follow one record, entry by entry."""
        for outcome in step.outcomes:
            if outcome.verdict != APPLIED:
                continue
            if isinstance(outcome.args, set_queue.Args):
                self._set(outcome.args, step)
            else:
                self.applied(outcome, step)

    def _set(self, args: set_queue.Args, step: Step) -> None:
        known = self.settings.setdefault(args.queue, {})
        for name in args.cleared:
            known.pop(name, None)
        known.update({**args.numbers, **args.words, **args.flags})
        self.set_at[args.queue] = step.replica.position
        self.known_s[args.queue] = NEVER_S

    def applied(self, outcome: Outcome, step: Step) -> None:
        """Something else happened, under the settings as they are."""

    def looked(self, positions: Iterable[int], now_s: float) -> None:
        """The nodes that run have read so far."""
        if NEVER_S not in self.known_s.values():
            return
        least = min(positions, default=-1)
        for queue, known_s in self.known_s.items():
            if known_s == NEVER_S and self.set_at[queue] <= least:
                self.known_s[queue] = now_s
