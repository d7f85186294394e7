"""The cause of a job's failure, extracted from Spark's report.

An exception of a Python worker reaches the driver as a few pages of text. Exceptions that OnyxQ raises for a job
contain their details in one marked word. So the job's error names task, segment and the user's own traceback, and
whether a retry may help.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import traceback
from collections.abc import Mapping
from typing import Any

from attrs import asdict, evolve, frozen

from onyxq.core.errors import BY_CODE, BadRequest, Incomplete, OnyxqError

SEGMENT_CHARS_MAX = 400
TRACEBACK_CHARS_MAX = 4_000
ERROR_CHARS_MAX = 1_000
_MARK = re.compile(r"\[onyxq-failure:([A-Za-z0-9+/=]+)\]")
_OURS = re.compile(r"onyxq\.errors\.(\w+): ([^\n]*)")
_PLAN = re.compile(r"\n=== Streaming Query ===\n.*?(?=\n(?:JVM stacktrace|Traceback)|\Z)", re.DOTALL)
_OWN = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_HOPELESS = (BadRequest, Incomplete)
"""Errors that a retry does not help."""
_BY_NAME = {cls.__name__: cls for cls in BY_CODE.values()}


@frozen
class Failure:
    """Why a job stopped."""

    error: str
    """One line."""
    task: str | None = None
    segment: str | None = None
    """The input of the task, shortened."""
    traceback: str = ""
    restart: bool = True
    """Whether a retry may help, or the job asked for one."""
    code: str = "internal"
    """Code of the error, if it was one of ours."""


class TaskFailed(Exception):
    """A task of a job failed in a worker; its text holds the whole `Failure`."""

    def __init__(self, failure: Failure) -> None:
        mark = base64.b64encode(json.dumps(asdict(failure)).encode()).decode()
        super().__init__(f"{failure.error} [onyxq-failure:{mark}]")
        self.failure = failure

    def __reduce__(self) -> Any:
        return TaskFailed, (self.failure,)


def of_task(error: BaseException, *, task: str, segment: Any, restart: bool) -> TaskFailed:
    """Return the failure of a task's function at a segment."""
    text = said_by(error) if type(error).__module__.startswith("pyspark.") else error
    said = f"task {task}: {type(error).__name__}: {text}"
    code = error.code if isinstance(error, OnyxqError) else "task_failed"
    shown = _short(segment)
    if shown is not None:
        said += f" (at the segment {_cut(shown, 120)})"
    return TaskFailed(Failure(_cut(said, ERROR_CHARS_MAX), task, shown, _traceback(error), restart, code))


def described(error: BaseException) -> tuple[str, str, str]:
    """Return type, message and traceback of an exception, shortened; the traceback begins at the user's code."""
    text = error.message if isinstance(error, OnyxqError) else str(error)
    return type(error).__name__, _cut(text, ERROR_CHARS_MAX), _traceback(error)


def of_exception(error: BaseException) -> Failure:
    """Return the failure that an exception of the driver, or Spark's report of a worker's exception, describes."""
    if isinstance(error, TaskFailed):
        return error.failure
    if isinstance(error, OnyxqError):
        return Failure(
            f"{error.message} {error.advice}".strip(),
            task=error.field,
            traceback=_traceback(error),
            restart=not isinstance(error, _HOPELESS),
            code=error.code,
        )
    return of_text(str(error)) or Failure(f"{type(error).__name__}: {said_by(error)}", traceback=_traceback(error))


def of_text(text: str) -> Failure | None:
    """Return the failure that a text of Spark contains, or None if it contains none of ours.

    The plan of the query does not count: it has the texts of errors that the query may raise.
    """
    text = _PLAN.sub("", text)
    marked = _MARK.search(text)
    if marked:
        return Failure(**json.loads(base64.b64decode(marked.group(1))))
    ours = _OURS.search(text)
    if ours and ours.group(1) in _BY_NAME:
        cls = _BY_NAME[ours.group(1)]
        said = _cut(ours.group(2), ERROR_CHARS_MAX)
        return Failure(said, traceback=_tail(text), restart=not issubclass(cls, _HOPELESS), code=cls.code)
    return None


def said_by(error: BaseException) -> str:
    """Return one line that summarizes an exception and its cause, without Spark's plan."""
    causes = [error]
    while (cause := getattr(causes[-1], "_cause", None)) is not None:
        causes.append(cause)
    said = list(dict.fromkeys(_line_of(cause) for cause in causes))
    telling = [line for line in said if not line.startswith("[STREAM_FAILED]")] or said
    return _cut(" Caused by: ".join(telling[:2]), ERROR_CHARS_MAX)


def _line_of(error: BaseException) -> str:
    """Return the most useful line of an exception.

    For one from Java that is Java's message, not Python's.
    """
    lines = [line.strip().removeprefix(": ") for line in str(error).splitlines() if line.strip()]
    telling = [line for line in lines if re.match(r"(: )?[\w.$]+(Error|Exception): ", line)]
    return (telling or lines or [type(error).__name__])[0]


def _short(segment: Any) -> str | None:
    if segment is None:
        return None
    try:
        return _cut(repr(segment), SEGMENT_CHARS_MAX)
    except Exception as error:
        return f"<{type(segment).__name__}: its repr raised {type(error).__name__}>"


def _traceback(error: BaseException) -> str:
    """Return the traceback as Python prints it, without our own frames before the user's."""
    inside = error.__traceback__
    while inside is not None and inside.tb_frame.f_code.co_filename.startswith(_OWN):
        inside = inside.tb_next
    shown = error.__traceback__ if inside is None else inside
    return _tail("".join(traceback.format_exception(type(error), error, shown)))


def _tail(text: str) -> str:
    """Return the end of a text, without the state and the plan of the query that Spark adds."""
    text = _PLAN.sub("", text)
    return text if len(text) <= TRACEBACK_CHARS_MAX else "..." + text[-TRACEBACK_CHARS_MAX:]


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."


# --- full disks: Spark says that a disk is full, and not which

_NO_ROOM = ("No space left on device", "Disk quota exceeded")
FULL_BYTES = 1 << 20
"""Free bytes below which a disk counts as full."""


def with_full_disks(failure: Failure, places: Mapping[str, str]) -> Failure:
    """Return the failure with the full disks among the places that a job writes to (description -> path or URI).

    A failure of a task's own function is not changed.
    """
    text = f"{failure.error}\n{failure.traceback}"
    said = next((one for one in _NO_ROOM if one in text), None)
    if said is None or failure.task is not None:
        return failure
    full = [f"{what} ({path}) has {room >> 10} KiB left" for what, path in places.items() if (room := _room(path)) >= 0]
    if not full:
        return failure
    return evolve(
        failure, error=f"{said}: {', '.join(full)}. Once there is room the job continues after its last batch."
    )


def _room(path: str) -> int:
    """Return the free bytes of a full disk; -1 if the disk is not full or cannot be checked."""
    try:
        room = shutil.disk_usage(path.removeprefix("file://")).free
    except OSError:
        return -1
    return room if room < FULL_BYTES else -1
