"""Check of frame tasks before a job is submitted: where their columns come from, and the names that they use.

A frame task reads columns. Inputs and other frame tasks give columns. Functions, windows and joins give segments, so
the frame task must declare their columns. `onyxq.jobs.job_check` includes these problems.
"""

from __future__ import annotations

import keyword
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from onyxq.jobs import flow_conditions
from onyxq.jobs.fields import Problem
from onyxq.jobs.model import FRAME_TASKS, BatchFunction, Frame, FrameTask, Input, Job, Sql
from onyxq.system.settings import did_you_mean

Names: TypeAlias = "list[str] | tuple[str, ...]"
_EXAMPLE = "such as 'user string, n bigint'"


def problems(job: Job) -> Iterator[Problem]:
    """Yield the problems of columns, of inputs and of frame tasks; the job's edges must be valid."""
    for place, task in enumerate(job.catalog):
        path = f"catalog[{place}]"
        if isinstance(task, Input):
            yield from _input(job, task, path)
        elif isinstance(task, FRAME_TASKS):
            yield from _columns(job, task, path)
            yield from _time(task, path)
        if isinstance(task, Frame):
            yield from _parameters(job, task, path)
        elif isinstance(task, Sql):
            yield from _views(job, task, path)
    yield from _static(job)
    yield from _conditions(job)
    yield from _lifecycles(job)


def parameters(job: Job, task: Frame) -> dict[str, str]:
    """Return parameter -> task before it, for the function of a frame task."""
    named = {source: parameter for parameter, source in task.frames.items()}
    return {named.get(source, source): source for source in job.before(task.name)}


def columns_of(task: FrameTask, source: str) -> str | None:
    """Return the declared columns of the segments that come from a task, or None."""
    found = task.schema.get(source) if isinstance(task.schema, Mapping) else task.schema
    return None if found is None else str(found)


def gives_columns(job: Job, name: str) -> bool:
    """Return whether a task's rows have columns: an input, or a frame task."""
    return isinstance(job.task(name), (Input, *FRAME_TASKS))


def _frames_after(job: Job, name: str) -> list[str]:
    return [to for to in job.after(name) if isinstance(job.task(to), FRAME_TASKS)]


def _near(name: str, known: Names) -> str:
    return did_you_mean(name, list(known)) or f"; there are {', '.join(known)}"


def _input(job: Job, task: Input, path: str) -> Iterator[Problem]:
    frames = _frames_after(job, task.name)
    if task.queue is not None:
        if frames and task.schema is None:
            what = f"is missing: {frames[0]!r} reads the queue as columns; name them, {_EXAMPLE}"
            yield f"{path}.schema", what
        elif task.schema is not None and not frames:
            yield f"{path}.schema", "is for a queue that feeds a Frame, Sql or BatchFunction, or for a format"
    if task.time is not None and not frames:
        yield f"{path}.time", "is for inputs of a Frame, Sql or BatchFunction"
    yield from _time(task, path)
    if not task.static:
        return
    if task.queue is not None:
        yield f"{path}.static", "is for a format, not for a queue, whose tasks are read once"
    if task.time is not None:
        yield f"{path}.time", "is for streams: a static input has no watermark"


def _time(task: Input | FrameTask, path: str) -> Iterator[Problem]:
    if task.watermark_ms and task.time is None:
        yield f"{path}.time", "is missing: watermark_ms needs the name of the column with the time"


def _columns(job: Job, task: FrameTask, path: str) -> Iterator[Problem]:
    before = job.before(task.name)
    segments = [source for source in before if not gives_columns(job, source)]
    for source in segments:
        if columns_of(task, source) is None:
            what = f"is missing: {source!r} gives segments; name the columns that they become, {_EXAMPLE}"
            yield f"{path}.schema", what
    if task.schema is not None and not segments:
        yield f"{path}.schema", f"is for segments, but all tasks before {task.name!r} give columns"
    elif isinstance(task.schema, Mapping):
        for source in task.schema:
            if source not in segments:
                yield f"{path}.schema", f"names {source!r}, which gives it no segments{_near(source, segments)}"


def _parameters(job: Job, task: Frame, path: str) -> Iterator[Problem]:
    before = job.before(task.name)
    for parameter, source in task.frames.items():
        if source not in before:
            what = f"is {source!r}, from which no edge leads to {task.name!r}{_near(source, before)}"
            yield f"{path}.frames.{parameter}", what
    if len(set(task.frames.values())) < len(task.frames):
        yield f"{path}.frames", "names a task twice"
        return
    found = parameters(job, task)
    for parameter, source in found.items():
        if not parameter.isidentifier() or keyword.iskeyword(parameter):
            what = f"must name a parameter for {source!r}: {parameter!r} cannot be one; frames={{'rows': {source!r}}}"
            yield f"{path}.frames", what
        if parameter in task.params:
            yield f"{path}.params", f"names {parameter!r}, which is the frame of {source!r}"
    if len(found) < len(set(before)):
        yield f"{path}.frames", "gives two tasks before it the same parameter: choose another name"


def _views(job: Job, task: Sql, path: str) -> Iterator[Problem]:
    seen: dict[str, str] = {}
    for source in job.before(task.name):
        other = seen.setdefault(source.lower(), source)
        if other != source:
            yield path, f"reads {other!r} and {source!r}, which are the same name in SQL"


def _static(job: Job) -> Iterator[Problem]:
    """Yield edges that would send the same rows again in every batch."""
    inputs = [task for task in job.catalog if isinstance(task, Input)]
    if inputs and all(task.static for task in inputs):
        yield "catalog", "has only static inputs: at least one Input must be a stream"
        return
    static = {task.name for task in inputs if task.static}
    frames = [task.name for task in job.catalog if isinstance(task, FRAME_TASKS)]
    for _ in frames:
        static |= {name for name in frames if job.before(name) and static.issuperset(job.before(name))}
    for place, (source, to) in enumerate(job.workflow):
        if source in static and not isinstance(job.task(to), (Frame, Sql, BatchFunction)):
            yield f"workflow[{place}]", f"leads from {source!r}, which is static, to {to!r}: join it to a stream first"


def _conditions(job: Job) -> Iterator[Problem]:
    for task in job.catalog:
        frames = _frames_after(job, task.name)
        if not frames or not gives_columns(job, task.name):
            continue
        for place, _ in flow_conditions.of_task(job, task.name):
            what = f"is for segments, but rows of {task.name!r} go to {frames[0]!r} as columns: filter them there"
            yield f"flow_conditions[{place}]", what


def _lifecycles(job: Job) -> Iterator[Problem]:
    frames = [task.name for task in job.catalog if isinstance(task, (Frame, Sql))]
    for place, lifecycle in enumerate(job.lifecycles):
        if lifecycle.task in frames:
            what = f"is {lifecycle.task!r}: Frame and Sql tasks have no lifecycle"
            yield f"lifecycles[{place}].task", what
