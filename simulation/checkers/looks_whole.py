"""A count or a list has every acknowledged task exactly once, at any node, or it is an error.

Tasks that were acknowledged before the request must be in the answer; tasks that are being sent
meanwhile may be. Lists are checked as a whole: all pages, each requested after the one before.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from typing import ClassVar

from attrs import define

from onyxq.core.ids import TaskId
from simulation.checkers import Checker


@define(eq=False)
class LooksWhole(Checker):
    """See the module's first paragraph; ``purged`` is set by the audit."""

    name: ClassVar[str] = "looks are whole"
    purged: Container[TaskId] = ()

    def counted(self, queue: str, total: int, *, began_s: float) -> None:
        """Judge the count of a queue that began at ``began_s``."""
        least = sum(1 for _ in self._acknowledged(queue, began_s))
        most = sum(self.history.payloads[data] for data, sent in self.history.sent.items() if sent.queue == queue)
        if not least <= total <= most:
            raise self.broken(f"{total} tasks of {queue} were counted: {least} were acknowledged, {most} sent")

    def listed(self, queue: str, found: Sequence[TaskId], *, began_s: float) -> None:
        """A client that began to list a queue then got these tasks, to the end."""
        if len(set(found)) < len(found):
            twice = next(task_id for task_id in found if found.count(task_id) > 1)
            raise self.broken(f"{twice.hex()} of {queue} was listed twice")
        if missing := sorted(set(self._acknowledged(queue, began_s)) - set(found)):
            raise self.broken(f"{missing[0].hex()} of {queue} and {len(missing) - 1} more were not listed")

    def _acknowledged(self, queue: str, before_s: float) -> Iterator[TaskId]:
        for task_id, told in self.history.enqueued.items():
            if told.queue == queue and told.at_s < before_s and task_id not in self.history.unsettled:
                if task_id not in self.purged:
                    yield task_id
