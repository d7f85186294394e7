"""Jobs compiled to queries and run: the output is the input after the job's functions, exactly once."""

from __future__ import annotations

import datetime
import decimal
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from onyxq.errors import BadRequest, Incomplete
from onyxq.jobs.model import Condition, Function, Input, Job, Output, Reduce, Trigger, Window
from onyxq.spark import checkpoint, pools
from onyxq.spark.failures import of_exception
from onyxq.spark.plan import end_of_input
from tests.spark.job_world import HERE, lines_job, run, written

pytestmark = pytest.mark.long


LINES = ["one two three", "four", "", "two two"]
WORDS = Counter(" ".join(LINES).split())


def words_of(found: list[Any]) -> Counter[str]:
    """How often each word was written."""
    return Counter(one["word"] for one in found)


def test_files_in_files_out(spark: Any, tmp_path: Path) -> None:
    """Every line of every file is split; only the files that a repeat needs are hidden in the output."""
    job = lines_job(tmp_path, Function("split", f"{HERE}:words"))
    for place, line in enumerate(LINES):
        (tmp_path / "in" / f"{place}.txt").write_text(line + "\n")
    run(spark, job, tmp_path)
    assert words_of(written(tmp_path / "out")) == WORDS


def test_what_was_read_is_not_read_again(spark: Any, tmp_path: Path) -> None:
    """The next run continues after the last batch, also under the next version; numbers of batches continue."""
    job = lines_job(tmp_path, Function("split", f"{HERE}:words"))
    (tmp_path / "in" / "a.txt").write_text("a b\n")
    run(spark, job, tmp_path)
    (tmp_path / "in" / "b.txt").write_text("c\n")
    run(spark, job, tmp_path, version=2, batch=0)
    at = run(spark, job, tmp_path, version=2, batch=1)
    assert words_of(written(tmp_path / "out")) == Counter("abc")
    assert sorted(file.name for file in (at / "commits").iterdir() if not file.name.startswith(".")) == ["0", "1"]


def test_a_fresh_checkpoint_of_what_the_log_recorded_goes_on_behind_it(spark: Any, tmp_path: Path) -> None:
    """On a new peer, the files that were read are known, and numbers of batches continue."""
    job = lines_job(tmp_path, Function("split", f"{HERE}:words"))
    (tmp_path / "in" / "a.txt").write_text("a b\n")
    first = run(spark, job, tmp_path)
    record = checkpoint.recorded(str(first), 0, "mark")
    assert checkpoint.mark_of(record) == "mark"
    (tmp_path / "in" / "b.txt").write_text("c\n")
    elsewhere = tmp_path / "elsewhere"
    at = run(spark, job, elsewhere, version=5, batch=0, recorded=record)
    assert words_of(written(tmp_path / "out")) == Counter("abc")
    assert (at / "offsets" / "1").exists()


def test_a_batch_that_was_not_committed_is_planned_anew(spark: Any, tmp_path: Path) -> None:
    """Spark's records beyond the log's last batch are deleted; its files were never visible and are read again."""
    job = lines_job(tmp_path, Function("split", f"{HERE}:fail_once", {"flag": str(tmp_path / "flag")}))
    (tmp_path / "in" / "a.txt").write_text("a b\n")
    with pytest.raises(Exception, match="the first time it fails"):
        run(spark, job, tmp_path)
    at = tmp_path / "checkpoints" / "lines" / "1"
    assert (at / "offsets" / "0").exists()
    run(spark, job, tmp_path, version=2)
    assert written(tmp_path / "out") == [{"value": "a b"}]


def test_branches_conditions_and_all_formats(spark: Any, tmp_path: Path) -> None:
    """One query writes each output in its format; conditions say which segments go where."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text("".join(json.dumps({"n": n, "s": f"s{n}"}) + "\n" for n in range(6)))
    outs = {
        "a": Output("a", format="parquet", path=str(tmp_path / "a"), options={"schema": "n bigint, s string"}),
        "b": Output(
            "b", format="csv", path=str(tmp_path / "b"), options={"header": "true", "schema": "n bigint, s string"}
        ),
        "c": Output("c", format="text", path=str(tmp_path / "c")),
        "d": Output("d", format="json", path=str(tmp_path / "d")),
    }
    job = Job(
        id="formats",
        workflow=[("in", "f"), ("f", "a"), ("f", "b"), ("f", "d"), ("in", "text"), ("text", "c")],
        catalog=[
            Input("in", format="json", path=str(tmp_path / "in"), schema="n bigint, s string"),
            Function("f", f"{HERE}:same"),
            Function("text", f"{HERE}:field", {"name": "s"}),
            *outs.values(),
        ],
        flow_conditions=[
            Condition("f", ["a", "b"]),
            Condition("f", ["d"], f"{HERE}:is_even_row"),
        ],
    )
    run(spark, job, tmp_path)
    rows = [{"n": n, "s": f"s{n}"} for n in range(6)]
    assert sorted(written(tmp_path / "a", "parquet"), key=lambda row: row["n"]) == rows
    assert written(tmp_path / "b", "csv") == [["n", "s"], *([str(n), f"s{n}"] for n in range(6))]
    assert sorted(written(tmp_path / "c", "text")) == [f"s{n}" for n in range(6)]
    assert sorted(one["n"] for one in written(tmp_path / "d")) == [0, 2, 4]


def test_csv_and_parquet_are_read(spark: Any, tmp_path: Path) -> None:
    """Columns of any type become Python values, which an output with the same schema accepts."""
    source = tmp_path / "source"
    frame = spark.sql(
        "select 1 as n, date'2020-02-03' as d, timestamp'1970-01-01 00:00:02' as t, 1.50 as x, array(1) as l"
    )
    frame.write.parquet(str(source))
    job = Job(
        workflow=[("in", "out"), ("csv", "out")],
        catalog=[
            Input("in", format="parquet", path=str(source)),
            Input("csv", format="csv", path=str(tmp_path / "csv"), schema="a int, b string"),
            Output("out", format="parquet", path=str(tmp_path / "out")),
        ],
    )
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "a.csv").write_text("7,x\n")
    run(spark, job, tmp_path)
    nothing = dict.fromkeys("ndtxlab")
    row = {
        "n": 1,
        "d": datetime.date(2020, 2, 3),
        "t": datetime.datetime(1970, 1, 1, 0, 0, 2, tzinfo=datetime.UTC),
        "x": decimal.Decimal("1.50"),
        "l": [1],
    }
    found = sorted(written(tmp_path / "out", "parquet"), key=lambda row: row["n"] or 0)
    assert found == [nothing | {"a": 7, "b": "x"}, nothing | row]


def test_a_failure_names_the_task_the_segment_and_the_line(spark: Any, tmp_path: Path) -> None:
    """The driver finds them in Spark's report."""
    job = lines_job(tmp_path, Function("check", f"{HERE}:fail"))
    (tmp_path / "in" / "a.txt").write_text("fine\nplease fail\n")
    with pytest.raises(Exception, match="told to fail") as caught:
        run(spark, job, tmp_path)
    failure = of_exception(caught.value)
    assert failure.task == "check"
    assert failure.segment == "{'value': 'please fail'}"
    assert 'raise RuntimeError("told to fail")' in failure.traceback
    assert not failure.restart
    assert written(tmp_path / "out") == []


