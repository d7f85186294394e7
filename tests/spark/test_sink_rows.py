"""Rows on their way into the sink: each reaches its outputs once, in order, through its own region or as columns."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import msgpack
import numpy
import pyarrow
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from onyxq.core.ids import make_id
from onyxq.jobs.encoding import decode, encode
from onyxq.jobs.key_state import hash64
from onyxq.jobs.model import Function, Input, Job, Lifecycle, Output, Sql
from onyxq.jobs.values import pack
from onyxq.spark.failures import TaskFailed
from onyxq.spark.files.formats import described
from onyxq.spark.files.staging import Folder, Staging
from onyxq.spark.plan import rows
from onyxq.spark.plan.compile import Setting, compiled
from onyxq.spark.plan.frame_outputs import laid_out
from onyxq.spark.plan.outputs import Routed, Struct, regions_of, runs
from tests.spark.job_world import HERE, lines_job, written
from tests.spark.test_frames import completed

JOB = "j"
TIME_MS = 1_800_000_000_000
NUMBERS = pyarrow.schema([("n", pyarrow.int64())])
PLACED = pyarrow.schema([("c0", pyarrow.int64()), ("c1", pyarrow.int64()), ("c2", pyarrow.int32())])
NAMES = ("n", rows.PLANNED, rows.PART)
STRUCTS = {
    "both": Struct(outs=("a", "b")),
    "one": Struct(outs=("a",)),
    "segments": Struct(entry="x", shape=rows.SEGMENTS),
    "rows": Struct(entry="y", shape=rows.COLUMNS, names=NAMES),
    "end": Struct(),
}
SCHEMA = pyarrow.schema(
    [
        ("both", pyarrow.struct(list(NUMBERS))),
        ("one", pyarrow.struct(list(NUMBERS))),
        ("segments", pyarrow.struct(list(rows.ARROW))),
        ("rows", pyarrow.struct(list(PLACED))),
        ("end", pyarrow.struct(list(rows.ARROW))),
    ]
)
"""What the sink gets: columns of two frames, the segments of a cut, the rows of an input, and the end of all inputs."""
CALLED: list[str] = []
REUSED: dict[str, Any] = {}
LINEAGES = {"outputs": '{"q": {}}'}
"""Option of a sink with a queue, whose tasks get ids that are made of lineages."""


def called(known: dict[str, Any]) -> None:
    """Note the call of a lifecycle."""
    CALLED.append(known["task"])


def failing(segment: Any) -> Any:
    """Fail at every segment."""
    raise ValueError("it fails")


def several(segment: Any) -> Any:
    """Return values that files take as they are, and others, as functions of users do."""
    number = segment["n"]
    made = [{"n": number}, {"n": numpy.int64(number)}, OrderedDict(n=number), {}, {"n": None}]
    return [None, *made[:3], made[2:], made][number]


def reused(segment: Any) -> Any:
    """Return the same dict each time."""
    REUSED["n"] = segment["n"]
    return [REUSED, REUSED]


def more_fields(segment: Any) -> Any:
    """Return a field that no column takes."""
    return {"n": 1, "other": 2}


def another_field(segment: Any) -> Any:
    """Return a field that no column takes, instead of the one that there is."""
    return {"other": 2}


def a_bool(segment: Any) -> Any:
    """Return what is an integer to Python, but not to columns."""
    return {"n": True}


def too_large(segment: Any) -> Any:
    """Return an integer of more than 64 bits."""
    return {"n": 1 << 63}


def unpackable(segment: Any) -> Any:
    """Return what no segment can hold."""
    return {"n": object()}


def an_error(segment: Any) -> Any:
    """Return an exception, which counts as raised."""
    return [{"n": 1}, ValueError("returned")]


def job(**more: Any) -> Job:
    """Return a job whose two inputs lead through a function to one output."""
    return Job(
        id=JOB,
        workflow=[("x", "f"), ("y", "f"), ("f", "b")],
        catalog=[
            Input("x", format="rate"),
            Input("y", format="rate"),
            Function("f", f"{HERE}:same"),
            Output("a", format="parquet", path="/a"),
            Output("b", format="parquet", path="/b"),
        ],
        **more,
    )


def job_with(fn: str) -> Job:
    """Return the job with another function of this module."""
    made = [evolve(one, fn=f"{__name__}:{fn}") if isinstance(one, Function) else one for one in job().catalog]
    return evolve(job(), catalog=made)


def sink(folder: Path, made: Job | None = None, **more: str) -> tuple[Routed, dict[str, Folder]]:
    """Return the sink of the job, and its outputs; ``more``: further options."""
    outs = {name: Folder(name, "parquet", str(folder / name), {}, described(NUMBERS)) for name in "ab"}
    options = regions_of(encode(made or job()), STRUCTS)
    return Routed(outs, {"job": JOB, "version": "1", **options, **more}), outs


def row(column: str, number: int, part: int = 0) -> dict[str, Any]:
    """Return a row of the sink with a number, in one of its columns."""
    segment = {"lineage": number.to_bytes(28, "big"), "out": "x", "payload": pack({"n": number})}
    contents = {
        "segments": segment,
        "rows": {"c0": number, "c1": TIME_MS, "c2": part},
        "end": {"lineage": b"", "out": rows.END, "payload": pack(None)},
    }
    return {column: contents.get(column, {"n": number})}


def batch(chosen: Sequence[dict[str, Any]]) -> Any:
    """Return an Arrow batch of rows."""
    return pyarrow.RecordBatch.from_pylist(list(chosen), SCHEMA)


def written_by(routed: Routed, outs: dict[str, Folder], batches: Sequence[Any], part: int = 0) -> list[tuple[str, int]]:
    """Write batches as one task; return the numbers in its hidden files, each with its output."""
    task = Staging(outs, job=JOB, batch=0, part=part)
    routed._write(routed._found(batches, task), task, 0)
    files = [(one.out, Path(outs[one.out].path) / "_onyxq" / JOB / one.name) for one in task.finish()]
    return [(out, number) for out, file in files for number in parquet.ParquetFile(file).read()["n"].to_pylist()]


@pytest.mark.parametrize("size", range(1, len(STRUCTS) + 1))
def test_each_row_of_a_batch_reaches_its_outputs_once(tmp_path: Path, size: int) -> None:
    """A batch may hold columns of several frames, segments and rows for regions, or only some of these."""
    routed, outs = sink(tmp_path)
    expected = {"both": ["a", "b"], "one": ["a"], "segments": ["b"], "rows": ["b"], "end": []}
    for number, chosen in enumerate(combinations(STRUCTS, size)):
        given_rows = [row(name, place) for place, name in enumerate(chosen)]
        found = written_by(routed, outs, [batch(given_rows)], number)
        assert sorted(found) == sorted((out, place) for place, name in enumerate(chosen) for out in expected[name])


@given(st.lists(st.lists(st.sampled_from(["both", "one", "segments"]), max_size=8), max_size=5))
def test_rows_are_passed_on_in_their_order(columns: list[list[str]]) -> None:
    """This holds wherever a batch ends, and however often the column changes."""
    numbered = [[(name, 10 * place + at) for at, name in enumerate(one)] for place, one in enumerate(columns)]
    batches = [batch([row(name, number) for name, number in one]) for one in numbered]
    found = [
        (name, int.from_bytes(one["lineage"], "big") if name == "segments" else one["n"])
        for name, some in runs(batches)
        for one in some.to_pylist()
    ]
    assert found == [one for some in numbered for one in some]


@pytest.mark.parametrize("before", [0, 2])
def test_rows_without_columns_are_rows(before: int) -> None:
    """A frame may have none, and each of its rows is a line of JSON."""
    nothing = pyarrow.array([None] * before + [{}] * 3, pyarrow.struct([]))
    other = pyarrow.array([{"n": 1}] * before + [None] * 3, pyarrow.struct(list(NUMBERS)))
    found = list(runs([pyarrow.RecordBatch.from_arrays([nothing, other], names=["nothing", "other"])]))
    assert [(name, some.to_pylist()) for name, some in found if name == "nothing"] == [("nothing", [{}] * 3)]


def test_columns_do_not_keep_the_other_rows_of_their_batch_in_memory() -> None:
    """A file keeps them until it has enough for a row group, and counts their own bytes only."""
    chosen = [row("one", 1), *(row("rows", number) for number in range(1_000)), row("one", 2)]
    found = [some for name, some in runs([batch(chosen)]) if name == "one"]
    assert [some.to_pylist() for some in found] == [[{"n": 1}], [{"n": 2}]]
    assert all(some.get_total_buffer_size() < 1_000 for some in found)


def test_columns_do_not_keep_the_nulls_of_other_columns_in_memory() -> None:
    """Spark sends an Arrow batch in one piece, with room for each null of the inputs that also lead to outputs."""
    wide = pyarrow.struct([(f"c{place}", pyarrow.int64()) for place in range(50)])
    columns = [pyarrow.array([{"n": number} for number in range(100)]), pyarrow.array([None] * 100, wide)]
    given_rows = pyarrow.RecordBatch.from_arrays(columns, names=["one", "rows"])
    sent = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sent, given_rows.schema) as stream:
        stream.write_batch(given_rows)
    ((_, found),) = runs(pyarrow.ipc.open_stream(sent.getvalue()))
    assert found.to_pylist() == [{"n": number} for number in range(100)]
    buffer = found.column(0).buffers()[1]
    while buffer.parent is not None:
        buffer = buffer.parent
    assert buffer.size < 2_000


def test_rows_of_all_parts_and_inputs_have_lineages_of_their_own(tmp_path: Path) -> None:
    """One task of Spark may get several parts of both inputs, and a batch may begin and end within a part."""
    routed, outs = sink(tmp_path, None, **LINEAGES)
    parts = [("rows", 0, 5), ("segments", 0, 3), ("rows", 1, 2), ("rows", 2, 4)]
    given_rows = [row(name, 100 * part + number, part) for name, part, count in parts for number in range(count)]
    batches = [batch(given_rows[:3]), batch(given_rows[3:9]), batch(given_rows[9:])]
    found = list(routed._found(batches, Staging(outs, job=JOB, batch=0, part=0)))
    assert [out for out, _, _ in found] == ["b"] * 14
    assert [payload for _, _, payload in found] == [
        pack({"n": 100 * part + number}) for _, part, count in parts for number in range(count)
    ]
    assert len({lineage for _, lineage, _ in found}) == 14
    alone = list(routed._found([batch(given_rows[8:10])], Staging(outs, job=JOB, batch=0, part=0)))
    assert alone == found[8:10], "a part has the same lineages wherever it is read"


def test_a_row_is_identified_by_its_place_in_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts may alternate, batches may end anywhere, and a counter that is full begins again with another maker."""
    monkeypatch.setattr(rows, "COUNTER_MAX", 3)
    parts, counts, wanted = [0, 0, 0, 1, 1, 0, 0, 2, 0, 0, 0, 0, 1], Counter[int](), []
    for number, part in enumerate(parts):
        block, index = divmod(counts[part], 4)
        counts[part] += 1
        wanted.append((make_id(TIME_MS, 0, hash64(msgpack.packb(["y", "j/0", part, block])), index), {"n": number}, ""))
    columns = [pyarrow.array(range(13)), pyarrow.array([TIME_MS] * 13), pyarrow.array(parts, pyarrow.int32())]
    whole = pyarrow.table(columns, names=list(NAMES))
    for size in (1, 4, 13):
        batches = whole.to_batches(max_chunksize=size)
        assert list(rows.segments(batches, rows.COLUMNS, entry="y", place="j/0")) == wanted


