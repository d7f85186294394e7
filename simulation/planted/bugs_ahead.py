"""Planted bugs of claims ahead: tasks that workers have before they are due."""

from __future__ import annotations

from simulation.planted.planted import Planted

AHEAD_BUGS: tuple[Planted, ...] = (
    Planted(
        "what was claimed ahead is begun at once",
        "onyxq/leader/grants/granter.py",
        "due_in_ms = min(max(0, pick.piece.due_ms - now_ms), pick.ahead_ms)",
        "due_in_ms = 0",
        "timers fire before their time",
        "ahead_of_time",
        quick=3,
    ),
    Planted(
        "the lease of what was claimed ahead begins when it is claimed",
        "onyxq/leader/grants/granter.py",
        "by_request.setdefault((pick.request, min(pick.lease_ms + pick.ahead_ms, LEASE_MS_MAX)), []).append(pick.run)",
        "by_request.setdefault((pick.request, pick.lease_ms), []).append(pick.run)",
        "somebody else is given a task whose worker was told that its lease runs",
        "ahead_of_time",
        quick=3,
    ),
    Planted(
        "tasks with keys are claimed ahead",
        "onyxq/leader/grants/ready_heads.py",
        "if piece.key or partition not in self._leaders:",
        "if partition not in self._leaders:",
        "one that comes later and is due earlier waits for it",
        "ahead_of_time",
        quick=3,
    ),
    Planted(
        "tasks that are counted are claimed ahead",
        "onyxq/leader/grants/ready_heads.py",
        "if heads is None or not heads.ahead or self._limits.room(queue) is not None:",
        "if heads is None or not heads.ahead:",
        "they take the places of others that could run",
        "ahead_of_time",
        quick=3,
    ),
)
