"""A plain interpreter of a job's stateless tasks, segment by segment and task by task; and random jobs."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from onyxq.jobs.model import Condition, Function, Input, Job, Output, Predicate, Reduce, Window
from onyxq.spark.functions import resolve

HERE = "tests.spark.tasks"
FUNCTIONS = (("same", {}), ("more", {"by": 2}), ("even", {}), ("no_fives", {}))
Leaving = tuple[tuple[str, str], Any]


def leaving(job: Job, name: str, segment: Any) -> list[Leaving]:
    """Return the output of an entry's region for a segment: edges to cuts and outputs, and values."""
    task, found = job.task(name), []
    if isinstance(task, Function):
        try:
            made = resolve(task.fn)(segment, **task.params)
        except ValueError as error:
            return _on(job, name, [(to, value) for to, value in _exceptional(job, name, segment, error)])
        made = made if isinstance(made, list) else [] if made is None else [made]
    else:
        made = [segment]
    for one in made:
        found += _on(job, name, [(to, one) for to in _targets(job, name, one)])
    return found


def _on(job: Job, name: str, routed: list[tuple[str, Any]]) -> list[Leaving]:
    found: list[Leaving] = []
    for to, value in routed:
        if isinstance(job.task(to), Function):
            found += leaving(job, to, value)
        else:
            found.append(((name, to), value))
    return found


def _holds(condition: Condition, segment: Any) -> bool:
    if condition.when is None:
        return True
    return bool(resolve(condition.when.fn)(segment, **condition.when.params))


def _targets(job: Job, name: str, segment: Any) -> set[str]:
    after = set(job.after(name))
    conditions = [one for one in job.flow_conditions if one.from_ == name]
    ordinary = [one for one in conditions if not one.exceptions]
    if not ordinary:
        handlers = {to for one in conditions if one.to not in ("all", "none") for to in one.to if set(one.to) != after}
        return after - handlers
    return _sent(ordinary, after, segment)


def _sent(conditions: list[Condition], after: set[str], segment: Any) -> set[str]:
    found: set[str] = set()
    for one in conditions:
        if _holds(one, segment):
            found |= after if one.to == "all" else set() if one.to == "none" else set(one.to) & after
            if one.short_circuit:
                break
    return found


def _exceptional(job: Job, name: str, segment: Any, error: ValueError) -> list[tuple[str, Any]]:
    conditions = [one for one in job.flow_conditions if one.from_ == name and one.exceptions]
    return [(to, -segment) for to in _sent(conditions, set(job.after(name)), error)]


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Jobs of a few tasks of any shape: every function that raises has a condition that takes it."""
    inputs = [f"in{place}" for place in range(draw(st.integers(1, 2)))]
    middle = [f"t{place}" for place in range(draw(st.integers(1, 6)))]
    outputs = [f"out{place}" for place in range(draw(st.integers(1, 3)))]
    catalog: list[Any] = [Input(name, format="rate") for name in inputs]
    conditions: list[Condition] = []
    windows: list[Window] = []
    edges: list[tuple[str, str]] = []
    for place, name in enumerate(middle):
        before = draw(st.sets(st.sampled_from([*inputs, *middle[:place]]), min_size=1, max_size=3))
        edges += [(source, name) for source in sorted(before)]
        if draw(st.integers(0, 4)) == 0:
            catalog.append(Reduce(name))
            windows.append(Window(f"w{place}", name))
        else:
            fn, params = draw(st.sampled_from(FUNCTIONS))
            catalog.append(Function(name, f"{HERE}:{fn}", params))
    for name in outputs:
        before = draw(st.sets(st.sampled_from([*inputs, *middle]), min_size=1, max_size=3))
        edges += [(source, name) for source in sorted(before)]
        catalog.append(Output(name, format="json", path="/tmp/nowhere"))
    edges = draw(st.permutations(edges))
    for name in [*inputs, *middle]:
        conditions += draw(_conditions(name, [to for source, to in edges if source == name]))
    order = draw(st.permutations(conditions))
    return Job(workflow=edges, catalog=catalog, flow_conditions=order, windows=windows)


@st.composite
def _conditions(draw: st.DrawFn, name: str, after: list[str]) -> list[Condition]:
    if not after:
        return [Condition(name, "none", exceptions=True)]
    to = st.one_of(st.sampled_from(["all", "none"]), st.sets(st.sampled_from(after), min_size=1).map(sorted))
    when = st.sampled_from([None, Predicate(f"{HERE}:is_odd"), Predicate(f"{HERE}:above", {"limit": 7})])
    found = [
        Condition(name, draw(to), draw(when), short_circuit=draw(st.booleans())) for _ in range(draw(st.integers(0, 2)))
    ]
    return [*found, Condition(name, draw(to), exceptions=True, transform=f"{HERE}:as_number")]