def test_an_output_that_cannot_hold_a_segment_is_named(spark: Any, tmp_path: Path) -> None:
    """It is named like a failed task; other output of the batch is not visible."""
    job = lines_job(tmp_path, Function("text", f"{HERE}:words"))
    job = evolve(job, catalog=(*job.catalog[:-1], Output("out", format="text", path=str(tmp_path / "out"))))
    (tmp_path / "in" / "a.txt").write_text("a b\n")
    with pytest.raises(Exception, match="output out: text holds strings") as caught:
        run(spark, job, tmp_path)
    failure = of_exception(caught.value)
    assert (failure.task, failure.segment, failure.restart) == ("out", "{'word': 'a', 'size': 1}", False)
    assert written(tmp_path / "out", "text") == []


def test_formats_that_are_not_there_say_so(spark: Any, tmp_path: Path) -> None:
    """For inputs the error names the missing package, for outputs the existing formats."""
    wrong = Job(
        workflow=[("in", "out")],
        catalog=[Input("in", format="nosuch"), Output("out", format="json", path=str(tmp_path))],
    )
    with pytest.raises(Incomplete, match=r"catalog\[0\].format: Spark has no 'nosuch'"):
        run(spark, wrong, tmp_path)
    wrong = Job(
        workflow=[("in", "out")],
        catalog=[Input("in", format="rate"), Output("out", format="xls", path=str(tmp_path))],
    )
    with pytest.raises(BadRequest, match=r"catalog\[1\].format: outputs are csv, delta, json"):
        run(spark, wrong, tmp_path)
    wrong = Job(
        workflow=[("in", "out")],
        catalog=[
            Input("in", format="text", path=str(tmp_path / "nothing")),
            Output("out", format="json", path=str(tmp_path)),
        ],
    )
    with pytest.raises(BadRequest, match=r"catalog\[0\] \(in\): Spark cannot read it: .*PATH_NOT_FOUND"):
        run(spark, wrong, tmp_path)


def test_a_jobs_share_of_the_session_changes_while_it_runs(spark: Any) -> None:
    """The pool's weight in the fair scheduler is the job's slots, and changes at once."""
    pools.enter(spark, "some", 2)
    assert pools.weight(spark, "some") == 2
    pools.share(spark, "some", 7)
    assert pools.weight(spark, "some") == 7
    assert spark.sparkContext.parallelize(range(3), 2).sum() == 3
    pools.leave(spark, "some")
    pools.share(spark, "some", 1)
    assert pools.weight(spark, "some") == 1
    pools.leave(spark, "some")


def counting_job(folder: Path) -> Job:
    """Words of files, counted."""
    job = lines_job(folder, Function("split", f"{HERE}:words"))
    return evolve(
        job,
        workflow=(("in", "split"), ("split", "count"), ("count", "out")),
        catalog=(*job.catalog, Reduce("count")),
        windows=(Window("all", "count", key="word", aggregation="count"),),
        triggers=(Trigger("all", on="watermark"),),
        key_groups=2,
    )


def test_windows_speak_when_all_inputs_have_ended(spark: Any, tmp_path: Path) -> None:
    """Counts are kept between batches, also under another version, and output once at the end."""
    job = counting_job(tmp_path)
    (tmp_path / "in" / "a.txt").write_text("\n".join(LINES))
    at = run(spark, job, tmp_path)
    assert written(tmp_path / "out") == []
    (tmp_path / "in" / "b.txt").write_text("two five")
    batch = max(int(file.name) for file in (at / "commits").iterdir() if file.name.isdigit())
    at = run(spark, job, tmp_path, version=2, batch=batch)
    assert written(tmp_path / "out") == []
    batch = max(int(file.name) for file in (at / "commits").iterdir() if file.name.isdigit())
    end_of_input.note(str(at))
    run(spark, job, tmp_path, version=2, batch=batch)
    found = {one["key"]: one["value"] for one in written(tmp_path / "out")}
    assert found == WORDS + Counter(["two", "five"])
