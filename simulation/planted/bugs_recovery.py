"""Planted bugs of recovery: what is not kept, what goes on although it must not."""

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
        "a recovered log begins among the positions of the lost one",
        "onyxq.history.recovery.new_log:SEGMENTS_AHEAD",
        instead(0),
        "tokens are given a second time",
        "recovery",
        quick=3,
    ),
    Planted(
        "what a committed transaction holds is free after a recovery",
        "onyxq.history.recovery.new_replica:HELD_MS",
        instead(-1),
        "a task that a transaction completes is run again",
        "recovery",
    ),
    Planted(
        "the copy of the log is written after a pause",
        "onyxq.history.claim_rows:HistoryWriter.take",
        _every_twenty_positions,
        "a node has on its disk what a part of the log decided that it does not have",
        "recovery",
    ),
)
"""Planted bugs about these."""
