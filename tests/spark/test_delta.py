"""Delta tables as outputs: each batch counts once, wherever the driver dies, and values come back unchanged."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings

pytest.importorskip("deltalake")

import deltalake
import pyarrow

from onyxq.errors import BadRequest, Unavailable
from onyxq.jobs.values import pack
from onyxq.spark.files import staging
from onyxq.spark.files.columns import segments
from onyxq.spark.files.file_sink import found_schemas, publish, stage
from onyxq.spark.files.formats import check_schema, described
from onyxq.spark.files.staging import Folder, Staging, Written
from onyxq.spark.sinks import delta, tables
from tests.jobs.test_jobs_page import DOCS, code
from tests.spark.generated_columns import Rows, alike, rows
from tests.spark.test_files import Breaking, Broken
from tests.spark.unchanged_tables import kept, refused

STEPS_MAX = 60
COLUMNS = [("n", pyarrow.int64()), ("day", pyarrow.string())]


def output(folder: Path, schema: Any = COLUMNS, **options: str) -> Folder:
    """An output that is a table."""
    return Folder("out", "delta", str(folder), options, described(pyarrow.schema(schema)) if schema else "")


def write(out: Folder, number: int, found: list[Any]) -> list[Written]:
    """Write the hidden files of a batch of one task."""
    known = found_schemas([out], job="j", batch=number).get("out", "")
    task = Staging({"out": out}, job="j", batch=number, part=0, found=lambda _: known)
    try:
        for row in found:
            task.add("out", pack(row))
    except BadRequest:
        task.discard()
        raise
    return task.finish()


def staged(out: Folder, number: int, found: list[Any], mark: str = "m") -> None:
    """Write and note a batch, as before its commit."""
    stage([out], write(out, number, found), job="j", batch=number, mark=mark)


def batch(out: Folder, number: int, found: list[Any], mark: str = "m") -> None:
    """Write and publish a batch, as the next driver does at its start, before it knows the columns."""
    staged(out, number, found, mark)
    publish([evolve(out, schema="")], job="j", batch=number, mark=mark)


def read(folder: Path) -> list[Any]:
    """The rows of the table, in no order."""
    table = deltalake.DeltaTable(str(folder)).to_pyarrow_table()
    return [row for one in table.to_batches() for row in segments(one)]


def numbers(folder: Path) -> list[int]:
    """The column n, sorted."""
    return sorted(row["n"] for row in read(folder))


@pytest.mark.parametrize("steps", range(1, STEPS_MAX, 3))
def test_a_batch_counts_once_wherever_the_driver_dies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """The log has the batch; the next driver finds the notes and the files."""
    out = output(tmp_path)
    batch(out, 0, [{"n": 0}])
    staged(out, 1, [{"n": 1}, {"n": 2}])
    system = Breaking(staging.located("/")[0], steps)
    monkeypatch.setattr(staging, "located", lambda path: (system, path))
    try:
        publish([out], job="j", batch=1, mark="m")
    except (Broken, Unavailable):  # within a table's write the error is the output's
        assert numbers(tmp_path) in ([0], [0, 1, 2])
    finished = system.left >= 0
    system.left = 1 << 30
    publish([out], job="j", batch=1, mark="m")
    publish([out], job="j", batch=1, mark="m")
    batch(out, 2, [{"n": 3}])
    assert numbers(tmp_path) == [0, 1, 2, 3]
    assert steps < STEPS_MAX - 3 or finished, "more steps are needed to break off everywhere"


DIES = """
import os, signal, sys
from tests.spark.test_delta import delta, output, publish
from pathlib import Path
append = delta._append
def dies(*given):
    if sys.argv[2] == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    append(*given)
    os.kill(os.getpid(), signal.SIGKILL)
delta._append = dies
publish([output(Path(sys.argv[1]))], job="j", batch=0, mark="m")
"""


@pytest.mark.long
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_killed_driver_leaves_a_batch_that_counts_once(tmp_path: Path, when: str) -> None:
    """SIGKILL before the table's commit, and between it and the note that the batch is done."""
    out = output(tmp_path)
    staged(out, 0, [{"n": 1}])
    died = subprocess.run([sys.executable, "-c", DIES, str(tmp_path), when], timeout=120, check=False)
    assert died.returncode == -signal.SIGKILL
    publish([out], job="j", batch=0, mark="m")
    assert numbers(tmp_path) == [1]
    batch(out, 1, [{"n": 2}])
    assert numbers(tmp_path) == [1, 2]


