"""Rows of the outbox: how a task becomes a row, and a row an enqueue (design: interfaces).

The writer of a row does not ask the cluster. It makes the id from its own clock and random bits, as a client does. It
needs to know only the number of partitions, because the partition is part of the id.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import field, frozen

from onyxq.client import Step
from onyxq.client.enqueues import check_payloads
from onyxq.client.policy import DEFAULTS
from onyxq.core.cluster_settings import DEFAULTS as CLUSTER
from onyxq.core.errors import BadRequest
from onyxq.core.facts import partition_of_keys
from onyxq.core.ids import PARTITIONS_MAX, TaskId, make_id, ms_of, partition_of

TABLE = "onyxq_outbox"
COLUMNS = ("task_id", "queue", "data", "options")
"""The columns that a writer fills."""

_NAME = re.compile(r"([a-z_][a-z0-9_]*\.)?[a-z_][a-z0-9_]*")
_OPTIONS = frozenset(DEFAULTS) - {"unique_key", "unique_until", "unique_period_ms", "on_conflict"} | {"at_ms"}
_CREATE = """
CREATE TABLE IF NOT EXISTS {table} (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    task_id bytea NOT NULL,
    queue text NOT NULL,
    data bytea NOT NULL,
    options jsonb NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    sent_at timestamptz,
    error text
)
"""
_INSERT = "INSERT INTO {table} (task_id, queue, data, options) VALUES (%s, %s, %s, %s)"


@frozen(kw_only=True)
class Row:
    """A task that is to be enqueued."""

    task_id: TaskId
    queue: str
    data: bytes
    options: Mapping[str, Any]
    """Options of the enqueue, as JSON has them."""


@frozen(kw_only=True)
class PendingRow(Row):
    """A row as the relay reads it."""

    seq: int
    """Place of the row in the order in which the relay sends rows."""
    sent: bool
    """Whether an enqueue of the row may have begun. If not, the cluster does not have the task."""

    @property
    def depends(self) -> list[str]:
        """The ids on which the task depends, as hex digits."""
        found = self.options.get("depends") if isinstance(self.options, dict) else None
        return [one for one in found if isinstance(one, str)] if isinstance(found, list) else []

    def arguments(self, now_ms: int) -> dict[str, Any]:
        """Return the keyword arguments of `AsyncClient.enqueue`, except ``trace``; raise `BadRequest` for unknown ones.

        ``now_ms``: the cluster's time. A due time that is over is left out: a queue refuses times in the past, although
        it was the relay that was late. The id has the due time as well.
        """
        if not isinstance(self.options, dict):
            raise BadRequest("the options of a row are an object of JSON", field="options")
        if unknown := self.options.keys() - _OPTIONS:
            raise BadRequest(f"a row of the outbox has no option {min(unknown)!r}", field="options")
        said = {name: value for name, value in self.options.items() if name != "trace"}
        if (said.get("at_ms") or 0) <= now_ms:
            said.pop("at_ms", None)
        return {**said, "id": self.task_id}


def _check_table(_: Any, __: Any, table: str) -> None:
    if _NAME.fullmatch(table) is None:
        raise BadRequest(f"table must be a lower-case name, or SCHEMA.NAME, not {table!r}", field="table")


def _check_partitions(_: Any, __: Any, partitions: int) -> None:
    if type(partitions) is not int or not 1 <= partitions <= PARTITIONS_MAX:
        raise BadRequest(f"partitions must be from 1 to {PARTITIONS_MAX}, not {partitions!r}", field="partitions")


@frozen(kw_only=True)
class RowMaker:
    """A maker of rows.

    ``table``: name of the table. ``partitions``: number of partitions of the cluster.
    """

    table: str = field(default=TABLE, validator=_check_table)
    partitions: int = field(default=CLUSTER.partitions, validator=_check_partitions)

    def rows(self, steps: Iterable[Step]) -> list[Row]:
        """Return a row for each task, with a new id; raise `TooLarge` for data over the limit."""
        steps = list(steps)
        check_payloads([step.payload for step in steps])
        now_ms = time.time_ns() // 1_000_000
        return [self._row(step, now_ms) for step in steps]

    def _row(self, step: Step, now_ms: int) -> Row:
        policy = step.policy(())
        header = policy.header()
        options = {name: value for name, value in header.items() if name != "queue"}
        if "depends" in options:
            options["depends"] = [one.hex() for one in options["depends"]]
        if step.when.at_ms is not None:
            options["at_ms"] = step.when.at_ms
        if policy.key is None:
            partition = int.from_bytes(os.urandom(4), "big") % self.partitions
        else:
            partition = partition_of_keys(step.queue, policy.key, self.partitions)
        task_id = _random_id(max(step.when.due_ms(now_ms), now_ms), partition)
        return Row(task_id=task_id, queue=step.queue, data=step.payload, options=options)

    @property
    def insert(self) -> str:
        """The statement that writes a row, with a placeholder for each of `COLUMNS`."""
        return _INSERT.format(table=self.table)


def create_table(table: str = TABLE) -> str:
    """Return the statement that creates the table in PostgreSQL unless it exists."""
    return _CREATE.format(table=RowMaker(table=table).table).strip()


def fresh_id(task_id: TaskId, now_ms: int) -> TaskId:
    """Return a new id in the same partition, for a task that the cluster does not have under its first id."""
    return _random_id(max(now_ms, ms_of(task_id)), partition_of(task_id))


def _random_id(ms: int, partition: int) -> TaskId:
    """Return an id that no other process makes. A counter would repeat in processes that a web server forks."""
    return make_id(ms, partition, int.from_bytes(os.urandom(8), "big"), 0)
