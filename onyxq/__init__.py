"""OnyxQ: a replicated log and, built on it, a distributed task queue.

Everything public is found here; each part is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from onyxq import api
    from onyxq.app import App
    from onyxq.client import AsyncClient, Client

__version__ = "0.1.0"

__all__ = ["App", "AsyncClient", "Client", "__version__", "api"]

_HOMES = {"App": "onyxq.app", "AsyncClient": "onyxq.client", "Client": "onyxq.client"}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name == "api":
        return importlib.import_module("onyxq.api")
    raise AttributeError(f"module 'onyxq' has no attribute {name!r}")
