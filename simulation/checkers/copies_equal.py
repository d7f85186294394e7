"""Once the faults are over every holder of a partition comes to hold the same rows, byte by byte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from attrs import define, field

from onyxq.core.replica import Replica
from simulation.checkers import Checker

Rows = Mapping[bytes, bytes]
"""Rows of one partition on one node, by key."""


@define(eq=False)
class CopiesEqual(Checker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "copies equal"
    equal: set[int] = field(factory=set)
    """Partitions whose holders were seen equal since the faults ended."""

    def look(self, replica: Replica, disks: Mapping[str, Sequence[tuple[bytes, bytes]]]) -> bool:
        """Compare the disks of the nodes that run (by node id); whether all partitions were seen equal."""
        rows: dict[tuple[str, int], dict[bytes, bytes]] = {}
        for node, table in disks.items():
            for key, value in table:
                rows.setdefault((node, int.from_bytes(key[:2], "big")), {})[key] = value
        self._problems = []
        for number, placed in sorted(replica.partitions.items()):
            nodes = sorted({*placed.members, *placed.target} & disks.keys())
            copies = [rows.get((node, number), {}) for node in nodes]
            differing = {key for copy in copies for key, _ in copy.items() ^ copies[0].items()}
            if not differing:
                self.equal.add(number)
            elif number not in self.equal:
                self._problems.append(_difference(number, nodes, copies, sorted(differing)))
        return not self._problems

    _problems: list[str] = field(factory=list)

    def finish(self) -> None:
        """Every partition was seen equal."""
        if self._problems:
            raise self.broken("; ".join(self._problems[:3]))


def _difference(number: int, nodes: Sequence[str], copies: Sequence[Rows], keys: Sequence[bytes]) -> str:
    key = keys[0]
    held = {node: copy[key].hex() if key in copy else None for node, copy in zip(nodes, copies, strict=True)}
    return f"partition {number}: {len(keys)} rows differ, the first is {key[2:3]!r} {key.hex()}: {held}"