def test_a_batch_with_more_lineages_than_rows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise rows would be lost without an error."""
    whole = pyarrow.table([[5, 6], [TIME_MS] * 2, pyarrow.array([0] * 2, pyarrow.int32())], names=list(NAMES))
    monkeypatch.setattr(rows.columns, "segments", lambda given: iter(given.to_pylist()[:-1]))
    with pytest.raises(ValueError, match="shorter"):
        list(rows.segments(whole.to_batches(), rows.COLUMNS, entry="y", place="j/0"))


def test_columns_for_an_output_with_dead_letters_are_looked_at_row_by_row(tmp_path: Path) -> None:
    """An output of lines may refuse one of them. Parquet has the columns of the rows, and refuses none."""
    routed, outs = sink(tmp_path)
    outs["b"] = evolve(outs["b"], format="json")
    routed = Routed(outs, {**routed._options, "letters": '["a", "b"]'})
    batches = [batch([row("both", number)]) for number in (1, 2)]
    task = Staging(outs, job=JOB, batch=0, part=0)
    found = list(routed._found(batches, task))
    assert [(out, payload) for out, _, payload in found] == [("b", pack({"n": number})) for number in (1, 2)]
    assert len({lineage for _, lineage, _ in found}) == 2
    assert [one.out for one in task.finish()] == ["a"]


def test_a_function_that_fails_in_the_sink_is_named(tmp_path: Path) -> None:
    """The error is the task's, with its segment and the user's line, not the output's."""
    routed, outs = sink(tmp_path, job_with("failing"))
    with pytest.raises(TaskFailed) as caught:
        written_by(routed, outs, [batch([row("one", 1), row("rows", 5)])])
    failure = caught.value.failure
    assert (failure.task, failure.segment) == ("f", "{'n': 5}")
    assert 'raise ValueError("it fails")' in failure.traceback and "outputs.py" not in failure.traceback


