"""Values of every type pass through jobs: from one job to another by files, as segments and as frames, unchanged."""

from __future__ import annotations

import datetime
import decimal
import json
from collections import Counter
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("deltalake")

import deltalake
import pyarrow
from pyarrow import orc

from onyxq.errors import BadRequest
from onyxq.jobs.job_check import check
from onyxq.jobs.model import BatchFunction, Function, Input, Job, Output, Sql
from onyxq.jobs.values import pack, unpack
from onyxq.spark.failures import of_exception
from onyxq.spark.files.columns import segments
from tests.spark import generated_columns as made
from tests.spark.generated_columns import alike, breaks_csv, columns
from tests.spark.independent_readers import from_csv, from_json, from_parquet
from tests.spark.job_world import HERE, run, written

pytestmark = pytest.mark.long

INSIDE = (made.STRING, made.DATE, made.INSTANT, made.DECIMALS[5], made.FLOATS[0])
ROW = {"row": made.INTEGERS[3]}
FLAT = {f"{made.NAMES[place]} {place}": one for place, one in enumerate(made.SCALARS)}
"""Columns that all formats have."""
PARTS = {
    "bin.ary": made.BINARY,
    "struct": made.struct(*(one for one in made.SCALARS if one is not made.LOCAL), made.BINARY),
    **{f"list {place}": made.array(one) for place, one in enumerate((*INSIDE, made.BINARY))},
    **{f"map {place}": made.mapping(one) for place, one in enumerate(INSIDE)},
    "deep": made.array(made.struct(made.mapping(made.INTEGERS[0]), made.array(made.STRING))),
}
LOCAL_PARTS = {"local": made.array(made.struct(made.LOCAL, made.mapping(made.LOCAL)))}
"""Columns that Delta lacks."""
EVERYTHING = {**ROW, **FLAT, **PARTS, **LOCAL_PARTS}
STRING = next(name for name, one in FLAT.items() if one is made.STRING)
IN_ORC = {name: one for name, one in {**ROW, **FLAT}.items() if "`" not in name}
"""The schema of an input must not name a column of ORC with a backquote in its name."""
FRAMES = ("parquet", "json", "csv")
"""Formats of files to which frames go."""
GENERATED = 40


def rows_of_all_types() -> list[dict[str, Any]]:
    """Return rows with the values that are easily changed, with values that Hypothesis makes, and with Nones alone."""
    most = max(len(one.edges) for one in EVERYTHING.values())
    found: list[dict[str, Any]] = [
        {name: one.edges[place] for name, one in EVERYTHING.items() if place < len(one.edges)} for place in range(most)
    ]

    @settings(max_examples=GENERATED, database=None, suppress_health_check=list(HealthCheck))
    @given(st.fixed_dictionaries({name: st.none() | one.values for name, one in EVERYTHING.items()}))
    def add(row: dict[str, Any]) -> None:
        found.append(row)

    add()
    return [{**dict.fromkeys(EVERYTHING), **row, "row": number} for number, row in enumerate([*found, {}])]


def schema_of(*parts: dict[str, made.Type]) -> str:
    """Return columns as Spark's SQL names them."""
    return columns({name: one for part in parts for name, one in part.items()})[0]


