"""The outbox for programs that use psycopg 3 directly.

::

    outbox = Outbox()

    with psycopg.connect(...) as connection, connection.transaction():
        connection.execute("INSERT INTO orders ...")
        task_id = outbox.add(connection, send.s(order_id))
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from psycopg import AsyncConnection, Connection
from psycopg.types.json import Jsonb

from onyxq.client import Step
from onyxq.core.ids import TaskId
from onyxq.outbox.rows import Row, RowMaker

__all__ = ["Outbox"]


class Outbox(RowMaker):
    """Writer of tasks into the present transaction of a connection.

    ``table``: name of the table. ``partitions``: number of partitions of the cluster.
    """

    def add(self, connection: Connection[Any], step: Step) -> TaskId:
        """Write a task and return its id; the task exists once the transaction is committed."""
        return self.add_many(connection, [step])[0]

    def add_many(self, connection: Connection[Any], steps: Iterable[Step]) -> list[TaskId]:
        """Write tasks and return their ids in the same order."""
        rows = self.rows(steps)
        with connection.cursor() as cursor:
            cursor.executemany(self.insert.encode(), list(map(_values, rows)))
        return [row.task_id for row in rows]

    async def add_async(self, connection: AsyncConnection[Any], step: Step) -> TaskId:
        """Write a task on an asynchronous connection; see `add`."""
        return (await self.add_many_async(connection, [step]))[0]

    async def add_many_async(self, connection: AsyncConnection[Any], steps: Iterable[Step]) -> list[TaskId]:
        """Write tasks on an asynchronous connection; see `add_many`."""
        rows = self.rows(steps)
        async with connection.cursor() as cursor:
            await cursor.executemany(self.insert.encode(), list(map(_values, rows)))
        return [row.task_id for row in rows]


def _values(row: Row) -> tuple[bytes, str, bytes, Jsonb]:
    return row.task_id, row.queue, row.data, Jsonb(dict(row.options))
