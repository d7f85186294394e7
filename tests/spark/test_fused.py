"""A region as one function gives the same as its tasks one by one; lineage, exceptions and lifecycles."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onyxq.core.ids import ID_BYTES
from onyxq.jobs.encoding import decode, encode
from onyxq.jobs.fields import PARTS_MAX
from onyxq.jobs.model import Condition, Function, Input, Job, Lifecycle, Output
from onyxq.jobs.values import unpack
from onyxq.spark.failures import Failure, TaskFailed, of_exception, of_text
from onyxq.spark.plan.fused import Fused, Row
from onyxq.spark.plan.regions import stages
from tests.spark.naive import HERE, jobs, leaving

SOURCE = b"s" * 16 + b"\0\0\0\1"
CALLED: list[tuple[str, Any]] = []


def before(known: dict[str, Any]) -> None:
    """A lifecycle's function."""
    CALLED.append(("before", known["task"]))


def after(known: dict[str, Any]) -> None:
    """Another."""
    CALLED.append(("after", known["task"]))


def single(fn: str, **more: Any) -> Job:
    """The job of one function."""
    return Job(
        id="j",
        workflow=[("in", "f"), ("f", "out")],
        catalog=[Input("in", format="rate"), Function("f", f"{HERE}:{fn}"), Output("out", format="json", path="/x")],
        **more,
    )


def fused(job: Job) -> Fused:
    """Return the only region of a job, as a worker gets it."""
    job = decode(encode(job))
    (stage,) = stages(job)
    ((region,),) = stage.sides
    return Fused(job, region)


def values(found: list[Row]) -> list[Any]:
    """What the rows hold."""
    return [unpack(payload) for _, _, payload in found]


@settings(max_examples=60)
@given(jobs(), st.integers(0, 100))
def test_a_region_does_what_its_tasks_do_one_by_one(job: Job, segment: int) -> None:
    """Every output of every entry gets the same segments as from a plain interpreter, equally often."""
    job = decode(encode(job))
    for stage in stages(job):
        for side in stage.sides:
            for region in side:
                found = Fused(job, region).segment(SOURCE, segment)
                made = Counter((out, unpack(payload)) for out, _, payload in found)
                wanted = [
                    (edge[1], value) for edge, value in leaving(job, region.entry, segment) if edge in region.wanted
                ]
                assert made == Counter(wanted)


@settings(max_examples=60)
@given(jobs(), st.integers(0, 100))
def test_lineages_are_of_their_source_differ_and_are_the_same_again(job: Job, segment: int) -> None:
    """This holds for any path of a segment and any process."""
    for stage in stages(job):
        for side in stage.sides:
            for region in side:
                found = [(out, lineage) for out, lineage, _ in Fused(job, region).segment(SOURCE, segment)]
                again = [
                    (out, lineage) for out, lineage, _ in Fused(decode(encode(job)), region).segment(SOURCE, segment)
                ]
                assert found == again
                assert len(set(found)) == len(found)
                assert {lineage[:ID_BYTES] for _, lineage in found} <= {SOURCE}


def test_the_way_to_one_output_does_not_depend_on_who_else_is_waited_for() -> None:
    """Regions of different stages give a segment the same lineage, because it follows the workflow's edges."""
    workflow = [("in", "f"), ("f", "a"), ("f", "b")]
    catalog = [
        Input("in", format="rate"),
        Function("f", f"{HERE}:more"),
        Output("a", format="json", path="/a"),
        Output("b", format="json", path="/b"),
    ]
    both = fused(Job(workflow=workflow, catalog=catalog)).segment(SOURCE, 1)
    one = fused(Job(workflow=workflow[:2], catalog=catalog[:3])).segment(SOURCE, 1)
    assert next(lineage for out, lineage, _ in both if out == "a") == one[0][1]


