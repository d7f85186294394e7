"""Check of a job before it is submitted, as far as possible without running it.

`check` names the key at fault (``workflow[2]``, ``catalog[1].fn``), the expected value and the nearest known name. It
checks only the form of functions, because a peer never imports a user's module. The submitting client also asks for
``importable``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import islice
from typing import Any

from onyxq.core.errors import BadRequest
from onyxq.core.limits import RESERVED
from onyxq.jobs import fields, frame_check, function_imports, host_settings, letters, options, slot_bounds
from onyxq.jobs.fields import Problem
from onyxq.jobs.model import (
    FRAME_TASKS,
    Aggregation,
    Condition,
    Function,
    Input,
    Job,
    Join,
    Output,
    Reduce,
    Trigger,
    Window,
)
from onyxq.jobs.predicates import predicates_in
from onyxq.jobs.slot_bounds import SLOTTED
from onyxq.system.settings import did_you_mean

OUTPUT_FORMATS = tuple(sorted(name for name in options.OUTPUTS if name != options.CALL))
"""Formats of folders of files and of tables; `onyxq.spark.files.formats` writes their files."""
PROBLEMS_MAX = 20
SLIDES_MAX = 1_000
"""Largest number of sliding windows that hold one segment."""
PERIOD_MS_MIN = 100
"""Shortest period of a timer, in milliseconds; batches are no shorter."""


def check(job: Job, *, importable: bool = False) -> None:
    """Raise `BadRequest` for the first problem; its details are the first twenty.

    With ``importable``, functions that are given by name are imported to check that they exist.
    """
    found = list(islice(problems(job), PROBLEMS_MAX))
    if not found and importable:
        found = list(islice(function_imports.problems(job), PROBLEMS_MAX))
    if found:
        field, what = found[0]
        raise BadRequest(f"{field} {what}", field=field, details=found)


def problems(job: Job) -> Iterator[Problem]:
    """Yield all problems of a job as ``(field, problem)``."""
    wrong = False
    for problem in fields.problems(job):
        yield problem
        wrong = True
    if wrong:
        return  # the rest relies on the types
    for rule in (*_RULES, letters.problems):
        yield from rule(job)
    if not any(_workflow(job)) and not any(_cycles(job)):
        yield from frame_check.problems(job)


def _near(name: str, known: list[str]) -> str:
    return did_you_mean(name, known) or (f"; there are {', '.join(known[:20])}" if known else "")


def _names(job: Job) -> list[str]:
    return [task.name for task in job.catalog]


def _kind(job: Job, name: str) -> type[Any] | None:
    return next((type(task) for task in job.catalog if task.name == name), None)


def _repeated(names: list[str], path: str) -> Iterator[Problem]:
    times = Counter(names)
    if len(times) == len(names):
        return
    for place, name in enumerate(names):
        if times[name] > 1 and name in names[:place]:
            yield path.format(place), f"is {name!r} for the second time; each name means one thing"


# --- catalog and workflow ---------------------------------------------------------


def _catalog(job: Job) -> Iterator[Problem]:
    yield from _repeated(_names(job), "catalog[{}].name")
    if not any(isinstance(task, Input) for task in job.catalog):
        yield "catalog", "has no Input: segments come from nowhere"
    for place, task in enumerate(job.catalog):
        path = f"catalog[{place}]"
        if isinstance(task, (Input, Output)):
            yield from _external(task, path)
            yield from options.problems(job.id, task, path)
            yield from options.problems_of_start(task, path) if isinstance(task, Input) else ()
            yield from _errors(job, task, path)
        elif isinstance(task, SLOTTED) and task.max_slots is not None and task.max_slots < task.min_slots:
            yield f"{path}.max_slots", f"is {task.max_slots}, less than min_slots, {task.min_slots}"
        if isinstance(task, Join):
            yield from _join(job, task, path)


def _external(task: Input | Output, path: str) -> Iterator[Problem]:
    named = ("queue", "format") if isinstance(task, Input) else ("queue", "format", "foreach_batch")
    given = [name for name in named if getattr(task, name) is not None]
    if len(given) != 1:
        words = ("neither", "", "both", "all")[len(given)]
        what = "a queue or a format" if isinstance(task, Input) else "a queue or a format, or a function"
        yield path, f"must have either {what}: {task.name!r} has {words}"
    if given == ["queue"]:
        for name in ("path", "options"):
            if getattr(task, name):
                yield f"{path}.{name}", "is for a format, not for a queue"
    if isinstance(task, Output) and (task.queue or "").startswith(RESERVED):
        yield f"{path}.queue", f"must not begin with {RESERVED}: {task.queue!r} is for OnyxQ's own tasks"
    if isinstance(task, Input) and task.queue and task.bounded:
        yield f"{path}.bounded", "is for files: a queue ends when it is sealed"
    if isinstance(task, Output) and task.format is not None and str(task.format).lower() not in OUTPUT_FORMATS:
        yield f"{path}.format", f"is {task.format!r}: outputs are {', '.join(OUTPUT_FORMATS)} or a queue"
    if isinstance(task, Output) and task.queue is None:
        if given and task.path is None:
            yield (
                f"{path}.path",
                f"is missing: name the folder for the files of {task.name!r}, or for its rows until their commit",
            )
        for name, nothing in (("priority", 0), ("ordering_key", None), ("delay_ms", 0)):
            if getattr(task, name) != nothing:
                yield f"{path}.{name}", "is for a queue only"


def _errors(job: Job, task: Input | Output, path: str) -> Iterator[Problem]:
    """Yield the problems of ``errors``, the output for segments that an output refuses."""
    if isinstance(task, Input) or task.errors is None:
        return
    others = {other.name: other for other in job.catalog if isinstance(other, Output) and other.name != task.name}
    if task.errors not in others:
        yield f"{path}.errors", f"is {task.errors!r}, which is not another Output{_near(task.errors, list(others))}"
    elif others[task.errors].errors is not None:
        yield f"{path}.errors", f"is {task.errors!r}, which has errors of its own"
    elif others[task.errors].ordering_key is not None or others[task.errors].format == "text":
        what = (
            "which can hold strings of one line only" if others[task.errors].format else "which needs an ordering key"
        )
        yield f"{path}.errors", f"is {task.errors!r}, {what}: it gets a dict of output, error and segment"
    if options.format_of(task) in options.GROWING and "schema" not in task.options:
        yield f"{path}.options.schema", "is missing: an output with errors must know its columns before the first row"


def _join(job: Job, task: Join, path: str) -> Iterator[Problem]:
    before = job.before(task.name)
    for side in ("left", "right"):
        name = getattr(task, side)
        if name not in before:
            near = _near(name, list(before))
            yield f"{path}.{side}", f"is {name!r}, from which no edge of the workflow leads to {task.name!r}{near}"
    if task.left == task.right:
        yield f"{path}.right", "is the same task as left: a join is of two"
    elif len(set(before)) > 2:
        yield path, f"is a join of two tasks, but edges lead to it from {', '.join(sorted(set(before)))}"
    if task.within_ms is not None and task.time is None:
        yield f"{path}.time", "is missing: within_ms needs to know the time of a segment"
    if task.time is not None and task.within_ms is None:
        yield f"{path}.within_ms", "is missing: time is only for finding pairs within it"
    if task.within_ms is None and not task.keep_all and (endless := _endless_before(job, task.name)):
        what = f"is missing: input {endless[0]!r} never ends, so {task.name!r} would keep all segments"
        yield f"{path}.within_ms", f"{what}; if that is meant, set keep_all to True"


def _endless_before(job: Job, name: str) -> list[str]:
    """Return the inputs that lead to a task and never end; dead letters that are sent again do end."""
    before = _reached([name], [(to, source) for source, to in job.workflow])
    inputs = [task for task in job.catalog if isinstance(task, Input) and task.name in before]
    return [one.name for one in inputs if not (one.bounded or one.static or letters.are_in(one.queue or ""))]


def _workflow(job: Job) -> Iterator[Problem]:
    if not job.workflow:
        yield "workflow", "is empty: it must be a list of edges (from, to)"
    seen: set[tuple[str, str]] = set()
    for place, edge in enumerate(job.workflow):
        path = f"workflow[{place}]"
        for name in edge:
            if name not in _names(job):
                yield path, f"names {name!r}, which the catalog has not{_near(name, _names(job))}"
        if edge in seen:
            yield path, f"is the edge from {edge[0]!r} to {edge[1]!r} for the second time"
        seen.add(edge)
        if _kind(job, edge[1]) is Input:
            yield path, f"leads to {edge[1]!r}, which is an Input: nothing leads to an input"
        if _kind(job, edge[0]) is Output:
            yield path, f"leads from {edge[0]!r}, which is an Output: nothing comes out of an output"


def _ends(job: Job) -> Iterator[Problem]:
    """Yield tasks that are on no path from an input to an output."""
    inputs = [task.name for task in job.catalog if isinstance(task, Input)]
    outputs = [task.name for task in job.catalog if isinstance(task, Output)]
    refusals = [(task.name, task.errors) for task in job.catalog if isinstance(task, Output) and task.errors]
    reached = _reached(inputs, [*job.workflow, *refusals])
    leading = _reached(outputs, [(to, source) for source, to in job.workflow])
    for place, task in enumerate(job.catalog):
        path = f"catalog[{place}]"
        if not job.before(task.name) and not job.after(task.name) and all(task.name != to for _, to in refusals):
            yield path, f"{task.name!r} is in no edge of the workflow"
        elif inputs and task.name not in reached:
            yield path, f"{task.name!r} is never reached: no way leads to it from an Input"
        elif task.name not in leading:
            yield path, f"{task.name!r} leads nowhere: no way leads from it to an Output"


def _reached(starts: list[str], edges: list[tuple[str, str]]) -> set[str]:
    after: dict[str, list[str]] = {}
    for source, to in edges:
        after.setdefault(source, []).append(to)
    reached, waiting = set(starts), list(starts)
    while waiting:
        further = [to for to in after.get(waiting.pop(), ()) if to not in reached]
        reached.update(further)
        waiting.extend(further)
    return reached


def _cycles(job: Job) -> Iterator[Problem]:
    """Yield the first cycle of the workflow, at the edge that closes it."""
    after = {name: job.after(name) for name in dict.fromkeys(source for source, _ in job.workflow)}
    done: set[str] = set()
    for start in after:
        way = [start] if start not in done else []
        ways = [iter(after[start])]
        while way:
            to = next(ways[-1], None)
            if to is None:
                done.add(way.pop())
                ways.pop()
            elif to in way:
                circle = [*way[way.index(to) :], to]
                yield (
                    f"workflow[{job.workflow.index((circle[-2], to))}]",
                    (f"closes a circle: {' -> '.join(circle)}; no way may lead back"),
                )
                return
            elif to not in done:
                way.append(to)
                ways.append(iter(after.get(to, ())))


# --- conditions, windows, triggers, lifecycles --------------------------------------


def _conditions(job: Job) -> Iterator[Problem]:
    for place, condition in enumerate(job.flow_conditions):
        path = f"flow_conditions[{place}]"
        yield from _edges_of(job, condition, path)
        if isinstance(condition.to, str) and not condition.short_circuit:
            yield f"{path}.short_circuit", f"must be True: {condition.to!r} leaves nothing to other conditions"
        if condition.exceptions and not condition.short_circuit:
            yield f"{path}.short_circuit", "must be True: one condition decides about an exception"
        if condition.exceptions and condition.from_ != "all" and _kind(job, condition.from_) not in (Function, None):
            yield f"{path}.exceptions", f"is for a Function: {condition.from_!r} calls none"
        if condition.transform is not None and not condition.exceptions and condition.errors_to is None:
            yield f"{path}.transform", "is for exceptions and errors_to: without them a Function does it"
        if condition.errors_to is not None and condition.when is None:
            yield f"{path}.errors_to", "is for exceptions of a predicate: give the condition one as `when`"
        if condition.errors_to == ():
            yield f"{path}.errors_to", "is empty: 'none' drops the segment; leave it out to fail the job"
        yield from _emitted_past(job, condition, path)
        if condition.exceptions and condition.transform is None and condition.to != "none":
            yield f"{path}.transform", "is missing: it must make a segment of the exception"
        earlier = [one for one in job.flow_conditions[:place] if one.from_ == condition.from_]
        alike = [one for one in earlier if one.exceptions == condition.exceptions]
        if condition.short_circuit and any(not one.short_circuit for one in alike):
            yield path, f"short-circuits, so it must come before those of {condition.from_!r} that do not"


def _emitted_past(job: Job, condition: Condition, path: str) -> Iterator[Problem]:
    """Yield the problem of a condition whose ``errors_to`` a trigger does not emit to: such errors would be lost."""
    tasks = {window.id: window.task for window in job.windows}
    for trigger in job.triggers:
        task = tasks.get(trigger.window)
        if trigger.emit_to is None or task is None or condition.from_ not in (task, "all"):
            continue
        named = condition.errors_to if isinstance(condition.errors_to, tuple) else ()
        lacking = [to for to in named if to in job.after(task) and to not in trigger.emit_to]
        if lacking:
            what = f"names {lacking[0]!r}, but a trigger of window {trigger.window!r} emits to other tasks only"
            yield f"{path}.errors_to", f"{what}: add it to emit_to"


def _edges_of(job: Job, condition: Condition, path: str) -> Iterator[Problem]:
    sources = [source for source, _ in job.workflow]
    if condition.from_ != "all" and condition.from_ not in sources:
        known = [*dict.fromkeys(sources), "all"]
        yield f"{path}.from", f"is {condition.from_!r}, from which no edge leads{_near(condition.from_, known)}"
        return
    after = [to for source, to in job.workflow if condition.from_ in (source, "all")]
    for field, names in (("to", condition.to), ("errors_to", condition.errors_to)):
        for name in names if isinstance(names, tuple) else ():
            if name not in after:
                where = f"from {condition.from_!r} to {name!r}"
                yield f"{path}.{field}", f"is wrong: no edge leads {where}{_near(name, list(dict.fromkeys(after)))}"


_SIZES = {"fixed": ("range_ms",), "sliding": ("range_ms", "slide_ms"), "session": ("gap_ms",), "global": ()}


def _windows(job: Job) -> Iterator[Problem]:
    yield from _repeated([window.id for window in job.windows], "windows[{}].id")
    reduces = [task.name for task in job.catalog if isinstance(task, Reduce)]
    for place, window in enumerate(job.windows):
        path = f"windows[{place}]"
        if window.task not in reduces:
            near = _near(window.task, reduces)
            yield f"{path}.task", f"is {window.task!r}, which is not a Reduce of the catalog; they keep windows{near}"
        yield from _sizes(window, path)
        if all(trigger.window != window.id for trigger in job.triggers):
            yield path, f"{window.id!r} has no trigger: it would emit nothing"
        if window.time is None and window.watermark_ms:
            yield f"{path}.watermark_ms", "is for a time of the segments: no segment is late without"
        if window.field is not None and isinstance(window.aggregation, Aggregation):
            yield f"{path}.field", "is for the aggregations that come along: one's own sees the whole segment"
        no_merge = isinstance(window.aggregation, Aggregation) and window.aggregation.merge is None
        if window.kind == "session" and no_merge:
            yield f"{path}.aggregation.merge", "is missing: sessions grow together, and so must their states"
    for place, task in enumerate(job.catalog):
        if isinstance(task, Reduce) and all(window.task != task.name for window in job.windows):
            yield f"catalog[{place}]", f"{task.name!r} is a Reduce without a window: it would emit nothing"


def _sizes(window: Window, path: str) -> Iterator[Problem]:
    for name in ("range_ms", "slide_ms", "gap_ms"):
        size, needed = getattr(window, name), name in _SIZES[window.kind]
        if needed and size is None:
            yield f"{path}.{name}", f"is missing: a {window.kind} window needs it"
        elif not needed and size is not None:
            others = " and ".join(_SIZES[window.kind]) or "no size"
            yield f"{path}.{name}", f"is not of a {window.kind} window, which has {others}"
    if window.kind == "sliding" and window.range_ms and window.slide_ms:
        if window.slide_ms > window.range_ms:
            yield f"{path}.slide_ms", f"is longer than range_ms, {window.range_ms}: segments between would be lost"
        elif window.range_ms > window.slide_ms * SLIDES_MAX:
            yield f"{path}.slide_ms", f"is too short: a segment would be in more than {SLIDES_MAX} windows"


_OF_TRIGGERS = {"timer": "period_ms", "segments": "count", "punctuation": "predicate"}
"""The field that belongs to a kind of trigger."""


def _triggers(job: Job) -> Iterator[Problem]:
    windows = {window.id: window for window in job.windows}
    for place, trigger in enumerate(job.triggers):
        path = f"triggers[{place}]"
        if trigger.window not in windows:
            near = _near(trigger.window, list(windows))
            yield f"{path}.window", f"is {trigger.window!r}, which is not a window{near}"
        else:
            yield from _emitting(job, trigger, windows[trigger.window], path)
        if trigger.on in ("segments", "punctuation") and trigger.window in windows:
            frames = _frames_before(job, windows[trigger.window].task)
            if frames:
                yield (
                    f"{path}.on",
                    f"cannot be {trigger.on!r} after {frames[0]!r}: a frame task gives rows no fixed order",
                )
        for kind, name in _OF_TRIGGERS.items():
            given = getattr(trigger, name) is not None
            if trigger.on == kind and not given:
                yield f"{path}.{name}", f"is missing: a trigger on {kind!r} has one"
            elif trigger.on != kind and given:
                yield f"{path}.{name}", f"is of a trigger on {kind!r}, not on {trigger.on!r}"
        if trigger.on == "timer" and trigger.period_ms is not None and trigger.period_ms < PERIOD_MS_MIN:
            yield f"{path}.period_ms", f"must be at least {PERIOD_MS_MIN}, as batches take"
        if any(one.whole for one in predicates_in(trigger.predicate)):
            yield f"{path}.predicate.whole", "is for flow conditions: a trigger gets the segment alone"


def _frames_before(job: Job, name: str) -> list[str]:
    """Return the frame tasks that lead to a task."""
    found, waiting = [], [name]
    while waiting:
        before = [one for one in job.before(waiting.pop()) if one not in found]
        found += before
        waiting += before
    return [task.name for task in job.catalog if task.name in found and isinstance(task, FRAME_TASKS)]


def _emitting(job: Job, trigger: Trigger, window: Window, path: str) -> Iterator[Problem]:
    after = list(job.after(window.task))
    for name in trigger.emit_to or ():
        if name not in after:
            yield f"{path}.emit_to", f"is wrong: no edge leads from {window.task!r} to {name!r}{_near(name, after)}"
    if trigger.emit_to == ():
        yield f"{path}.emit_to", "is empty: leave it out to emit to all tasks after the window's"


def _lifecycles(job: Job) -> Iterator[Problem]:
    for place, lifecycle in enumerate(job.lifecycles):
        path = f"lifecycles[{place}]"
        if lifecycle.task != "all" and lifecycle.task not in _names(job):
            known = [*_names(job), "all"]
            yield f"{path}.task", f"is {lifecycle.task!r}, which the catalog has not{_near(lifecycle.task, known)}"
        calls = (lifecycle.before_job, lifecycle.after_job, lifecycle.before_batch, lifecycle.after_batch)
        if lifecycle.on_exception == "defer" and not any(calls):
            yield path, "says nothing: it must have a function, or on_exception other than defer"


def _slots(job: Job) -> Iterator[Problem]:
    if job.max_slots is not None and job.max_slots < job.min_slots:
        yield "max_slots", f"is {job.max_slots}, less than min_slots, {job.min_slots}"
    if job.scheduler == "percentage" and not job.percentage:
        yield "percentage", "is missing: the scheduler `percentage` gives slots by it"
    elif job.scheduler != "percentage" and job.percentage:
        yield "percentage", f"is for the scheduler `percentage`, not for {job.scheduler!r}"
    total = 0
    for place, task in enumerate(job.catalog):
        if not isinstance(task, SLOTTED):
            continue
        total += task.percentage
        if task.percentage and total > 100:
            yield f"catalog[{place}].percentage", f"makes {total} of 100 together with the tasks before it"
        if job.max_slots is not None and task.min_slots > job.max_slots:
            yield f"catalog[{place}].min_slots", f"is {task.min_slots}, more than the job's max_slots, {job.max_slots}"
    if total <= 100 and not any(_cycles(job)) and not any(_workflow(job)):
        yield from slot_bounds.problems(job)
    for name in ("beside", "resume"):
        if getattr(job, name) == job.id:
            yield name, "is the job's own id: it must be another job's"
    if job.drop_state and job.resume is None:
        yield "drop_state", "is for a job that takes over the state of another: give it `resume`"


def _host(job: Job) -> Iterator[Problem]:
    if job.host is None:
        return
    if not job.own_host:
        yield "host", "is for a job with a process of its own: set own_host to True"
    for place, what in host_settings.problems(job.host):
        yield f"host.{place}", what


_RULES = (_catalog, _workflow, _ends, _cycles, _conditions, _windows, _triggers, _lifecycles, _slots, _host)
