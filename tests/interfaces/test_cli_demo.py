"""``onyxq demo``: its two counts agree, and its result is exact."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import trio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from onyxq.errors import NotFound
from onyxq.interfaces.demo import corpus, worker
from onyxq.interfaces.demo.worker import count_chunk, pack_counts, unpack_counts
from onyxq.testing import AsyncCluster, open_cluster
from onyxq.testing.cluster import run_async

DEMO_SECONDS_MAX = 120


def _demo(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "onyxq", "demo", "--input", str(directory), *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=DEMO_SECONDS_MAX)


def _some_text(directory: Path) -> None:
    """A few hundred small files of words whose counts are known."""
    for number in range(300):
        (directory / f"{number:03}.txt").write_text(f"all of {number} und Straße ΣΑΣ\n" * (number % 7 + 1))
    (directory / "odd.txt").write_bytes(b"caf\xe9 \xff\xfe all\r\nALL _x_ 3.14\n")
    (directory / "binary").write_bytes(b"all\0all")


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(lines=st.lists(st.binary(max_size=40) | st.text(max_size=20).map(str.encode), max_size=20))
def test_the_two_counts_agree_on_any_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: list[bytes]) -> None:
    """For any cut and any bytes of a file, the parts add up to the plain count."""
    monkeypatch.setattr(corpus, "CHUNK_BYTES", 16)
    file = tmp_path / "file"
    file.write_bytes(b"\n".join(lines))
    total: Counter[str] = Counter()
    for share in corpus.chunks(tmp_path, [file]):
        total.update(count_chunk(tmp_path / share.path, share.start, share.end))
    assert total == corpus.plain_count([file])


def test_every_byte_is_in_one_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks follow each other, end at line ends, and cover the file."""
    monkeypatch.setattr(corpus, "CHUNK_BYTES", 10)
    file = tmp_path / "file"
    file.write_bytes(b"0123456\n" * 9 + b"end")
    shares = list(corpus.chunks(tmp_path, [file]))
    assert len(shares) > 3
    assert [share.start for share in shares] == [0, *(share.end for share in shares[:-1])]
    assert shares[-1].end == file.stat().st_size


def test_binary_files_and_links_are_left_out(tmp_path: Path) -> None:
    """Only regular files without zero bytes near their start are text."""
    _some_text(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path / "odd.txt")
    names = {file.name for file in corpus.text_files(tmp_path)}
    assert "odd.txt" in names
    assert not names & {"binary", "link"}


def test_a_directory_without_text_is_refused(tmp_path: Path) -> None:
    """Nothing to count is an error, not a count of nothing."""
    with pytest.raises(NotFound):
        corpus.text_files(tmp_path)


@given(st.dictionaries(st.text(), st.integers(min_value=1, max_value=1 << 40)))
def test_counts_survive_packing(counts: dict[str, int]) -> None:
    """The stored result of a task is the count."""
    assert unpack_counts(pack_counts(counts)) == counts


def test_a_slow_machine_runs_each_task_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of tasks that takes longer than the lease is completed in parts; none runs again."""

    async def slow(*_: object) -> bytes:
        await trio.sleep(3.0)
        return b"{}"

    monkeypatch.setattr(worker, "run_task", slow)
    with open_cluster(seed=1, peers=1, backend="trio") as cluster:
        around = AsyncCluster(cluster._core)
        ran = Counter[str]()

        async def test() -> None:
            client = around.client()
            await client.enqueue_many(worker.REDUCE, [b"{}"] * worker.CLAIM_TASKS)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(worker.work, client, "one", Path(), ran)
                while (await around.counts())[worker.REDUCE].get("completed", 0) < worker.CLAIM_TASKS:
                    await around.sleep(1.0)
                nursery.cancel_scope.cancel()

        run_async(cluster, test)
        assert ran == {worker.REDUCE: worker.CLAIM_TASKS}


@pytest.mark.long
def test_the_demo_is_exact_and_loses_a_peer(tmp_path: Path) -> None:
    """A run on known files exits with 0, reports that it was exact, and stops one peer meanwhile."""
    _some_text(tmp_path)
    ended = _demo(tmp_path, "--json")
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert told["exact"] is True
    assert told["files"] == 301
    assert told["stopped_peer"]
    expected = corpus.plain_count(corpus.text_files(tmp_path))
    assert told["words"] == expected.total()
    assert dict(map(tuple, told["common_words"])).items() <= expected.items()
    assert "map:" in ended.stderr


@pytest.mark.long
def test_the_demo_keeps_its_data_when_asked(tmp_path: Path) -> None:
    """``--keep`` leaves the peers' directories and prints them; one peer is enough to count."""
    import shutil

    (tmp_path / "a.txt").write_text("one two two\n")
    ended = _demo(tmp_path, "--keep", "--peers", "1", "--json")
    assert ended.returncode == 0, ended.stderr
    kept = Path(json.loads(ended.stdout)["data"])
    try:
        assert any(kept.iterdir())
    finally:
        shutil.rmtree(kept)
