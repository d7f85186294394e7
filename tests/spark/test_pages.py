"""Each block of Python on the pages about Spark works as it is shown, with other paths and addresses."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TypeAlias

import deltalake
import psycopg
import pytest
from attrs import evolve
from confluent_kafka import Producer
from pyarrow import parquet
from pyspark.sql import functions as of

from onyxq import Client, Input, Job, Output, Reduce
from onyxq.errors import Conflict
from onyxq.jobs.encoding import decode, encode
from onyxq.jobs.job_check import check
from onyxq.spark.datasource import register
from tests.interfaces.live_world import running
from tests.outbox.postgres import database, postgres
from tests.spark.archive_world import task as archived
from tests.spark.archive_world import write as write_archive
from tests.spark.job_world import written
from tests.spark.kafka_world import WAIT_S, brokers, read
from tests.spark.page_world import VALUE, Reader, blocks, executed, of_output
from tests.spark.tasks import Payments

__all__ = ["brokers", "database", "postgres"]

Made: TypeAlias = Callable[[Path], Job]
MINUTE_MS = 60_000
AT_MS = 28_333_334 * MINUTE_MS
ROOT = Path(__file__).resolve().parents[2]
ELSEWHERE = {
    "dataframes/shop.py": "spark/test_frames.py",
    "dataframes/test_shop.py": "spark/test_preview.py",
    "jobs/calls.py": "jobs/test_jobs_page.py",
    "jobs/routes.py": "jobs/test_jobs_page.py",
    "outputs/compact.py": "spark/test_delta.py",
    "outputs/fenced.py": "spark/test_postgres.py",
    "spark-clusters/driver.py": "spark/test_submit.py",
    "spark-clusters/waiting.py": "spark/test_submit.py",
}
"""Blocks that other tests run -> the module."""


# --- jobs of the pages


def clicks(folder: Path) -> Job:
    """Return the job with windows."""
    found: Job = executed("windows/clicks.py", {"/data": str(folder)}, {})["job"]
    return found


def triggers(folder: Path) -> Job:
    """Return a job with the other triggers of the same window, which reads files."""
    made = executed("windows/triggers.py", {}, {})["triggers"]
    schema = "user string, amount bigint, kind string"
    return Job(
        id="triggers",
        workflow=[("clicks", "counted"), ("counted", "totals")],
        catalog=[
            Input("clicks", format="json", path=str(folder / "clicks"), schema=schema),
            Reduce("counted"),
            Output("totals", format="json", path=str(folder / "totals")),
        ],
        windows=[window for window in clicks(folder).windows if window.id == "total"],
        triggers=made,
    )


def paid(folder: Path) -> Job:
    """Return a job with the join."""
    schema = "order_id bigint, at_ms bigint"
    return Job(
        id="paid",
        workflow=[("orders", "paid"), ("payments", "paid"), ("paid", "out")],
        catalog=[
            *(Input(name, format="json", path=str(folder / name), schema=schema) for name in ("orders", "payments")),
            executed("windows/paid.py", {}, {})[VALUE],
            Output("out", format="json", path=str(folder / "out")),
        ],
    )


def sold(folder: Path) -> Input:
    """Return the input of the outputs below."""
    columns = "shop string, day date, amount decimal(12,4), price decimal(12,4), at timestamp, tags array<string>"
    schema = f"{columns}, user string, order string"
    return Input("sold", format="json", path=str(folder / "sold"), schema=schema)


def sales(folder: Path) -> Job:
    """Return a job with the output that has partitions and errors."""
    output = executed("outputs/sales.py", {"/data": str(folder)}, {})[VALUE]
    refused = Output("refused", format="json", path=str(folder / "refused"))
    return of_output(output, sold(folder), ["shop", "day", "amount"], refused)


def lake(folder: Path) -> Job:
    """Return a job with the table of Delta."""
    output = executed("outputs/lake.py", {"/data": str(folder)}, {})[VALUE]
    return of_output(output, sold(folder), ["shop", "day", "amount"])


def priced(folder: Path) -> Job:
    """Return a job with the output that has a schema."""
    output = executed("jobs/priced.py", {"/data": str(folder)}, {})[VALUE]
    return of_output(output, sold(folder), ["user", "at", "price", "tags"])


def billing(folder: Path) -> Job:
    """Return a job with the function as an output."""
    given = {"payments": Payments(str(folder / "charged"))}
    output = executed("outputs/billing.py", {"/data": str(folder)}, given)[VALUE]
    return of_output(output, sold(folder), ["order", "user", "amount"])


def by_day(folder: Path) -> Job:
    """Return a job with the function of a DataFrame as an output."""
    output = executed("outputs/by_day.py", {"/data": str(folder)}, {})[VALUE]
    return of_output(output, sold(folder), ["order", "day", "amount"])


def totals(folder: Path, url: str = "postgresql://etl@127.0.0.1/shop") -> Job:
    """Return a job with the table of PostgreSQL."""
    places = {"/data": str(folder), "postgresql://etl@db.example/shop": url}
    return of_output(executed("outputs/totals.py", places, {})[VALUE], sold(folder), ["shop", "day", "amount"])


def alerts(folder: Path, addresses: str = "127.0.0.1:9092") -> Job:
    """Return a job with the topic of Kafka."""
    places = {
        "/data": str(folder),
        "kafka1:9092, kafka2:9092": addresses,
        "/etc/onyxq/kafka.properties": str(folder / "kafka.properties"),
    }
    refused = Output("refused", format="json", path=str(folder / "refused"))
    return of_output(executed("outputs/alerts.py", places, {})[VALUE], sold(folder), ["user", "shop"], refused)


def orders(folder: Path) -> Job:
    """Return the first job of all."""
    found: Job = executed("jobs/orders.py", {"/data": str(folder)}, {})["job"]
    return found


def words(folder: Path) -> Job:
    """Return the job that is compared with Onyx."""
    found: Job = executed("from-onyx/words.py", {}, {})["job"]
    return found


def sized(folder: Path) -> Job:
    """Return the job with settings of its own host; only its workflow is missing."""
    shown: Job = executed("spark-clusters/sized.py", {}, {})["job"]
    return evolve(shown, workflow=[("in", "out")], catalog=[Input("in", queue="a"), Output("out", queue="b")])


JOBS: dict[str, Made] = {
    "from-onyx/words.py": words,
    "jobs/orders.py": orders,
    "jobs/priced.py": priced,
    "outputs/alerts.py": alerts,
    "outputs/billing.py": billing,
    "outputs/by_day.py": by_day,
    "outputs/lake.py": lake,
    "outputs/sales.py": sales,
    "outputs/totals.py": totals,
    "spark-clusters/sized.py": sized,
    "windows/clicks.py": clicks,
    "windows/paid.py": paid,
    "windows/triggers.py": triggers,
}
"""Blocks with jobs, and with parts of jobs."""


@pytest.mark.parametrize("name", JOBS)
def test_a_job_of_a_page_can_be_submitted(name: str, tmp_path: Path) -> None:
    """It is valid, and the peer gets the same job."""
    job = JOBS[name](tmp_path)
    check(job)
    assert decode(encode(job)).workflow == job.workflow


# --- what they do on Spark


Run: TypeAlias = Callable[[Reader, pytest.FixtureRequest], None]
RUNS: dict[tuple[str, ...], Run] = {}


def runs(*names: str) -> Callable[[Run], Run]:
    """Register a function that runs blocks of pages."""

    def register(run: Run) -> Run:
        RUNS[names] = run
        return run

    return register


@pytest.fixture(scope="module")
def peer(java: None) -> Iterator[str]:
    """The address of a peer that hosts Spark."""
    with running(slots=2) as cluster:
        yield cluster.addresses[0]


@pytest.fixture
def reader(peer: str, tmp_path: Path) -> Iterator[Reader]:
    """A reader of the pages."""
    with Client(peer) as client:
        yield Reader(tmp_path, peer, client)


@runs("windows/clicks.py")
def run_clicks(reader: Reader, request: pytest.FixtureRequest) -> None:
    """Minutes are counted by page, and amounts summed by user; what a timer emits is not emitted again."""
    made = [
        {"page": f"/{number % 3}", "user": f"u{number % 2}", "amount": number, "at_ms": AT_MS + number * 1_000}
        for number in range(150)
    ]
    reader.enqueue("clicks", made)
    reader.completed(clicks(reader.folder))
    found = {(one["key"], one["start_ms"]): one["value"] for one in written(reader.folder / "minutes", "parquet")}
    assert found == Counter((one["page"], one["at_ms"] // MINUTE_MS * MINUTE_MS) for one in made)
    sums: Counter[str] = Counter()
    for one in reader.taken("totals"):
        sums[one["key"]] += one["value"]
    assert sums == {"u0": sum(range(0, 150, 2)), "u1": sum(range(1, 150, 2))}


@runs("windows/triggers.py")
def run_triggers(reader: Reader, request: pytest.FixtureRequest) -> None:
    """One trigger emits each hundred segments, the other one at the segment that ends a day."""
    kinds = ["click"] * 119 + ["end of day"] + ["click"] * 130
    reader.write("clicks", ({"user": "ann", "amount": 1, "kind": kind} for kind in kinds))
    reader.completed(triggers(reader.folder))
    assert sorted(one["value"] for one in written(reader.folder / "totals")) == [50, 100, 100, 120, 250]


@runs("windows/paid.py")
def run_paid(reader: Reader, request: pytest.FixtureRequest) -> None:
    """A payment within an hour is paired; an order without one is emitted with None."""
    reader.write("orders", ({"order_id": number, "at_ms": AT_MS} for number in range(3)))
    reader.write("payments", ({"order_id": number, "at_ms": AT_MS + number * 59 * MINUTE_MS} for number in range(1, 3)))
    reader.completed(paid(reader.folder))
    found = {one["left"]["order_id"]: one["right"] for one in written(reader.folder / "out")}
    assert found == {0: None, 1: {"order_id": 1, "at_ms": AT_MS + 59 * MINUTE_MS}, 2: None}


SOLD = [
    {"shop": "a/b", "day": "2027-01-15", "amount": 9.5, "price": 1.25, "user": "ann", "order": "o1"},
    {"shop": "c", "day": "2027-01-16", "amount": 0.125, "price": 0.5, "user": "bob", "order": "o2"},
]
"""The second amount does not fit a column with two digits after the point."""
FITS = [row | {"amount": 3.75} for row in SOLD]


@runs("outputs/sales.py")
def run_sales(reader: Reader, request: pytest.FixtureRequest) -> None:
    """The row that fits is in the folder of its day and shop, and the other one goes to the output for errors."""
    reader.write("sold", SOLD)
    reader.completed(sales(reader.folder))
    (file,) = reader.folder.glob("sales/*/*/*.parquet")
    assert file.parent.relative_to(reader.folder).as_posix() == "sales/day=2027-01-15/shop=a%2Fb"
    assert parquet.ParquetFile(file).read().to_pylist() == [{"amount": Decimal("9.50")}]
    (refused,) = written(reader.folder / "refused")
    assert refused["output"] == "sales" and refused["error"].startswith("output sales: amount: ")


@runs("outputs/lake.py")
def run_lake(reader: Reader, request: pytest.FixtureRequest) -> None:
    """The table has the rows."""
    reader.write("sold", FITS)
    reader.completed(lake(reader.folder))
    table = deltalake.DeltaTable(str(reader.folder / "lake/sales"))
    rows = table.to_pyarrow_table().to_pylist()
    assert {(row["shop"], f"{row['day']}", row["amount"]) for row in rows} == {
        (row["shop"], row["day"], Decimal("3.75")) for row in FITS
    }
    assert table.metadata().partition_columns == ["day"]


@runs("jobs/priced.py")
def run_priced(reader: Reader, request: pytest.FixtureRequest) -> None:
    """Types are those of the schema."""
    reader.write("sold", [FITS[0] | {"at": "2027-01-15T08:00:00Z", "tags": ["new"]}])
    reader.completed(priced(reader.folder))
    (row,) = written(reader.folder / "priced", "parquet")
    assert (row["user"], row["price"], row["tags"]) == ("ann", Decimal("1.25"), ["new"])
    assert row["at"].isoformat() == "2027-01-15T08:00:00+00:00"


@runs("outputs/billing.py")
def run_billing(reader: Reader, request: pytest.FixtureRequest) -> None:
    """Each order is charged once, with a key of its own."""
    reader.write("sold", FITS)
    reader.completed(billing(reader.folder))
    charged = [line.split() for line in (reader.folder / "charged").read_text().splitlines()]
    assert sorted((user, amount) for user, amount, _ in charged) == [("ann", "3.75"), ("bob", "3.75")]
    assert {key.rpartition("/")[2] for _, _, key in charged} == {"o1", "o2"}
    assert all(key.startswith("onyxq/of-billing/billing/") for _, _, key in charged)


@runs("outputs/by_day.py")
def run_by_day(reader: Reader, request: pytest.FixtureRequest) -> None:
    """The sums of a batch are in a folder of their own."""
    reader.write("sold", FITS)
    reader.completed(by_day(reader.folder))
    days = Counter(row["day"] for row in FITS)
    found = {str(one["day"]): one["sum(amount)"] for one in written(reader.folder / "by_day" / "batch=0", "parquet")}
    assert found == {day: number * Decimal("3.75") for day, number in days.items()}


@runs("outputs/totals.py")
def run_totals(reader: Reader, request: pytest.FixtureRequest) -> None:
    """Rows are in the table, and a later row replaces the one with its key."""
    url = request.getfixturevalue("database")
    columns = "shop text NOT NULL, day date NOT NULL, amount numeric, UNIQUE (shop, day)"
    with psycopg.connect(url) as connection:
        connection.execute(f"CREATE TABLE totals ({columns})")
        connection.execute("INSERT INTO totals VALUES ('c', '2027-01-16', 1)")
    reader.write("sold", FITS)
    reader.completed(totals(reader.folder, url))
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT shop, day::text, amount FROM totals ORDER BY shop").fetchall()
    assert found == [(row["shop"], row["day"], Decimal("3.75")) for row in FITS]


@runs("outputs/alerts.py")
def run_alerts(reader: Reader, request: pytest.FixtureRequest) -> None:
    """Each segment is a message with the key of its user."""
    addresses = request.getfixturevalue("brokers")
    maker = Producer({"bootstrap.servers": addresses})
    maker.produce("alerts", b"first")
    assert maker.flush(WAIT_S) == 0
    (reader.folder / "kafka.properties").write_text("message.timeout.ms=60000\n")
    reader.write("sold", FITS)
    reader.completed(alerts(reader.folder, addresses))
    found = {message.key(): json.loads(message.value()) for message in read(addresses, "alerts")}
    assert found == {b"ann": {"user": "ann", "shop": "a/b"}, b"bob": {"user": "bob", "shop": "c"}}


@runs("from-onyx/words.py")
def run_words(reader: Reader, request: pytest.FixtureRequest) -> None:
    """Long words are counted by the hour."""
    reader.enqueue("sentences", [{"text": "count these these are words", "at": AT_MS}])
    reader.completed(words(reader.folder))
    assert {one["key"]: one["value"] for one in reader.taken("hours")} == {"count": 1, "these": 2, "words": 1}


@runs("jobs/orders.py", "jobs/letters.py", "changing-jobs/replace.py")
def run_orders(reader: Reader, request: pytest.FixtureRequest) -> None:
    """Orders go where conditions say. A broken one is a dead letter, fails again, and the job is replaced."""
    client, job = reader.client, evolve(orders(reader.folder), dead_letters=True)
    reader.enqueue("orders", ["ann,1200", "bob,7", "nobody"])
    client.submit_job(job)
    reader.until(job.id, lambda: client.job_letters(job.id, count=True)["counts"])
    shown = executed("jobs/letters.py", {}, {"client": client})
    assert json.loads(shown["letter"]["segment"]) == "nobody" and shown["again"]["count"] == 1
    assert client.wait_job(shown["again"]["id"], 240_000).completed
    (letter,) = client.job_letters(shown["again"]["id"])["letters"]
    assert (letter["attempt"], letter["error"]) == (2, "ValueError")
    name = executed("changing-jobs/replace.py", {}, {"client": client, "job": job})["name"]
    assert (name, client.wait_job(job.id).state) == ("orders-2", "killed")
    reader.enqueue("orders", ["cid,1000"])
    reader.sealed(job, name)
    kept = {(one["user"], one["amount"]) for one in written(reader.folder / "orders")}
    assert kept == {("ann", 1200), ("bob", 7), ("cid", 1000)}
    assert sorted(one["user"] for one in reader.taken("large-orders")) == ["ann", "cid"]


def visits(folder: Path, outputs: str) -> Job:
    """Return the job of the page about changes, which has no definition there."""
    return Job(
        id="visits",
        workflow=[("in", "daily"), ("in", "alerts")],
        catalog=[
            Input("in", format="json", path=str(folder / "in"), schema="user string", bounded=False),
            Output("daily", format="json", path=str(folder / outputs)),
            Output("alerts", queue=f"alerts of {outputs}"),
        ],
    )


@runs("changing-jobs/return_to.py", "changing-jobs/again.py")
def run_visits(reader: Reader, request: pytest.FixtureRequest) -> None:
    """A job begins from a savepoint, and a replay reads all files again."""
    client, job = reader.client, visits(reader.folder, "daily")
    reader.write("in", [{"user": "ann"}])
    client.submit_job(job)
    reader.until(job.id, lambda: client.job(job.id)["batch"] is not None)
    second = visits(reader.folder, "second")
    name = executed("changing-jobs/return_to.py", {}, {"client": client, "job": second})["name"]
    with pytest.raises(Conflict):
        client.delete_savepoint("before-2.1")
    reader.write("in", [{"user": "bob"}])
    reader.until(name, lambda: client.job(name)["batch"] is not None and written(reader.folder / "second"))
    client.delete_savepoint("before-2.1")
    again = executed("changing-jobs/again.py", {"/data": str(reader.folder)}, {"client": client})["name"]
    for each in (name, again, job.id):
        reader.sealed(job, each)
    assert written(reader.folder / "second") == [{"user": "bob"}]
    for folder in ("daily", "daily-again"):
        assert sorted(one["user"] for one in written(reader.folder / folder)) == ["ann", "bob"]
    assert Counter(one["user"] for one in reader.taken("alerts of daily")) == {"ann": 2, "bob": 2}


# --- programs of Spark


@runs("queues-on-spark/shout.py")
def run_shout(reader: Reader, request: pytest.FixtureRequest) -> None:
    """Payloads go from one queue to the other, in capitals."""
    spark, client = request.getfixturevalue("spark"), reader.client
    client.enqueue_many("orders", [b"one", b"two"])
    places = {"peer1:7400,peer2:7400": reader.address, "peer1:7400": reader.address, "/data": str(reader.folder)}
    executed("queues-on-spark/shout.py", places, {"spark": spark})
    (query,) = spark.streams.active
    while (counts := client.count("orders")["orders"])["completed"] < counts["total"]:
        assert not query.awaitTermination(0.1)
    query.stop()
    batch = client.claim("shouted", max=10, worker="reader")
    assert sorted(batch.payloads) == [b"ONE", b"TWO"]


@runs("queues-on-spark/check.py")
def run_check(reader: Reader, request: pytest.FixtureRequest) -> None:
    """A row with an error fails its task, and the others are in the other queue."""
    spark, client = request.getfixturevalue("spark"), reader.client
    register(spark)
    wrong = of.udf(lambda amount: "too small" if amount < 1 else None)
    work = executed("queues-on-spark/check.py", {"peer1:7400": reader.address}, {"check": wrong})["work"]
    reader.enqueue("unchecked", [{"user": "ann", "amount": 2.5}, {"user": "bob", "amount": 0.5}])
    options = {"connect": reader.address, "queue": "unchecked", "schema": "user string, amount double"}
    stream = spark.readStream.format("onyxq").options(**options).load().writeStream.foreachBatch(work)
    checkpoint = str(reader.folder / "checkpoint")
    stream.option("checkpointLocation", checkpoint).trigger(availableNow=True).start().awaitTermination()
    assert reader.taken("checked") == [{"user": "ann", "amount": 2.5}]
    states = {json.loads(task.data)["user"]: task.attempts for task in client.list_all("unchecked")}
    assert states == {"ann": 0, "bob": 1}


@runs("sql/states.py")
def run_states(reader: Reader, request: pytest.FixtureRequest) -> None:
    """The table has tasks of the cluster and of an archive."""
    spark, archive = request.getfixturevalue("spark"), reader.folder / "archive"
    printed = request.getfixturevalue("capsys")
    write_archive(archive, [archived(1, None), archived(2, None)])
    reader.client.enqueue("states", b"one")
    places = {"/var/lib/onyxq-tasks": str(archive), "options(": f"options(connect={reader.address!r}, "}
    executed("sql/states.py", places, {"spark": spark})
    assert "completed" in printed.readouterr().out
    found = {row.state: row.n for row in spark.sql("select state, count(*) as n from tasks group by state").collect()}
    assert found["completed"] >= 2 and found["ready"] >= 1


@pytest.mark.long
@pytest.mark.parametrize("names", RUNS, ids=lambda names: names[0])
def test_the_blocks_of_a_page_run(names: tuple[str, ...], reader: Reader, request: pytest.FixtureRequest) -> None:
    """Each program does what its page says."""
    RUNS[names](reader, request)


def test_the_test_of_the_page_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It imports the job of the page, and needs neither a cluster nor Spark."""
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.delitem(sys.modules, "orders", raising=False)
    (tmp_path / "orders.py").write_text(blocks()["jobs/orders.py"])
    executed("jobs/test_orders.py", {}, {})["test_large_orders_are_passed_on"]()
    monkeypatch.delitem(sys.modules, "orders")


def test_each_block_of_the_pages_runs_in_a_test() -> None:
    """A new block needs a test, and a caption by which it is found."""
    here = {name for names in RUNS for name in names} | JOBS.keys()
    assert blocks().keys() == here | ELSEWHERE.keys() | {"jobs/test_orders.py"}
    assert {name for name in JOBS if name != "spark-clusters/sized.py"} <= {name for names in RUNS for name in names}
    for name, module in ELSEWHERE.items():
        assert name.partition("/")[2] in (ROOT / "tests" / module).read_text("utf-8"), name
