"""Planted bugs about disks that fail: what a refused write leaves behind, and who may serve on such a disk."""

from __future__ import annotations

from simulation.planted.planted import Planted

DISK_BUGS: tuple[Planted, ...] = (
    Planted(
        "nobody looks for refused writes that landed",
        "onyxq/store/condition.py",
        "self._returning()",
        "pass",
        "a task whose write was refused, and is on the disk nevertheless, is never handed out",
        "failing_disk",
        runs=40,
        quick=30,
    ),
    Planted(
        "a leader that missed a write counts as incomplete for ever",
        "onyxq/leader/leader.py",
        "if node == self._host.node_id:",
        'if node == "":',
        "copies are never whole again under this leader, and nothing settles in small clusters",
        "failing_disk",
        quick=6,
    ),
    Planted(
        "a peer stays whose disk takes nothing",
        "onyxq/node/membership.py",
        "if condition.trouble_s() > STORE_PATIENCE_S:",
        "if condition.trouble_s() < 0:",
        "partitions are under-replicated, and nobody is told or makes other copies",
        "failing_disk",
        quick=10,
    ),
    Planted(
        "what a disk refused counts as stored",
        "onyxq/node/node.py",
        "return [error if found is None else found for found in errors]",
        "return errors",
        "an acknowledged task is not on the disks of a majority",
        "failing_disk",
        quick=10,
    ),
)
