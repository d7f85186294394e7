"""Random valid jobs, for tests of properties that hold for all jobs."""

from __future__ import annotations

from typing import Any

from attrs import evolve
from hypothesis import strategies as st

from onyxq.jobs import slot_bounds
from onyxq.jobs.model import (
    Aggregation,
    Condition,
    Function,
    HostSettings,
    Input,
    Job,
    Join,
    Lifecycle,
    Output,
    Reduce,
    Task,
    Trigger,
    Window,
)
from onyxq.jobs.predicates import And, Not, Or, Pickled, Predicate

NAMES = [f"{word}{number}" for word in ("lines", "parse", "größe", "count it", "out") for number in range(4)]
references = st.sampled_from(["a:b", "shop.orders:paid", "m:Outer.inner", "größe:ß"]) | st.builds(
    Pickled, st.just("f"), st.binary(min_size=1, max_size=20)
)
keys = st.sampled_from(["user", "at"]) | references
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
maps = st.dictionaries(st.text(max_size=5), values, max_size=3)
written = st.dictionaries(st.just("compression"), st.sampled_from(["zstd", "none"]))
options = st.dictionaries(st.sampled_from(["header", "sep"]), st.sampled_from(["true", ";", ""]))
durations = st.integers(1, 86_400_000)
hosts = st.builds(
    HostSettings,
    executor_memory=st.sampled_from(["512m", "2g"]),
    py_files=st.lists(st.sampled_from(["a.py", "b.zip"]), unique=True),
    conf=st.dictionaries(st.just("spark.task.maxFailures"), st.sampled_from(["1", "9"])),
)


def whole_or_not(whole: st.SearchStrategy[bool]) -> st.SearchStrategy[Any]:
    """Predicates of any shape."""
    return st.recursive(
        st.builds(Predicate, references, maps, whole=whole),
        lambda inner: (
            st.builds(And, st.lists(inner, min_size=1, max_size=3).map(tuple))
            | st.builds(Or, st.lists(inner, min_size=1, max_size=3).map(tuple))
            | st.builds(Not, inner)
        ),
        max_leaves=4,
    )


predicates = whole_or_not(st.booleans())


@st.composite
def slots(draw: st.DrawFn) -> dict[str, Any]:
    """Minimum and maximum of slots of a task, and a share so small that the shares of all tasks fit."""
    least = draw(st.integers(1, 4))
    return {
        "min_slots": least,
        "max_slots": draw(st.none() | st.integers(least, 9)),
        "percentage": draw(st.integers(0, 10)),
    }


@st.composite
def inputs(draw: st.DrawFn, name: str) -> Input:
    """A queue, or something that Spark reads."""
    if draw(st.booleans()):
        return Input(name, queue="q", max_rows=draw(st.integers(1, 100)))
    path = draw(st.none() | st.just("/data/x"))
    return Input(name, format="csv", path=path, options=draw(options), schema="a int", bounded=draw(st.booleans()))


@st.composite
def outputs(draw: st.DrawFn, name: str) -> Output:
    """A queue, or something that Spark writes."""
    if draw(st.booleans()):
        return Output(name, queue="q", priority=draw(st.integers(-5, 5)), delay_ms=draw(st.integers(0, 5)))
    return Output(name, format="parquet", path="s3a://b/x", options=draw(written))


@st.composite
def windows(draw: st.DrawFn, number: int, task: str) -> Window:
    """A window of any kind, with its sizes."""
    kind = draw(st.sampled_from(["fixed", "sliding", "session", "global"]))
    slide = draw(st.integers(1, 1_000))
    sizes: dict[str, Any] = {
        "fixed": {"range_ms": slide},
        "sliding": {"slide_ms": slide, "range_ms": slide * draw(st.integers(1, 20))},
        "session": {"gap_ms": slide},
        "global": {},
    }[kind]
    own = st.builds(Aggregation, references, references, references, st.none() | references)
    aggregation = draw(st.sampled_from(["count", "sum", "min", "max", "average", "conj"]) | own)
    return Window(
        f"w{number}",
        task,
        kind,
        **sizes,
        key=draw(st.none() | keys),
        time="at",
        watermark_ms=1_000,
        aggregation=aggregation,
        field="n" if isinstance(aggregation, str) and draw(st.booleans()) else None,
    )


