"""What all tests share: two layers, two processes, a clean environment and reproducible generated examples."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from onyxq.leader.state.leader_state import LeaderState

# How fast the machine is says nothing about the code: no deadline, and no complaint of slow generation.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

LeaderState.strict = True  # A transition that must not happen fails the test.

WORKERS_MAX = 4
"""Most processes that run tests together without being asked for more: each may need a gigabyte."""
TOGETHER = ("tests/spark/", "tests/tidy/")
"""Folders whose tests run in one process: they share a virtual machine of Spark, or the project's syntax trees."""
FIRST = ("tests/spark/", "tests/processes/", "tests/simulation/")
"""Folders that start first: their files take longest, and the last files should be short."""
MEMORY_MAX_BYTES = 512 * 1024 * 1024
"""Memory of this process after which it gives back what it no longer needs."""

# Some tests interrupt programs. What a shell starts in the background ignores that, and so would all that it starts.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees ``ONYXQ_*`` settings of the environment in which the tests run."""
    for name in [name for name in os.environ if name.startswith("ONYXQ_")]:
        monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def no_session_with_zookeeper_stays() -> Iterator[None]:
    """What a test leaves open is closed, and told: kazoo's threads would try to reconnect for the rest of the run.

    They also draw from the module ``random``, and Hypothesis fails a test that draws its data just then.
    """
    before = _clients_of_zookeeper()
    yield
    left = [client for client in _clients_of_zookeeper() if client not in before]
    for client in left:
        client.stop()
        client.close()
    assert not left, f"{len(left)} sessions with ZooKeeper were left open"


def _clients_of_zookeeper() -> list[Any]:
    """Return kazoo clients that were not stopped, found by their threads."""
    loops = [getattr(one, "_target", None) for one in threading.enumerate() if one.name.endswith("(zk_loop)")]
    clients = [loop.__self__.client for loop in loops if loop is not None]
    return [client for client in clients if not client._stopped.is_set()]


# --- which tests run, and where


def named_files(config: pytest.Config) -> set[Path]:
    """Return the files that the command line names, whole or by one of their tests."""
    files = (argument.partition("::")[0] for argument in config.args)
    return {Path(config.invocation_params.dir, file).resolve() for file in files if file.endswith(".py")}


def leaves_out_long(config: pytest.Config) -> bool:
    """Return whether long tests run only if their file is named: the command line chooses no tests in another way."""
    chosen = (config.getoption(name, None) for name in ("markexpr", "keyword", "lf"))
    return not any(chosen)


class Scheduling(LoadFileScheduling):
    """Gives each process one file after the other, in the order of the files; and some folders as a whole."""

    def _split_scope(self, nodeid: str) -> str:
        return next((folder for folder in TOGETHER if nodeid.startswith(folder)), nodeid.partition("::")[0])


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling:
    """Replace ``--dist loadfile`` of pytest-xdist."""
    config.option.loadscopereorder = False
    return Scheduling(config, log)


def _place(item: pytest.Item) -> int:
    return next((place for place, folder in enumerate(FIRST) if item.nodeid.startswith(folder)), len(FIRST))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long layer out unless it is asked for, and begin with what takes longest if several processes run."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=_place)
    if leaves_out_long(config):
        named = named_files(config)
        left_out = [one for one in items if one.get_closest_marker("long") and one.path not in named]
        config.hook.pytest_deselected(items=left_out)
        gone = set(left_out)
        items[:] = [one for one in items if one not in gone]


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say so."""
    return "long tests are left out: `pytest -m long` runs them" if leaves_out_long(config) else None


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Use all cores for folders; run named files in this process, which starts sooner and shows what they print."""
    workers = min(len(os.sched_getaffinity(0)), WORKERS_MAX)
    alone = len(named_files(config)) == len(config.args) or config.getoption("capture") == "no"
    return 0 if alone or workers == 1 else workers


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable() -> Generator[None, Any, Any]:
    """Make a report fit for the way to another process: a test may log text that no encoding has."""
    return encodable((yield))


def encodable(value: Any) -> Any:
    """Return a report's content with escapes for what UTF-8 cannot encode."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(value, dict):
        return {name: encodable(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(encodable, value))
    return value


@pytest.fixture(autouse=True, scope="module")
def memory_is_given_back() -> Iterator[None]:
    """After a module of large messages the allocator keeps most of what they took, up to gigabytes in a whole run."""
    yield
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    if pages * os.sysconf("SC_PAGESIZE") > MEMORY_MAX_BYTES:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
