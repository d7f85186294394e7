"""Planted bugs of recovery: what is not kept, what goes on although it must not."""

from __future__ import annotations

from simulation.planted.planted import Planted

RECOVERY_BUGS: tuple[Planted, ...] = (
    Planted(
        "a recovered log begins among the positions of the lost one",
        "onyxq/history/recovery/new_replica.py",
        "SEGMENTS_AHEAD = 2",
        "SEGMENTS_AHEAD = 0",
        "tokens are given a second time",
        "recovery",
        quick=3,
    ),
    Planted(
        "what a committed transaction holds is free after a recovery",
        "onyxq/history/recovery/new_replica.py",
        "stretch: tuple(piece for piece in pieces if piece[4] == HELD_MS)",
        "stretch: tuple(piece for piece in pieces if piece[4] > HELD_MS)",
        "a task that a transaction completes is run again",
        "recovery",
    ),
    Planted(
        "the copy of the log is written after a pause",
        "onyxq/history/claim_rows.py",
        "if self._riding is not None or not self._has_news():",
        "if self._riding is not None or not self._has_news() or (self._position - self._stored < 20):",
        "a node has on its disk what a part of the log decided that it does not have",
        "recovery",
    ),
)
"""Planted bugs about these."""
