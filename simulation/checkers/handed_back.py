"""What a worker could not finish goes back uncounted: only code that failed, and leases that had to run out, count."""

from __future__ import annotations

from typing import ClassVar

from attrs import define

from simulation.checkers import Checker
from simulation.checkers.ledger import Ledger
from simulation.world.history import RAISED


@define(eq=False)
class HandedBack(Checker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "handed back"
    ledger: Ledger

    def finish(self) -> None:
        """Judge how the claims of workers ended."""
        for task_id, runs in self.history.worked.items():
            task = self.ledger.read.get(task_id)
            raised = {run.token for run in runs if run.outcome == RAISED}
            for claim in task.claims if task is not None else ():
                if claim.outcome == "failed" and claim.token not in raised:
                    raise self.broken(f"{task_id.hex()} under {claim.token} counts as failed; its code did not fail")
                if claim.outcome == "expired" and claim.worker not in self.history.troubled:
                    raise self.broken(f"a worker to which nothing happened let {task_id.hex()} expire: {claim}")
