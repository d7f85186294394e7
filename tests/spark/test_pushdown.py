"""A frame task's filters and columns reach the files of its inputs, so that Spark does not read the rest."""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest

from onyxq.jobs.encoding import decode, encode
from onyxq.jobs.model import Function, Input, Job, Output, Sql
from onyxq.spark.plan.compile import Setting, compiled
from tests.spark.job_world import HERE, written

pytestmark = pytest.mark.long

QUERY = """
select o.id, u.land from orders o join users u on o.user = u.user
where o.amount > 95 and o.land = 'NO' and u.land <> 'SE'
"""


NEEDED = "id bigint, user string, amount bigint, land string, at timestamp"


def job(folder: Path, *, also: bool, schema: str | None = None) -> Job:
    """Return a job with a query over a stream of Parquet and a table of ORC.

    ``also``: a function reads the stream, too; ``schema``: of the stream.
    """
    return Job(
        id="pushed",
        workflow=[
            ("orders", "big"),
            ("users", "big"),
            ("big", "out"),
            *([("orders", "f"), ("f", "all")] if also else []),
        ],
        catalog=[
            Input(
                "orders",
                format="parquet",
                path=str(folder / "orders"),
                schema=schema,
                time="at",
                watermark_ms=1_000,
                since_ms=1_000,
            ),
            Input("users", format="orc", path=str(folder / "users"), static=True),
            Sql("big", QUERY),
            Output("out", format="json", path=str(folder / f"out-{also}")),
            *(
                [Function("f", f"{HERE}:same"), Output("all", format="parquet", path=str(folder / "all"))]
                if also
                else []
            ),
        ],
        key_groups=2,
    )


def scans(spark: Any, folder: Path, capsys: pytest.CaptureFixture[str], one: Job) -> dict[str, tuple[str, str]]:
    """Run the job; return format -> the filters that its files get, and the columns that are read."""
    body = encode(one)
    setting = Setting(version=1, slots=2, checkpoint=mkdtemp(dir=folder), connect=None)
    query = compiled(spark, decode(body), body, setting).start()
    query.awaitTermination()
    capsys.readouterr()
    query.explain()
    shown = capsys.readouterr().out
    found = re.findall(r"FileScan (\w+) .*?PushedFilters: \[(.*?)\], ReadSchema: struct<(.*?)>", shown)
    return {kind: (filters, columns) for kind, filters, columns in found}


def test_filters_and_columns_of_a_query_reach_the_files(
    spark: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also through a watermark and a time at which the input begins.

    Of an input that several tasks use, all columns are read, or those that its schema names.
    """
    spark.conf.set("spark.sql.maxMetadataStringLength", 10_000)
    orders = spark.range(100).selectExpr(
        *(
            "id",
            "concat('u', id % 3) as user",
            "id as amount",
            "'NO' as land",
            "now() as at",
            "'x' as note",
            "id as other",
        )
    )
    orders.coalesce(1).write.parquet(str(tmp_path / "orders"))
    users = spark.range(3).selectExpr(
        "concat('u', id) as user", "if(id = 1, 'SE', 'NO') as land", "id as n", "'y' as z"
    )
    users.coalesce(1).write.orc(str(tmp_path / "users"))

    found = scans(spark, tmp_path, capsys, job(tmp_path, also=False))
    filters, columns = found["parquet"]
    assert "GreaterThan(amount,95)" in filters and "EqualTo(land,NO)" in filters
    assert {one.split(":")[0] for one in columns.split(",")} == {"id", "user", "amount", "land", "at"}
    filters, columns = found["orc"]
    assert "Not(EqualTo(land,SE))" in filters
    assert columns == "user:string,land:string"
    assert sorted(one["id"] for one in written(tmp_path / "out-False")) == [96, 98, 99]

    filters, columns = scans(spark, tmp_path, capsys, job(tmp_path, also=True))["parquet"]
    assert filters == "" and {"note", "other"} <= {one.split(":")[0] for one in columns.split(",")}
    assert sorted(one["id"] for one in written(tmp_path / "out-True")) == [96, 98, 99]
    assert len(written(tmp_path / "all", "parquet")) == 100

    _, columns = scans(spark, tmp_path, capsys, job(tmp_path, also=True, schema=NEEDED))["parquet"]
    assert {one.split(":")[0] for one in columns.split(",")} == {"id", "user", "amount", "land", "at"}
