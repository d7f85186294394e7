"""The outbox for Django on PostgreSQL: an application with a migration, and its writer.

::

    INSTALLED_APPS = [..., "onyxq.outbox.django"]

    with transaction.atomic():
        order = Order.objects.create(...)
        task_id = outbox.add(send.s(order.id))
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from django.db import connections

from onyxq.client import Step
from onyxq.core.ids import TaskId
from onyxq.outbox.rows import RowMaker

__all__ = ["Outbox"]


class Outbox(RowMaker):
    """Writer of tasks into the present transaction of a thread.

    ``partitions``: number of partitions of the cluster.
    """

    def add(self, step: Step, *, using: str = "default") -> TaskId:
        """Write a task and return its id; the task exists once the transaction is committed.

        ``using``: the database, as Django names it.
        """
        return self.add_many([step], using=using)[0]

    def add_many(self, steps: Iterable[Step], *, using: str = "default") -> list[TaskId]:
        """Write tasks and return their ids in the same order."""
        rows = self.rows(steps)
        with connections[using].cursor() as cursor:
            values = [(row.task_id, row.queue, row.data, json.dumps(dict(row.options))) for row in rows]
            cursor.executemany(self.insert, values)
        return [row.task_id for row in rows]