@pytest.mark.parametrize(
    "fn",
    ["several", "reused", "failing", "more_fields", "another_field", "a_bool", "too_large", "unpackable", "an_error"],
)
def test_values_without_lineage_are_written_as_those_with_one(tmp_path: Path, fn: str) -> None:
    """Files take plain values as functions return them, and all others from their bytes."""

    def outcome(**options: str) -> Any:
        routed, outs = sink(tmp_path / str(len(options)), job_with(fn), **options)
        try:
            return written_by(routed, outs, [batch([row("rows", number) for number in range(6)])])
        except TaskFailed as error:
            return error.failure.task, error.failure.segment, error.failure.error

    assert outcome() == outcome(**LINEAGES)


def test_files_take_plain_values_before_they_are_packed(tmp_path: Path) -> None:
    """No row is left for the sink: the region has written all, each once."""
    routed, outs = sink(tmp_path, job_with("reused"))
    task = Staging(outs, job=JOB, batch=0, part=0)
    assert list(routed._found([batch([row("rows", number) for number in range(3)])], task)) == []
    (file,) = task.finish()
    found = parquet.ParquetFile(tmp_path / "b" / "_onyxq" / JOB / file.name).read()["n"].to_pylist()
    assert found == [0, 0, 1, 1, 2, 2]