@st.composite
def triggers(draw: st.DrawFn, window: Window, after: tuple[str, ...]) -> Trigger:
    """A trigger of the window, with output to all later tasks or to one of them."""
    on = draw(st.sampled_from(["batch", "timer", "watermark", "segments", "punctuation"]))
    return Trigger(
        window.id,
        on,
        period_ms=draw(st.integers(100, 9_999)) if on == "timer" else None,
        count=draw(st.integers(1, 9)) if on == "segments" else None,
        predicate=draw(whole_or_not(st.just(False))) if on == "punctuation" else None,
        refinement=draw(st.sampled_from(["accumulating", "discarding"])),
        emit_to=draw(st.none() | st.sampled_from(after)),
    )


@st.composite
def conditions(draw: st.DrawFn, source: Task, after: tuple[str, ...]) -> list[Condition]:
    """Conditions of one task, those that short-circuit first."""
    made = []
    if isinstance(source, Function) and draw(st.booleans()):
        made.append(Condition(source.name, after[:1], exceptions=True, short_circuit=True, transform=draw(references)))
    if draw(st.booleans()):
        errors_to = draw(st.none() | st.sampled_from([after[:1], "all", "none"]))
        to = draw(st.sampled_from(["all", "none"]))
        made.append(Condition(source.name, to, draw(predicates), short_circuit=True, errors_to=errors_to))
    if draw(st.booleans()):
        made.append(Condition(source.name, after[-1:], draw(st.none() | predicates), exclude=("secret",)))
    return made


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """A job whose tasks are in layers: inputs, then tasks, then outputs."""
    names = draw(st.permutations(NAMES))
    first = [draw(inputs(name)) for name in names[: draw(st.integers(1, 2))]]
    last = [draw(outputs(name)) for name in names[18 : 18 + draw(st.integers(1, 2))]]
    catalog: list[Task] = [*first]
    edges: list[tuple[str, str]] = []
    for name in names[2 : 2 + draw(st.integers(0, 4))]:
        befores = draw(st.lists(st.sampled_from([task.name for task in catalog]), min_size=1, max_size=2, unique=True))
        kind = draw(st.sampled_from([Function, Reduce, Join])) if len(befores) == 2 else Function
        edges.extend((before, name) for before in befores)
        if kind is Join:
            left, right = befores
            catalog.append(Join(name, left=left, right=right, on=draw(keys), keep_all=True, **draw(slots())))
        elif kind is Reduce:
            catalog.append(Reduce(name, **draw(slots())))
        else:
            catalog.append(Function(name, draw(references), draw(maps), **draw(slots())))
    dangling = [task.name for task in catalog if all(source != task.name for source, _ in edges)]
    edges.extend((name, draw(st.sampled_from(last)).name) for name in dangling)
    edges.extend((catalog[-1].name, out.name) for out in last if (catalog[-1].name, out.name) not in edges)
    bare = Job(workflow=edges, catalog=[*catalog, *last])
    kept = [draw(windows(place, task.name)) for place, task in enumerate(catalog) if isinstance(task, Reduce)]
    least = draw(st.integers(1, 3))
    share = draw(st.integers(0, 100))
    resume = draw(st.none() | st.sampled_from(("earlier", "savepoint:before-2.1")))
    host = draw(st.none() | hosts)
    job = Job(
        id=draw(st.sampled_from(["j", "a-job_1", "0" * 32])),
        workflow=edges,
        catalog=draw(st.permutations(bare.catalog)),
        flow_conditions=[one for task in catalog for one in draw(conditions(task, bare.after(task.name)))],
        windows=kept,
        triggers=[draw(triggers(window, bare.after(window.task))) for window in kept],
        lifecycles=[Lifecycle(draw(st.sampled_from(["all", last[0].name])), before_job=draw(references))],
        scheduler="percentage" if share else draw(st.sampled_from(["balanced", "greedy"])),
        percentage=share,
        min_slots=least,
        max_slots=draw(st.none() | st.integers(4, 9)),
        tags=draw(st.lists(st.sampled_from(["gpu", "fast"]), unique=True)),
        checkpoint=draw(st.none() | st.just("s3a://b/c")),
        own_host=host is not None or draw(st.booleans()),
        host=host,
        resume=resume,
        drop_state=draw(st.just(()) | st.just(("hour", "pairs"))) if resume else (),
        metadata=draw(maps),
    )
    if not any(slot_bounds.problems(job)):
        return job
    ends = (Input, Output)
    free = [task if isinstance(task, ends) else evolve(task, max_slots=None, percentage=0) for task in job.catalog]
    return evolve(job, catalog=free, max_slots=None)
