"""A Spark session for looking through an archive, here or on a cluster."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from onyxq.errors import Incomplete
from onyxq.log.zookeeper_server import find_java

MEMORY = "2g"
"""Heap of a local master; what does not fit is sorted on disk."""
_HINT = "Install it with: pip install 'onyxq[spark]'."


@contextmanager
def spark_session(master: str, *, memory: str = MEMORY) -> Iterator[Any]:
    """A session on ``master``, ended with all that it left on disk; raises `Incomplete`."""
    find_java()
    with tempfile.TemporaryDirectory(prefix="onyxq-spark-") as work:
        session = _open(master, memory, work)
        try:
            yield session
        finally:
            session.stop()


def _open(master: str, memory: str, work: str) -> Any:
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise Incomplete(f"this needs Spark: {error}", hint=_HINT) from None
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.driver.memory": memory,
        "spark.local.dir": work,
        "spark.sql.warehouse.dir": f"{work}/warehouse",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
    }
    if master.startswith("local"):
        settings |= {"spark.driver.bindAddress": "127.0.0.1", "spark.driver.host": "127.0.0.1"}
    builder = SparkSession.builder.master(master).appName("onyxq")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()
