"""What a job's batches read, and nothing else, has become its output, each once.

The log's side: batches of a job are committed in the order of their numbers, each once, and never
under an older version than the one that its last driver was given.  The other side trusts nothing
but what is read back: for each input the one task that it was to become.
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

from attrs import define, field

from log_entries import commit_batch
from onyxq.client.values import Task
from onyxq.core.entry import APPLIED
from onyxq.core.replica import Replica
from onyxq.core.step import Step
from simulation.checkers import Checker


@define(eq=False)
class BatchesOnce(Checker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "batches count once"
    images: dict[bytes, bytes] = field(factory=dict)
    """What is read -> what it is to become; all of both are different."""
    made: dict[bytes, int] = field(factory=dict)
    """Tasks that were read back, by payload."""
    newest: dict[str, int] = field(factory=dict)
    """The highest version that a job was driven under so far."""
    last: dict[str, int] = field(factory=dict)
    verdicts: Counter[str] = field(factory=Counter)
    """Verdicts of batches in the log, without the stale token that a verdict names."""
    repeats: int = 0
    """How often the answer to a driver was that the batch had been committed before."""

    def step(self, before: Replica, step: Step) -> None:
        """Judge the batches of one record."""
        for job in before.jobs.values():
            self.newest[job.id] = max(self.newest.get(job.id, -1), job.version)
        for outcome in step.outcomes:
            args = outcome.args
            if isinstance(args, commit_batch.Args):
                self.verdicts[outcome.verdict.partition(" on ")[0].rstrip("0123456789 ")] += 1
                if outcome.verdict == APPLIED and args.job:
                    self._committed(args)

    def _committed(self, args: commit_batch.Args) -> None:
        newest, last = self.newest.get(args.job, -1), self.last.get(args.job)
        if args.version < newest:
            raise self.broken(f"batch {args.batch} was committed under version {args.version}, that is {newest} by now")
        if last is not None and args.batch != last + 1:
            raise self.broken(f"batch {args.batch} was committed behind batch {last}")
        self.last[args.job] = args.batch

    def read_back(self, task: Task) -> None:
        """A task was read after the faults."""
        self.made[task.data] = self.made.get(task.data, 0) + 1

    def finish(self) -> None:
        """Everything that was read has become what it was to become."""
        for read, image in sorted(self.images.items()):
            count = self.made.get(image, 0)
            if count != 1:
                raise self.broken(f"{read!r} has become {count} tasks")
