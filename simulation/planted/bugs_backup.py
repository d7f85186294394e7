"""Planted bugs of backups: missing or incomplete contents, holds, and faulty restores."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence

from attrs import evolve
from msgspec import structs

from onyxq.core.facts import COMPLETION, Row
from onyxq.core.replica import Hold, Replica
from onyxq.history.backup.file import Backup
from onyxq.history.file_format import HistoryFileWriter
from onyxq.operations.backup_rows import BackingUp
from onyxq.operations.table.log import BackupRows, GetBackupRows
from onyxq.store.store import Store
from simulation.planted.planted import Planted
from simulation.planted.seams import returning

_Write = Callable[[Iterable[str], Sequence[Row], Mapping[str, Store]], Awaitable[None]]
_Pages = Callable[[Backup], Iterator[tuple[int, list[Row]]]]
_Read = Callable[[BackingUp, GetBackupRows], Awaitable[BackupRows]]


def _from_anywhere(original: _Read) -> _Read:
    async def read(backing_up: BackingUp, args: GetBackupRows) -> BackupRows:
        return await original(backing_up, structs.replace(args, position=0))

    return read


def _without_completions(original: _Pages) -> _Pages:
    def pages(backup: Backup) -> Iterator[tuple[int, list[Row]]]:
        for partition, rows in original(backup):
            yield partition, [row for row in rows if row.key[2:3] != COMPLETION]

    return pages


def _to_one_node(original: _Write) -> _Write:
    return lambda nodes, rows, stores: original(list(nodes)[:1], rows, stores)


def _still_on_hold(original: Callable[..., Replica]) -> Callable[..., Replica]:
    return lambda last, **new: evolve(original(last, **new), hold=last.hold)


def _thousandfold(original: Callable[..., Hold]) -> Callable[..., Hold]:
    return lambda until_ms, **said: original(until_ms=until_ms + 60_000_000, **said)


def _complete_anyway(original: Callable[..., None]) -> Callable[..., None]:
    def end(writer: HistoryFileWriter, *_: object) -> None:
        original(writer, None, None, None)

    return end


BACKUP_BUGS: tuple[Planted, ...] = (
    Planted(
        "transactions commit during a hold",
        "log_entries.commit_transaction:on_hold",
        returning(None),
        "a backup has only part of a transaction",
        "backups",
    ),
    Planted(
        "a backup does not wait until commits are visible",
        "onyxq.history.backup.capture:_Taking._settle",
        returning(None),
        "the backup lacks facts of a committed transaction",
        "commit_backed_up",
        quick=2,
    ),
    Planted(
        "a backup ignores that its hold expired",
        "onyxq.history.backup.capture:_Taking._held_since",
        returning(0),
        "the backup has only part of a transaction that was committed meanwhile",
        "backups",
    ),
    Planted(
        "pages are read before the leader has read the log",
        "onyxq.operations.backup_rows:BackingUp._read",
        _from_anywhere,
        "a deposed leader sends its own rows: acknowledged tasks are missing",
        "backups",
    ),
    Planted(
        "a restore drops the ends of attempts",
        "onyxq.history.backup.restore:history_rows",
        returning(()),
        "attempts that ended while rows were read are not counted",
        "backups",
    ),
    Planted(
        "a backup has no completions",
        "onyxq.history.backup.file:Backup.pages",
        _without_completions,
        "completed tasks run again",
        "backups",
    ),
    Planted(
        "rows are restored to one node of each partition",
        "onyxq.history.backup.restore:_write_copies",
        _to_one_node,
        "the two nodes that start first are a majority and lack tasks",
        "backups",
    ),
    Planted(
        "a restored cluster reuses tokens",
        "onyxq.history.recovery.new_log:segment_of",
        returning(sys.maxsize),
        "a worker of the old cluster still holds tasks after the restore",
        "backups",
    ),
    Planted(
        "a restored cluster is still on hold",
        "onyxq.history.backup.restore:_first_replica",
        _still_on_hold,
        "no transaction commits until the old hold expires",
        "backups",
        quick=1,
    ),
    Planted(
        "a hold never ends",
        "log_entries.hold_transactions:Hold",
        _thousandfold,
        "no transaction commits after a backup process died",
        "backups",
    ),
    Planted(
        "a failed backup looks complete",
        "onyxq.history.file_format:HistoryFileWriter.__exit__",
        _complete_anyway,
        "only part of the cluster is restored",
        "backups",
    ),
)
"""The planted bugs of backups."""
