"""Files of a batch become visible once and completely, wherever writing, recording or committing breaks off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest
from attrs import evolve

pytest.importorskip("pyarrow")

import pyarrow
from pyarrow import parquet

from onyxq.client.batches import BatchCommitted
from onyxq.errors import BadRequest
from onyxq.jobs.values import pack
from onyxq.spark.files import file_sink, formats, staging
from onyxq.spark.files.file_sink import publish, stage, staged
from onyxq.spark.files.formats import WRITERS, described
from onyxq.spark.files.staging import Folder, Staging, Written
from onyxq.spark.places import listed, located
from onyxq.spark.plan import outputs
from onyxq.spark.plan.outputs import Routed
from tests.spark.job_world import written

JOB = "j"
STEPS_MAX = 60
NUMBERS = pyarrow.schema([("n", pyarrow.int64())])


class Broken(Exception):
    """The process died here."""


class Breaking:
    """A file system that fails for ever from its n-th call on."""

    def __init__(self, system: Any, calls: int) -> None:
        self._system = system
        self.left = calls

    def __getattr__(self, name: str) -> Any:
        self.left -= 1
        if self.left < 0:
            raise Broken(name)
        return getattr(self._system, name)


@pytest.fixture
def breaking(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Breaking]:
    """Make all file operations fail after a number of calls."""
    real = staging.located

    def install(calls: int) -> Breaking:
        system = Breaking(real("/")[0], calls)
        monkeypatch.setattr(staging, "located", lambda path: (system, path))
        return system

    return install


def folders(base: Path) -> list[Folder]:
    """Two outputs; the second one has partitions."""
    columns = described(pyarrow.schema([("value", pyarrow.string()), ("part", pyarrow.int64())]))
    parted = Folder("b", "json", str(base / "b"), {"partition_by": "part"}, columns)
    return [Folder("a", "json", str(base / "a"), {}), parted]


def write(outs: list[Folder], batch: int, value: Any) -> list[Written]:
    """Write the files of two tasks of a batch."""
    found: list[Written] = []
    for part in range(2):
        task = Staging({out.name: out for out in outs}, job=JOB, batch=batch, part=part)
        for name in "ab":
            task.add(name, msgpack.packb({"value": value, "part": part}))
        found += task.finish()
    return found


def by_checkpoint(outs: list[Folder], batch: int, value: Any) -> None:
    """Commit a batch like a query that only Spark's checkpoint knows."""
    names = write(outs, batch, value)
    mark = staged(outs, job=JOB, batch=batch) or stage(outs, names, job=JOB, batch=batch)
    publish(outs, job=JOB, batch=batch, mark=mark)


def shown(base: Path) -> list[Any]:
    """Return all segments that readers see, sorted."""
    plain = [("a", row["value"], row["part"]) for row in written(base / "a")]
    return sorted(
        plain + [("b", row["value"], part) for part in range(2) for row in written(base / "b" / f"part={part}")]
    )


def wanted(*values: Any) -> list[Any]:
    """Return the expected segments of these batches."""
    return sorted((name, value, part) for value in values for name in "ab" for part in range(2))


def test_batches_are_shown_one_by_one(tmp_path: Path) -> None:
    """A repeat shows nothing new, and no other files are left."""
    outs = folders(tmp_path)
    by_checkpoint(outs, 0, "x")
    by_checkpoint(outs, 0, "x")
    by_checkpoint(outs, 1, "y")
    assert shown(tmp_path) == wanted("x", "y")
    aside = [file.name for out in outs for file in (Path(out.path) / "_onyxq" / JOB).iterdir()]
    assert aside == ["1.done.json"]
    file_sink.forget(outs, job=JOB)
    assert not (tmp_path / "a" / "_onyxq").exists()


@pytest.mark.parametrize("steps", range(1, STEPS_MAX, 2))
def test_a_batch_that_breaks_off_anywhere_is_shown_once_when_repeated(
    tmp_path: Path, breaking: Callable[[int], Breaking], steps: int
) -> None:
    """Here the checkpoint decides: the repeat completes the batch or starts it again."""
    outs = folders(tmp_path)
    by_checkpoint(outs, 0, "x")
    system = breaking(steps)
    try:
        by_checkpoint(outs, 1, "y")
    except Broken:
        assert shown(tmp_path) != []
    finished = system.left >= 0
    system.left = 1 << 30
    by_checkpoint(outs, 1, "y")
    by_checkpoint(outs, 2, "z")
    assert shown(tmp_path) == wanted("x", "y", "z")
    assert steps < STEPS_MAX - 2 or finished, "more steps are needed to break off everywhere"


