"""Tools to test programs that use OnyxQ: an in-memory cluster on a simulated clock.

The clock jumps over waits. OnyxQ installs the pytest fixture ``onyxq_cluster``, which opens a cluster for each test
that asks for it. `open_cluster` opens one without pytest. Each name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onyxq.jobs.model import Preview
    from onyxq.jobs.preview import preview
    from onyxq.testing.cluster import AsyncCluster, Cluster, open_cluster
    from onyxq.testing.core import die_here
    from onyxq.testing.drain import Drained, NotDrained
    from onyxq.testing.entry_check import check_extension
    from onyxq.testing.found_tasks import FoundTask
    from onyxq.testing.workers import Run

_HOMES = {
    "check_extension": "onyxq.testing.entry_check",
    "AsyncCluster": "onyxq.testing.cluster",
    "Cluster": "onyxq.testing.cluster",
    "open_cluster": "onyxq.testing.cluster",
    "die_here": "onyxq.testing.core",
    "Drained": "onyxq.testing.drain",
    "NotDrained": "onyxq.testing.drain",
    "FoundTask": "onyxq.testing.found_tasks",
    "Preview": "onyxq.jobs.model",
    "preview": "onyxq.jobs.preview",
    "Run": "onyxq.testing.workers",
}

__all__ = [
    "AsyncCluster",
    "Cluster",
    "Drained",
    "FoundTask",
    "NotDrained",
    "Preview",
    "Run",
    "check_extension",
    "die_here",
    "open_cluster",
    "preview",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'onyxq.testing' has no attribute {name!r}")
