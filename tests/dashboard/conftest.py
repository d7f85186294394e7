"""A cluster for all tests of a module, whose changes do not affect each other."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.dashboard.pages_world import Filled, filled
from tests.interfaces.live_world import running


@pytest.fixture(scope="module")
def world() -> Iterator[Filled]:
    """Run a cluster with every kind of content."""
    with running(http=True) as cluster:
        yield filled(cluster)
