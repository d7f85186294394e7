"""A workflow is cut only at tasks with state: stages, regions, and their contents."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from hypothesis import given, settings

from onyxq.jobs.inherited_state import stateful
from onyxq.jobs.model import Condition, Function, Input, Job, Join, Lifecycle, Output, Reduce, Trigger, Window
from onyxq.spark.plan.regions import is_plain, operators, stages, streams
from tests.spark.naive import jobs

SAME = "tests.spark.tasks:same"


def job_of(workflow: str, *cuts: str) -> Job:
    """Return a job of edges like ``a-b b-c``: i is an input, o an output, ``cuts`` are reduces, others functions."""
    edges = [(edge[0], edge[2]) for edge in workflow.split()]
    kinds = {"i": lambda name: Input(name, format="rate"), "o": lambda name: Output(name, format="json", path="/x")}
    names = dict.fromkeys(name for edge in edges for name in edge)
    catalog = [
        Reduce(name) if name in cuts else kinds.get(name, lambda name: Function(name, SAME))(name) for name in names
    ]
    return Job(workflow=edges, catalog=catalog)


def test_a_job_without_state_is_one_region() -> None:
    """This holds for any number of tasks and branches."""
    (stage,) = stages(job_of("i-a a-b a-c b-d c-d d-o a-o"))
    ((region,),) = stage.sides
    assert stage.task is None
    assert region.tasks == ("a", "b", "c", "d")
    assert region.wanted == (("d", "o"), ("a", "o"))
    assert not stateful(job_of("i-a a-o"))


def test_a_reduce_cuts_the_workflow() -> None:
    """The input side is one stage, and the output side continues to the outputs."""
    before, after = stages(job_of("i-a a-r r-b b-o", "r"))
    assert before.task == "r"
    assert [region.tasks for side in before.sides for region in side] == [("a",)]
    assert after.task is None
    assert [(region.entry, region.tasks) for side in after.sides for region in side] == [("r", ("b",))]


def test_each_way_out_of_an_input_has_the_tasks_that_lead_there_alone() -> None:
    """A function before a reduce and an output is in both regions, others are in one."""
    to_reduce, to_outputs = stages(job_of("i-a a-b b-r a-c c-o r-o", "r"))
    assert [region.tasks for side in to_reduce.sides for region in side] == [("a", "b")]
    assert [(region.entry, region.tasks) for side in to_outputs.sides for region in side] == [
        ("i", ("a", "c")),
        ("r", ()),
    ]


def test_a_join_has_two_sides() -> None:
    """Each side has the regions that lead to the edge from its task."""
    job = Job(
        workflow=[("x", "f"), ("f", "j"), ("y", "j"), ("j", "o")],
        catalog=[
            Input("x", format="rate"),
            Input("y", format="rate"),
            Function("f", SAME),
            Join("j", left="y", right="f", on="key"),
            Output("o", format="json", path="/x"),
        ],
    )
    join, outputs = stages(job)
    left, right = join.sides
    assert [(region.entry, region.tasks, region.wanted) for region in left] == [("y", (), (("y", "j"),))]
    assert [(region.entry, region.tasks, region.wanted) for region in right] == [("x", ("f",), (("f", "j"),))]
    assert [region.entry for side in outputs.sides for region in side] == ["j"]


@settings(max_examples=60)
@given(jobs())
def test_stages_follow_each_other(job: Job) -> None:
    """A stage's regions start with an input, or with the cut of an earlier stage."""
    known = {task.name for task in job.catalog if isinstance(task, Input)}
    order = job.ordered()
    for stage in stages(job):
        for side in stage.sides:
            for region in side:
                assert region.entry in known
                assert list(region.tasks) == sorted(region.tasks, key=order.index)
                assert set(region.wanted) <= set(region.edges) <= set(job.workflow)
        if stage.task is not None:
            known.add(stage.task)


@settings(max_examples=60)
@given(jobs())
def test_every_edge_out_of_the_stateless_part_is_wanted_once(job: Job) -> None:
    """This holds over all stages for edges that a segment can take; joins and reduces alike."""
    wanted = [edge for stage in stages(job) for side in stage.sides for region in side for edge in region.wanted]
    entries = {
        (region.entry, edge)
        for stage in stages(job)
        for side in stage.sides
        for region in side
        for edge in region.wanted
    }
    assert len(entries) == len(wanted)
    assert {edge for _, edge in entries} == {
        (source, to) for source, to in job.workflow if not isinstance(job.task(to), Function)
    }


def test_inputs_and_state_are_listed_as_spark_numbers_them() -> None:
    """The plan is read from the outputs on, and what feeds two stages is there twice."""
    job = job_of("i-r r-s i-s s-o r-o", "r", "s")
    assert operators(job) == ["r", "s", "r"]
    assert streams(job) == ["i", "<end>", "i", "i", "<end>", "<end>"]


@pytest.mark.parametrize(
    ("plain", "workflow", "more"),
    [
        (True, "i-r r-o i-o", {}),
        (
            True,
            "i-r r-a a-o",
            {"flow_conditions": [Condition("a", "all")], "lifecycles": [Lifecycle("a", after_batch=SAME)]},
        ),
        (True, "i-r r-o", {"triggers": [Trigger("w", "batch"), Trigger("other", "segments", count=2)]}),
        (False, "i-a a-r r-o", {}),
        (False, "i-r i-a a-r r-o", {}),
        (False, "i-r r-o", {"flow_conditions": [Condition("i", "all", SAME)]}),
        (False, "i-r r-o", {"lifecycles": [Lifecycle(before_batch=SAME)]}),
        (False, "i-r r-o", {"triggers": [Trigger("w"), Trigger("w", "punctuation", predicate=SAME)]}),
    ],
)
def test_a_cut_takes_rows_that_no_function_sees(plain: bool, workflow: str, more: dict[str, Any]) -> None:
    """Functions, conditions, lifecycles and triggers at segments need segments with a lineage."""
    job = evolve(job_of(workflow, "r"), windows=[Window("w", "r")], **more)
    stage, *_ = stages(job)
    ((region,),) = stage.sides
    assert is_plain(job, region) == plain