def test_two_drivers_at_once_write_a_batch_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The later one has read the table before the other one's commit."""
    out = output(tmp_path)
    staged(out, 0, [{"n": 1}])
    append: Callable[..., None] = delta._append
    first: list[int] = []

    def behind(*given: Any) -> None:
        if not first:
            first.append(1)
            publish([out], job="j", batch=0, mark="m")
        append(*given)

    monkeypatch.setattr(delta, "_append", behind)
    files = tables.Files(*_hidden(out))
    tables.write(out, files, tables.Batch("j", "out", "m", 0, 1))
    assert numbers(tmp_path) == [1]


def _hidden(out: Folder) -> tuple[Any, list[str]]:
    """The staged files, copied to where a publish does not remove them."""
    system, aside = out.hidden("j")
    kept = f"{out.path}-kept"
    system.create_dir(kept)
    for file in Path(aside).glob("part-*"):
        system.copy_file(str(file), f"{kept}/{file.name}")
    return system, [str(file) for file in Path(kept).iterdir()]


def test_merged_files_change_no_rows_and_no_batch(tmp_path: Path) -> None:
    """The example of the page runs between two batches, and a repeat is still recognized."""
    lake = tmp_path / "lake"
    out = output(lake)
    for number in range(4):
        batch(out, number, [{"n": number}])
    exec(code("compact.py", (DOCS / "outputs.rst").read_text()).replace("/data/lake/sales", str(lake)), {})
    assert len(deltalake.DeltaTable(str(lake)).file_uris()) == 1
    batch(out, 3, [{"n": 3}])
    batch(out, 4, [{"n": 4}])
    assert numbers(lake) == [0, 1, 2, 3, 4]


def test_a_job_that_had_the_same_id_does_not_hide_batches(tmp_path: Path) -> None:
    """Its notes may still be there, if it was killed."""
    for run in range(2):
        for number in range(3):
            batch(output(tmp_path), number, [{"n": 10 * run + number}], mark=f"m{run}")
    assert numbers(tmp_path) == [0, 1, 2, 10, 11, 12]


def test_new_columns_are_merged_into_the_table(tmp_path: Path) -> None:
    """Rows before have None there; a column with Nones alone has no type yet."""
    out = output(tmp_path, None, other_fields="add")
    batch(out, 0, [{"n": 1, "later": None}])
    batch(out, 1, [{"n": 2, "later": "x", "more": 1.5}])
    assert sorted(read(tmp_path), key=lambda row: row["n"]) == [
        {"n": 1, "later": None, "more": None},
        {"n": 2, "later": "x", "more": 1.5},
    ]
    with pytest.raises(BadRequest, match="output out: n: must be an integer"):
        write(out, 2, [{"n": "two"}])


def test_partitions_are_those_of_the_table(tmp_path: Path) -> None:
    """Special characters come back; an empty string would be None, and is refused."""
    out = output(tmp_path, partition_by="day")
    batch(out, 0, [{"n": n, "day": day} for n, day in enumerate(["a/b c=%", "x", None, "é"])])
    assert [row["day"] for row in sorted(read(tmp_path), key=lambda row: row["n"])] == ["a/b c=%", "x", None, "é"]
    assert deltalake.DeltaTable(str(tmp_path)).metadata().partition_columns == ["day"]
    task = Staging({"out": out}, job="j", batch=1, part=0)
    with pytest.raises(BadRequest, match="output out: day: a partition cannot hold the string ''"):
        task.add("out", pack({"n": 1, "day": ""}))
    task.discard()


