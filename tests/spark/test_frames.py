"""Frame tasks of jobs: DataFrames, SQL and functions of Arrow batches, as one query with exactly-once outputs."""

from __future__ import annotations

import json
import os
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import deltalake
import pyarrow
import pytest
from attrs import evolve
from pyarrow import parquet
from pyspark.sql import functions as of

from onyxq import BatchFunction, Frame, Function, Input, Job, Output, Sql
from onyxq.interfaces.cli.jobs import load_job
from onyxq.jobs.encoding import encode
from onyxq.spark import java
from onyxq.spark.checkpoint import Checkpoints, recorded
from onyxq.spark.job_run import Order, Place, Running
from onyxq.spark.plan.compile import Setting, compiled, sources
from tests.jobs.test_jobs_page import DOCS, code
from tests.spark.job_world import HERE, run, written

pytestmark = pytest.mark.long

ORDERS = "id long, user string, amount long, at timestamp"


def drive(spark: Any, job: Job, folder: Path, events: list[Any] | None = None) -> dict[str, Any]:
    """Drive a job of bounded inputs to its end, as a host does, without a peer; return its last event."""
    events = [] if events is None else events
    order = Order(job=job.id, version=1, body=encode(job), slots=2, batch=-1, offsets=b"", sealed=frozenset())
    place = Place(connect=None, slots=2, checkpoints=Checkpoints(str(folder / "checkpoints")))
    running = Running(spark, order, place=place, say=events.append)
    running.start()
    running.join()
    return dict(events[-1])


def completed(spark: Any, job: Job, folder: Path, events: list[Any] | None = None) -> None:
    """Drive a job, which must complete."""
    last = drive(spark, job, folder, events)
    assert last["event"] == "completed", last


def write(folder: Path, rows: Iterable[Any]) -> str:
    """Write rows as JSON lines, in two files; return the folder."""
    folder.mkdir(parents=True)
    lines = [json.dumps(row) + "\n" for row in rows]
    for part in range(2):
        (folder / f"{part}.json").write_text("".join(lines[part::2]))
    return str(folder)


def order(number: int) -> dict[str, Any]:
    """Return an order; there is one a minute."""
    at = f"2027-01-01T{number // 60:02d}:{number % 60:02d}:00Z"
    return {"id": number, "user": f"u{number % 5}", "amount": number * 7 % 50, "at": at}


def test_a_query_from_json_to_parquet(spark: Any, tmp_path: Path) -> None:
    """Rows and types are those of the query; nothing but the files is left in the folder."""
    orders = [order(number) for number in range(200)]
    job = Job(
        id="sql",
        workflow=[("orders", "big"), ("big", "out"), ("big", "lines")],
        catalog=[
            Input("orders", format="json", path=write(tmp_path / "in", orders), schema=ORDERS),
            Sql("big", "select id, upper(user) as user, amount / 2 as half, at from orders where amount > 30"),
            Output("out", format="parquet", path=str(tmp_path / "out")),
            Output(
                "lines",
                format="json",
                path=str(tmp_path / "lines"),
                options={"other_fields": "drop", "schema": "id long, half double"},
            ),
        ],
    )
    completed(spark, job, tmp_path)
    big = {one["id"]: one["amount"] / 2 for one in orders if one["amount"] > 30}
    assert {one["id"]: one["half"] for one in written(tmp_path / "out", "parquet")} == big
    found = spark.read.parquet(str(tmp_path / "out"))
    assert [part.dataType.simpleString() for part in found.schema] == ["bigint", "string", "double", "timestamp"]
    assert {row.user for row in found.collect()} == {f"U{number}" for number in range(5)}
    assert {one["id"]: one["half"] for one in written(tmp_path / "lines")} == big
    assert not (tmp_path / "out" / "_onyxq").exists()


