"""The encoding of jobs is canonical and complete, and never loaded as code."""

from __future__ import annotations

import json
import pickle

import pytest

from onyxq import Aggregation, Condition, Function, Input, Job, Output, Predicate, Reduce, Trigger, Window
from onyxq.errors import BadRequest, TooLarge
from onyxq.jobs import encoding
from onyxq.jobs.predicates import And, Not, Or, Pickled


def whole() -> Job:
    """Return a job that uses every feature."""
    return Job(
        id="whole",
        workflow=[("in", "parse"), ("parse", "out"), ("parse", "count"), ("count", "sums")],
        catalog=[
            Input("in", queue="lines"),
            Function("parse", json.loads, {"b": [1, {"z": 1, "a": b"\x00"}], "a": None}),
            Reduce("count", max_slots=4),
            Output("out", queue="parsed", ordering_key="user"),
            Output("sums", format="parquet", path="/tmp/sums", options={"compression": "zstd"}),
        ],
        flow_conditions=[
            Condition("parse", "all", "shop.orders:is_paid", short_circuit=True),
            Condition("parse", ["out"], (Predicate("a:b", {"over": 5}) & "a:c") | ~Predicate("a:d", whole=True)),
            Condition("parse", ["count"], "a:e", errors_to=["out"]),
        ],
        windows=[Window("w", "count", "fixed", range_ms=60_000, key="user", aggregation=Aggregation(list, "a:fold"))],
        triggers=[
            Trigger("w", "batch", refinement="discarding", emit_to="sums"),
            Trigger("w", "segments", count=3),
            Trigger("w", "punctuation", predicate=Predicate("a:ends", {"of": "day"}) & "a:last"),
        ],
    )


def test_a_job_comes_back_whole() -> None:
    """A decoded job is equal; functions are represented by their names."""
    job = whole()
    again = encoding.decode(encoding.encode(job))
    assert again.windows[0].aggregation == Aggregation("builtins:list", "a:fold")
    assert again.task("parse") == Function("parse", "json:loads", {"a": None, "b": [1, {"a": b"\x00", "z": 1}]})
    assert again.flow_conditions == job.flow_conditions
    assert again.triggers == job.triggers
    assert encoding.encode(again) == encoding.encode(job)
    assert encoding.decode(encoding.encode(again)) == again


def test_predicates_combine_as_written() -> None:
    """``&``, ``|`` and ``~`` bind as they do in Python, and names become predicates."""
    when = whole().flow_conditions[1].when
    assert when == Or((And((Predicate("a:b", {"over": 5}), Predicate("a:c"))), Not(Predicate("a:d", whole=True))))


def test_the_order_in_which_parameters_were_given_does_not_matter() -> None:
    """The same job has the same bytes, hence the same digest."""

    def job(params: dict[str, int]) -> bytes:
        return encoding.encode(Job(id="j", workflow=[("a", "b")], catalog=[Function("a", "m:f", params)]))

    assert job({"x": 1, "y": 2}) == job({"y": 2, "x": 1}) != job({"x": 1, "y": 3})
    assert encoding.digest(job({"x": 1})) == encoding.digest(job({"x": 1})) != encoding.digest(job({"x": 2}))
    assert len(encoding.digest(b"")) == 16


def test_a_function_without_a_name_is_pickled_and_never_loaded() -> None:
    """A lambda is encoded as bytes, and stays bytes when the job is decoded."""
    pytest.importorskip("pyspark")
    job = Job(workflow=[("a", "b")], catalog=[Function("a", lambda segment: segment + 1)])
    function = encoding.decode(encoding.encode(job)).task("a")
    assert isinstance(function, Function) and isinstance(function.fn, Pickled)
    assert pickle.loads(function.fn.pickled)(1) == 2
    harmful = Job(workflow=[], catalog=[Function("a", Pickled("f", b"cos\n_exit\n(I3\ntR."))])
    assert encoding.decode(encoding.encode(harmful)) == Job(id=harmful.id, workflow=[], catalog=harmful.catalog)


def test_json_of_a_job_is_read_as_well() -> None:
    """A request's JSON has the same map; only pickled functions are base64 there."""
    said = encoding.to_map(whole())
    said["catalog"][1] = {"type": "function", "name": "parse", "fn": {"named": "f", "pickled": "AAE="}}
    assert encoding.from_map(json.loads(json.dumps(said))).task("parse") == Function("parse", Pickled("f", b"\x00\x01"))


@pytest.mark.parametrize(
    ("damage", "field", "says"),
    [
        ({"wokflow": []}, "wokflow", "did you mean workflow"),
        ({"catalog": {}}, "catalog", "must be a list"),
        ({"catalog": [{"type": "imput", "name": "a"}]}, "catalog[0].type", "did you mean input"),
        ({"catalog": [{"type": "input"}]}, "catalog[0].name", "is missing"),
        ({"catalog": [{"type": "function", "name": "a", "fn": {"improt": "a:b"}}]}, "catalog[0].fn", "must be"),
        (
            {"flow_conditions": [{"from": "a", "to": "all", "when": {"nand": []}}]},
            "flow_conditions[0].when.nand",
            "no such key",
        ),
        ({"windows": [{"id": "w", "task": "t", "rangems": 5}]}, "windows[0].rangems", "did you mean range_ms"),
        ({"metadata": {"a": {1: 2}}}, "metadata.a", "strings as its keys"),
    ],
)
def test_what_is_no_job_is_refused_by_name(damage: dict[str, object], field: str, says: str) -> None:
    """The error names the wrong field and what was expected."""
    with pytest.raises(BadRequest, match=says) as caught:
        encoding.from_map({**encoding.to_map(whole()), **damage})
    assert caught.value.field == field


def test_a_job_of_any_depth_or_size_is_refused_alike() -> None:
    """Neither a deep nor a large job gets past the decoding."""
    deep: object = 0
    for _ in range(100):
        deep = [deep]
    with pytest.raises(BadRequest, match="levels deep"):
        encoding.encode(Job(workflow=[], catalog=[], metadata={"deep": deep}))
    with pytest.raises(TooLarge):
        encoding.encode(Job(workflow=[], catalog=[], metadata={"large": "x" * 200_000}))
    with pytest.raises(TooLarge):
        encoding.decode(b"x" * 200_000)
