"""What a planted bug is: one line of the tree, and what takes its place."""

from __future__ import annotations

from attrs import frozen


@frozen
class Planted:
    """One deliberate fault."""

    name: str
    file: str
    before: str
    """The line, without its indentation; it stands in the file exactly once."""
    after: str
    breaks: str
    """What can go wrong because of it."""
    workload: str
    """Which is expected to find it."""
    runs: int = 100
    """Seeds within which it must be found, from 1 on."""
    more: tuple[tuple[str, str, str], ...] = ()
    """File, line and what takes its place, where one line is not enough: others would make up for it."""
    quick: int = 0
    """Seeds, from 1 on, within which every full run of the tests finds it; 0: they do not try."""