def test_a_segment_passes_the_longest_chain_of_tasks() -> None:
    """A step calls the next one: the largest catalog must fit into Python's stack, with room for a function."""
    names = ["in", *(f"f{place}" for place in range(PARTS_MAX - 2)), "out"]
    functions = [Function(name, f"{HERE}:same") for name in names[1:-1]]
    catalog = [Input("in", format="rate"), *functions, Output("out", format="json", path="/x")]
    region = fused(Job(workflow=list(zip(names, names[1:], strict=False)), catalog=catalog))
    assert values(region.segment(SOURCE, 5)) == [5]


def test_a_segment_may_be_for_one_task_alone() -> None:
    """A window's trigger may emit to one of the later tasks."""
    workflow = [("in", "a"), ("in", "b")]
    catalog = [Input("in", format="rate"), *(Output(name, format="json", path=f"/{name}") for name in "ab")]
    region = fused(Job(workflow=workflow, catalog=catalog))
    assert [out for out, _, _ in region.segment(SOURCE, 1)] == ["a", "b"]
    assert [out for out, _, _ in region.segment(SOURCE, 1, "b")] == ["b"]


def test_an_exception_names_task_segment_and_the_users_line() -> None:
    """No line of OnyxQ's code is in between."""
    with pytest.raises(TaskFailed) as caught:
        fused(single("no_fives")).segment(SOURCE, 5)
    failure = caught.value.failure
    assert failure.task == "f"
    assert failure.segment == "5"
    assert failure.error == "task f: ValueError: 5 is divided by five (at the segment 5)"
    assert 'raise ValueError(f"{segment} is divided by five")' in failure.traceback
    assert "fused.py" not in failure.traceback
    assert not failure.restart


def test_a_failure_is_found_in_a_text_that_quotes_its_exception() -> None:
    """This holds for any text that Spark puts around it."""
    with pytest.raises(TaskFailed) as caught:
        fused(single("no_fives")).segment(SOURCE, 5)
    said = f"org.apache.spark.SparkException: ...\nonyxq.spark.failures.TaskFailed: {caught.value}\n\tat org..."
    assert of_text(said) == caught.value.failure
    assert of_text("nothing of ours") is None
    assert of_text("other\n=== Streaming Query ===\nProject [onyxq.errors.BadRequest: it may raise this]") is None
    plan = "\n=== Streaming Query ===\nIdentifier: j/1\nLogical Plan:\n~Union\n"
    found = of_text(f"onyxq.errors.BadRequest: no such thing{plan}")
    assert found is not None and "Logical Plan" not in found.traceback and "no such thing" in found.traceback


def test_an_error_of_ours_is_told_from_its_name() -> None:
    """An error is retried unless that is hopeless."""
    assert of_text("onyxq.errors.Unavailable: no leader\n") == Failure(
        "no leader", traceback="onyxq.errors.Unavailable: no leader\n", restart=True, code="unavailable"
    )
    hopeless = of_text("onyxq.errors.BadRequest: no such thing")
    assert hopeless is not None
    assert not hopeless.restart


def test_an_exception_that_a_condition_takes_is_a_segment() -> None:
    """The transform makes the segment; other segments continue normally."""
    job = Job(
        workflow=[("in", "f"), ("f", "out"), ("f", "wrong")],
        catalog=[
            Input("in", format="rate"),
            Function("f", f"{HERE}:no_fives"),
            Output("out", format="json", path="/x"),
            Output("wrong", format="json", path="/y"),
        ],
        flow_conditions=[
            Condition("f", ["wrong"], f"{HERE}:is_value_error", exceptions=True, transform=f"{HERE}:as_number")
        ],
    )
    region = fused(job)
    assert [(out, unpack(payload)) for out, _, payload in region.segment(SOURCE, 5)] == [("wrong", -5)]
    assert [(out, unpack(payload)) for out, _, payload in region.segment(SOURCE, 6)] == [("out", 7)]


