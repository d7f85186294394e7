"""A Spark session for reading an archive, here or on a cluster."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onyxq.core.errors import OnyxqError, Unavailable
from onyxq.spark.session import Settings, open_session

MEMORY = "2g"
"""Heap of this process' machine; what does not fit is sorted on disk."""


@contextmanager
def spark_session(master: str, *, memory: str = MEMORY) -> Iterator[Any]:
    """Yield a session on ``master``, and remove its files afterwards.

    Raises `Incomplete` if Spark or Java is missing, `Unavailable` if the master cannot be reached.
    """
    with tempfile.TemporaryDirectory(prefix="onyxq-spark-", ignore_cleanup_errors=True) as work:
        settings = Settings(work=Path(work), master=master, conf={"spark.driver.memory": memory})
        try:
            session = open_session(settings)
        except OnyxqError:
            raise
        except Exception as error:
            raise Unavailable(f"Spark does not start on {master}: {_last_line(error)}", hint=_HINT) from error
        try:
            yield session
        finally:
            session.stop()


_HINT = "Check --master: local[N], spark://HOST:PORT, yarn or k8s://...; and --memory, such as 2g."


def _last_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
