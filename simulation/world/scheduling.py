"""Deterministic scheduling: a seed decides which of several ready tasks runs first.

trio has a private switch for this, made for hypothesis.  With it, a seeded generator and
a clock that jumps, two runs in one process take the same steps; across processes
``PYTHONHASHSEED`` must be equal as well, for the order of sets and persistent maps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import trio


@contextmanager
def seeded_scheduling(seed: int) -> Iterator[None]:
    """Runs of trio begun inside are scheduled by the seed."""
    private: Any = trio._core._run
    before = private._ALLOW_DETERMINISTIC_SCHEDULING
    private._ALLOW_DETERMINISTIC_SCHEDULING = True
    private._r.seed(seed)
    try:
        yield
    finally:
        private._ALLOW_DETERMINISTIC_SCHEDULING = before
