"""Planted bugs of backups: what they lack, have by halves, leave behind, or bring back."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve

from onyxq.core.facts import COMPLETION, Row
from onyxq.core.replica import Hold, Replica
from onyxq.history.backup.file import Backup
from onyxq.history.file_format import HistoryFileWriter
from onyxq.operations.backup_rows import BackingUp
from onyxq.store.interface import Store
from simulation.planted.planted import Planted
from simulation.planted.seams import returning

_Write = Callable[[Iterable[str], Sequence[Row], Mapping[str, Store]], Awaitable[None]]
_Pages = Callable[[Backup], Iterator[tuple[int, list[Row]]]]
_Place = Callable[[BackingUp, dict[str, Any]], tuple[int, int, bytes]]


def _from_anywhere(original: _Place) -> _Place:
    def place(backing_up: BackingUp, args: dict[str, Any]) -> tuple[int, int, bytes]:
        partition, _, after = original(backing_up, args)
        return partition, 0, after

    return place


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


def _whole_or_not(original: Callable[..., None]) -> Callable[..., None]:
    def end(writer: HistoryFileWriter, *_: object) -> None:
        original(writer, None, None, None)

    return end


BACKUP_BUGS: tuple[Planted, ...] = (
    Planted(
        "transactions go on under a hold",
        "log_entries.commit_transaction:on_hold",
        returning(None),
        "a transaction is in a backup by halves",
        "backups",
    ),
    Planted(
        "a backup does not wait for what was committed",
        "onyxq.history.backup.capture:_Taking._settle",
        returning(None),
        "what a partition has not made visible yet is not in it",
        "backups",
    ),
    Planted(
        "a hold that was over is not noticed",
        "onyxq.history.backup.capture:_Taking._held_since",
        returning(0),
        "a transaction that came in between is in a backup by halves",
        "backups",
    ),
    Planted(
        "pages are given before the log is read",
        "onyxq.operations.backup_rows:BackingUp._place",
        _from_anywhere,
        "a leader that was deposed gives what it has: acknowledged tasks are missing",
        "backups",
    ),
    Planted(
        "the end of attempts is forgotten",
        "onyxq.history.backup.restore:history_rows",
        returning(()),
        "attempts that ended while rows were read are not counted",
        "backups",
    ),
    Planted(
        "completions are left out",
        "onyxq.history.backup.file:Backup.pages",
        _without_completions,
        "what was done is done again",
        "backups",
    ),
    Planted(
        "rows are restored to one node of each partition",
        "onyxq.history.backup.restore:_write_copies",
        _to_one_node,
        "two nodes that start first go on without what they lack",
        "backups",
    ),
    Planted(
        "tokens begin anew",
        "onyxq.log.first_record:segment_of",
        returning(sys.maxsize),
        "who worked before the restore keeps others out after it",
        "backups",
    ),
    Planted(
        "a restored cluster is on hold",
        "onyxq.history.backup.restore:_first_replica",
        _still_on_hold,
        "no transaction goes through for as long as the hold had left",
        "backups",
        quick=1,
    ),
    Planted(
        "a hold never ends",
        "log_entries.hold_transactions:Hold",
        _thousandfold,
        "no transaction goes through behind a backup that died",
        "backups",
    ),
    Planted(
        "a failed backup keeps its name",
        "onyxq.history.file_format:HistoryFileWriter.__exit__",
        _whole_or_not,
        "part of a cluster is restored for the whole",
        "backups",
    ),
)
"""Planted bugs about these."""
