"""Planted bugs of recovery from a lost log."""

from __future__ import annotations

from collections.abc import Callable

from onyxq.history.claim_rows import HistoryWriter
from onyxq.store.interface import Batch
from simulation.planted.planted import Planted
from simulation.planted.seams import instead

_Take = Callable[[HistoryWriter], Batch | None]


def _every_twenty_positions(original: _Take) -> _Take:
    return lambda writer: None if writer._position - writer._stored < 20 else original(writer)


RECOVERY_BUGS: tuple[Planted, ...] = (
    Planted(
        "a recovered log reuses positions of the lost one",
        "onyxq.history.recovery.new_log:SEGMENTS_AHEAD",
        instead(0),
        "tokens are used twice",
        "recovery",
        quick=3,
    ),
    Planted(
        "tasks of a committed transaction are unclaimed after a recovery",
        "onyxq.history.recovery.new_replica:HELD_MS",
        instead(-1),
        "a task that the transaction completes runs again",
        "recovery",
    ),
    Planted(
        "the copy of the log is written after a pause",
        "onyxq.history.claim_rows:HistoryWriter.take",
        _every_twenty_positions,
        "a node has rows that follow from log records that its copy lacks",
        "recovery",
    ),
)
"""The planted bugs of recovery."""
