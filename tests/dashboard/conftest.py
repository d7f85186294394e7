"""A cluster for all tests of a module, which change nothing that another looks at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.dashboard.pages_world import Filled, filled
from tests.interfaces.live_world import running


@pytest.fixture(scope="module")
def world() -> Iterator[Filled]:
    """A cluster with something of everything."""
    with running(http=True) as cluster:
        yield filled(cluster)