@pytest.mark.parametrize(
    ("lifecycles", "restart"),
    [
        ([], False),
        ([Lifecycle("f", on_exception="restart")], True),
        ([Lifecycle("f", on_exception="defer"), Lifecycle("all", on_exception="restart")], True),
        ([Lifecycle("f", on_exception="kill"), Lifecycle("all", on_exception="restart")], False),
        ([Lifecycle("out", on_exception="restart")], False),
    ],
)
def test_the_first_lifecycle_that_does_not_defer_decides(lifecycles: list[Lifecycle], restart: bool) -> None:
    """The task's lifecycles are asked in the job's order; without an answer the job fails."""
    with pytest.raises(TaskFailed) as caught:
        fused(single("no_fives", lifecycles=lifecycles)).segment(SOURCE, 5)
    assert caught.value.failure.restart is restart


def test_a_policy_may_be_a_function() -> None:
    """An answer that is not a policy is an error of the job."""
    with pytest.raises(TaskFailed) as caught:
        fused(single("no_fives", lifecycles=[Lifecycle(on_exception=f"{HERE}:same")])).segment(SOURCE, 5)
    assert "lifecycles[0].on_exception said {" in caught.value.failure.error
    assert not caught.value.failure.restart


def test_a_value_that_no_segment_holds_is_named_with_task_function_path_and_type() -> None:
    """The segment that the function got is named too."""
    with pytest.raises(TaskFailed) as caught:
        fused(single("unpackable")).segment(SOURCE, 1)
    assert caught.value.failure.task == "f"
    said = "task f: Unfit: tests.spark.tasks:unpackable returned: a[1]: a segment cannot hold a complex"
    assert caught.value.failure.error.startswith(said)
    assert caught.value.failure.segment == "1"


def test_a_function_that_is_not_there_is_named_with_its_field() -> None:
    """This happens before any segment is processed; a retry does not help."""
    with pytest.raises(TaskFailed) as caught:
        fused(single("no_such"))
    assert caught.value.failure.task == "f"
    assert "catalog[1].fn" in caught.value.failure.error
    assert not caught.value.failure.restart
    with pytest.raises(TaskFailed, match="no module named 'nowhere'"):
        fused(Job(workflow=[("in", "f"), ("f", "o")], catalog=[
            Input("in", format="rate"), Function("f", "nowhere:fn"), Output("o", format="json", path="/x")
        ]))  # fmt: skip


def test_a_shipped_function_is_loaded_where_it_runs() -> None:
    """The function could not be imported by another process."""
    pytest.importorskip("pyspark")
    secret = 41

    def local(segment: int) -> int:
        return segment + secret

    job = single("same")
    catalog = [job.catalog[0], Function("f", local), job.catalog[2]]
    found = fused(Job(workflow=job.workflow, catalog=catalog)).segment(SOURCE, 1)
    assert values(found) == [42]


def test_lifecycles_are_called_around_each_part_of_a_batch() -> None:
    """They are called for each of their tasks, before the first segment and after the last."""
    CALLED.clear()
    lifecycles = [Lifecycle("f", before_batch=before, after_batch=after), Lifecycle("out", before_batch=before)]
    job = single("same", lifecycles=lifecycles)
    (stage,) = stages(job)
    ((region,),) = stage.sides
    found = list(Fused(job, region).batch([(SOURCE, 1, ""), (SOURCE, 2, "")], {"batch": 3}))
    assert values(found) == [1, 2]
    assert CALLED == [("before", "f"), ("before", "out"), ("after", "f")]


def test_a_failure_of_a_hook_is_its_tasks() -> None:
    """The error has the line."""
    with pytest.raises(TaskFailed) as caught:
        list(fused(single("same", lifecycles=[Lifecycle("f", before_batch=f"{HERE}:words")])).batch([], {}))
    assert caught.value.failure.task == "f"
    assert "KeyError" in caught.value.failure.error


def test_any_exception_of_the_driver_is_a_failure() -> None:
    """The failure is one line with the exception."""
    assert of_exception(OSError(28, "No space left on device")).error.endswith("No space left on device")
    assert of_exception(OSError(28, "No space left on device")).restart
