"""Dead letters of a job: segments at which a task failed, and segments that came too late for a window.

Pure. A letter is a task of the queue `queue_of` a job. The batch that read the segment writes it together with its
other outputs, so it exists once if that batch counts. Until the sink, a letter is a plain map, as `failed` and `late`
make it; the sink adds what it knows (`stamped`). To send letters again, their tasks move to the queue
`again_queue_of` the job, and another job (`requeued`) reads them.

A function that leads to a window and to outputs runs once for each of these *ways*. So a letter names its way, and
goes again on that way only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from attrs import evolve, fields_dict, frozen

from onyxq.core.limits import RESERVED
from onyxq.core.texts import whole
from onyxq.jobs.fields import Problem
from onyxq.jobs.model import FRAME_TASKS, Condition, Function, Input, Job, Join, Output, Reduce
from onyxq.jobs.options import GROWING, format_of
from onyxq.jobs.values import pack, shown, unpack

LETTERED = (Function, Reduce, Output)
"""Tasks that may have dead letters."""
LATE = "Late"
"""The type of the error of a late segment."""
_QUEUES = f"{RESERVED}letters."
_AGAIN = f"{RESERVED}requeued."
_NOTHING = f"{_AGAIN}nothing"
"""The queue of inputs that a requeue leaves out; no task is ever in it."""
_OLD_ID_CHARS_MAX = 80
_DIGEST_BYTES = 4


@frozen(kw_only=True)
class Letter:
    """A segment that waits for a decision, and why."""

    job: str
    batch: int
    task: str
    way: str
    """The window's task for which the task ran, or ``from/join`` for a join; empty: for the outputs."""
    segment: Any
    error: str
    """Type of the exception, or `LATE`."""
    message: str
    traceback: str = ""
    attempt: int = 1
    """How often the segment has come to this end: 2 if it was sent again once."""
    window: str | None = None
    time_ms: int | None = None
    """Time of a late segment, in ms since the epoch."""
    watermark_ms: int | None = None
    """Watermark of the window when the segment came, in ms since the epoch."""

    @property
    def shown(self) -> str:
        """The segment as text: JSON, or its ``repr`` if JSON cannot hold it."""
        return shown(self.segment)

    def says(self, text: str) -> bool:
        """Return whether a text is in the error, as ``type: message``."""
        return text in f"{self.error}: {self.message}"


def letter_in(data: bytes) -> Letter:
    """Return the letter in a task's data."""
    said = unpack(data)
    return Letter(**{name: said[name] for name in fields_dict(Letter) if name in said})


def failed(*, task: str, way: str, segment: Any, error: tuple[str, str, str]) -> dict[str, Any]:
    """Return the letter of a segment at which a task failed.

    ``error``: type, message and traceback of the exception.
    """
    kind, message, traceback = (text.encode(errors="backslashreplace").decode() for text in error)
    return {
        "task": task, "way": way, "segment": segment, "error": kind, "message": message, "traceback": traceback
    }  # fmt: skip


def late(*, task: str, window: str, segment: Any, time_ms: int, watermark_ms: int) -> dict[str, Any]:
    """Return the letter of a segment that came too late for a window."""
    message = f"the segment's time is {time_ms}, and the watermark of window {window} was {watermark_ms}"
    found = failed(task=task, way=task, segment=segment, error=(LATE, message, ""))
    return {**found, "window": window, "time_ms": time_ms, "watermark_ms": watermark_ms}


def stamped(letter: dict[str, Any], *, job: str, batch: int, attempt: int) -> bytes:
    """Return the data of a letter's task."""
    return pack({**letter, "job": job, "batch": batch, "attempt": attempt})


# --- settings ---------------------------------------------------------------------


def wanted(job: Job, name: str) -> bool:
    """Return whether segments at which a task fails become dead letters."""
    task = job.task(name)
    if not isinstance(task, LETTERED):
        return False
    if task.dead_letters is None:
        return job.dead_letters and not (isinstance(task, Output) and task.errors is not None)
    return task.dead_letters


def any_in(job: Job) -> bool:
    """Return whether a task of the job has dead letters."""
    return any(wanted(job, task.name) for task in job.catalog)


def problems(job: Job) -> Iterator[Problem]:
    """Yield what is wrong about the dead letters of a job whose fields are valid."""
    fields = [(f"catalog[{place}].dead_letters", task) for place, task in enumerate(job.catalog)]
    frames = _frames_after(job)
    for field, task in fields:
        if task.name in frames and wanted(job, task.name):
            asked = isinstance(task, LETTERED) and task.dead_letters
            what = f"is not for {task.name!r}: it leads to {frames[task.name]!r}, whose rows are not segments"
            yield (field, what) if asked else ("dead_letters", f"{what}; give it dead_letters=False")
        if isinstance(task, Output) and task.errors is not None and task.dead_letters:
            yield field, f"and errors of {task.name!r} exclude each other: a refused segment goes to one of them"
        if (
            isinstance(task, Output)
            and task.dead_letters
            and format_of(task) in GROWING
            and "schema" not in task.options
        ):
            yield (
                field,
                f"needs a schema in the options of {task.name!r}: its columns must be known before the first row",
            )


