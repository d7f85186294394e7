"""The tables of tasks, claims, attempts and log entries (`onyxq.history.tables`) as batch reads of Spark.

The driver divides the work, and executors read the cluster and the archives. Spark applies all filters to the rows. So
a filter that is not used here costs time, but the answer is right.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import to_arrow_schema

from onyxq.client import AsyncClient
from onyxq.core.limits import TIME_MS_MAX
from onyxq.history.live_log import Call
from onyxq.history.tables.columns import COLUMNS, ENTRIES, TASKS
from onyxq.history.tables.selection import Selection
from onyxq.history.tables.sources import Share
from onyxq.spark.analysis.tables import TYPES
from onyxq.spark.queues.options import TableOptions, Target
from onyxq.spark.queues.source import connected

_HEX = re.compile(r"[0-9a-f]+")
TIME_DIGITS = 12
"""Hex digits of an id that are its time."""


def schema(table: str) -> str:
    """Return the columns of a table as Spark writes them."""
    return ", ".join(f"`{name}` {TYPES[kind]}" for name, kind in COLUMNS[table])


class Piece(InputPartition):
    """A share of a table."""

    def __init__(self, share: Share) -> None:
        self.share = share


class TableScan(DataSourceReader):
    """A batch read of a table, without duplicates if both the cluster and an archive have a task."""

    def __init__(self, options: TableOptions, schema: Any) -> None:
        self._options = options
        self._schema = schema
        self._selection = Selection(queues=options.queues)

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Limit what is read by the filters, and return all of them, so that Spark applies them too."""
        for one in filters:
            self._selection = limited(self._selection, self._options.table, one)
        return filters

    def partitions(self) -> Sequence[InputPartition]:
        """Return the shares of the table."""
        one = self._options
        shares = one.sources.shares(_call(one.target), one.table, self._selection, parts=one.partitions)
        return [Piece(share) for share in shares]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Yield the rows of a share as Arrow batches."""
        assert isinstance(partition, Piece)
        one, wanted = self._options, to_arrow_schema(self._schema, timezone="UTC")
        for rows in one.sources.read(_call(one.target), one.table, partition.share, self._selection):
            yield from rows.cast(wanted).to_batches()


def _call(target: Target | None) -> Call | None:
    if target is None:
        return None
    link = connected(target)

    def call(method: str, args: dict[str, Any]) -> Any:
        async def ask(client: AsyncClient) -> Any:
            return await client.call(method, args)

        return link.call(ask)

    return call


def limited(selection: Selection, table: str, one: Filter) -> Selection:
    """Return a selection limited by a filter; the same selection if the filter cannot be used."""
    names: tuple[str, ...] = getattr(one, "attribute", ())
    name = names[0] if len(names) == 1 else ""
    if isinstance(one, (EqualTo, In)):
        values = set(one.value) - {None} if isinstance(one, In) else {one.value}  # nothing equals null
        if name == "queue" and table != ENTRIES:
            return selection.of_queues(values)
        if name == "state" and table == TASKS:
            return selection.of_states(values)
    time_of = _TIMES.get((table == ENTRIES, name))
    if time_of is None or (name == "made" and table != TASKS):
        return selection
    since_ms, until_ms = 0, TIME_MS_MAX
    if isinstance(one, (EqualTo, GreaterThan, GreaterThanOrEqual)):
        since_ms = time_of(one.value, "0") or 0
    if isinstance(one, (EqualTo, LessThan, LessThanOrEqual)):
        found = time_of(one.value, "f")
        until_ms = TIME_MS_MAX if found is None else found
    return selection.of_times(since_ms, until_ms)


def _time_of_id(value: Any, fill: str) -> int | None:
    """Return the time with which an id begins, with ``fill`` for missing digits; None: it cannot be an id."""
    if not isinstance(value, str) or not _HEX.fullmatch(value):
        return None
    return int(value[:TIME_DIGITS].ljust(TIME_DIGITS, fill), 16)


def _moment(value: Any, _: str) -> int | None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    return min(TIME_MS_MAX, max(0, int(value.timestamp() * 1_000)))


_TIMES: dict[tuple[bool, str], Callable[[Any, str], int | None]] = {
    (False, "id"): _time_of_id,
    (False, "made"): _moment,
    (True, "time"): _moment,
}
"""(Whether the table is ``entries``, column) -> function that returns the time, in ms, of a value in a comparison."""
