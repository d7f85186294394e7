"""One Spark session for all tests of a run: starting one takes seconds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from onyxq.analysis.session import spark_session


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """The session; tests leave nothing in it."""
    with spark_session("local[2]", memory="1g") as session:
        session.conf.set("spark.sql.shuffle.partitions", 2)
        session.conf.set("spark.sql.adaptive.enabled", False)
        yield session
