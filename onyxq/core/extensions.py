"""The state of extensions in the replica (design: entries). `onyxq.system.extensions` finds the extensions."""

from __future__ import annotations

from typing import Any

from pyrsistent import PMap, pmap

from onyxq.core.replica import Replica, altered

NOTHING: PMap[Any, Any] = pmap()


def state_of(replica: Replica, extension: str, default: Any = NOTHING) -> Any:
    """Return the state of an extension; ``default`` (an empty map) while it has none."""
    return replica.extensions.get(extension, default)


def with_state(replica: Replica, extension: str, state: Any) -> Replica:
    """Return the replica with another state of an extension."""
    return altered(replica, extensions=replica.extensions.set(extension, state))
