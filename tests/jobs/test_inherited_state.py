"""A job that resumes another must fit the places and the state that the other left, field by field."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from attrs import evolve

from onyxq.errors import BadRequest
from onyxq.jobs.inherited_state import END, adopts, check_fit, keeps_state
from onyxq.jobs.model import (
    Aggregation,
    BatchFunction,
    Frame,
    Function,
    HostSettings,
    Input,
    Job,
    Join,
    Output,
    Pickled,
    Reduce,
    Sql,
    Trigger,
    Window,
)

OLD = Job(
    id="old",
    workflow=[("in", "both"), ("users", "both"), ("both", "kept"), ("kept", "out")],
    catalog=[
        Input("in", queue="in"),
        Input("users", format="json", path="/data/users"),
        Join("both", left="in", right="users", on="user"),
        Reduce("kept"),
        Output("out", queue="out"),
    ],
    windows=[
        Window("minute", "kept", "fixed", range_ms=60_000, key=Pickled("by_page", b"1"), aggregation="count"),
        Window("total", "kept", aggregation=Aggregation("m:init", "m:fold", "m:merge")),
    ],
    triggers=[Trigger("minute"), Trigger("total", "batch", refinement="discarding")],
    key_groups=4,
)
NEW = evolve(OLD, id="new", resume="old")


ROWS = Job(
    id="old",
    workflow=[("in", "large"), ("large", "out")],
    catalog=[
        Input("in", queue="in", schema="n int"),
        Sql("large", "select * from `in` where n > 5"),
        Output("out", queue="out"),
    ],
)
"""A job whose frame task keeps no state; only the record of a batch shows that."""


def record(*inputs: str) -> bytes:
    """Return the record of a batch of a query with these sources."""
    packed: bytes = msgpack.packb({"offsets": b"", "mark": "", "inputs": inputs or None, "sources": None})
    return packed


def changed(things: tuple[Any, ...], name: str, **fields: Any) -> tuple[Any, ...]:
    """Return tasks or windows with one of them changed."""
    return tuple(
        evolve(one, **fields) if name in (getattr(one, "id", None), getattr(one, "name", None)) else one
        for one in things
    )


def test_what_state_does_not_depend_on_may_change() -> None:
    """Functions, outputs, watermarks, groups, new windows and the order of all; a function may be pickled again."""
    job = evolve(
        NEW,
        workflow=(*NEW.workflow, ("kept", "more"), ("more", "out")),
        catalog=(Function("more", "json:loads"), *changed(NEW.catalog, "both", how="left")),
        windows=(
            Window("hour", "kept", "fixed", range_ms=3_600_000),
            *reversed(changed(NEW.windows, "minute", key=Pickled("by_page", b"2"), watermark_ms=5)),
        ),
        triggers=(*NEW.triggers, Trigger("hour")),
        key_groups=16,
    )
    check_fit(OLD, job)


@pytest.mark.parametrize(
    ("field", "changes", "said"),
    [
        ("catalog[0].queue", {"catalog": changed(NEW.catalog, "in", queue="other")}, "'in' in job old"),
        ("catalog[1].path", {"catalog": changed(NEW.catalog, "users", path="/x")}, "its place does not fit"),
        ("catalog[2].on", {"catalog": changed(NEW.catalog, "both", on="name")}, "the state of its join"),
        ("catalog[2].left", {"catalog": changed(NEW.catalog, "both", left="users", right="in")}, "other side"),
        ("catalog", {"catalog": NEW.catalog[:2] + NEW.catalog[3:]}, "have no join 'both'"),
        ("windows[0].range_ms", {"windows": changed(NEW.windows, "minute", range_ms=1_000)}, "is 1000, but 60000"),
        ("windows[0].key", {"windows": changed(NEW.windows, "minute", key=Pickled("by_user", b"1"))}, "'by_page'"),
        ("windows[1].aggregation", {"windows": changed(NEW.windows, "total", aggregation="sum")}, "is 'sum'"),
        ("windows", {"windows": NEW.windows[:1], "triggers": NEW.triggers[:1]}, "have no window 'total'"),
        ("triggers", {"triggers": changed(NEW.triggers[::-1], "", )[:1]}, "'minute'"),
        ("drop_state", {"drop_state": ("minutes",)}, "names 'minutes'"),
    ],
)  # fmt: skip
def test_a_definition_that_does_not_fit_is_refused_by_name(field: str, changes: dict[str, Any], said: str) -> None:
    """The error shows what it is, and what it was."""
    with pytest.raises(BadRequest) as caught:
        check_fit(OLD, evolve(NEW, **changes))
    assert caught.value.field == field
    assert said in caught.value.message


def test_triggers_may_be_of_another_kind_but_not_in_another_order() -> None:
    """What a trigger has emitted belongs to its place, so its kind may change, and no trigger may change its place."""
    each, last = Trigger("minute", "batch", emit_to="out"), Trigger("minute")
    old = evolve(OLD, triggers=(each, OLD.triggers[1], last))
    for other in (Trigger("minute", "segments", count=5), Trigger("minute", "punctuation", predicate="m:ends")):
        check_fit(old, evolve(NEW, triggers=(other, OLD.triggers[1], last)))
        check_fit(old, evolve(NEW, triggers=(each, other, OLD.triggers[1])))
    with pytest.raises(BadRequest, match="is trigger 1 of window 'minute' in job old, and trigger 0 here") as caught:
        check_fit(old, evolve(NEW, triggers=(OLD.triggers[1], last, each)))
    assert caught.value.field == "triggers[1]"


def test_state_that_is_dropped_by_name_may_be_defined_anew() -> None:
    """A dropped window may also be missing."""
    narrow = changed(NEW.windows, "minute", range_ms=1_000)
    check_fit(OLD, evolve(NEW, windows=narrow, drop_state=("minute",)))
    check_fit(OLD, evolve(NEW, windows=narrow[:1], drop_state=("minute", "total")))


def test_a_completed_job_leaves_no_windows() -> None:
    """Only its places count."""
    check_fit(OLD, evolve(NEW, windows=(), triggers=()), completed=True)
    with pytest.raises(BadRequest, match=r"catalog\[0\]\.queue"):
        check_fit(OLD, evolve(NEW, catalog=changed(NEW.catalog, "in", queue="other")), completed=True)


def test_state_inside_spark_is_not_taken_over_by_another_plan() -> None:
    """A frame task must then begin empty, and so must all windows of its job."""
    old = evolve(OLD, catalog=(*OLD.catalog, Frame("ranks", "m:ranks")))
    new = evolve(old, id="new", resume="old", catalog=(*OLD.catalog, Frame("ranks", "m:others")))
    with pytest.raises(BadRequest, match="'ranks' keeps state inside Spark"):
        check_fit(old, new)
    with pytest.raises(BadRequest, match="'minute' in drop_state too"):
        check_fit(old, evolve(new, drop_state=("ranks",)))
    check_fit(old, evolve(new, drop_state=("ranks", "minute", "total", "both")))


HOURS = Job(
    id="old",
    workflow=[("in", "clean"), ("clean", "hours"), ("users", "hours"), ("hours", "out"), ("clean", "kept")],
    catalog=[
        Input("in", queue="in"),
        Input("users", format="json", path="/data/users", static=True),
        Function("clean", Pickled("clean", b"1"), {"limit": 1}),
        Sql(
            "hours",
            "select window.start, count(*) as n from clean group by window(at, '1 hour')",
            schema="at timestamp",
        ),
        Output("out", format="parquet", path="/data/out", options={"compression": "zstd"}),
        Output("kept", format="postgres", path="/data/kept", options={"table": "kept"}),
    ],
    host=HostSettings(conf={"spark.sql.ansi.enabled": "true"}),
    key_groups=4,
)
"""A job whose frame task keeps state."""


def test_a_job_with_the_same_plan_takes_over_the_state_of_frame_tasks() -> None:
    """Functions of segments, places of outputs, slots and resources may change."""
    catalog = changed(HOURS.catalog, "clean", fn=Pickled("clean", b"2"), params={"limit": 2}, max_slots=3)
    catalog = changed(changed(catalog, "out", path="/data/out-2"), "kept", options={"table": "others"})
    host = HostSettings(conf={"spark.sql.ansi.enabled": "true", "spark.memory.fraction": "0.5"}, driver_memory="2g")
    new = evolve(HOURS, id="new", resume="old", catalog=changed(catalog, "in", max_rows=5), host=host, key_groups=None)
    for one in (new, evolve(new, max_slots=3, trigger_ms=900, restarts=0, checkpoint="/elsewhere", tags=["gpu"])):
        check_fit(HOURS, one, record=record("in", END))
        assert adopts(HOURS, one, record("in", END)) and not adopts(HOURS, one, record("in"))
    assert not adopts(OLD, NEW, record("in", END)), "its state is copied cell by cell"


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ("workflow", {"workflow": [*HOURS.workflow, ("hours", "kept")]}),
        ("catalog", {"catalog": HOURS.catalog[::-1]}),
        (r"catalog\[3\].sql", {"catalog": changed(HOURS.catalog, "hours", sql="select 1")}),
        (r"catalog\[0\].schema", {"catalog": changed(HOURS.catalog, "in", schema="at timestamp")}),
        (r"catalog\[4\].options", {"catalog": changed(HOURS.catalog, "out", options={})}),
        (r"catalog\[4\].errors", {"catalog": changed(HOURS.catalog, "out", errors="kept")}),
        ("dead_letters", {"dead_letters": True}),
        ("host.conf", {"host": HostSettings(conf={"spark.sql.ansi.enabled": "false"})}),
        ("key_groups", {"key_groups": 8}),
    ],
)
def test_what_may_change_a_plan_is_named(field: str, changes: dict[str, Any]) -> None:
    """The job is refused until it drops the state."""
    new = evolve(HOURS, id="new", resume="old", **changes)
    with pytest.raises(BadRequest, match=f"'hours' keeps state inside Spark.* and {field} differs") as caught:
        check_fit(HOURS, new, record=record("in", END))
    assert caught.value.field == "resume" and not adopts(HOURS, new, record("in", END))
    dropped = evolve(new, drop_state=("hours",))
    check_fit(HOURS, dropped, record=record("in", END))
    assert not adopts(HOURS, dropped, record("in", END))


def test_the_record_of_a_batch_shows_whether_frame_tasks_keep_state() -> None:
    """Spark's plan decides. Before the first batch, and without names of the sources, they count as if they did."""
    assert not keeps_state(ROWS, record("in"))
    assert all(keeps_state(ROWS, one) for one in (b"", record(), record("in", END)))
    assert keeps_state(OLD, record("in"))
    batches = BatchFunction("large", "m:large", returns="n int")
    assert not keeps_state(evolve(ROWS, catalog=(ROWS.catalog[0], batches, ROWS.catalog[2])), b"")


def test_frame_tasks_without_state_need_no_drop_state() -> None:
    """The query may be another one; places must fit as always."""
    new = evolve(ROWS, id="new", resume="old", catalog=changed(ROWS.catalog, "large", sql="select n from `in`"))
    check_fit(ROWS, new, record=record("in"))
    check_fit(ROWS, evolve(new, drop_state=("large",)), record=record("in"))
    for one in (b"", record("in", END)):
        with pytest.raises(BadRequest, match="'large' keeps state inside Spark"):
            check_fit(ROWS, new, record=one)
    with pytest.raises(BadRequest, match=r"catalog\[0\]\.queue"):
        check_fit(ROWS, evolve(new, catalog=changed(new.catalog, "in", queue="other")), record=record("in"))
