"""What a job takes over from the job that it resumes, and whether its definition fits that.

An input continues at the place of the earlier job's input of the same name. A window keeps its extents, and a join its
segments, if both jobs define it alike. Functions are compared by their names. Names in ``drop_state`` are left out: the
earlier job's state of that name is dropped, and what the new job has under the name begins empty.

Spark keeps the state of frame tasks in a form that belongs to its plan. So a job takes it over only as a whole, with
the same plan (`adopts`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgpack
from attrs import fields

from onyxq.core.errors import BadRequest
from onyxq.jobs.fields import Problem
from onyxq.jobs.model import (
    Aggregation,
    Frame,
    Function,
    Input,
    Job,
    Join,
    Output,
    Pickled,
    Reduce,
    Sql,
    Task,
    Window,
)
from onyxq.jobs.options import takes_columns

_INPUT = ("queue", "format", "path", "static")
_WINDOW = ("task", "kind", "range_ms", "slide_ms", "gap_ms", "key", "time", "aggregation", "field")
_JOIN = ("on", "time", "within_ms")
"""Fields that decide what a state or a place means; others may change."""
_SLOTS = ("min_slots", "max_slots", "percentage")
_OF_NO_PLAN: dict[type, tuple[str, ...]] = {
    Input: ("max_rows",),
    Function: ("fn", "params", "dead_letters", *_SLOTS),
    Reduce: _SLOTS,
    Join: _SLOTS,
    Output: ("path", "queue", "priority", "ordering_key", "delay_ms"),
}
"""Kind of task -> its fields that do not change Spark's plan."""
_PLAN = ("workflow", "flow_conditions", "windows", "triggers", "lifecycles", "dead_letters")
"""Fields of a job that decide Spark's plan, besides the catalog and the settings of Spark."""
_SQL = "spark.sql."
END = "<end>"
"""Name of the source that ends all inputs. The query of a job has it only if Spark keeps state for the job."""


def stateful(job: Job) -> bool:
    """Return whether Spark may keep state for the job: of a frame task only the plan shows it, see `keeps_state`."""
    return any(isinstance(task, (Reduce, Join, Frame, Sql)) for task in job.catalog)


def keeps_state(job: Job, record: bytes) -> bool:
    """Return whether Spark keeps state for the job, so that it cannot continue from offsets alone.

    ``record``: what the log has of the job's last batch. Without it, frame tasks count as tasks that keep state.
    """
    if not stateful(job):
        return False
    return not record or any(isinstance(task, (Reduce, Join)) for task in job.catalog) or has_state(record)


def has_state(record: bytes) -> bool:
    """Return whether the job of a record (`onyxq.spark.checkpoint.recorded`) keeps state, as far as that shows it."""
    inputs: list[str] | None = msgpack.unpackb(record)["inputs"]
    return inputs is None or END in inputs


def check_fit(old: Job, new: Job, *, record: bytes = b"", completed: bool = False) -> None:
    """Raise `BadRequest` for the first field of a job that does not fit what it takes over from ``old``.

    ``record``: of the last batch of ``old``. A job that has ``completed`` has emitted all its windows, so only the
    places of its inputs are left.
    """
    for field, what in _inputs(old, new) if completed else problems(old, new, record):
        raise BadRequest(f"{field} {what}", field=field)


def problems(old: Job, new: Job, record: bytes = b"") -> Iterator[Problem]:
    """Yield ``(field, problem)`` for all that does not fit; ``record``: of the last batch of ``old``."""
    keeping = [*(window.id for window in old.windows), *(task.name for task in old.catalog if _keeps(task))]
    for name in new.drop_state:
        if name not in keeping:
            yield "drop_state", f"names {name!r}: job {old.id} has no such window, join or frame task"
    yield from _inputs(old, new)
    yield from _windows(old, new)
    yield from _joins(old, new)
    if not keeps_state(old, record):
        return
    frames = [task.name for task in old.catalog if isinstance(task, (Frame, Sql)) and task.name not in new.drop_state]
    if frames and (other := _other_plan(old, new)):
        yield (
            "resume",
            f"names job {old.id}, whose task {frames[0]!r} keeps state inside Spark. Only a job with the same plan "
            f"takes it over, and {other} differs: name the task in drop_state to begin it empty",
        )
    elif not frames and any(isinstance(task, (Frame, Sql)) for task in old.catalog) and _kept(old, new):
        yield (
            "resume",
            f"names job {old.id}, which has frame tasks: state beside them cannot be taken over, "
            f"so name {_kept(old, new)[0]!r} in drop_state too",
        )


def adopts(old: Job, new: Job, record: bytes) -> bool:
    """Return whether a job takes over the whole checkpoint of another one, because frame tasks keep state there.

    The job fits the other one, whose last batch has the ``record``.
    """
    frames = [task.name for task in old.catalog if isinstance(task, (Frame, Sql))]
    return bool(frames) and keeps_state(old, record) and not _other_plan(old, new)