STATELESS = (
    "select *, value + 1 as more from rows where value > 5 and value in (select id from numbers)",
    "with large as (select * from rows where value > 5) select * from large union all select * from large",
    "select /*+ broadcast(numbers), repartition(3) */ * from rows left join numbers on id = value",
    "select timestamp, explode(sequence(0, value)) as n from rows",
    "select value, n from rows join (select id, count(*) as n from numbers group by id) on id = value",
)
STATEFUL = (
    "select distinct timestamp from rows",
    "select window(timestamp, '1 hour') as hour, count(*) as n from rows group by 1",
    "select * from rows join others using (value)",
    "select * from rows limit 5",
)


def test_the_plan_shows_whether_spark_keeps_state(spark: Any) -> None:
    """A node of a kind that is not known to be without state counts as one with state."""
    stream = spark.readStream.format("rate").load().withWatermark("timestamp", "1 minute")
    for name in ("rows", "others"):
        stream.createOrReplaceTempView(name)
    spark.range(5).createOrReplaceTempView("numbers")
    assert [text for text in STATELESS if java.keeps_state(spark.sql(text))] == []
    assert [text for text in STATEFUL if not java.keeps_state(spark.sql(text))] == []
    plain = stream.withColumn("n", of.udf(abs, "long")("value")).repartition(3)
    plain = plain.observe("seen", of.count("*").alias("n"))
    mapped = plain.mapInArrow(lambda batches: batches, plain.schema)
    assert not java.keeps_state(mapped.union(plain.mapInPandas(lambda batches: batches, plain.schema)))
    assert java.keeps_state(mapped.dropDuplicates(["value"]))


def test_a_query_without_state_continues_where_its_checkpoint_is_not(spark: Any, tmp_path: Path) -> None:
    """The log's record of the last batch is enough; each row is in the output once."""
    job = Job(
        id="places",
        workflow=[("orders", "big"), ("again", "big"), ("big", "out"), ("big", "lines")],
        catalog=[
            *(
                Input(name, format="json", path=f"{tmp_path}/{name}/*", schema="id long")
                for name in ("orders", "again")
            ),
            Sql("big", "select id from orders where id > 5 union all select id from again"),
            *(Output(name, format="json", path=str(tmp_path / name)) for name in ("out", "lines")),
        ],
    )
    for name, first in (("orders", 0), ("again", 100)):
        write(tmp_path / name / "1", [{"id": first + number} for number in range(10)])
    at, setting = run(spark, job, tmp_path), Setting(version=1, slots=2, checkpoint=str(tmp_path), connect=None)
    names = sources(java.frame_of(compiled(spark, job, encode(job), setting)))
    assert {*names} == {"orders", "again"}
    record = recorded(str(at), 0, "", names)
    for name, first in (("orders", 10), ("again", 110)):
        write(tmp_path / name / "2", [{"id": first + number} for number in range(10)])
    run(spark, job, tmp_path / "elsewhere", version=2, batch=0, recorded=record)
    wanted = [*range(6, 20), *range(100, 120)]
    for name in ("out", "lines"):
        assert sorted(one["id"] for one in written(tmp_path / name)) == wanted


def with_lands(orders: Any, users: Any) -> Any:
    """Join a stream with a table."""
    return orders.join(users, "user", "left")


def visits(with_lands: Any) -> Any:
    """Return sessions of users, which end after 7 minutes without an order."""
    sessions = with_lands.groupBy(of.session_window("at", "7 minutes"), "user").agg(of.count("*").alias("n"))
    return sessions.select("user", of.col("session_window.start").alias("began"), "n")


def paid(orders: Any, payments: Any) -> Any:
    """Return all orders, with their payment within five minutes if there is one."""
    within = of.expr("id = order_id and paid_at between at and at + interval 5 minutes")
    return orders.join(payments.withWatermark("paid_at", "10 minutes"), within, "left").select("id", "paid_at")


def once(orders: Any) -> Any:
    """Return one row for each user and hour."""
    return orders.select("user", of.date_trunc("hour", "at").alias("at")).dropDuplicates(["user", "at"])


HOURS = """
select window.start as hour, land, sum(amount) as amount
from with_lands
group by window(at, '1 hour'), land
"""