def test_lifecycles_are_called_around_the_rows_of_each_input(tmp_path: Path) -> None:
    """Rows of another column in between begin another part."""
    CALLED.clear()
    made = job(lifecycles=[Lifecycle("f", before_batch=f"{__name__}:called", after_batch=f"{__name__}:called")])
    routed, outs = sink(tmp_path, made)
    given_rows = [row("rows", 1), row("rows", 2), row("one", 3), row("rows", 4, part=1)]
    written_by(routed, outs, [batch(given_rows[:1]), batch(given_rows[1:])])
    assert CALLED == ["f"] * 4


@pytest.mark.long
def test_only_outputs_with_the_same_rows_share_a_frame(spark: Any) -> None:
    """Text takes the only column under any name, and another output with the same columns takes it by its name."""
    columns = {"schema": "value string", "other_fields": "drop"}
    value = described(pyarrow.schema([("value", pyarrow.string())]))
    folders = [
        Folder("text", "text", "/text", {}),
        *(Folder(name, "json", f"/{name}", columns, value) for name in ("json", "more")),
    ]
    frame = spark.sql("select 'x' as word")
    _, parts = laid_out([("f", folder.name, frame) for folder in folders], folders)
    found = {struct.outs: [one.asDict() for one in part.collect()] for part, struct in parts}
    assert found == {("text",): [{"value": "x"}], ("json", "more"): [{"value": None}]}


@pytest.mark.long
def test_rows_of_an_input_come_to_python_once(spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The function runs in the sink, beside a frame of the same input that goes to the same kind of output."""
    one = lines_job(tmp_path, Function("split", f"{HERE}:words"))
    one = evolve(
        one,
        workflow=[*one.workflow, ("in", "long"), ("long", "columns")],
        catalog=[
            *one.catalog,
            Sql("long", "select value from `in` where length(value) > 2"),
            Output("columns", format="json", path=str(tmp_path / "columns")),
        ],
        key_groups=2,
    )
    (tmp_path / "in" / "a.txt").write_text("a b\nc\n")
    body = encode(one)
    setting = Setting(version=1, slots=2, checkpoint=str(tmp_path / "checkpoint"), connect=None)
    query = compiled(spark, decode(body), body, setting).start()
    query.awaitTermination()
    capsys.readouterr()
    query.explain()
    shown = capsys.readouterr().out
    assert "FileScan text" in shown and "MapInArrow" not in shown
    assert sorted(made["word"] for made in written(tmp_path / "out")) == ["a", "b", "c"]
    assert written(tmp_path / "columns") == [{"value": "a b"}]


@pytest.mark.long
def test_rows_of_each_input_are_counted_if_another_input_has_none(spark: Any, tmp_path: Path) -> None:
    """Spark may leave an input without new files out of a batch."""
    for name, files in (("x", 1), ("y", 3)):
        (tmp_path / name).mkdir()
        for number in range(files):
            (tmp_path / name / f"{number}.txt").write_text(f"{name}\n{number}\n")
    inputs = [
        Input(name, format="text", path=str(tmp_path / name), options={"maxFilesPerTrigger": "1"}) for name in "xy"
    ]
    catalog = [*inputs, Function("f", f"{HERE}:same"), Output("out", format="json", path=str(tmp_path / "out"))]
    events: list[Any] = []
    completed(spark, Job(id="two", workflow=[("x", "f"), ("y", "f"), ("f", "out")], catalog=catalog), tmp_path, events)
    counts: Counter[str] = Counter()
    for event in events:
        counts.update(event["progress"]["inputs"] if event["event"] == "progress" else {})
    assert counts == {"x": 2, "y": 6}
    assert len(written(tmp_path / "out")) == 8