def _other_plan(old: Job, new: Job) -> str:
    """Return the first field in which two jobs differ that may change Spark's plan; empty if there is none."""
    if new.drop_state:
        return "drop_state"
    for name in _PLAN:
        if getattr(old, name) != getattr(new, name):
            return name
    if [(type(one), one.name) for one in old.catalog] != [(type(one), one.name) for one in new.catalog]:
        return "catalog"
    for place, tasks in enumerate(zip(old.catalog, new.catalog, strict=True)):
        was, now = map(_of_plan, tasks)
        if was != now:
            name = next((one for one in was if one in now and was[one] != now[one]), "options")
            return f"catalog[{place}].{name}"
    if _settings(old) != _settings(new):
        return "host.conf"
    return "key_groups" if new.key_groups not in (None, old.key_groups) else ""


def _of_plan(task: Task) -> dict[str, Any]:
    """Return the fields of a task that may change Spark's plan."""
    others = _OF_NO_PLAN.get(type(task), ())
    if isinstance(task, Output) and not takes_columns(task):
        others = (*others, "options")
    return {one.name: getattr(task, one.name) for one in fields(type(task)) if one.name not in others}


def _settings(job: Job) -> dict[str, str]:
    """Return the job's own settings of Spark that may change a plan."""
    conf = {} if job.host is None else job.host.conf
    return {name: value for name, value in conf.items() if name.startswith(_SQL)}


def kept_windows(old: Job, new: Job) -> list[Window]:
    """Return the windows of a job whose state another one takes over, as the other job defines them."""
    return [window for window in old.windows if window.id not in new.drop_state]


def kept_joins(old: Job, new: Job) -> list[Join]:
    """Return the joins of a job whose state another one takes over."""
    return [task for task in old.catalog if isinstance(task, Join) and task.name not in new.drop_state]


def _kept(old: Job, new: Job) -> list[str]:
    return [*(one.id for one in kept_windows(old, new)), *(one.name for one in kept_joins(old, new))]


def _keeps(task: Any) -> bool:
    return isinstance(task, (Join, Frame, Sql))


def _inputs(old: Job, new: Job) -> Iterator[Problem]:
    before = {task.name: task for task in old.catalog if isinstance(task, Input)}
    for place, task in enumerate(new.catalog):
        if isinstance(task, Input) and task.name in before:
            yield from _changed(before[task.name], task, _INPUT, f"catalog[{place}]", old, "its place")


def _windows(old: Job, new: Job) -> Iterator[Problem]:
    places = {window.id: place for place, window in enumerate(new.windows)}
    for window in kept_windows(old, new):
        if window.id not in places:
            yield "windows", _missing("window", window.id, old)
            continue
        path = f"windows[{places[window.id]}]"
        yield from _changed(window, new.windows[places[window.id]], _WINDOW, path, old, "the state of its window")
        yield from _triggers(window, old, new)


def _triggers(window: Window, old: Job, new: Job) -> Iterator[Problem]:
    """Yield the problems of the triggers of a window; the state of each belongs to its place among them."""
    before = [one for one in old.triggers if one.window == window.id]
    after = [one for one in new.triggers if one.window == window.id]
    was, now = ([one.refinement for one in triggers] for triggers in (before, after))
    if was != now:
        yield (
            "triggers",
            f"gives window {window.id!r} triggers that are {', '.join(now)}; in job {old.id} they are "
            f"{', '.join(was)}, and its state does not fit others",
        )
        return
    for trigger, earlier in zip(after, before, strict=True):
        if trigger != earlier and trigger in before:
            yield (
                f"triggers[{new.triggers.index(trigger)}]",
                f"is trigger {before.index(trigger)} of window {window.id!r} in job {old.id}, and trigger "
                f"{after.index(trigger)} here: its state belongs to its place, so keep their order",
            )


def _joins(old: Job, new: Job) -> Iterator[Problem]:
    places = {task.name: place for place, task in enumerate(new.catalog) if isinstance(task, Join)}
    for join in kept_joins(old, new):
        if join.name not in places:
            yield "catalog", _missing("join", join.name, old)
            continue
        path, after = f"catalog[{places[join.name]}]", new.catalog[places[join.name]]
        assert isinstance(after, Join)
        yield from _changed(join, after, _JOIN, path, old, "the state of its join")
        if after.left == join.right or after.right == join.left:
            yield f"{path}.left", f"is {after.left!r}, which was on the other side in job {old.id}"


def _missing(kind: str, name: str, old: Job) -> str:
    return f"have no {kind} {name!r}, whose state job {old.id} keeps: define it, or name it in drop_state"


def _changed(before: Any, after: Any, names: tuple[str, ...], path: str, old: Job, what: str) -> Iterator[Problem]:
    """Yield the fields in which two definitions differ."""
    for name in names:
        was, now = _plain(getattr(before, name)), _plain(getattr(after, name))
        if was != now:
            hint = "use another name" if isinstance(before, Input) else "use another name, or drop_state"
            yield f"{path}.{name}", f"is {now!r}, but {was!r} in job {old.id}: {what} does not fit ({hint})"


def _plain(value: Any) -> Any:
    """Return a field's value with the names of its functions."""
    if isinstance(value, Pickled):
        return value.named
    if isinstance(value, Aggregation):
        return [_plain(one) for one in (value.init, value.fold, value.merge, value.result)]
    return value
