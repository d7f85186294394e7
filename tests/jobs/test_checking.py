"""An invalid job is refused before it is submitted, and the error names the key."""

from __future__ import annotations

from typing import Any

import attrs
import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onyxq import (
    Aggregation,
    Condition,
    Function,
    Input,
    Job,
    Join,
    Lifecycle,
    Output,
    Predicate,
    Reduce,
    Sql,
    Trigger,
    Window,
)
from onyxq.errors import BadRequest
from onyxq.jobs import encoding
from onyxq.jobs.job_check import check, problems
from tests.jobs import generated


def job(**changes: Any) -> Job:
    """Return a valid job with a change: words are split, counted by user and written twice."""
    right: dict[str, Any] = {
        "workflow": [("lines", "split"), ("split", "raw"), ("split", "count"), ("count", "sums")],
        "catalog": [
            Input("lines", queue="lines"),
            Function("split", "words:split"),
            Reduce("count"),
            Output("raw", queue="raw"),
            Output("sums", queue="sums"),
        ],
        "windows": [Window("by_user", "count", "fixed", range_ms=1_000, key="user")],
        "triggers": [Trigger("by_user", "batch")],
    }
    return Job(**{"id": "j", **right, **changes})


def catalog(*others: Any) -> dict[str, Any]:
    """Return the valid job's catalog, with entries replaced or added."""
    kept = {task.name: task for task in job().catalog}
    return {"catalog": [*{**kept, **{task.name: task for task in others}}.values()]}


def workflow(*more: tuple[str, str]) -> dict[str, Any]:
    """Return the valid job's workflow with more edges."""
    return {"workflow": [*job().workflow, *more]}


def window(**changes: Any) -> dict[str, Any]:
    """Return the valid job's window with a change."""
    return {"windows": [attrs.evolve(job().windows[0], **changes)]}


def trigger(on: str, **changes: Any) -> dict[str, Any]:
    """Return another trigger for the valid job."""
    return {"triggers": [Trigger("by_user", on, **changes)]}


def conditions(*given: Condition) -> dict[str, Any]:
    """Return these conditions."""
    return {"flow_conditions": given}


def join(**changes: Any) -> dict[str, Any]:
    """Return a job that joins two inputs."""
    said: dict[str, Any] = {"left": "one", "right": "two", "on": "id", **changes}
    return {
        "workflow": [("one", "both"), ("two", "both"), ("both", "out")],
        "catalog": [Input("one", queue="a"), Input("two", queue="b"), Join("both", **said), Output("out", queue="c")],
        "windows": [],
        "triggers": [],
    }


