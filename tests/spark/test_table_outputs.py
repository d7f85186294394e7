"""Tables, topics and functions as outputs of a job that Spark runs, and a new driver that completes the last batch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("confluent_kafka")
pytest.importorskip("deltalake")
pytest.importorskip("psycopg")

import deltalake
import msgpack
import psycopg
import pyarrow
from attrs import evolve

from onyxq.jobs.encoding import decode, encode
from onyxq.jobs.model import Input, Job, Output
from onyxq.jobs.values import pack
from onyxq.spark.files.file_sink import stage
from onyxq.spark.files.formats import described
from onyxq.spark.files.staging import Staging
from onyxq.spark.plan.compile import folders_of
from onyxq.spark.state_copy import recover
from tests.outbox.postgres import database, postgres
from tests.spark.job_world import HERE, run
from tests.spark.kafka_world import brokers, read, topic

__all__ = ["brokers", "database", "postgres", "topic"]

pytestmark = pytest.mark.long

LAST: dict[str, Any] = {"job": "tables", "batch": 1, "part": 0}
"""The batch that the log has and the driver before has not given to its outputs."""


def test_a_batch_is_in_every_table_once_and_a_new_driver_completes_the_last_one(
    spark: Any, database: str, brokers: str, topic: str, tmp_path: Path
) -> None:
    """Delta, PostgreSQL, Kafka and a function of the user; the new driver calls it in a worker."""
    (tmp_path / "in").mkdir()
    names = [str(tmp_path / f"called-{n}") for n in range(3)]
    (tmp_path / "in" / "a.txt").write_text("".join(f"{name}\n" for name in names))
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE words (value text PRIMARY KEY)")
    schema = {"schema": "value string not null"}
    outputs = [
        Output("lake", format="delta", path=str(tmp_path / "lake"), options=schema),
        Output(
            "rows",
            format="postgres",
            path=str(tmp_path / "rows"),
            options={**schema, "url": database, "table": "words", "key": "value"},
        ),
        Output(
            "topic",
            format="kafka",
            path=str(tmp_path / "topic"),
            options={"brokers": brokers, "topic": topic, "key": "value"},
        ),
        Output("calls", foreach_batch=f"{HERE}:noted", path=str(tmp_path / "calls"), options=schema),
    ]
    job = Job(
        id="tables",
        workflow=[("in", one.name) for one in outputs],
        catalog=[Input("in", format="text", path=str(tmp_path / "in")), *outputs],
    )
    run(spark, job, tmp_path, version=3)
    assert sorted(deltalake.DeltaTable(str(tmp_path / "lake")).to_pyarrow_table()["value"].to_pylist()) == names
    with psycopg.connect(database) as connection:
        assert connection.execute("SELECT value FROM words ORDER BY value").fetchall() == [(name,) for name in names]
    messages = {message.key().decode(): json.loads(message.value()) for message in read(brokers, topic)}
    assert messages == {name: {"value": name} for name in names}
    called = [json.loads(line) for name in names for line in Path(name).read_text().splitlines()]
    assert [(one["job"], one["version"], one["task"], one["batch"]) for one in called] == [
        ("tables", 3, "calls", 0)
    ] * 3
    assert len({one["key"] for one in called}) == 1

    more = str(tmp_path / "called-more")
    folders = folders_of(decode(encode(job)))
    task = Staging(
        {"calls": evolve(folders[3], schema=described(pyarrow.schema([("value", pyarrow.string())])))}, **LAST
    )
    task.add("calls", pack({"value": more}))
    stage(folders, task.finish(), job="tables", batch=1, mark="m")
    recover(spark, job, 1, msgpack.packb({"mark": "m"}), 4)
    again = json.loads(Path(more).read_text())
    assert (again["version"], again["batch"]) == (4, 1)
    assert again["key"].rpartition("/")[0] == called[0]["key"].rpartition("/")[0]