@pytest.mark.parametrize(
    ("schema", "options", "said"),
    [
        ([("n", pyarrow.string())], {}, "output out: n: is string, but the table's column is int64"),
        ([("n", pyarrow.int32())], {}, "output out: n: is int32, but the table's column is int64"),
        ([("m", pyarrow.int64())], {}, "output out: m: the table has no such column; it has day, n"),
        (COLUMNS, {"partition_by": "day"}, "output out: partition_by is day, but the table has none"),
    ],
)
def test_a_table_that_does_not_fit_is_named_before_the_job_starts(
    tmp_path: Path, schema: Any, options: dict[str, str], said: str
) -> None:
    """The check reads the table only."""
    batch(output(tmp_path), 0, [{"n": 1, "day": "x"}])
    out = output(tmp_path, schema, **options)
    with pytest.raises(BadRequest, match=said):
        tables.check(out, out.schema)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (pyarrow.map_(pyarrow.string(), pyarrow.timestamp("us")), "a timestamp_ntz can only be a column of its own"),
        (pyarrow.list_(pyarrow.null()), "with a part that has no type yet"),
    ],
)
def test_a_column_that_a_table_cannot_have_is_named_before_the_job_starts(tmp_path: Path, kind: Any, said: str) -> None:
    """The table does not exist yet."""
    out = output(tmp_path, [("n", kind)])
    with pytest.raises(BadRequest, match=f"output out: n: is .*{said}"):
        tables.check(out, out.schema)


def test_found_columns_that_do_not_fit_the_table_are_refused_before_the_commit(tmp_path: Path) -> None:
    """The batch is not noted, so the log never has it."""
    batch(output(tmp_path), 0, [{"n": 1, "day": "x"}])
    with pytest.raises(BadRequest, match="output out: n: is string, but the table's column is int64"):
        staged(output(tmp_path, None), 1, [{"n": "one"}], mark="other")


def test_a_first_batch_of_nones_alone_is_refused_before_the_commit(tmp_path: Path) -> None:
    """Delta makes no table without columns. Once there is one, such rows are Nones in all of its columns."""
    out = output(tmp_path, None)
    with pytest.raises(BadRequest, match="output out: the table does not exist, and its first batch has no column"):
        staged(out, 0, [{"n": None}], mark="other")
    batch(out, 1, [{"n": 1}])
    batch(out, 2, [{"n": None}])
    assert sorted(read(tmp_path), key=str) == [{"n": 1}, {"n": None}]


@pytest.mark.long
def test_columns_that_the_table_of_the_page_has_come_back(tmp_path: Path) -> None:
    """Each type with the values that are easily changed; the others are refused before the job starts."""
    for number, one in enumerate(kept("delta")):
        out = output(tmp_path / str(number), [("a`b c", one.arrow), ("row", pyarrow.int64())])
        tables.check(out, out.schema)
        made = [{"a`b c": edge, "row": row} for row, edge in enumerate([*one.edges, None])]
        batch(out, 0, made)
        assert alike(sorted(read(tmp_path / str(number)), key=lambda row: row["row"]), made), one.sql
    for one in refused("delta"):
        out = output(tmp_path / "refused", [("odd_one", one.arrow)])
        with pytest.raises(BadRequest, match="output out: .*odd_one"):
            check_schema(out)
            tables.check(out, out.schema)


@pytest.mark.long
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(rows(nested=True, least=1))
def test_values_come_back_unchanged(tmp_path_factory: pytest.TempPathFactory, made: Rows) -> None:
    """All types of columns; a row that does not fit is refused."""
    folder = tmp_path_factory.mktemp("typed") / "table"
    out = output(folder, made.arrow.append(pyarrow.field("row", pyarrow.int64())))
    try:
        tables.check(out, out.schema)
    except BadRequest as error:
        assert "a timestamp_ntz can only be a column of its own" in error.message
        return
    task = Staging({"out": out}, job="j", batch=0, part=0)
    kept = []
    for number, row in enumerate(made.rows):
        try:
            task.add("out", pack({**row, "row": number}))
            kept.append({**row, "row": number})
        except BadRequest as error:
            assert error.message.startswith("output out: ")
    publish([out], job="j", batch=0, mark=stage([out], task.finish(), job="j", batch=0))
    found = sorted(read(folder), key=lambda row: row["row"]) if kept else []
    assert alike(found, kept)
