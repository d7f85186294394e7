"""SQL over tasks, claims, attempts and log entries (`onyxq.history.tables`), on DuckDB in this process.

DuckDB reads a table through Arrow, and passes the columns and the filter of the query. Arrow decides for which queues,
states and times the filter can be true, and only these are read. The filter is then applied to the rows. So a filter
that limits nothing costs time, but the answer is right.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow
from pyarrow import compute, dataset
from pyarrow.fs import LocalFileSystem

from onyxq.core.errors import BadRequest, Incomplete
from onyxq.core.limits import TIME_MS_MAX
from onyxq.history.live_log import Call
from onyxq.history.tables.columns import COLUMNS, ENTRIES, TASKS, arrow_schema
from onyxq.history.tables.selection import STATES, Selection
from onyxq.history.tables.sources import Sources

_FILES, _FORMAT = LocalFileSystem(), dataset.ParquetFileFormat()
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
LOOK_S = 0.1
"""Longest time until Ctrl-C is noticed, in seconds."""
CANDIDATES_MAX = 1_000
"""Largest number of strings in a filter that are tried as names of queues."""
CONFIG: dict[str, str | bool | int | float | list[str]] = {
    "python_enable_replacements": False,
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
SETTINGS = ("SET timezone = 'UTC'", "SET enable_external_access = false", "SET lock_configuration = true")
"""A query sees the tables and nothing else: no files, no network, no variables of this program.

