"""Real processes on a disk that fails single writes, syncs and pages; ``failing_disk.c`` is preloaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from onyxq.log.embedded import EmbeddedBackend
from onyxq.store.integrity.lmdb_check import CLOSED, DATA
from onyxq.store.integrity.lmdb_pages import check_file
from tests.processes.cluster import surroundings
from tests.processes.failing_disk import META_WRITES, SYNCS, WRITES, FailingDisk, compile_library
from tests.processes.store_on_failing_disk import FILL

SECONDS_MAX = 60


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library to preload."""
    return compile_library(tmp_path_factory.mktemp("failing_disk"))


@pytest.fixture
def disk(library: Path, tmp_path: Path) -> FailingDisk:
    """A disk without failures yet."""
    return FailingDisk(tmp_path / "control", library)


def run(kind: str, directory: Path, disk: FailingDisk, lines: list[tuple[int, int]]) -> list[str]:
    """Return the output of `tests.processes.store_on_failing_disk` for each write."""
    trace = {"FAILING_DISK_TRACE": str(directory.parent / "trace")}
    done = subprocess.run(
        [sys.executable, "-m", "tests.processes.store_on_failing_disk", kind, str(directory)],
        input="".join(f"{what} {times}\n" for what, times in lines),
        env=surroundings() | disk.surroundings | trace,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


FAILS = {"writes": WRITES, "writes of a meta page": META_WRITES, "syncs": SYNCS}


@pytest.mark.parametrize("what", FAILS)
@pytest.mark.parametrize("kind", ["store", "log"])  # the second page of a log's file has records
def test_what_follows_a_failed_write_is_taken_and_kept(tmp_path: Path, disk: FailingDisk, kind: str, what: str) -> None:
    """The failed write is refused or succeeds at a second try; at the end the file has all stored values."""
    directory = tmp_path / "data"
    said = run(kind, directory, disk, [(0, 0), (FAILS[what], 1), (0, 0), (FAILS[what], 2), (0, 0), (0, 0)])
    assert len(said) == 6
    assert said[1] == "refused"
    assert [said[place] for place in (0, 2, 4, 5)] == ["kept"] * 4
    kept = [place for place, word in enumerate(said) if word == "kept"]
    if kind == "store":
        check_file(directory / DATA)
        assert (directory / CLOSED).exists()
        data = (directory / DATA).read_bytes()
        assert all(b"value %d" % place in data for place in kept)
    else:
        backend = EmbeddedBackend.open(directory)
        found = backend.fetch(0)
        assert [one.data for one in found] == [b"%d " % place + bytes(FILL) for place in kept]
        backend.close()


def test_no_page_is_reused_before_the_meta_pages_are_durable(tmp_path: Path, disk: FailingDisk) -> None:
    """Otherwise a power cut could leave a meta page of a transaction whose pages were overwritten."""
    assert run("store", tmp_path / "data", disk, [(0, 0), (META_WRITES, 1), (0, 0)]) == ["kept", "refused", "kept"]
    calls = [line.split() for line in (tmp_path / "trace").read_text().splitlines()]
    kinds = ["sync" if what == "sync" else "meta" if int(at) < 8192 else "page" for what, at in calls]
    after = "".join(kind[0] for kind in kinds)
    # The pages of the refused commit, a sync and LMDB's own attempt to undo; then both meta pages and a sync.
    assert "psmmms" in after, after


def test_an_unreadable_page_ends_a_process_once(tmp_path: Path, disk: FailingDisk) -> None:
    """The signal prints a traceback; the next start refuses the file instead of being killed too."""
    directory = tmp_path / "data"
    run("store", directory, disk, [(0, 0)] * 4)
    assert os.path.exists(directory / DATA)
    disk.spoil(directory / DATA, 3)
    code = "import sys, trio; from pathlib import Path; from onyxq.store import lmdb_store\n"
    code += "from onyxq.store.integrity import lmdb_check\n"
    code += "async def main():\n    lmdb_store.LmdbStore.open(Path(sys.argv[1]))\n"
    code += "with lmdb_check.fatal_signals_noted(Path(sys.argv[1])): trio.run(main)"
    ends = []
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code, str(directory)],
            env=surroundings() | disk.surroundings,
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS_MAX,
        )
        ends.append((done.returncode, done.stderr.strip().splitlines()[-2:]))  # the error and its hint
    assert all(code == 1 and "cannot be read" in said[0] for code, said in ends), ends
