"""The example extension as users have it: installed outside this tree, on peers of a real ZooKeeper."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import anyio.to_thread
import pytest

from onyxq import Client, api
from tests.processes.cluster import Cluster, bounded

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "lock"
LINES_MAX = 150
LEASE_MS = 10_000
"""Lease of a lock that must still be held after several requests, also on a busy machine."""


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which pip has installed a copy of the example."""
    home = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(EXAMPLE, home / "lock")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    done = subprocess.run(
        [*command, "--target", str(home / "site"), str(home / "lock")],
        check=False,
        capture_output=True,
        text=True,
        cwd=home,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return home / "site"


def path_of(*homes: Path) -> str:
    """Return a search path of these directories and the interpreter's own, without the example's source."""
    return os.pathsep.join([*map(str, homes), *filter(None, sys.path)])


@pytest.mark.long
def test_its_own_test_passes_where_it_is_installed(site: Path, tmp_path: Path) -> None:
    """Its test runs with pytest, in a user's directory, on a cluster in memory."""
    shutil.copy(EXAMPLE / "test_lock.py", tmp_path)
    surroundings = {name: value for name, value in os.environ.items() if not name.startswith(("ONYXQ_", "PYTEST"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "onyxq.testing.plugin", "-p", "no:cacheprovider", "test_lock.py"],
        check=False,
        cwd=tmp_path,
        env={**surroundings, "PYTHONPATH": path_of(site), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout + done.stderr


def test_it_is_as_short_as_it_says() -> None:
    """Extension, client and test have the size that the documentation says."""
    sources = [*(EXAMPLE / "onyxq_lock").glob("*.py"), EXAMPLE / "test_lock.py"]
    assert sum(len(source.read_text("utf-8").splitlines()) for source in sources) <= LINES_MAX


@pytest.mark.long
@pytest.mark.anyio
@bounded(240)
async def test_a_lock_on_real_peers(cluster: Cluster, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the death of a holder and of the peer with the duties, the lock continues with higher tokens.

    A peer without the extension is refused and ends with a clear message.
    """
    monkeypatch.syspath_prepend(site)
    await cluster.start("a")
    await cluster.start("b", "c")
    await cluster.whole("a", "b", "c")
    tokens = await anyio.to_thread.run_sync(hold_and_die, cluster["a"].address)
    cluster["a"].kill()

    async def freed() -> bool:
        found = await cluster.see(cluster["b"], "/v1/extensions/lock")
        return bool(found["state"] == {})

    await cluster.until("the dead holder's lock is free", freed)
    tokens += await anyio.to_thread.run_sync(hold_and_die, cluster["b"].address)
    assert tokens == sorted(set(tokens)) and len(tokens) == 4
    body = {"name": "report", "owner": "over http"}
    answer = await cluster.send(cluster["c"], "POST", "/v1/entries/lock.acquire", body)
    assert (answer.status_code, answer.json()["verdict"]) == (200, "held by another")

    records = (await cluster.see(cluster["c"], "/v1/log?limit=1000"))["records"]
    shown = [one for record in records for one in record["entries"] if one["entry"].startswith("lock.")]
    assert {one["entry"] for one in shown} == {"lock.acquire", "lock.release", "lock.expire"}
    assert {"entry": "lock.acquire", "args": {**body, "lease_ms": 10_000}, "verdict": "held by another"} in shown

    monkeypatch.undo()
    older = cluster.add("older")
    older.spawn()
    assert older.process is not None

    async def ended() -> bool:
        return not older.runs

    await cluster.until("the peer without the extension ends", ended)
    assert older.process.returncode == 1
    assert "older than the cluster" in older.tail() and "extension lock" in older.tail()


def hold_and_die(address: str) -> list[int]:
    """Let one owner take and release a lock, and another take it and disappear; return the tokens."""
    from onyxq_lock import Lock  # type: ignore[import-not-found]

    with Client(address) as client:
        one, other = Lock(client, "report", "one"), Lock(client, "report", "other", lease_ms=LEASE_MS)
        first = one.acquire()
        assert first is not None and other.acquire() is None and one.release(first)
        second = other.acquire()
        assert second is not None
        late = api.submit_entry("lock.release", ["report", first], address)
        assert late.verdict == "not held"
        assert api.extension("lock", address, seen=late.position)["report"][:2] == ["other", second]
        return [first, second]
