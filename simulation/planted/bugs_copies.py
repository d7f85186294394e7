"""Planted bugs about copies: who has them, who is looked for, and what may be answered before they are on disks."""

from __future__ import annotations

from simulation.planted.planted import Planted

COPY_BUGS: tuple[Planted, ...] = (
    Planted(
        "a key goes on before its head's end is backed",
        "onyxq/partition/available.py",
        "if leader is None or not leader.backed or not self.keys.free(piece):",
        "if leader is None or not self.keys.free(piece):",
        "a task runs before the one ahead of it, which is run again by the next leader",
        "half_written",
        quick=3,
    ),
    Planted(
        "backed by a majority that promised only",
        "onyxq/partition/leader.py",
        "if self.ready and not self.backed and majority(self.placed.members, self.current):",
        "if self.ready and not self.backed and majority(self.placed.members, self._reached):",
        "a completion that only one node has lets the next task of its key run",
        "half_written",
    ),
    Planted(
        "a completion that was refused counts once it turns up",
        "onyxq/store/stretches.py",
        "return max(self.reopened, self.ended)",
        "return self.reopened",
        "a task that everybody who worked on it was refused is completed, and dependents run",
        "turned_up",
        quick=3,
    ),
    Planted(
        "settled with a mere majority of whole copies",
        "onyxq/partition/leader.py",
        "return majority(placed.target, self.current) and sum(n in self.current for n in placed.target) >= wanted",
        "return majority(placed.target, self.current) and wanted >= 0",
        "a node that leaves for good takes one of the full copies with it",
        "retired",
        quick=3,
    ),
    Planted(
        "a member that was not compared yet counts as no copy",
        "onyxq/partition/leader.py",
        "whole = [node for node in lives if node in self.current or node not in self._failing]",
        "whole = [node for node in lives if node in self.current]",
        "a leader that is new gives up copies that it has not heard of",
        "retired",
    ),
    Planted(
        "a copy is dropped though a later epoch is promised",
        "onyxq/peer/moved_away.py",
        "return host.epochs.get(number, 0) <= placed.epoch",
        "return placed.epoch >= 0",
        "a node that reads the log late drops what a new leader has just counted as one of its copies",
        "unread",
        quick=2,
    ),
    Planted(
        "nobody looks for who missed something",
        "onyxq/peer/probing.py",
        "sender.returned()",
        "pass",
        "a node that is back lacks for seconds what was written without it",
        "missed",
        quick=3,
    ),
    Planted(
        "silent nodes are not asked",
        "onyxq/peer/probing.py",
        "nursery.start_soon(self._probe, sender)",
        "pass",
        "a leader that is cut off goes on leading as long as nothing is written",
        "unanswered",
        quick=2,
    ),
    Planted(
        "no window for what is answered early",
        "onyxq/partition/floating.py",
        "if now - oldest >= WINDOW_S or self._bytes >= BYTES_MAX:",
        "if self._bytes >= BYTES_MAX:",
        "when all machines stop everything is lost that disks had not taken for seconds",
        "stopped_at_once",
        quick=3,
    ),
    Planted(
        "answered early though the queue is strict",
        "onyxq/partition/enqueuing.py",
        'return settings_of(replica, one.header["queue"]).durability == "opportunistic"',
        "return True",
        "an acknowledged task is on no disk",
        "standard",
    ),
)
"""Planted bugs about these."""