def _frames_after(job: Job) -> dict[str, str]:
    """Return each frame task, and each task that leads to one -> the frame task."""
    found = {task.name: task.name for task in job.catalog if isinstance(task, FRAME_TASKS)}
    waiting = list(found)
    while waiting:
        name = waiting.pop()
        for before in job.before(name):
            if before not in found:
                found[before] = found[name]
                waiting.append(before)
    return found


def fits(letter: Letter, job: Job) -> bool:
    """Return whether a job can process a letter: no earlier job of its id with another definition wrote it."""
    names = [task.name for task in job.catalog]
    if letter.window is not None and (letter.task, letter.window) not in {(one.task, one.id) for one in job.windows}:
        return False
    return letter.task in names and wanted(job, letter.task) and letter.way in _ways(job, letter.task)


def _ways(job: Job, name: str) -> set[str]:
    """Return the ways for which a task runs; see `Letter.way`."""
    if not isinstance(job.task(name), Function):
        return {name if isinstance(job.task(name), Reduce) else ""}
    found: set[str] = set()
    for to in job.after(name):
        task = job.task(to)
        if isinstance(task, Function):
            found |= _ways(job, to)
        else:
            found.add(f"{name}/{to}" if isinstance(task, Join) else to if isinstance(task, Reduce) else "")
    return found


# --- queues, and the job that sends letters again ----------------------------------


def queue_of(job: str) -> str:
    """Return the queue of a job's dead letters."""
    return f"{_QUEUES}{job}"


def again_queue_of(job: Job) -> str:
    """Return the queue of the letters of a job that are sent again."""
    return f"{_AGAIN}{attempt_of(job) + 1}.{job.id}"


def are_in(queue: str) -> bool:
    """Return whether a queue has letters that are sent again."""
    return queue.startswith(_AGAIN)


def attempt_of(job: Job) -> int:
    """Return the attempt of a job at its segments: one more than that of the job whose letters it sends again."""
    queues = [task.queue for task in job.catalog if isinstance(task, Input) and task.queue]
    numbers = [whole(queue.removeprefix(_AGAIN).split(".")[0]) for queue in queues if are_in(queue)]
    return max((number for number in numbers if number is not None), default=1)


def requeued(old: Job, *, id: str) -> Job:
    """Return the job that sends the letters of a job again.

    It has the definition of that job. Its first stream reads the letters and leads to each task that has some; the
    others read nothing. Frame tasks, and tasks that lead to them, get no letters: only their names stay, as streams
    that read nothing, if other tasks come after them.
    """
    job = _without_frames(old)
    streams = streams_of(job)
    first = streams[0]

    def read(task: Input) -> Input:
        queue = again_queue_of(old) if task.name == first else _NOTHING
        return Input(task.name, queue=queue, max_rows=task.max_rows)

    edges = tuple((first, task.name) for task in job.catalog if wanted(job, task.name))
    return evolve(
        job,
        id=id,
        catalog=tuple(read(task) if isinstance(task, Input) and task.name in streams else task for task in job.catalog),
        workflow=(*job.workflow, *(edge for edge in edges if edge not in job.workflow)),
        resume=None,
        drop_state=(),
        host=old.host and evolve(old.host, submit_wait_ms=None),  # No program of a user offers to serve this id.
    )


def _without_frames(old: Job) -> Job:
    """Return a job without its frame tasks and the tasks that lead to them.

    Those from which other tasks get segments become streams; of these an input keeps its definition.
    """
    left = _frames_after(old)
    if not left:
        return old
    workflow = tuple(edge for edge in old.workflow if edge[1] not in left)
    sources = [source for source, _ in workflow]
    stays = [task.name for task in old.catalog if task.name not in left]
    catalog = tuple(
        task if task.name in stays or isinstance(task, Input) else Input(task.name, queue=_NOTHING)
        for task in old.catalog
        if task.name in stays or task.name in sources
    )
    windows = tuple(window for window in old.windows if window.task in stays)
    names = [window.id for window in windows]
    return evolve(
        old,
        catalog=catalog,
        workflow=workflow,
        flow_conditions=tuple(one for one in old.flow_conditions if {one.from_, *_named(one)} <= {*stays, "all"}),
        windows=windows,
        triggers=tuple(trigger for trigger in old.triggers if trigger.window in names),
        lifecycles=tuple(one for one in old.lifecycles if one.task in (*stays, "all")),
    )


def _named(condition: Condition) -> list[str]:
    """Return the tasks that a condition names as destinations: it concerns only tasks that lead to all of them."""
    return [name for names in (condition.to, condition.errors_to) if isinstance(names, tuple) for name in names]


def streams_of(job: Job) -> list[str]:
    """Return the streams of a job; those of a job of `requeued` are sealed at once."""
    return [task.name for task in job.catalog if isinstance(task, Input) and not task.static]


def id_of(old: str, newest: bytes, number: int) -> str:
    """Return an id for the job that sends letters again.

    ``newest``: id of the newest of them; ``number``: of the jobs with these letters that have ended before.
    """
    digits = hashlib.blake2b(newest + number.to_bytes(4, "big"), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{old[:_OLD_ID_CHARS_MAX]}-requeue-{digits}"