OWN = Aggregation("a:init", "a:fold")
WRONG: list[tuple[dict[str, Any], str, str]] = [
    ({"id": ""}, "id", "1 to 100 letters"),
    ({"id": "a/b"}, "id", "1 to 100 letters"),
    ({"workflow": []}, "workflow", "is empty"),
    ({"workflow": 5}, "workflow", "a list of at most 2000 pairs"),
    ({"workflow": [("lines", "split", "raw")]}, "workflow", "pairs"),
    (workflow(("split", "rwa")), "workflow[4]", "names 'rwa', which the catalog has not; did you mean raw?"),
    (workflow(("split", "raw")), "workflow[4]", "for the second time"),
    (workflow(("split", "lines")), "workflow[4]", "nothing leads to an input"),
    (workflow(("raw", "sums")), "workflow[4]", "nothing comes out of an output"),
    (workflow(("count", "split")), "workflow[4]", "split -> count -> split; no way may lead back"),
    (workflow(("split", "split")), "workflow[4]", "split -> split"),
    ({"catalog": []}, "catalog", "has no Input"),
    ({"catalog": ["lines"]}, "catalog[0]", "must be a Input or Function"),
    ({"catalog": [*job().catalog, Output("raw", queue="x")]}, "catalog[5].name", "for the second time"),
    (catalog(Function("idle", "a:b")), "catalog[5]", "'idle' is in no edge"),
    ({**catalog(Function("x", "a:b")), **workflow(("x", "raw"))}, "catalog[5]", "is never reached"),
    ({**catalog(Function("x", "a:b")), **workflow(("split", "x"))}, "catalog[5]", "leads nowhere"),
    (catalog(Function("split", "words.split")), "catalog[1].fn", "a function, or `package.module:name`"),
    (catalog(Function("split", 7)), "catalog[1].fn", "not 7"),  # type: ignore[arg-type]
    (catalog(Function("split", "a:b", {"x": object()})), "catalog[1].params", "msgpack"),
    (catalog(Function("split", "a:b", min_slots=3, max_slots=2)), "catalog[1].max_slots", "less than min_slots"),
    (catalog(Function("split", "a:b", min_slots=0)), "catalog[1].min_slots", "1 to 100000, not 0"),
    (catalog(Function("split", "a:b", percentage=101)), "catalog[1].percentage", "0 to 100"),
    (catalog(Function("split", "a:b", percentage=60), Reduce("count", percentage=60)), "catalog[2].percentage", "120"),
    (catalog(Input("lines")), "catalog[0]", "either a queue or a format"),
    (catalog(Input("lines", queue="q", format="text")), "catalog[0]", "both"),
    (
        catalog(Input("lines", queue="q", since_ms=5)),
        "catalog[0].since_ms",
        "'lines' is a queue, whose tasks are read once",
    ),
    (catalog(Input("lines", format="rate", since_ms=5)), "catalog[0].since_ms", "input 'lines' is rate"),
    (catalog(Input("lines", format="text", path="/x", since_ms=-1)), "catalog[0].since_ms", "an integer of 0 to"),
    (
        catalog(Input("lines", format="kafka", options={"startingOffsets": "earliest"}, since_ms=5)),
        "catalog[0].since_ms",
        "excludes its option startingOffsets",
    ),
    (catalog(Input("lines", queue="q", path="/x", bounded=False)), "catalog[0].path", "is for a format"),
    (catalog(Input("lines", queue="q", bounded=True)), "catalog[0].bounded", "when it is sealed"),
    (catalog(Input("lines", format="csv", options={"header": True})), "catalog[0].options", "strings to strings"),  # type: ignore[dict-item]
    (
        catalog(Output("raw", format="kinesis")),
        "catalog[3].format",
        "outputs are csv, delta, json, kafka, parquet, postgres, text or a queue",
    ),
    (catalog(Output("raw", format="csv", path="/x", priority=5)), "catalog[3].priority", "is for a queue"),
    (catalog(Output("raw", queue="")), "catalog[3].queue", "a queue's name"),
    (catalog(Output("raw", queue="onyxq.timers")), "catalog[3].queue", "must not begin with onyxq."),
    (join(left="noe"), "catalog[2].left", "did you mean one?"),
    (join(right="one"), "catalog[2].right", "the same task as left"),
    (join(how="outer"), "catalog[2].how", "one of inner, left"),
    (join(within_ms=1_000), "catalog[2].time", "is missing"),
    (join(), "catalog[2].within_ms", "input 'one' never ends, so 'both' would keep all segments"),
    (join(on=""), "catalog[2].on", "a field's name"),
    (conditions(Condition("spilt", ["raw"])), "flow_conditions[0].from", "did you mean split?"),
    (conditions(Condition("split", ["rwa"])), "flow_conditions[0].to", "did you mean raw?"),
    (conditions(Condition("split", ["sums"])), "flow_conditions[0].to", "no edge leads from 'split' to 'sums'"),
    (conditions(Condition("split", "raw")), "flow_conditions[0].to", "'all' or 'none', or a list"),
    (conditions(Condition("split", "all")), "flow_conditions[0].short_circuit", "must be True"),
    (conditions(Condition("split", ["raw"], 5)), "flow_conditions[0].when", "a predicate"),
    (conditions(Condition("split", ["raw"], Predicate("a"))), "flow_conditions[0].when.fn", "package.module:name"),
    (
        conditions(Condition("split", ["raw"], Predicate("a:b") & ~Predicate("c"))),
        "flow_conditions[0].when.and[1].not.fn",
        "package.module:name",
    ),
    (
        conditions(Condition("split", ["raw"]), Condition("split", ["count"], "a:b", short_circuit=True)),
        "flow_conditions[1]",
        "must come before",
    ),
    (
        conditions(Condition("split", ["raw"], exceptions=True, transform="a:b")),
        "flow_conditions[0].short_circuit",
        "must be True",
    ),
    (
        conditions(Condition("split", ["raw"], exceptions=True, short_circuit=True)),
        "flow_conditions[0].transform",
        "is missing",
    ),
    (conditions(Condition("split", ["raw"], transform="a:b")), "flow_conditions[0].transform", "is for exceptions"),
    (
        conditions(Condition("split", ["raw"], "a:b", errors_to=["cuont"])),
        "flow_conditions[0].errors_to",
        "no edge leads from 'split' to 'cuont'; did you mean count?",
    ),
    (conditions(Condition("split", ["raw"], "a:b", errors_to="count")), "flow_conditions[0].errors_to", "or a list"),
    (conditions(Condition("split", ["raw"], "a:b", errors_to=[])), "flow_conditions[0].errors_to", "is empty"),
    (conditions(Condition("split", ["raw"], errors_to=["count"])), "flow_conditions[0].errors_to", "as `when`"),
    (
        conditions(Condition("count", ["sums"], exceptions=True, short_circuit=True, transform="a:b")),
        "flow_conditions[0].exceptions",
        "is for a Function",
    ),
    (window(task="split"), "windows[0].task", "is 'split', which is not a Reduce"),
    (window(task="cuont"), "windows[0].task", "did you mean count?"),
    (window(kind="fixd"), "windows[0].kind", "did you mean fixed?"),
    (window(range_ms=None), "windows[0].range_ms", "is missing"),
    (window(range_ms=0), "windows[0].range_ms", "an integer of 1 to"),
    (window(range_ms=True), "windows[0].range_ms", "not True"),
    (window(gap_ms=5), "windows[0].gap_ms", "is not of a fixed window, which has range_ms"),
    (window(kind="sliding", slide_ms=2_000), "windows[0].slide_ms", "is longer than range_ms"),
    (window(kind="sliding", slide_ms=1, range_ms=5_000), "windows[0].slide_ms", "is too short"),
    (window(kind="session", range_ms=None, gap_ms=5, aggregation=OWN), "windows[0].aggregation.merge", "is missing"),
    (window(aggregation="cuont"), "windows[0].aggregation", "did you mean count"),
    (window(aggregation=attrs.evolve(OWN, fold="f")), "windows[0].aggregation.fold", "package.module:name"),
    (window(aggregation=OWN, field="n"), "windows[0].field", "sees the whole segment"),
    (window(watermark_ms=5), "windows[0].watermark_ms", "is for a time of the segments"),
    ({"windows": [*job().windows, *job().windows]}, "windows[1].id", "for the second time"),
    ({"windows": [], "triggers": []}, "catalog[2]", "a Reduce without a window"),
    ({"triggers": []}, "windows[0]", "has no trigger"),
    ({"triggers": [Trigger("by_usr", "batch")]}, "windows[0]", "has no trigger"),
    ({"triggers": [*job().triggers, Trigger("by_usr")]}, "triggers[1].window", "did you mean by_user?"),
    ({"triggers": [Trigger("by_user", "watermrk")]}, "triggers[0].on", "did you mean watermark?"),
    ({"triggers": [Trigger("by_user", "timer")]}, "triggers[0].period_ms", "is missing"),
    ({"triggers": [Trigger("by_user", "timer", period_ms=5)]}, "triggers[0].period_ms", "at least 100"),
    ({"triggers": [Trigger("by_user", "batch", period_ms=500)]}, "triggers[0].period_ms", "not on 'batch'"),
    (trigger("segments"), "triggers[0].count", "is missing: a trigger on 'segments' has one"),
    (trigger("segments", count=0), "triggers[0].count", "an integer of 1 to 1000000000, or None, not 0"),
    (trigger("segments", count=True), "triggers[0].count", "not True"),
    (trigger("batch", count=5), "triggers[0].count", "is of a trigger on 'segments', not on 'batch'"),
    (trigger("segmets", count=5), "triggers[0].on", "did you mean segments?"),
    (trigger("punctuation"), "triggers[0].predicate", "is missing"),
    (trigger("punctuation", predicate=5), "triggers[0].predicate", "a predicate, a function"),
    (trigger("punctuation", predicate="a"), "triggers[0].predicate.fn", "package.module:name"),
    (trigger("segments", count=5, predicate="a:b"), "triggers[0].predicate", "not on 'segments'"),
    (
        trigger("punctuation", predicate=Predicate("a:b") & ~Predicate("a:c", whole=True)),
        "triggers[0].predicate.whole",
        "gets the segment alone",
    ),
    ({"triggers": [Trigger("by_user", emit_to="raw")]}, "triggers[0].emit_to", "no edge leads from 'count' to 'raw'"),
    ({"triggers": [Trigger("by_user", emit_to=())]}, "triggers[0].emit_to", "is empty"),
    (
        {
            **workflow(("count", "raw")),
            **conditions(Condition("count", ["sums"], "a:b", errors_to=["raw"])),
            "triggers": [Trigger("by_user", "batch", emit_to="sums")],
        },
        "flow_conditions[0].errors_to",
        "names 'raw', but a trigger of window 'by_user' emits to other tasks only: add it to emit_to",
    ),
    (
        {**catalog(Sql("split", "select 1", schema="word string")), **trigger("segments", count=5)},
        "triggers[0].on",
        "cannot be 'segments' after 'split': a frame task gives rows no fixed order",
    ),
    ({"triggers": [Trigger("by_user", refinement="discard")]}, "triggers[0].refinement", "did you mean discarding?"),
    ({"lifecycles": [Lifecycle("slpit", before_job="a:b")]}, "lifecycles[0].task", "did you mean split?"),
    ({"lifecycles": [Lifecycle("split")]}, "lifecycles[0]", "says nothing"),
    ({"lifecycles": [Lifecycle(on_exception="restrat")]}, "lifecycles[0].on_exception", "did you mean restart?"),
    ({"scheduler": "balance"}, "scheduler", "did you mean balanced?"),
    ({"scheduler": "percentage"}, "percentage", "is missing"),
    ({"percentage": 5}, "percentage", "is for the scheduler `percentage`"),
    ({"min_slots": 4, "max_slots": 2}, "max_slots", "less than min_slots"),
    ({**catalog(Reduce("count", min_slots=4)), "max_slots": 2}, "catalog[2].min_slots", "more than the job's"),
    ({"tags": ["gpu", "gpu"]}, "tags", "each once"),
    ({"beside": "j"}, "beside", "the job's own id"),
    ({"resume": "j"}, "resume", "the job's own id"),
    ({"resume": "savepoint:-x"}, "resume", "the id of a job, or savepoint:NAME"),
    ({"key_groups": 0}, "key_groups", "1 to 1024"),
    ({"trigger_ms": 0}, "trigger_ms", "1 to 86400000"),
    ({"metadata": {1: 2}}, "metadata", "strings"),
]


