"""The tables of everything that happened, read on Spark, against counts of the test's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThan, In, LessThanOrEqual, StringContains

from onyxq.core.limits import TIME_MS_MAX
from onyxq.errors import BadRequest
from onyxq.history.tables.selection import Selection
from onyxq.spark.datasource import register
from onyxq.spark.queues.options import table_options
from onyxq.spark.queues.tables import limited
from tests.interfaces.past_world import ADMIN, DONE, TENANT, World, past_world


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One cluster for all tests."""
    with past_world(tmp_path_factory.mktemp("archive")) as found:
        yield found


@pytest.mark.long
def test_spark_counts_what_happened(spark: Any, world: World) -> None:
    """Every table has each thing once; filters give the same rows with less work."""
    register(spark)
    said = {"connect": world.address, "token": ADMIN, "archive": str(world.archive)}
    for table in ("tasks", "attempts", "claims", "entries"):
        spark.read.format("onyxq").options(**said, table=table).load().createOrReplaceTempView(table)
    found = spark.sql("select queue, state, count(*), count(distinct id) from tasks group by all").collect()
    assert Counter({(row[0], row[1]): row[2] for row in found}) == world.states
    assert all(row[2] == row[3] for row in found)
    for table in ("attempts", "claims"):
        found = spark.sql(f"select queue, outcome, count(*) from {table} group by all").collect()
        assert Counter({(row[0], row[1]): row[2] for row in found}) == getattr(world, table)
    entries = spark.sql("select count(*), count(distinct position, coalesce(index, -1)) from entries").first()
    assert entries[0] == entries[1] == world.ask("select count(*) from entries where time < now()")[0][0]
    one = spark.sql(f"select queue, string(result), made from tasks where id = '{world.some_id}'").first()
    assert (one[0], one[1]) == ("bills", "paid")
    assert (
        spark.sql("select count(*) from tasks where made > now() - interval 1 hour and queue = 'bills'").first()[0]
        > DONE
    )
    tenant = spark.read.format("onyxq").options(**said | {"token": TENANT}, table="tasks", queue="mail").load()
    assert {row[0] for row in tenant.select("queue").distinct().collect()} == {"mail"}


def test_filters_of_spark_limit_what_is_read() -> None:
    """Those that are not understood change nothing."""
    at_ms = 1_800_000_000_000
    found = Selection()
    filters = [
        In(("queue",), ("a", "b", None)),
        EqualTo(("queue",), "a"),
        In(("state",), ("ready", "failed")),
        GreaterThan(("made",), datetime.fromtimestamp(at_ms / 1_000, UTC)),
        LessThanOrEqual(("id",), f"{at_ms + 5:012x}" + "0" * 28),
        StringContains(("error",), "x"),
        EqualTo(("made",), datetime(2030, 1, 1)),
        GreaterThan(("id",), "no id"),
    ]
    for one in filters:
        found = limited(found, "tasks", one)
    assert found == Selection(queues=("a",), states=frozenset(("ready", "failed")), since_ms=at_ms, until_ms=at_ms + 5)
    of_claims = limited(Selection(), "claims", EqualTo(("id",), f"{at_ms:012x}" + "0" * 28))
    assert (of_claims.since_ms, of_claims.until_ms) == (at_ms, at_ms)
    assert limited(Selection(), "entries", EqualTo(("queue",), "a")).queues is None
    assert limited(Selection(), "claims", EqualTo(("state",), "a")).until_ms == TIME_MS_MAX


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"table": "task"}, "table"),
        ({"table": "tasks", "live": "no"}, "live"),
        ({"table": "tasks", "state": "all"}, "state"),
    ],
)
def test_options_of_a_table_are_checked(options: dict[str, str], field: str) -> None:
    """The error names the option."""
    with pytest.raises(BadRequest) as error:
        table_options(options)
    assert error.value.field == field
