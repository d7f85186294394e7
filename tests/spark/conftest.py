"""One Spark session for all tests of a run, started as jobs' hosts start theirs, because a start takes seconds.

Tests of jobs that need a cluster have one node for each module.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from onyxq import Client
from onyxq.spark import home
from onyxq.spark.session import Settings, kill_machine, machine_of, of_its_own, open_session
from tests.interfaces.batches_world import JobsCluster, jobs_cluster


@pytest.fixture(scope="session")
def java() -> None:
    """Skips without Java or pyspark, except under ``CI``, where it fails."""
    lacking = home.missing()
    if lacking is not None:
        reason = f"{lacking} ({lacking.advice})"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def machine(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The session of the run's only virtual machine, with two threads."""
    work = tmp_path_factory.mktemp("spark")
    session = open_session(Settings(work=work, slots=2, quick_start=True))
    yield session
    pid = machine_of(session)
    session.stop()
    kill_machine(pid)


@pytest.fixture
def spark(machine: Any) -> Iterator[Any]:
    """A session with settings of its own; tests leave no query running."""
    session = of_its_own(machine)
    session.conf.set("spark.sql.shuffle.partitions", 2)
    session.conf.set("spark.sql.adaptive.enabled", False)
    session.conf.set("spark.sql.sources.partitionColumnTypeInference.enabled", False)
    yield session
    for query in session.streams.active:
        query.stop()


@pytest.fixture(scope="module")
def cluster() -> Iterator[JobsCluster]:
    """One node; the tests drive its jobs."""
    with jobs_cluster(peers=1, partitions=4) as found:
        yield found


@pytest.fixture
def client(cluster: JobsCluster) -> Iterator[Client]:
    """A client of the cluster of the module."""
    with cluster.client() as found:
        yield found
