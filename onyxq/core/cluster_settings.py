"""The settings of a cluster, which ``create_cluster`` fixes: their defaults and limits."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from onyxq.core.ids import PARTITIONS_MAX


@frozen
class Settings:
    """The settings of a cluster, fixed by ``create_cluster``."""

    partitions: int = 64
    replicas: int = 3
    session_timeout_ms: int = 6_000
    absent_after_ms: int = 60_000
    yield_after_ms: int = 5_000
    gc_records: int = 20_000
    """Records since the last ``gc`` after which the next ``gc`` is owed."""
    gc_bytes: int = 4 << 20
    """Bytes of records since the last ``gc`` after which the next ``gc`` is owed."""


SETTINGS_LIMITS: Mapping[str, tuple[int, int]] = {
    "partitions": (1, PARTITIONS_MAX),
    "replicas": (1, 9),
    "session_timeout_ms": (1_000, 60_000),
    "absent_after_ms": (1_000, 30 * 86_400_000),
    "yield_after_ms": (500, 3_600_000),
    "gc_records": (10, 100_000_000),
    "gc_bytes": (1 << 20, 1 << 40),
}
"""Lowest and highest value of each setting."""
DEFAULTS = Settings()
