"""The outbox for SQLAlchemy 2: a table among those of the application, and its writer.

::

    outbox = Outbox(Base.metadata)

    with Session(engine) as session, session.begin():
        session.add(order)
        session.flush()
        task_id = outbox.add(session, send.s(order.id))
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import BigInteger, Column, Connection, DateTime, Identity, LargeBinary, MetaData, Table, Text, func
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from onyxq.client import Step
from onyxq.core.cluster_settings import DEFAULTS as CLUSTER
from onyxq.core.ids import TaskId
from onyxq.outbox.rows import COLUMNS, TABLE, Row, RowMaker

__all__ = ["Outbox"]


class Outbox:
    """Writer of tasks into the present transaction of a session or connection.

    ``metadata``: the tables of the application; the outbox is added to them, so ``create_all`` and Alembic create it.
    ``table``: its name. ``partitions``: number of partitions of the cluster.
    """

    def __init__(
        self, metadata: MetaData | None = None, *, table: str = TABLE, partitions: int = CLUSTER.partitions
    ) -> None:
        self._maker = RowMaker(table=table, partitions=partitions)
        schema, _, name = table.rpartition(".")
        self.table = Table(
            name,
            MetaData() if metadata is None else metadata,
            Column("seq", BigInteger, Identity(always=True), primary_key=True),
            Column("task_id", LargeBinary, nullable=False),
            Column("queue", Text, nullable=False),
            Column("data", LargeBinary, nullable=False),
            Column("options", JSONB, nullable=False),
            Column("created_at", DateTime(timezone=True), nullable=False, server_default=func.now()),
            Column("sent_at", DateTime(timezone=True)),
            Column("error", Text),
            schema=schema or None,
        )

    def add(self, session: Session | Connection, step: Step) -> TaskId:
        """Write a task and return its id; the task exists once the transaction is committed."""
        return self.add_many(session, [step])[0]

    def add_many(self, session: Session | Connection, steps: Iterable[Step]) -> list[TaskId]:
        """Write tasks and return their ids in the same order."""
        rows = self._maker.rows(steps)
        if rows:
            session.execute(self.table.insert(), list(map(_values, rows)))
        return [row.task_id for row in rows]

    async def add_async(self, session: AsyncSession | AsyncConnection, step: Step) -> TaskId:
        """Write a task in an asynchronous session; see `add`."""
        return (await self.add_many_async(session, [step]))[0]

    async def add_many_async(self, session: AsyncSession | AsyncConnection, steps: Iterable[Step]) -> list[TaskId]:
        """Write tasks in an asynchronous session; see `add_many`."""
        rows = self._maker.rows(steps)
        if rows:
            await session.execute(self.table.insert(), list(map(_values, rows)))
        return [row.task_id for row in rows]


def _values(row: Row) -> dict[str, Any]:
    return {name: getattr(row, name) for name in COLUMNS}
