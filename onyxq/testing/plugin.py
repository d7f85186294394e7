"""The pytest plug-in: the fixture ``onyxq_cluster``, its options, and its section in failure reports.

Every pytest run loads it where OnyxQ is installed, so it imports nothing of OnyxQ until the fixture is used.
"""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from onyxq.testing.cluster import AsyncCluster, Cluster

MARKER = "onyxq(seed=None, peers=3, backend='asyncio'): how the onyxq_cluster of this test is made"
SETTINGS = ("seed", "peers", "backend")
RUNS_TOLD = 10
"""Largest number of handler runs in a failure report."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the command line and of the configuration file."""
    group = parser.getgroup("onyxq")
    group.addoption("--onyxq-seed", type=int, default=None, help="seed of every onyxq_cluster (default: one per test)")
    parser.addini("onyxq_backend", "event loop of async handlers and tests: asyncio or trio", default="asyncio")
    parser.addini("onyxq_apps", "applications (MODULE:APP) that every onyxq_cluster uses", type="linelist")


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line("markers", MARKER)


def seed_of(request: pytest.FixtureRequest) -> int:
    """Return the command line's seed, else the marker's, else one derived from the test's name."""
    given: int | None = request.config.getoption("--onyxq-seed")
    marker = request.node.get_closest_marker("onyxq")
    if given is None and marker is not None:
        given = marker.kwargs.get("seed")
    return zlib.crc32(request.node.nodeid.encode()) if given is None else given


@pytest.fixture
def onyxq_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster | AsyncCluster]:
    """Open an in-memory cluster on a clock that jumps: a `Cluster`, in an async test an `AsyncCluster`.

    The marker ``onyxq(seed=..., peers=3, backend="asyncio")`` changes how it is made.
    """
    from onyxq.testing.cluster import AsyncCluster, open_cluster
    from onyxq.worker import load_app

    marker = request.node.get_closest_marker("onyxq")
    settings: dict[str, Any] = dict(marker.kwargs) if marker is not None else {}
    if marker is not None and (marker.args or settings.keys() - set(SETTINGS)):
        pytest.fail(f"the marker is {MARKER.partition(':')[0]}", pytrace=False)
    seed = settings["seed"] = seed_of(request)
    settings.setdefault("backend", request.config.getini("onyxq_backend"))
    request.node.user_properties.append(("onyxq_seed", seed))
    with open_cluster(**settings) as cluster:
        for target in request.config.getini("onyxq_apps"):
            cluster.use(load_app(target))
        request.node.stash[_CLUSTER] = cluster
        yield AsyncCluster(cluster._core) if inspect.iscoroutinefunction(request.function) else cluster


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run async tests that use a cluster in the cluster's time."""
    cluster = pyfuncitem.stash.get(_CLUSTER, None)
    # Another plug-in may have wrapped the test in a plain function. An async wrapper, as of a mock, belongs to it.
    test = inspect.unwrap(pyfuncitem.obj, stop=inspect.iscoroutinefunction)
    if cluster is None or not inspect.iscoroutinefunction(test):
        return None
    from onyxq.testing.cluster import run_async

    given = pyfuncitem.funcargs
    arguments = {name: given[name] for name in inspect.signature(test).parameters if name in given}
    run_async(cluster, lambda: test(**arguments))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the seed and the latest handler runs to the report of a failure."""
    report = yield
    cluster = item.stash.get(_CLUSTER, None)
    if report.failed and cluster is not None:
        report.sections.append(("onyxq", "\n".join(_told(item, cluster))))
    return report


def _told(item: pytest.Item, cluster: Any) -> Iterator[str]:
    core = cluster._core
    yield f"seed {core.seed}; again with: pytest '{item.nodeid}' --onyxq-seed={core.seed}"
    yield f"{core.now_s():.3f} simulated seconds had passed"
    for run in core.runs[-RUNS_TOLD:]:
        said = [repr(one) for one in run.args] + [f"{name}={one!r}" for name, one in run.kwargs.items()]
        error = f": {run.error!r}" if run.error is not None else ""
        yield f"  at {run.started_s:.3f} s {run.worker} ran {run.name}({', '.join(said)}): {run.outcome}{error}"


_CLUSTER: pytest.StashKey[Cluster] = pytest.StashKey()
