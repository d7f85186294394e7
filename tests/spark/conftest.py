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
        yield session