def written_by_a_job(spark: Any, folder: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows to outputs of all formats, by a function; one that CSV or text cannot hold goes to their errors."""
    (folder / "in").mkdir()
    (folder / "in" / "rows.txt").write_text("".join(f"{pack(row).hex()}\n" for row in rows))
    schemas = {
        "parquet": {"schema": schema_of(EVERYTHING)},
        "json": {"schema": schema_of(EVERYTHING)},
        "csv": {"schema": schema_of(ROW, FLAT), "other_fields": "drop"},
        "delta": {"schema": schema_of(ROW, FLAT, PARTS), "other_fields": "drop"},
    }
    outputs = [
        Output(kind, format=kind, path=str(folder / kind), options=said, errors="refused" if kind == "csv" else None)
        for kind, said in schemas.items()
    ]
    job = Job(
        id="there",
        workflow=[
            ("in", "unhexed"),
            *(("unhexed", one.name) for one in outputs),
            ("unhexed", "string"),
            ("string", "text"),
        ],
        catalog=[
            Input("in", format="text", path=str(folder / "in")),
            Function("unhexed", f"{HERE}:unhexed"),
            Function("string", f"{HERE}:field", {"name": STRING}),
            *outputs,
            Output("text", format="text", path=str(folder / "text"), errors="refused"),
            Output("refused", format="json", path=str(folder / "refused")),
        ],
        key_groups=2,
    )
    check(job)
    run(spark, job, folder / "there")


def read_by_a_job(spark: Any, folder: Path, inputs: list[Input]) -> None:
    """Read all formats: as segments, which become lines of text; and as frames, which go to all formats again."""
    frames = {"f parquet": "p", "f json": "p", "f delta": "p"}
    options = {
        "f delta": {"schema": schema_of(ROW, FLAT, PARTS), "other_fields": "drop"},
        "f csv": {"schema": schema_of(ROW, FLAT)},
    }
    names = [*(one.name for one in inputs), "same p"]
    job = Job(
        id="back",
        workflow=[
            *((name, f"hexed {name}") for name in names),
            *((f"hexed {name}", f"back {name}") for name in names),
            *((name, f"same {name}") for name in ("p", "c")),
            *((f"same {name}", out) for out, name in frames.items()),
            *(("same c", "batches"), ("batches", "f csv")),
        ],
        catalog=[
            *inputs,
            BatchFunction("batches", f"{HERE}:same", returns=schema_of(ROW, FLAT)),
            *(Sql(f"same {name}", f"select * from {name}") for name in ("p", "c")),
            *(Function(f"hexed {name}", f"{HERE}:hexed") for name in names),
            *(Output(f"back {name}", format="text", path=str(folder / f"back {name}")) for name in names),
            *(
                Output(out, format=out.split()[1], path=str(folder / out), options=options.get(out, {}))
                for out in (*frames, "f csv")
            ),
        ],
        key_groups=2,
    )
    check(job)
    run(spark, job, folder / "back")


def back(folder: Path, name: str) -> list[Any]:
    """Return the segments that the second job has read of an input."""
    return by_row([unpack(bytes.fromhex(line)) for line in written(folder / f"back {name}", "text")])


def by_row(found: list[Any]) -> list[Any]:
    """Return rows in their order."""
    return sorted(found, key=lambda row: row.get("row", 0))


def lake(folder: Path) -> list[Any]:
    """Return the rows of a Delta table."""
    table = deltalake.DeltaTable(str(folder)).to_pyarrow_table()
    return by_row([row for one in table.to_batches() for row in segments(one)])


def orders_in_xml(folder: Path) -> list[dict[str, Any]]:
    """Write rows with values that XML can hold."""
    rows = [
        {
            "n": n,
            "s": text,
            "at": datetime.datetime(1 + 1_999 * n, 1, 2, 3, 4, 5, 6 + n, tzinfo=datetime.UTC),
            "day": datetime.date(1582, 10, 9 + n),
            "price": decimal.Decimal(n).scaleb(-20) - 10**17,
            "x": -0.0 if n else 0.1,
            "tags": ["a", text],
            "where": {"land": "NO", "zip": None if n else 7},
        }
        for n, text in enumerate(["größe <&>", "two\nlines", "😀"])
    ]
    root = ElementTree.Element("orders")
    for row in rows:
        order = ElementTree.SubElement(root, "order")
        for name, value in row.items():
            for one in value if isinstance(value, list) else [value]:
                part = ElementTree.SubElement(order, name)
                if isinstance(one, dict):
                    for inner, said in one.items():
                        if said is not None:
                            ElementTree.SubElement(part, inner).text = str(said)
                else:
                    part.text = one.isoformat() if isinstance(one, datetime.date) else str(one)
    folder.mkdir()
    ElementTree.ElementTree(root).write(folder / "orders.xml", encoding="utf-8")
    return rows


def test_every_type_by_every_format(spark: Any, tmp_path: Path) -> None:
    """The first job writes, the second one reads."""
    rows = rows_of_all_types()
    written_by_a_job(spark, tmp_path, rows)
    spark.read.schema(schema_of(IN_ORC)).parquet(str(tmp_path / "parquet")).write.orc(str(tmp_path / "orc"))
    orders = orders_in_xml(tmp_path / "xml")
    order = "n int, s string, at timestamp, day date, price decimal(38,20), x double, tags array<string>"
    content = bytes(range(256)) * 300
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.bin").write_bytes(content)
    everything, flat = schema_of(EVERYTHING), schema_of(ROW, FLAT)
    inputs = [
        Input("p", format="parquet", path=str(tmp_path / "parquet")),
        Input("j", format="json", path=str(tmp_path / "json"), schema=everything),
        Input("c", format="csv", path=str(tmp_path / "csv"), schema=flat, options={"bad_bytes": "replace"}),
        Input("o", format="orc", path=str(tmp_path / "orc")),
        Input(
            "x",
            format="xml",
            path=str(tmp_path / "xml"),
            schema=f"{order}, where struct<land: string, zip: int>",
            options={"rowTag": "order"},
        ),
        Input("t", format="text", path=str(tmp_path / "text")),
        Input("b", format="binaryFile", path=str(tmp_path / "pictures")),
    ]
    read_by_a_job(spark, tmp_path, inputs)

    for name in ("p", "j", "same p"):
        assert alike(back(tmp_path, name), rows), name
    kept = [number for number, row in enumerate(rows) if not any(map(changed_by_orc, row.values()))]
    found = back(tmp_path, "o")
    assert len(found) == len(rows) > len(kept)
    assert alike([found[number] for number in kept], [{name: rows[number][name] for name in IN_ORC} for number in kept])
    assert alike(lake(tmp_path / "delta"), [{name: row[name] for name in {**ROW, **FLAT, **PARTS}} for row in rows])
    fit = [{name: row[name] for name in {**ROW, **FLAT}} for row in rows if not any(map(breaks_csv, row.values()))]
    assert alike(back(tmp_path, "c"), fit)
    refused = Counter(one["output"] for one in written(tmp_path / "refused"))
    assert refused["csv"] == len(rows) - len(fit) > 0
    lines = [row[STRING] for row in rows if row[STRING] is not None]
    one_line = Counter(line for line in lines if "\n" not in line and "\r" not in line and line[:1] != "\ufeff")
    assert Counter(one["value"] for one in back(tmp_path, "t")) == one_line
    assert refused["text"] == len(lines) - one_line.total() > 0
    assert sorted(back(tmp_path, "x"), key=lambda row: row["n"]) == orders
    (file,) = back(tmp_path, "b")
    assert (file["content"], file["length"], file["path"][-6:]) == (content, len(content), "/a.bin")

    arrow = columns(EVERYTHING)[1]
    whole = {kind: [one.read_bytes() for one in (tmp_path / f"f {kind}").glob(f"*.{kind}")] for kind in FRAMES}
    assert alike(by_row([row for data in whole["parquet"] for row in from_parquet(data)]), rows)
    assert alike(by_row([row for data in whole["json"] for row in from_json(data, arrow)]), rows)
    arrow = columns({**ROW, **FLAT})[1]
    assert alike(by_row([row for data in whole["csv"] for row in from_csv(data, arrow)]), fit)
    assert alike(lake(tmp_path / "f delta"), lake(tmp_path / "delta"))


def changed_by_orc(value: Any) -> bool:
    """Return whether Spark's ORC has another value: on days that the Julian calendar lacks, and just before 1970."""
    if isinstance(value, datetime.datetime):
        wall = value.astimezone(datetime.UTC).replace(tzinfo=None) if value.tzinfo else value
        if datetime.datetime(1969, 12, 31, 23, 59, 59) < wall < datetime.datetime(1970, 1, 1):
            return True
        value = wall.date()
    return isinstance(value, datetime.date) and datetime.date(1582, 10, 5) <= value < datetime.date(1582, 10, 15)


def failed(spark: Any, folder: Path, frame: str, *outputs: Output, function: bool = False, **more: Any) -> str:
    """Return the error of a job with a query whose result cannot go to its outputs."""
    (folder / "in").mkdir(parents=True)
    (folder / "in" / "a.json").write_text(json.dumps({"n": 1, "_onyxq_part": 7}) + "\n")
    after = ["f"] if function else [one.name for one in outputs]
    job = Job(
        id="failed",
        workflow=[
            ("in", "frame"),
            *(("frame", name) for name in after),
            *(("f", one.name) for one in outputs if function),
        ],
        catalog=[
            Input("in", path=str(folder / "in"), **{"format": "json", "schema": "n bigint", **more}),
            Sql("frame", frame),
            *([Function("f", f"{HERE}:same")] if function else []),
            *outputs,
        ],
        key_groups=2,
    )
    with pytest.raises(Exception, match=r".") as caught:
        run(spark, job, folder)
    found = of_exception(caught.value)
    assert not found.restart, found.error
    return found.error


NARROWED = {
    "1.5D as n": "n int",
    "cast(1.5 as decimal(10,5)) as n": "n decimal(10,2)",
    "cast(n as decimal(20,0)) as n": "n bigint",
    "9007199254740993 as n": "n double",
    "0.1D as n": "n float",
    "n": "n int",
    "timestamp'2026-01-01 12:00:00' as n": "n date",
    "timestamp'2026-01-01 12:00:00' as n ": "n timestamp_ntz",
    "date'2026-01-01' as n": "n string",
    "array(named_struct('a', 1, 'b', 2)) as n": "n array<struct<a: int>>",
    "map('a', 1.5D) as n": "n map<string, int>",
}
"""Column of a frame -> the column of an output that would change or lose its values."""
UNREADABLE = {
    "n as a, n + 1 as a": "a: is the name of two columns",
    "parse_json('1') as v": "v: a segment cannot hold the type variant",
    "map(array(1), 2) as m": "m: a segment cannot hold the type map with keys of",
    "interval '1' month as i": "UNSUPPORTED",
}
"""Columns of a frame that cannot become segments -> the error."""


def test_what_would_change_is_refused_before_the_first_batch(spark: Any, tmp_path: Path) -> None:
    """Frames whose types an output does not hold, and columns that segments cannot hold; errors name the column."""
    for number, (frame, schema) in enumerate(NARROWED.items()):
        folder = tmp_path / str(number)
        out = Output("out", format="parquet", path=str(folder / "out"), options={"schema": schema})
        said = failed(spark, folder, f"select {frame} from `in`", out)
        assert said.startswith("output out: n"), (frame, said)
        assert not list((folder / "out").glob("*.parquet"))
    for number, (frame, wanted) in enumerate(UNREADABLE.items(), len(NARROWED)):
        out = Output("out", format="json", path=str(tmp_path / "out"))
        said = failed(spark, tmp_path / str(number), f"select {frame} from `in`", out, function=True)
        assert said.startswith("rows of 'frame' cannot become segments: ") and wanted in said, said
    out = Output("out", format="json", path=str(tmp_path / "out"))
    said = failed(spark, tmp_path / "a", "select n from `in`", out, schema="n bigint, _onyxq_part bigint")
    assert said.startswith("catalog[0] of 'in': OnyxQ itself uses the column '_onyxq_part'")
    said = failed(spark, tmp_path / "b", "select n as _ONYXQ_PART from `in`", out)
    assert said.startswith("catalog[1] of 'frame': OnyxQ itself uses the column '_ONYXQ_PART'")
    said = failed(spark, tmp_path / "c", "select interval '1' month as i from `in`", out)
    assert said.startswith("output out: ")


def test_a_format_that_spark_lacks_is_named_with_its_package(spark: Any, tmp_path: Path) -> None:
    """Avro needs a package."""
    out = Output("out", format="json", path=str(tmp_path / "out"))
    said = failed(spark, tmp_path / "avro", "select n from `in`", out, format="avro")
    assert said.startswith("catalog[0].format: Spark has no 'avro' here") and "org.apache.spark:spark-avro" in said


def test_values_that_python_lacks_fail_the_job_by_name(spark: Any, tmp_path: Path) -> None:
    """A time after the year 9999, and a string that is not UTF-8; the error names the task and the column."""
    out = Output("out", format="json", path=str(tmp_path / "out"))
    for frame in ("timestamp_seconds(n * 300000000000) as at", "cast(x'ff' as string) as at"):
        for function, said in ((True, "task frame: "), (False, "task out: ")):
            name = f"{len(list(tmp_path.iterdir()))}"
            found = failed(spark, tmp_path / name, f"select {frame} from `in`", out, function=function)
            assert found.startswith(said) and "at: has a value that Python cannot hold: " in found, found


def job_of(source: Input, folder: Path, options: dict[str, str] | None = None) -> Job:
    """Return a job that passes the rows of an input on."""
    out = Output("out", format="json", path=str(folder / "out"), options=options or {})
    return Job(id="refused", workflow=[("in", "out")], catalog=[source, out], key_groups=2)


def refused(spark: Any, folder: Path, source: Input, options: dict[str, str] | None = None) -> str:
    """Return the error of a job that passes the rows of an input on; empty if it completes."""
    job = job_of(source, folder, options)
    check(job)
    try:
        run(spark, job, folder)
    except Exception as error:
        found = of_exception(error)
        assert not found.restart, found.error
        return found.error
    return ""


@pytest.mark.parametrize(
    ("text", "column", "cut"),
    [
        ("id as `a``b`", "`a``b` bigint", {"a": 1}),
        ("named_struct('a`b', id) as s", "s struct<`a``b`: bigint>", {"s": {"a": 1}}),
        ("array(map('k', id)) as `a``b`", "`a``b` array<map<string, bigint>>", {"a": [{"k": 1}]}),
    ],
)
def test_a_schema_that_names_a_column_of_orc_with_a_backquote_is_refused(
    spark: Any, tmp_path: Path, text: str, column: str, cut: dict[str, Any]
) -> None:
    """Spark would read Nones. Without a schema it cuts the name; a schema without the column reads the others."""
    spark.range(3).selectExpr("id", text).write.orc(str(tmp_path / "in"))
    source = Input("in", format="orc", path=str(tmp_path / "in"))
    assert refused(spark, tmp_path / "whole", source) == ""
    assert {"id": 1, **cut} in written(tmp_path / "whole" / "out")
    said = refused(spark, tmp_path / "named", evolve(source, schema=f"id bigint, {column}"))
    assert said.startswith("catalog[0] of 'in': Spark reads Nones from the ORC column "), said
    assert refused(spark, tmp_path / "part", evolve(source, schema="id bigint comment 'the `id`'")) == ""
    assert sorted(one["id"] for one in written(tmp_path / "part" / "out")) == [0, 1, 2]


def test_old_days_in_orc_of_other_programs_are_read_with_an_option(spark: Any, tmp_path: Path) -> None:
    """Arrow counts days in Python's calendar, and Spark takes them for days of another one."""
    days = [datetime.date(1, 1, 1), datetime.date(1582, 10, 4), datetime.date(1582, 10, 15), datetime.date(2026, 1, 1)]
    (tmp_path / "in").mkdir()
    orc.write_table(pyarrow.table({"day": days}), str(tmp_path / "in" / "a.orc"))
    source = Input("in", format="orc", path=str(tmp_path / "in"), options={"orc.proleptic.gregorian.default": "true"})
    assert refused(spark, tmp_path, source, {"schema": "day date"}) == ""
    assert sorted(one["day"] for one in written(tmp_path / "out")) == [day.isoformat() for day in days]


def test_bytes_of_csv_that_are_not_text_are_refused(spark: Any, tmp_path: Path) -> None:
    """An option of the input reads them as Spark does; with the encoding of the file they are text."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.csv").write_bytes("1,gut\n2,grün\n".encode("latin-1"))
    source = Input("in", format="csv", path=str(tmp_path / "in"), schema="n int, `wo``rd` string")
    said = refused(spark, tmp_path / "bad", source)
    assert said.startswith("input in: column wo`rd: bytes that are not text") and "begins with gr\ufffdn" in said, said
    for options, word in (({"Bad_Bytes": "replace"}, "gr\ufffdn"), ({"encoding": "ISO-8859-1"}, "grün")):
        folder = tmp_path / next(iter(options))
        assert refused(spark, folder, evolve(source, options=options)) == ""
        assert sorted(one["wo`rd"] for one in written(folder / "out")) == [word, "gut"]
    with pytest.raises(Exception, match=r".") as caught:
        run(spark, job_of(evolve(source, options={"encoding": "no-such"}), tmp_path), tmp_path / "other")
    other = of_exception(caught.value)
    assert "no-such" in other.error and "bytes that are not text" not in other.error, other.error
    with pytest.raises(BadRequest, match="must be refuse or replace, not 'keep'"):
        refused(spark, tmp_path / "unknown", evolve(source, options={"bad_bytes": "keep"}))