def shop(folder: Path) -> Job:
    """Return a job with a frame of each kind; orders come in two batches."""
    orders = [order(number) for number in range(240)]
    halves = folder / "orders"
    for part in range(2):
        write(halves / f"half-{part}", orders[part * 120 : part * 120 + 120])
    payments = [{"order_id": one["id"], "paid_at": one["at"]} for one in orders if one["id"] % 3]
    users = [{"user": f"u{number}", "land": "NO" if number % 2 else "SE"} for number in range(4)]
    outputs = ["hours", "visits", "paid", "once"]
    return Job(
        id="shop",
        workflow=[
            *(("orders", "with_lands"), ("users", "with_lands"), ("with_lands", "hours"), ("with_lands", "visits")),
            *(("orders", "paid"), ("payments", "paid"), ("orders", "once")),
            *((name, f"{name} out") for name in outputs),
        ],
        catalog=[
            Input(
                "orders",
                format="json",
                path=f"{halves}/*",
                schema=ORDERS,
                options={"maxFilesPerTrigger": "2"},
                time="at",
                watermark_ms=600_000,
            ),
            Input(
                "payments",
                format="json",
                path=write(folder / "payments", payments),
                schema="order_id long, paid_at timestamp",
            ),
            Input(
                "users",
                format="json",
                path=write(folder / "users", users),
                schema="user string, land string",
                static=True,
            ),
            Frame("with_lands", f"{__name__}:with_lands"),
            Sql("hours", HOURS),
            Frame("visits", f"{__name__}:visits"),
            Frame("paid", f"{__name__}:paid"),
            Frame("once", f"{__name__}:once"),
            *(Output(f"{name} out", format="parquet", path=str(folder / name)) for name in outputs),
        ],
        key_groups=2,
    )


def late_rows(folder: Path, rows: list[dict[str, Any]]) -> Job:
    """Return a job whose batches read one row each, with tasks that filter the rows that its windows have."""
    for number, row in enumerate(rows):
        file = folder / f"in/{number}.json"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(row))
        os.utime(file, (1_000_000 + number, 1_000_000 + number))
    one = {"maxFilesPerTrigger": "1"}
    source = Input("orders", None, "json", str(folder / "in"), one, schema=ORDERS, time="at", watermark_ms=0)
    return Job(
        id="late",
        workflow=[
            *(("orders", "all"), ("all", "hours"), ("all", "rare"), ("orders", "none")),
            *((name, f"{name} out") for name in ("hours", "rare", "none")),
        ],
        catalog=[
            source,
            Sql("all", "select * from orders"),
            Sql("hours", "select window.start as hour, count(*) as n from all group by window(at, '1 hour')"),
            Sql("rare", "select id from all where amount = 1"),
            Sql("none", "select id from orders where user is null"),
            *(
                Output(f"{name} out", format="parquet", path=str(folder / name), options={"schema": schema})
                for name, schema in (("hours", "hour timestamp, n long"), ("rare", "id long"), ("none", "id long"))
            ),
        ],
        key_groups=2,
    )


def test_a_task_that_filters_rows_does_not_hold_back_the_windows_of_another(spark: Any, tmp_path: Path) -> None:
    """The watermark follows all rows of the input; so a row of an hour that is over is late."""
    rows = [
        {"id": hour, "user": "u", "amount": int(hour < 1), "at": f"2027-01-01T{hour:02d}:30:00Z"}
        for hour in (0, 1, 2, 3, 4, 1)
    ]
    completed(spark, late_rows(tmp_path, rows), tmp_path)
    assert [one["id"] for one in written(tmp_path / "rare", "parquet")] == [0]
    found = sorted((one["hour"].hour, one["n"]) for one in written(tmp_path / "hours", "parquet"))
    assert found == [(hour, 1) for hour in range(5)]