def test_the_right_job_is_right() -> None:
    """The valid job, from which the tests make invalid ones, is accepted, and so is a join."""
    check(job())
    check(job(**join(how="left", on="pkg:key", within_ms=500, time="at")))


def test_a_join_keeps_all_segments_only_of_inputs_that_end_or_if_that_is_meant() -> None:
    """Inputs that do not lead to the join do not matter."""
    check(job(**join(keep_all=True)))
    beside = join()
    files = [Input(name, format="json", path=f"/data/{name}") for name in ("one", "two")]
    beside["catalog"] = [*files, *beside["catalog"][2:], Input("other", queue="d")]
    beside["workflow"] = [*beside["workflow"], ("other", "out")]
    check(job(**beside))


@pytest.mark.parametrize(("changes", "field", "says"), WRONG, ids=[f"{field} {says}" for _, field, says in WRONG])
def test_what_is_wrong_is_named(changes: dict[str, Any], field: str, says: str) -> None:
    """The first complaint names the key, and what was expected or the most similar name."""
    with pytest.raises(BadRequest) as caught:
        check(job(**changes))
    assert caught.value.field == field, caught.value
    assert caught.value.message.startswith(field) and says in caught.value.message


def test_all_that_is_wrong_is_in_the_details() -> None:
    """Several mistakes are reported at once."""
    with pytest.raises(BadRequest) as caught:
        check(job(**workflow(("split", "rwa"), ("spilt", "raw")), scheduler="percentage"))
    assert [field for field, _ in caught.value.details] == ["workflow[4]", "workflow[5]", "percentage"]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("jsn:loads", "whose module cannot be imported: ModuleNotFoundError"),
        ("json:lods", "but json has no 'lods'; did you mean loads"),
        ("json:__name__", "which is a str, no function"),
    ],
)
def test_the_client_looks_whether_functions_are_there(name: str, says: str) -> None:
    """Without the check of imports the name is valid; with it, the missing function is reported."""
    one = job(**catalog(Function("split", name)), flow_conditions=[Condition("split", ["raw"], "json:loads")])
    check(one)
    with pytest.raises(BadRequest) as caught:
        check(one, importable=True)
    assert caught.value.field == "catalog[1].fn" and says in caught.value.message
    check(attrs.evolve(one, **catalog(Function("split", "json:loads"))), importable=True)


