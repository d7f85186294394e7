"""Planted bugs about looks at everything: whose answers count, and of what they are."""

from __future__ import annotations

from simulation.planted.planted import Planted

LOOK_BUGS: tuple[Planted, ...] = (
    Planted(
        "what the leaders answered is taken for all there is",
        "onyxq/node/all_leaders.py",
        "if not left:",
        "if not left or answers:",
        "partitions that move while everything is counted or listed are missing from it",
        "looked_at",
        quick=2,
    ),
    Planted(
        "a leader answers for a partition under any epoch",
        "onyxq/node/all_leaders.py",
        "return [number for number, one in ready if one.epoch == epochs[number]]",
        "return [number for number, one in ready if one.epoch >= 0]",
        "a partition that moved is counted at both leaders",
        "looked_at",
    ),
    Planted(
        "nobody is asked for promises before an answer counts",
        "onyxq/node/all_leaders.py",
        "if majority(members, told) and majority(target, told):",
        "if members and target and told:",
        "a leader that does not know that it was deposed answers without what its successor was given",
        "behind_the_times",
        quick=2,
    ),
    Planted(
        "later promises are not told",
        "onyxq/node/all_leaders.py",
        "past = [number for number, epoch in epochs.items() if self._node.epochs.get(number, 0) > epoch]",
        "past = [number for number in epochs if self._node.epochs.get(number, 0) < 0]",
        "a deposed leader that reaches the other nodes, but not the log, answers without what its successor was given",
        "behind_the_times",
        quick=6,
    ),
)
"""Planted bugs about these."""
