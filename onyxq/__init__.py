"""OnyxQ: a replicated log and, built on it, a distributed task queue.

All public names are importable from here; each part is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onyxq import api
    from onyxq.app import App
    from onyxq.client import OF_QUEUE, AsyncClient, Client, Step
    from onyxq.interfaces.embedded import open
    from onyxq.jobs.model import (
        Aggregation,
        And,
        BatchFunction,
        Condition,
        Frame,
        Function,
        HostSettings,
        Input,
        Job,
        Join,
        Lifecycle,
        Not,
        Or,
        Output,
        Predicate,
        Reduce,
        Sql,
        Trigger,
        Window,
    )
    from onyxq.worker import GiveUp, Retry, Snooze, blocking_context, context

__version__ = "0.1.0"

__all__ = [
    "OF_QUEUE",
    "Aggregation",
    "And",
    "App",
    "AsyncClient",
    "BatchFunction",
    "Client",
    "Condition",
    "Frame",
    "Function",
    "GiveUp",
    "HostSettings",
    "Input",
    "Job",
    "Join",
    "Lifecycle",
    "Not",
    "Or",
    "Output",
    "Predicate",
    "Reduce",
    "Retry",
    "Snooze",
    "Sql",
    "Step",
    "Trigger",
    "Window",
    "__version__",
    "api",
    "blocking_context",
    "context",
    "open",
]

_JOBS = (
    "Aggregation And BatchFunction Condition Frame Function HostSettings Input Job Join Lifecycle Not Or Output "
    "Predicate Reduce Sql Trigger Window"
).split()
_HOMES = {
    "App": "onyxq.app",
    **dict.fromkeys(("AsyncClient", "Client", "OF_QUEUE", "Step"), "onyxq.client"),
    **dict.fromkeys(_JOBS, "onyxq.jobs.model"),
    "open": "onyxq.interfaces.embedded",
    **dict.fromkeys(("GiveUp", "Retry", "Snooze", "blocking_context", "context"), "onyxq.worker"),
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name == "api":
        return importlib.import_module("onyxq.api")
    raise AttributeError(f"module 'onyxq' has no attribute {name!r}")