def test_the_static_join_of_the_page_runs(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each order has the columns of its user, and hours of a land are summed."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    file = tmp_path / "shop.py"
    file.write_text(code("shop.py", (DOCS / "dataframes.rst").read_text("utf-8")))
    orders = [order(number) for number in range(120)]
    write(tmp_path / "orders", orders)
    users = [{"user": f"u{number}", "land": "NO" if number % 2 else "SE"} for number in range(5)]
    parquet.write_table(pyarrow.Table.from_pylist(users), tmp_path / "users")
    shown = load_job(f"{file}:job")
    catalog = [
        evolve(task, path=str(tmp_path / Path(task.path).name)) if isinstance(task, (Input, Output)) else task
        for task in shown.catalog
    ]
    completed(spark, evolve(shown, catalog=catalog, key_groups=2), tmp_path)
    lands = {one["user"]: one["land"] for one in users}
    taxes: Counter[Any] = Counter()
    for one in orders:
        taxes[one["at"][11:13], lands[one["user"]]] += one["amount"] * 0.2
    said = {(f"{row['hour']:%H}", row["land"]): row["tax"] for row in written(tmp_path / "hours", "parquet")}
    assert said == pytest.approx(dict(taxes))


def test_a_query_to_partitions_a_table_and_an_output_with_errors(spark: Any, tmp_path: Path) -> None:
    """Rows of a frame reach every kind of output; one that an output refuses goes to its errors."""
    orders = [order(number) for number in range(100)]
    job = Job(
        id="kinds",
        workflow=[("orders", "half"), ("half", "users"), ("half", "lake"), ("half", "whole")],
        catalog=[
            Input("orders", format="json", path=write(tmp_path / "in", orders), schema=ORDERS),
            Sql("half", "select id, user, amount / 2 as half, nullif(amount, 49) as amount from orders"),
            Output(
                "users",
                format="parquet",
                path=str(tmp_path / "users"),
                options={
                    "schema": "id long, user string, half double, amount long",
                    "partition_by": "user",
                    "file_rows_max": "10",
                },
            ),
            Output("lake", format="delta", path=str(tmp_path / "lake")),
            Output(
                "whole",
                format="json",
                path=str(tmp_path / "whole"),
                options={"schema": "id long, amount long not null", "other_fields": "drop"},
                errors="broken",
            ),
            Output("broken", format="json", path=str(tmp_path / "broken")),
        ],
    )
    completed(spark, job, tmp_path)
    expected = {one["id"]: (one["user"], one["amount"] / 2) for one in orders}
    users = spark.read.parquet(str(tmp_path / "users"))
    assert {row.id: (row.user, row.half) for row in users.collect()} == expected
    assert {one.name for one in (tmp_path / "users").glob("user=*")} == {f"user=u{number}" for number in range(5)}
    lake = deltalake.DeltaTable(str(tmp_path / "lake")).to_pyarrow_table().to_pylist()
    assert {row["id"]: (row["user"], row["half"]) for row in lake} == expected and len(lake) == 100
    whole = {one["id"]: one["amount"] for one in written(tmp_path / "whole", "json")}
    broken = {json.loads(one["segment"])["id"] for one in written(tmp_path / "broken", "json")}
    assert whole == {one["id"]: one["amount"] for one in orders if one["amount"] != 49}
    assert broken == expected.keys() - whole.keys() and broken


def test_joins_and_windows_agree_with_a_batch_computation(spark: Any, tmp_path: Path) -> None:
    """The same functions on tables give the same rows, also those that only the end of the inputs completes."""
    job = shop(tmp_path)
    completed(spark, job, tmp_path)
    tables = {
        task.name: spark.read.schema(task.schema).json(str(task.path))
        for task in job.catalog
        if isinstance(task, Input)
    }
    tables["with_lands"] = with_lands(tables["orders"], tables["users"])
    tables["with_lands"].createOrReplaceTempView("with_lands")
    wanted = {
        "hours": spark.sql(HOURS),
        "visits": visits(tables["with_lands"]),
        "paid": paid(tables["orders"], tables["payments"]),
        "once": once(tables["orders"]),
    }
    for name, frame in wanted.items():
        found = Counter(spark.read.schema(frame.schema).parquet(str(tmp_path / name)).collect())
        assert found == Counter(frame.collect()), name
        assert len(found) > 3


def test_frames_and_functions_feed_each_other(spark: Any, tmp_path: Path) -> None:
    """Segments become columns by a declared schema, and rows become segments; the input is read once for all."""
    orders = [order(number) for number in range(200)]
    job = Job(
        id="mixed",
        workflow=[
            *(("orders", "large"), ("large", "names"), ("names", "same"), ("same", "out"), ("large", "out")),
            *(("orders", "small"), ("small", "counted"), ("small", "again")),
        ],
        catalog=[
            Input("orders", format="json", path=write(tmp_path / "in", orders), schema=ORDERS),
            Function("large", f"{HERE}:large_order"),
            Sql("names", "select id + 1000 as id, concat(user, '!') as user from large", schema="id int, user string"),
            Function("same", f"{HERE}:same"),
            BatchFunction("small", f"{HERE}:fewer_columns", {"most": 20}, returns="id long, amount long"),
            Output("out", format="json", path=str(tmp_path / "out")),
            Output("counted", format="csv", path=str(tmp_path / "counted"), options={"schema": "amount long, id long"}),
            Output("again", format="parquet", path=str(tmp_path / "again")),
        ],
    )
    events: list[Any] = []
    completed(spark, job, tmp_path, events)
    large = [one for one in orders if one["amount"] > 40]
    wanted = {(one["id"], one["user"]) for one in large} | {(one["id"] + 1000, one["user"] + "!") for one in large}
    assert {(one["id"], one["user"]) for one in written(tmp_path / "out")} == wanted
    assert len(written(tmp_path / "out")) == len(wanted) == 2 * len(large) > 10
    small = {(one["id"], one["amount"]) for one in orders if one["amount"] <= 20}
    assert {(int(number), int(amount)) for amount, number in written(tmp_path / "counted", "csv")} == small
    assert {(one["id"], one["amount"]) for one in written(tmp_path / "again", "parquet")} == small
    assert next(one["progress"]["rows"] for one in events if one["event"] == "progress") == len(orders)


def test_a_function_of_arrow_batches_gets_each_row_once(spark: Any, tmp_path: Path) -> None:
    """This holds however many tasks and outputs use its rows."""
    orders = [{"id": number} for number in range(50)]
    (tmp_path / "notes").mkdir()
    names = ("columns", "segments", "odd")
    job = Job(
        id="once",
        workflow=[
            *(("orders", "noted"), ("noted", "columns"), ("noted", "same"), ("same", "segments")),
            *(("noted", "some"), ("some", "odd")),
        ],
        catalog=[
            Input("orders", format="json", path=write(tmp_path / "in", orders), schema="id long"),
            BatchFunction("noted", f"{HERE}:noted_rows", {"folder": str(tmp_path / "notes")}, returns="id long"),
            Function("same", f"{HERE}:same"),
            Sql("some", "select * from noted where id % 2 = 1"),
            *(Output(name, format="json", path=str(tmp_path / name)) for name in names),
        ],
    )
    completed(spark, job, tmp_path)
    assert sum(int(file.read_text()) for file in (tmp_path / "notes").iterdir()) == len(orders)
    found = [sorted(row["id"] for row in written(tmp_path / name)) for name in names]
    assert found == [[*range(50)], [*range(50)], [*range(1, 50, 2)]]


def no_frame(orders: Any) -> Any:
    """Return no frame."""
    return orders.columns


def wrong(orders: Any) -> Any:
    """Name a column that does not exist."""
    return orders.select("amuont")


NOWHERE = "/nowhere/onyxq"
"""A folder that no test makes."""
REFUSED: dict[str, tuple[Any, str, str]] = {
    "a text that is no query": (Sql("t", "selec 1"), "catalog[1].sql", "Syntax error at or near 'selec'"),
    "an unknown view": (Sql("t", "select * from order"), "catalog[1].sql", "its views are orders"),
    "a command": (Sql("t", "drop table orders"), "catalog[1].sql", "is a command (DropTable), not a query"),
    "a program": (
        Sql("t", "select transform(id) using 'cat' as (id) from orders"),
        "catalog[1].sql",
        "runs other code (ScriptTransformation)",
    ),
    "a method of Java": (
        Sql("t", "select reflect('java.lang.System', 'nanoTime') as n from orders"),
        "catalog[1].sql",
        "runs other code (reflect)",
    ),
    "a method of Java after many columns": (
        Sql("t", f"select {', '.join(f'id + {n} as n{n}' for n in range(40))}, reflect('a.B', 'c') as n from orders"),
        "catalog[1].sql",
        "runs other code (reflect)",
    ),
    "a method of Java in a wide row": (
        Sql("t", f"select ({', '.join(map(str, range(40)))}, reflect('a.B', 'c')) as row from orders"),
        "catalog[1].sql",
        "runs other code (reflect)",
    ),
    "a computed name of a function": (
        Sql("t", "select identifier('ref' || 'lect')('java.lang.System', 'nanoTime') as n from orders"),
        "catalog[1].sql",
        "runs other code (expressionwithunresolvedidentifier)",
    ),
    "a method of Java for a computed name": (
        Sql("t", "select id from orders, identifier('ran' || 'ge')(reflect('java.lang.System', 'nanoTime'))"),
        "catalog[1].sql",
        "runs other code (PlanWithUnresolvedIdentifier)",
    ),
    "files of its own": (
        Sql("t", f"insert overwrite directory '{NOWHERE}' using csv select 1"),
        "catalog[1].sql",
        "is a command (InsertIntoDir), not a query",
    ),
    "a command after WITH": (
        Sql("t", f"with a as (select 1 as n) insert into csv.`{NOWHERE}` select * from a"),
        "catalog[1].sql",
        "is a command (InsertIntoStatement), not a query",
    ),
    "several commands": (
        Sql("t", f"from orders insert into csv.`{NOWHERE}` select id insert into csv.`{NOWHERE}` select user"),
        "catalog[1].sql",
        "is a command (InsertIntoStatement), not a query",
    ),
    "a procedure": (Sql("t", "call system.work()"), "catalog[1].sql", "is a command (Call), not a query"),
    "an aggregation without a watermark": (
        Sql("t", "select user, count(*) as n from orders group by user"),
        "catalog[1]",
        "Spark cannot append its rows to outputs",
    ),
    "no stream": (Sql("t", "select 1 as n"), "catalog[1]", "does not use its stream"),
    "no frame": (Frame("t", f"{__name__}:no_frame"), "catalog[1].fn", "returned a list, not a DataFrame"),
    "a function that raises": (Frame("t", f"{__name__}:wrong"), "t", "task t: AnalysisException: "),
    "a watermark of no time": (
        Sql("t", "select * from orders", time="user"),
        "catalog[1].time",
        "cannot have the watermark",
    ),
    "other columns than the output's": (
        Sql("t", "select id as number from orders"),
        "out",
        "output out: its frame has the column 'number', which is not one of its columns: id, user",
    ),
    "another type than the output's": (Sql("t", "select user as id from orders"), "out", "output out: "),
}


def test_a_frame_that_spark_cannot_use_is_refused_by_name(spark: Any, tmp_path: Path) -> None:
    """The job fails at once, before a batch, and its error names the field."""
    source = write(tmp_path / "in", [order(1)])
    for name, (task, field, said) in REFUSED.items():
        job = Job(
            id="refused",
            workflow=[("orders", "t"), ("t", "out")],
            catalog=[
                Input("orders", format="json", path=source, schema=ORDERS),
                task,
                Output("out", format="parquet", path=str(tmp_path / "out"), options={"schema": "id long, user string"}),
            ],
        )
        last = drive(spark, job, tmp_path / name)
        assert (last["event"], last["task"], last["restart"]) == ("failed", field, False), (name, last)
        assert said in last["error"] and "\n" not in last["error"], (name, last["error"])
