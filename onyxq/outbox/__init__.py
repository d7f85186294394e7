"""Outbox: tasks that are written in the transaction of a database, and relayed into queues (design: interfaces).

The program that changes the database writes a row for each task, in the same transaction. So a task exists exactly if
the transaction was committed. A relay reads the rows and enqueues the tasks. Each row has the id of its task from the
start. So a relay that is killed and repeats an enqueue makes no second task.

`onyxq.outbox.psycopg`, `onyxq.outbox.sqlalchemy` and `onyxq.outbox.django` each have a class ``Outbox`` that writes
rows. They share `rows`. `relay` and `database` are the other side.
"""

from __future__ import annotations

from onyxq.outbox.database import OutboxDatabase, Refused
from onyxq.outbox.relay import Relay
from onyxq.outbox.rows import TABLE, create_table

__all__ = ["TABLE", "OutboxDatabase", "Refused", "Relay", "create_table"]