@pytest.mark.parametrize("steps", range(1, STEPS_MAX, 2))
def test_what_the_log_has_taken_is_shown_and_nothing_else(
    tmp_path: Path, breaking: Callable[[int], Breaking], steps: int
) -> None:
    """Only a batch in the log is shown, and a new driver shows it at its start.

    A replaced driver has recorded the same batch and never learns that it was committed.
    """
    outs = folders(tmp_path)
    taken = stage(outs, write(outs, 0, "taken"), job=JOB, batch=0)
    stage(outs, write(outs, 0, "refused"), job=JOB, batch=0)
    system = breaking(steps)
    try:
        publish(outs, job=JOB, batch=0, mark=taken)
    except Broken:
        assert shown(tmp_path) != wanted("taken", "refused")
    system.left = 1 << 30
    publish(outs, job=JOB, batch=0, mark=taken)
    publish(outs, job=JOB, batch=0, mark=taken)
    assert shown(tmp_path) == wanted("taken")


def sink_of(base: Path, outs: list[Folder], *, batch: int) -> Routed:
    """Return the sink of a driver with a peer, whose checkpoint has the batch."""
    (base / "offsets").mkdir(exist_ok=True)
    (base / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{batch}")
    options = {"job": JOB, "version": "1", "connect": "127.0.0.1:1", "checkpoint": str(base)}
    return Routed({out.name: out for out in outs}, options)


@pytest.mark.parametrize("repeat", [False, True])
def test_files_are_shown_although_the_answer_to_their_commit_was_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repeat: bool
) -> None:
    """The client sends the request again. The answer is then that the log has the batch already."""
    outs = folders(tmp_path)
    for batch, value in enumerate("xy"):
        sink = sink_of(tmp_path, outs, batch=batch)
        monkeypatch.setattr(sink, "_commit", lambda *_: BatchCommitted(position=1, repeat=repeat, settled=True))
        sink.commit([outputs.Written(tuple(write(outs, batch, value)))], batch)
    assert shown(tmp_path) == wanted("x", "y")


def test_another_attempt_with_the_same_offsets_shows_the_files_of_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query was stopped after the log's commit, while files became visible. Spark repeats the batch."""
    outs = folders(tmp_path)

    def stopped(*_: Any) -> None:
        raise Broken

    sink = sink_of(tmp_path, outs, batch=0)
    monkeypatch.setattr(sink, "_commit", stopped)
    with pytest.raises(Broken):
        sink.commit([outputs.Written(tuple(write(outs, 0, "first")))], 0)
    file = next((tmp_path / "a" / "_onyxq" / JOB).glob("part-*"))
    file.rename(tmp_path / "a" / file.name)
    monkeypatch.setattr(sink, "_commit", lambda *_: BatchCommitted(position=1, repeat=True, settled=True))
    sink.commit([outputs.Written(tuple(write(outs, 0, "second")))], 0)
    assert shown(tmp_path) == wanted("first")


def test_what_a_failed_attempt_wrote_is_removed(tmp_path: Path) -> None:
    """It removes them on its own if it can, otherwise with the next batch."""
    outs = folders(tmp_path)
    task = Staging({out.name: out for out in outs}, job=JOB, batch=0, part=0)
    task.add("a", msgpack.packb(1))
    task.discard()
    assert list((tmp_path / "a" / "_onyxq" / JOB).iterdir()) == []
    write(outs, 0, "died")
    by_checkpoint(outs, 0, "x")
    assert shown(tmp_path) == wanted("x")
    assert [file.name for file in (tmp_path / "b" / "_onyxq" / JOB).iterdir()] == []


