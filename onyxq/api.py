"""Functions for scripts: one call, one connection (design: interfaces)."""

from __future__ import annotations

from attrs import frozen

from onyxq.client import Client

GC_TIMEOUT_MS = 600_000


@frozen
class GcReport:
    """What a collection did: the position now safe to start from, records trimmed, bytes of the origin."""

    position: int
    trimmed: int
    origin_bytes: int


def gc(connect: str = "127.0.0.1:7400", *, token: str | None = None) -> GcReport:
    """Compress the replica and trim the log, through any peer; returns once it is trimmed.

    Raises `Unavailable` or `TimedOut`.
    """
    with Client(connect, token=token) as client:
        found = client.call("gc", {}, timeout_ms=GC_TIMEOUT_MS)
    return GcReport(found["position"], found["trimmed"], found["origin_bytes"])
