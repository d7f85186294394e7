"""No lease ends early by the simulation's own clock.

Log time may pass more slowly than real time, after an outage or a jump of some clock, so a claim may last longer than
was agreed. It is never shorter, but for `FAST_PPM`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from attrs import define, field

from onyxq.core.ids import TaskId
from onyxq.core.replica import Replica
from onyxq.core.step import Step
from simulation.checkers import Checker
from simulation.checkers.one_claim import EXPIRED, OneClaim

FAST_PPM = 500
"""How much faster than right a monotonic clock may run."""


def least_ms(lease_ms: int) -> float:
    """Return how long a lease lasts at least, by a right clock."""
    return lease_ms - lease_ms * FAST_PPM / 1_000_000 - 1


@define(eq=False)
class LeasesLast(Checker):
    """See the module's first paragraph; ``landed_s`` gives the second at which a position was written."""

    name: ClassVar[str] = "leases last"
    claims: OneClaim
    landed_s: Callable[[int], float]
    held: dict[TaskId, tuple[int, float, int]] = field(factory=dict)
    """Token, second of the grant or last renewal, and the lease in milliseconds."""
    expired: int = 0
    """Number of claims that expired."""

    def step(self, before: Replica, step: Step) -> None:
        """Judge the claims that a record ended."""
        if not self.claims.begun and not self.claims.ended:
            return
        position = step.replica.position
        now_s = self.landed_s(position)
        for ended in self.claims.ended:
            token, since_s, lease_ms = self.held.pop(ended.task_id, (-1, 0.0, 0))
            if ended.how == EXPIRED and token == ended.token:
                self.expired += 1
                held_ms = round((now_s - since_s) * 1000)
                if held_ms < least_ms(lease_ms):
                    raise self.broken(
                        f"the claim {token} on {ended.task_id.hex()} expired at position {position} "
                        f"after {held_ms} ms; its lease was {lease_ms} ms"
                    )
        for begun in self.claims.begun:
            self.held[begun.task_id] = begun.token, now_s, begun.lease_ms
