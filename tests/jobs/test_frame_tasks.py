"""A job with frame tasks is checked before it is submitted: the error names the key at fault."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from onyxq import BatchFunction, Condition, Frame, Function, Input, Job, Lifecycle, Output, Sql
from onyxq.errors import BadRequest
from onyxq.jobs.encoding import decode, encode
from onyxq.jobs.job_check import check, problems
from onyxq.jobs.options import takes_columns


def enrich(orders: Any, people: Any, rate: float) -> Any:
    """The function of a frame task."""
    return orders.join(people, "user").withColumn("tax", orders.amount * rate)


def job(*tasks: Any, edges: tuple[tuple[str, str], ...] = (), **changes: Any) -> Job:
    """Return a valid job with tasks replaced or added: orders are joined with users, and queried."""
    catalog = {
        "orders": Input("orders", format="json", path="/orders", schema="user string, amount long, at timestamp"),
        "users": Input("users", format="csv", path="/users", schema="user string, land string", static=True),
        "queued": Input("queued", queue="queued", schema="user string, amount long"),
        "parse": Function("parse", "json:loads"),
        "enrich": Frame("enrich", enrich, {"rate": 0.2}, frames={"people": "users"}),
        "big": Sql("big", "select *\nfrom enrich union all\n\tselect * from parse", schema="user string, amount long"),
        "clean": BatchFunction("clean", "shop:clean", returns="user string"),
        "out": Output("out", format="parquet", path="/out"),
    }
    flow = ("orders", "enrich"), ("users", "enrich"), ("enrich", "big"), ("queued", "parse"), ("parse", "big")
    catalog |= {task.name: task for task in tasks}
    edges = (*flow, ("queued", "clean"), ("big", "out"), ("clean", "out"), *edges)
    return Job(**{"id": "frames", "workflow": edges, "catalog": [*catalog.values()], **changes})


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        ("parquet", {"options": {"file_rows_max": "9"}}),
        ("parquet", {"options": {"other_fields": "add"}}),
        ("json", {"errors": "broken"}),
        ("delta", {"options": {"schema": "day string, n int", "partition_by": "day"}}),
        ("postgres", {}),
    ],
)
def test_an_output_that_looks_at_each_row_does_not_take_columns(kind: str, more: dict[str, Any]) -> None:
    """Rows of frames then become segments, so that a table with partitions refuses an empty string, too."""
    assert not takes_columns(Output("out", format=kind, path="/out", **more))
    assert takes_columns(Output("out", format="delta", path="/out"))


def test_a_job_with_frame_tasks_is_valid_and_survives_its_encoding() -> None:
    """All fields of the new tasks come back."""
    timed = evolve(job().task("big"), time="at", watermark_ms=5)
    for one in (job(), job(timed)):
        assert not list(problems(one))
        again = decode(encode(one))
        assert not list(problems(again))
        assert encode(again) == encode(one) and again.task("big") == one.task("big")
        assert again.task("clean") == one.task("clean") and again.task("users") == one.task("users")
    check(job(BatchFunction("clean", "json:loads", returns="user string")), importable=True)


WRONG: dict[str, tuple[Job, str, str]] = {
    "segments without columns": (
        job(Sql("big", "select 1")),
        "catalog[5].schema",
        "is missing: 'parse' gives segments; name the columns that they become, such as",
    ),
    "columns of another task": (
        job(Sql("big", "select 1", schema={"prase": "n long", "parse": "n long"})),
        "catalog[5].schema",
        "names 'prase', which gives it no segments; did you mean parse",
    ),
    "columns of columns": (
        job(BatchFunction("clean", "a:b", returns="n long", schema="n long")),
        "catalog[6].schema",
        "is for segments, but all tasks before 'clean' give columns",
    ),
    "a queue without columns": (
        job(Input("queued", queue="queued")),
        "catalog[2].schema",
        "is missing: 'clean' reads the queue as columns",
    ),
    "a name that is no parameter": (
        job(Input("new-users", format="json", path="/x"), edges=(("new-users", "enrich"),)),
        "catalog[4].frames",
        "must name a parameter for 'new-users'",
    ),
    "a frame of no edge": (
        job(Frame("enrich", enrich, frames={"people": "user"})),
        "catalog[4].frames.people",
        "is 'user', from which no edge leads to 'enrich'; did you mean users",
    ),
    "a param that is a frame": (
        job(Frame("enrich", enrich, {"orders": 1}, frames={"people": "users"})),
        "catalog[4].params",
        "names 'orders', which is the frame of 'orders'",
    ),
    "a static queue": (
        job(Input("queued", queue="queued", schema="n long", static=True)),
        "catalog[2].static",
        "is for a format",
    ),
    "a static input to an output": (
        job(edges=(("users", "out"),)),
        "workflow[8]",
        "leads from 'users', which is static",
    ),
    "a result of static inputs to an output": (
        job(Sql("lands", "select 1"), edges=(("users", "lands"), ("lands", "out"))),
        "workflow[9]",
        "leads from 'lands', which is static, to 'out': join it to a stream first",
    ),
    "a watermark without a column": (
        job(Input("orders", format="json", path="/orders", watermark_ms=1)),
        "catalog[0].time",
        "is missing: watermark_ms needs",
    ),
    "a watermark for segments": (
        job(Input("queued2", queue="queued", time="at"), edges=(("queued2", "parse"),)),
        "catalog[8].time",
        "is for inputs of a Frame, Sql or BatchFunction",
    ),
    "a condition before a frame": (
        job(flow_conditions=[Condition("orders", ["enrich"], "a:b")]),
        "flow_conditions[0]",
        "is for segments, but rows of 'orders' go to 'enrich' as columns: filter them there",
    ),
    "a lifecycle of a query": (
        job(lifecycles=[Lifecycle("big", on_exception="restart")]),
        "lifecycles[0].task",
        "is 'big': Frame and Sql tasks have no lifecycle",
    ),
    "a bound": (job(max_slots=2), "max_slots", "cannot be kept: Spark spreads 'enrich' over all slots"),
    "an empty query": (job(Sql("big", "")), "catalog[5].sql", "must be a query in SQL"),
    "two views of one name": (
        job(Input("Parse", format="json", path="/x"), edges=(("Parse", "big"),)),
        "catalog[5]",
        "reads 'parse' and 'Parse', which are the same name in SQL",
    ),
    "a circle": (job(edges=(("big", "enrich"),)), "workflow[8]", "closes a circle: enrich -> big -> enrich"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_frame_task_is_named(name: str) -> None:
    """The first problem is the one that was made."""
    wrong, field, said = WRONG[name]
    with pytest.raises(BadRequest) as caught:
        check(wrong)
    assert (caught.value.field, said in caught.value.message) == (field, True), caught.value.message


def test_a_function_that_does_not_take_its_frames_is_refused_where_it_is_submitted() -> None:
    """The error names the parameters that it would get."""
    wrong = job(
        Frame("enrich", enrich, frames={"people": "users"}), BatchFunction("clean", "json:loads", returns="n long")
    )
    assert not list(problems(wrong))
    with pytest.raises(BadRequest, match=r"catalog\[4\].fn cannot be called with orders, people: missing .*'rate'"):
        check(wrong, importable=True)