The exception is DuckDB's directory for what does not fit into memory: each query has a new one, which is then deleted.
"""


def answer(query: str, sources: Sources, call: Call | None) -> Any:
    """Return the answer to a query as an Arrow table.

    ``call`` reads from the cluster; None: only ``sources`` are read. Raises `BadRequest` for a query that DuckDB
    refuses, `Incomplete` if DuckDB is not installed, and the errors of reading.
    """
    try:
        import duckdb
    except ImportError as error:
        raise Incomplete(f"SQL needs DuckDB: {error}", hint="pip install 'onyxq[sql]'") from None
    tables = [_Table(name, sources, call) for name in COLUMNS]
    with (
        TemporaryDirectory(prefix="onyxq-sql-") as aside,
        duckdb.connect(":memory:", config=CONFIG | {"temp_directory": aside}) as database,
    ):
        for table in tables:
            database.register(table.name, table)
        for setting in SETTINGS:
            database.execute(setting)
        try:
            return _interruptible(database, query)
        except (duckdb.Error, pyarrow.ArrowException) as error:
            for table in tables:
                if table.error is not None:
                    raise table.error from None
            raise BadRequest(f"query: {error}", field="query", hint=_HINT) from None


def _interruptible(database: Any, query: str) -> Any:
    """Return the answer to a query, computed in another thread.

    In the main thread DuckDB would notice Ctrl-C only at the end of the query. The signal may come to a thread of
    DuckDB, so this one looks again and again.
    """
    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(_answered, database, query)
        try:
            while not answered.done():
                wait([answered], timeout=LOOK_S)
        except KeyboardInterrupt:
            while not answered.done():  # DuckDB forgets an interrupt as it begins the next part of its work.
                database.interrupt()
                wait([answered], timeout=LOOK_S)
            raise
        return answered.result()


def _answered(database: Any, query: str) -> Any:
    found = database.sql(query)
    if found is None:
        raise BadRequest("the statement is not a query: it returns no rows", field="query", hint=_HINT)
    return found.to_arrow_table()


_HINT = f"The tables are {', '.join(COLUMNS)}; `describe tasks` shows columns. The dialect is DuckDB's."


class _Table(dataset.Dataset):  # type: ignore[misc]  # pyarrow has no types
    """A table in the form that DuckDB reads. DuckDB calls ``scanner`` for each scan of a query."""

    def __init__(self, name: str, sources: Sources, call: Call | None) -> None:
        self.name = name
        self.error: Exception | None = None
        self._sources = sources
        self._call = call
        self._schema = arrow_schema(name)

    @property
    def schema(self) -> Any:
        """The Arrow schema."""
        return self._schema

    def scanner(self, columns: list[str] | None = None, filter: Any = None, **_: Any) -> Any:
        """Return a scanner of the rows that fit a filter, with some columns."""
        rows = self._rows(selection_of(self.name, columns, filter))
        return dataset.Scanner.from_batches(
            rows, schema=self._schema, columns=columns, filter=filter, use_threads=False
        )

    def _rows(self, selection: Selection) -> Iterator[Any]:
        try:
            for share in self._sources.shares(self._call, self.name, selection):
                for rows in self._sources.read(self._call, self.name, share, selection):
                    yield from rows.to_batches()
        except Exception as error:  # DuckDB would show it as text
            self.error = error
            raise


def selection_of(table: str, columns: list[str] | None, filter: Any) -> Selection:
    """Return the part of a table that a scan with these columns and this filter (of Arrow) needs."""
    if filter is None:
        return Selection(columns=None if columns is None else frozenset(columns))
    # The scanner reads the columns of the filter, too.
    names = None if columns is None else frozenset(columns) | _named_in(table, filter)
    selection, may_be = Selection(columns=names), partial(_may_be, arrow_schema(table), filter)
    since_ms, until_ms = _first_ms(table, may_be), _last_ms(table, may_be)
    if since_ms is None or until_ms is None:
        return selection.of_times(1, 0)
    selection = selection.of_times(since_ms, until_ms)
    if table == TASKS:
        selection = selection.of_states({one for one in STATES if may_be(compute.field("state") == one)})
    if table != ENTRIES:
        queues = _queues(filter, may_be)
        selection = selection if queues is None else selection.of_queues(queues)
    return selection


def _named_in(table: str, filter: Any) -> frozenset[str]:
    text = str(filter)
    return frozenset(name for name, _ in COLUMNS[table] if name in text)


def _may_be(schema: Any, filter: Any, guarantee: Any) -> bool:
    """Return whether a filter can be true for rows for which ``guarantee`` is true."""
    fragment = _FORMAT.make_fragment("rows", filesystem=_FILES, partition_expression=guarantee)
    return any(
        True for _ in dataset.FileSystemDataset([fragment], schema, _FORMAT, _FILES).get_fragments(filter=filter)
    )


def _queues(filter: Any, may_be: Any) -> set[str] | None:
    """Return the queues for which a filter can be true; None: it can be true for queues that it does not name."""
    queue = compute.field("queue")
    named = sorted(set(_QUOTED.findall(str(filter))))
    if not named or len(named) > CANDIDATES_MAX:
        return None
    between = ((queue > low) & (queue < high) for low, high in zip(named, named[1:], strict=False))
    if any(map(may_be, (queue < named[0], queue > named[-1], *between))):
        return None
    return {one for one in named if may_be(queue == one)}


def _first_ms(table: str, may_be: Any, first: int = 0, last: int = TIME_MS_MAX) -> int | None:
    """Return the first time from ``first`` to ``last``, in ms, for which a filter can be true; None: there is none."""
    if not may_be(_of_time(table, first, last)):
        return None
    if first == last:
        return first
    middle = (first + last) // 2
    found = _first_ms(table, may_be, first, middle)
    return _first_ms(table, may_be, middle + 1, last) if found is None else found


def _last_ms(table: str, may_be: Any, first: int = 0, last: int = TIME_MS_MAX) -> int | None:
    """Return the last time from ``first`` to ``last``, in ms, for which a filter can be true; None: there is none."""
    if not may_be(_of_time(table, first, last)):
        return None
    if first == last:
        return last
    middle = (first + last) // 2
    found = _last_ms(table, may_be, middle + 1, last)
    return _last_ms(table, may_be, first, middle) if found is None else found


def _of_time(table: str, first: int, last: int) -> Any:
    """Return an expression that is true for rows from one time to another, in ms, both ends included."""
    if table == ENTRIES:
        return _between("time", first, last)
    ids = (compute.field("id") >= f"{first:012x}") & (compute.field("id") <= f"{last:012x}g")
    return ids & _between("made", first, last) if table == TASKS else ids


def _between(name: str, first: int, last: int) -> Any:
    """Return an expression that is true if a column is from one time to another, in ms, both ends included."""
    kind = pyarrow.timestamp("us", tz="UTC")
    low, high = (pyarrow.scalar(1_000 * ms, kind) for ms in (first, last))
    return (compute.field(name) >= low) & (compute.field(name) <= high)
