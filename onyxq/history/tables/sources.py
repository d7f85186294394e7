"""Where the rows of the tables come from: a cluster, archives of tasks, and the log's history."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

from attrs import frozen

from onyxq.core.errors import Forbidden
from onyxq.history.live_log import Call
from onyxq.history.parquet.schema import RECORDS
from onyxq.history.tables import entry_table, task_tables
from onyxq.history.tables.columns import ENTRIES
from onyxq.history.tables.entry_table import RecordFile, Replay
from onyxq.history.tables.selection import Selection
from onyxq.history.tables.task_tables import Span

Share: TypeAlias = Span | RecordFile | Replay
"""A piece of work: one process reads it, and others may read the rest at the same time."""


@frozen(kw_only=True)
class Sources:
    """Directories and files that are read in addition to a cluster."""

    archives: tuple[Path, ...] = ()
    """Archives of tasks; if they have records of the log, those are read too."""
    records: tuple[Path, ...] = ()
    """More directories with records of the log."""
    logs: tuple[Path, ...] = ()
    """Archives of the log."""
    dumps: tuple[Path, ...] = ()
    """Files of ``onyxq log dump``."""

    def shares(self, call: Call | None, table: str, selection: Selection, *, parts: int = 1) -> list[Share]:
        """Return the pieces of work for a table.

        ``call`` reads from the cluster; None: only directories and files are read. Raises `NotFound` if a directory
        does not exist or is of another kind, `Forbidden` if the caller may not read a queue.
        """
        if table != ENTRIES:
            return [*task_tables.spans(call, self.archives, selection, parts=parts)]
        tables = [*self.records, *(one for one in self.archives if (one / RECORDS).is_dir())]
        unique = [*dict.fromkeys(tables)]
        return [*entry_table.shares(call, unique, logs=self.logs, dumps=self.dumps, selection=selection)]

    def read(self, call: Call | None, table: str, share: Share, selection: Selection) -> Iterator[Any]:
        """Yield the rows of a piece of work as Arrow tables with all columns.

        Columns that are not selected may be null.
        """
        try:
            if isinstance(share, Span):
                yield from task_tables.read_span(call, self.archives, table, selection=selection, span=share)
            else:
                yield from entry_table.read_share(call, share)
        except Forbidden as error:
            if table != ENTRIES and selection.queues is None:
                hint = "Name the queues that you may read: where queue = 'mail'."
                raise Forbidden(error.message, field=error.field, hint=hint) from None
            raise