@pytest.mark.parametrize(
    ("kind", "segment", "said"),
    [
        ("json", b"bytes", "JSON cannot hold the bytes"),
        ("json", float("nan"), "JSON has no nan"),
        ("json", {"a": [{1: 2}]}, r"a\[0\]: a key must be a string in JSON, not the int 1"),
        ("text", {"line": "x"}, "text holds strings, or dicts with one as their only field 'value', not the dict"),
        ("text", {"value": "x", "lost": 1}, "text holds strings, .* as their only field"),
        ("text", "two\nlines", "a line of text cannot hold a line break"),
        ("text", "two\rlines", "a line of text cannot hold a line break"),
    ],
)
def test_what_a_format_cannot_hold_is_refused(tmp_path: Path, kind: str, segment: Any, said: str) -> None:
    """The error has the output's name and the segment."""
    folder = Folder("out", kind, str(tmp_path), {})
    with open(tmp_path / "file", "wb") as stream:
        with pytest.raises(BadRequest, match=f"output out: {said}"):
            WRITERS[kind](stream, folder).add(pack(segment))


def test_parquet_says_which_segments_do_not_fit(tmp_path: Path) -> None:
    """The error also says how to declare columns."""
    outs = {"out": Folder("out", "parquet", str(tmp_path), {})}
    task = Staging(outs, job=JOB, batch=0, part=0)
    task.add("out", msgpack.packb({"n": 1}))
    with pytest.raises(BadRequest, match="output out: n: is an int in one segment and a str in another") as caught:
        task.add("out", msgpack.packb({"n": "one"}))
    assert "schema" in caught.value.advice
    task.discard()


def test_a_folder_that_another_process_makes_meanwhile_is_listed(tmp_path: Path) -> None:
    """Arrow looks twice, and raises an error if the folder appears between."""

    class Appearing:
        calls = 0

        def get_file_info(self, selector: Any) -> Any:
            self.calls += 1
            if self.calls == 1:
                raise FileNotFoundError(selector.base_dir)
            return located(str(tmp_path))[0].get_file_info(selector)

    (tmp_path / "note").touch()
    assert [one.base_name for one in listed(Appearing(), str(tmp_path))] == ["note"]


def test_outputs_may_share_a_path(tmp_path: Path) -> None:
    """Each has files of its own there, also those with rows that wait for their commit to a table or topic."""
    outs = [Folder(name, "json", str(tmp_path), {}) for name in "ab"]
    by_checkpoint(outs, 0, "x")
    assert sorted(row["part"] for row in written(tmp_path)) == [0, 0, 1, 1]
    waiting = [evolve(out, format="foreach_batch") for out in outs]
    assert len({one.name for one in write(waiting, 1, "y")}) == 4


def test_folders_may_be_uris(tmp_path: Path) -> None:
    """Any file system of Arrow works."""
    outs = [evolve(out, path=f"file://{out.path}/") for out in folders(tmp_path)]
    by_checkpoint(outs, 0, "x")
    assert shown(tmp_path) == wanted("x")


@pytest.mark.parametrize(("most", "groups"), [(1 << 20, [300]), (1_000, [200, 100])])
def test_small_batches_of_columns_share_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, groups: list[int]
) -> None:
    """A row group ends with the batch that fills it; segments of the same file have another one."""
    monkeypatch.setattr(formats, "GROUP_BYTES_MAX", most)
    out = numbered("out", tmp_path)
    task = Staging({"out": out}, job=JOB, batch=0, part=0)
    for first in range(0, 300, 100):
        batch = pyarrow.RecordBatch.from_arrays([pyarrow.array(range(first, first + 100))], schema=NUMBERS)
        task.add_batch("out", batch)
    task.add("out", pack({"n": 300}))
    (made,) = task.finish()
    file = hidden(out, made)
    found = [file.metadata.row_group(place).num_rows for place in range(file.metadata.num_row_groups)]
    assert found == [*groups, 1]
    assert file.read()["n"].to_pylist() == list(range(301))


def numbered(name: str, folder: Path) -> Folder:
    """Return an output of Parquet with one column."""
    return Folder(name, "parquet", str(folder), {}, described(NUMBERS))


def hidden(out: Folder, made: Written) -> parquet.ParquetFile:
    """Return a file before its batch is committed."""
    return parquet.ParquetFile(Path(out.path) / "_onyxq" / JOB / made.name)