@pytest.mark.long
@settings(max_examples=150, deadline=None)
@given(generated.jobs())
def test_every_right_job_is_accepted_and_comes_back(one: Job) -> None:
    """Random jobs pass the check, are equal after encoding and decoding, and have one encoding."""
    check(one)
    body = encoding.encode(one)
    again = encoding.decode(body)
    assert again == one
    assert encoding.encode(again) == body
    check(again)


def _places(value: Any, way: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [way, *(place for key, one in inner for place in _places(one, (*way, key)))]


def _changed(value: Any, way: tuple[Any, ...], new: Any) -> Any:
    if not way:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[way[0]] = _changed(copy[way[0]], way[1:], new)
    return copy


@pytest.mark.long
@settings(max_examples=300, deadline=None)
@given(generated.jobs(), st.data())
def test_damage_is_refused_by_name_and_nothing_worse(one: Job, data: st.DataObject) -> None:
    """Whatever is changed in a job's map, the job is still valid or `BadRequest` names a field."""
    said = encoding.to_map(one)
    way = data.draw(st.sampled_from(_places(said)))
    strange = st.sampled_from([None, -1, 1 << 70, 0.5, "", "\ud800", "all", [], [[]], {}, {"a": b""}, b"\xff"])
    damaged = _changed(said, way, data.draw(strange | generated.values))
    try:
        check(encoding.from_map(damaged))
    except BadRequest as error:
        assert error.field


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@given(generated.jobs(), st.data())
def test_damaged_bytes_are_refused_and_nothing_worse(one: Job, data: st.DataObject) -> None:
    """Truncated, flipped or random bytes give a job or a `BadRequest`, nothing else."""
    body = encoding.encode(one)
    place = data.draw(st.integers(0, len(body) - 1))
    made = st.just(body[:place]) | st.integers(1, 255).map(
        lambda bits: body[:place] + bytes([body[place] ^ bits]) + body[place + 1 :]
    )
    try:
        check(encoding.decode(data.draw(made | st.binary(max_size=50) | generated.values.map(_packed))))
    except BadRequest as error:
        assert error.field


def _packed(value: Any) -> bytes:
    return bytes(msgpack.packb(value, unicode_errors="surrogatepass"))


@pytest.mark.parametrize(
    ("task", "field", "said"),
    [
        (
            Output("out", format="parquet", path="/x", options={"partitionBy": "a"}),
            "catalog[1].options.partitionBy",
            "is not an option of output 'out' (parquet) of job 'j'; did you mean partition_by?",
        ),
        (
            Output("out", format="parquet", path="/x", options={"nonsense": "1"}),
            "catalog[1].options.nonsense",
            "; there are schema, other_fields, partition_by, file_rows_max, file_bytes_max, compression",
        ),
        (
            Output("out", format="json", path="/x", options={"partition_by": "day"}),
            "catalog[1].options.partition_by",
            "needs the option schema, which has the types of the columns",
        ),
        (
            Output("out", format="json", path="/x", options={"schema": "day date", "partition_by": "day, day"}),
            "catalog[1].options.partition_by",
            "must be names of different columns, comma-separated, not 'day, day'",
        ),
        (
            Output("out", format="json", path="/x", options={"file_rows_max": "0"}),
            "catalog[1].options.file_rows_max",
            "must be a whole number from 1, not '0'",
        ),
        (
            Output("out", format="json", path="/x", options={"schema": "a int", "other_fields": "add"}),
            "catalog[1].options.other_fields",
            "cannot be add: only parquet and delta can add columns",
        ),
        (
            Output("out", format="parquet", path="/x", options={"compresion": "zstd"}),
            "catalog[1].options.compresion",
            "of job 'j'; did you mean compression?",
        ),
        (
            Output("out", format="parquet", path="/x", options={"compression": "zip"}),
            "catalog[1].options.compression",
            "of output 'out' (parquet) of job 'j' must be one of snappy, gzip",
        ),
        (
            Output("out", format="csv", path="/x", options={"header": "true"}),
            "catalog[1].options.schema",
            "is missing: CSV has neither names nor types",
        ),
        (
            Output("out", format="csv", path="/x", options={"schema": "a int", "sep": "||"}),
            "catalog[1].options.sep",
            "must be one character up to U+FFFF, which Spark can read: no quote, backslash or line break, not '||'",
        ),
        (
            Output("out", format="json", path="/x", options={"other_fields": "drop"}),
            "catalog[1].options.other_fields",
            "needs the option schema",
        ),
        (
            Output("out", format="text", path="/x", options={"schema": "a int"}),
            "catalog[1].options.schema",
            "file_rows",
        ),
        (
            Output("out", format="postgres", path="/x", options={"schema": "a int", "table": "t"}),
            "catalog[1].options.url",
            "is missing",
        ),
        (
            Output("out", format="postgres", path="/x", options={"url": "postgresql://me:secret@db/x"}),
            "catalog[1].options.url",
            "must be without a password: everyone who sees the job would see it",
        ),
        (
            Output("out", format="kafka", path="/x", options={"topic": "t"}),
            "catalog[1].options.brokers",
            "is missing",
        ),
        (
            Output("out", format="kafka", path="/x", options={"brokers": "a:9092, b", "topic": "t"}),
            "catalog[1].options.brokers",
            "must be HOST:PORT of brokers, comma-separated, not 'a:9092, b'",
        ),
        (
            Output("out", format="kafka", path="/x", options={"brokers": "a:1", "topic": "t", "key": "a, b"}),
            "catalog[1].options.key",
            "must be the name of one column, not 'a, b'",
        ),
        (
            Output("out", format="kafka", path="/x", options={"kafka.sasl.password": "secret"}),
            "catalog[1].options.kafka.sasl.password",
            "and passwords, belong in the file that properties names",
        ),
        (
            Output("out", format="kafka", path="/x", options={"kafka.liger.ms": "5"}),
            "catalog[1].options.kafka.liger.ms",
            "did you mean kafka.linger.ms",
        ),
        (
            Output("out", foreach_batch="shop.billing:charge", path="/x", options={"key": "a"}),
            "catalog[1].options.key",
            "there are schema, other_fields",
        ),
    ],
)
def test_options_that_an_output_does_not_have_are_refused(task: Output, field: str, said: str) -> None:
    """The error names job, task and option, and the most similar existing option."""
    found = list(problems(Job(id="j", workflow=[("in", "out")], catalog=[Input("in", queue="q"), task])))
    assert found[0][0] == field and said in found[0][1]
    assert "secret" not in found[0][1]


@pytest.mark.parametrize(
    ("url", "is_refused"),
    [
        ("postgresql://etl@[::1]:5432/shop?connect_timeout=5", False),
        ("host=/cloudsql/shop:europe:main user=etl@shop.iam dbname=shop", False),
        ("postgresql://etl:s3/cr=t@db/shop", True),
        ("etl:s3cr3t@db/shop", True),
        ("postgresql://db/shop?PassWord=s3cr3t", True),
        ("host=db oauth_client_secret=s3cr3t", True),
    ],
)
def test_an_address_with_a_password_is_refused_also_if_it_is_malformed(url: str, is_refused: bool) -> None:
    """A job with a typing error would show the password as well."""
    out = Output("out", format="postgres", path="/x", options={"url": url, "table": "t", "schema": "a int"})
    found = list(problems(Job(id="j", workflow=[("in", "out")], catalog=[Input("in", queue="q"), out])))
    assert [field for field, _ in found] == ["catalog[1].options.url"] * is_refused


@pytest.mark.parametrize(
    ("errors", "refused", "field", "said"),
    [
        ("refusd", {}, "catalog[1].errors", "is 'refusd', which is not another Output; did you mean refused"),
        ("out", {}, "catalog[1].errors", "is 'out', which is not another Output"),
        ("refused", {"errors": "out"}, "catalog[1].errors", "is 'refused', which has errors of its own"),
        ("refused", {"ordering_key": "user"}, "catalog[1].errors", "which needs an ordering key"),
    ],
)
def test_errors_of_an_output_must_be_an_output_that_takes_them(
    errors: str, refused: dict[str, Any], field: str, said: str
) -> None:
    """No edge leads to it."""
    catalog = [Input("in", queue="q"), Output("out", queue="p", errors=errors), Output("refused", queue="r", **refused)]
    found = list(problems(Job(id="j", workflow=[("in", "out")], catalog=catalog)))
    assert found[0][0] == field and said in found[0][1]


def test_refused_rows_of_an_output_need_no_edge() -> None:
    """The output for them is part of the job without one."""
    catalog = [Input("in", queue="q"), Output("out", queue="p", errors="refused"), Output("refused", queue="r")]
    assert list(problems(Job(id="j", workflow=[("in", "out")], catalog=catalog))) == []


def test_options_that_an_input_does_not_have_are_refused() -> None:
    """This holds for formats of Spark itself; the case of names does not matter."""
    out = Output("out", queue="q")
    for kind, options, said in (
        ("json", {"maxFilesPerTriger": "1"}, "did you mean maxFilesPerTrigger"),
        ("csv", {"HEADER": "true", "multiLine": "true"}, ""),
        ("kafka", {"whatever": "1"}, ""),
        ("rate", {"rowsPerSecnd": "5"}, "did you mean rowsPerSecond"),
        ("xml", {"rowTg": "order"}, "did you mean rowTag"),
        ("xml", {"rowTag": "order", "maxFilesPerTrigger": "1"}, ""),
        ("binaryFile", {"pathGlobFiltr": "*.png"}, "did you mean pathGlobFilter"),
        ("binaryFile", {"pathGlobFilter": "*.png"}, ""),
    ):
        task = Input("in", format=kind, options=options)
        found = list(problems(Job(id="j", workflow=[("in", "out")], catalog=[task, out])))
        assert said in found[0][1] if said else not found
