"""Allowed values of each field of a job on its own: types, sizes, words (see `onyxq.jobs.job_check`)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
from attrs import frozen

from onyxq.core.errors import BadRequest
from onyxq.core.jobs.lifetime import is_id
from onyxq.core.limits import INPUT_SINCE_MS_MAX, PRIORITY_MAX, PRIORITY_MIN, is_plain
from onyxq.jobs import model
from onyxq.jobs.encoding import canonical
from onyxq.jobs.functions import REFERENCE
from onyxq.jobs.host_settings import HostSettings, is_memory
from onyxq.jobs.predicates import And, Not, Or, Pickled, Predicate
from onyxq.system.settings import did_you_mean

NAME_CHARS_MAX = 100
TEXT_CHARS_MAX = 4_000
PARTS_MAX = 500
"""Largest number of tasks of a job; also of conditions, windows, triggers and lifecycles."""
EDGES_MAX = 2_000
SLOTS_MAX = 100_000
GROUPS_MAX = 1_024
"""Largest number of key groups of a job."""
TIME_MS_MAX = 10 * 366 * 86_400_000
SEGMENTS_MAX = 1_000_000_000
"""Largest number of segments between two firings of a trigger."""
SQL_CHARS_MAX = 50_000
_BLANKS = str.maketrans("\n\r\t", "   ")
_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")

Problem = tuple[str, str]
"""The field at fault, and its problem."""


@frozen
class Kind:
    """Requirement for a value: a test, and its expectation in words."""

    fits: Callable[[Any], bool]
    expected: str
    words: tuple[str, ...] = ()
    """Allowed words, to suggest the nearest."""

    def or_none(self) -> Kind:
        """Return the same requirement, but with None allowed."""
        return Kind(lambda value: value is None or self.fits(value), f"{self.expected}, or None", self.words)

    def complaint(self, value: Any) -> str:
        """Return the complaint about a value that does not fit."""
        near = did_you_mean(value, list(self.words)) if isinstance(value, str) and self.words else ""
        return f"must be {self.expected}, not {value!r:.80}{near}"


def is_text(value: Any, most: int = TEXT_CHARS_MAX, least: int = 1) -> bool:
    """Return whether the value is a string of ``least`` to ``most`` characters without control characters."""
    if not isinstance(value, str) or not least <= len(value) <= most or not is_plain(value):
        return False
    return not any("\ud800" <= sign <= "\udfff" for sign in value)


def is_reference(value: Any) -> bool:
    """Return whether the value refers to a function: by name, pickled, or itself."""
    if isinstance(value, str):
        return bool(REFERENCE.fullmatch(value))
    if isinstance(value, Pickled):
        return bool(value.pickled)
    return callable(value)


def _is_values(value: Any) -> bool:
    try:
        return isinstance(value, Mapping) and canonical(value, "") is not None
    except (BadRequest, RecursionError):
        return False


def _is_resumable(value: str) -> bool:
    name = value.removeprefix(model.SAVEPOINT)
    return _ID.fullmatch(value) is not None if name == value else is_id(name)


def _integer(low: int, high: int) -> Kind:
    return Kind(lambda value: type(value) is int and low <= value <= high, f"an integer of {low} to {high}")


def _word(*words: str) -> Kind:
    return Kind(lambda value: isinstance(value, str) and value in words, f"one of {', '.join(words)}", words)


def _many(one: Kind, words: tuple[str, ...] = ()) -> Kind:
    def fits(value: Any) -> bool:
        return isinstance(value, tuple) and all(map(one.fits, value)) and len(set(value)) == len(value)

    if words:
        said = f"{' or '.join(map(repr, words))}, or a list of different names"
        return Kind(lambda value: (isinstance(value, str) and value in words) or fits(value), said, words)
    return Kind(fits, f"a list, each once, each {one.expected}")


def _list(said: str) -> Kind:
    return Kind(
        lambda value: isinstance(value, tuple) and len(value) <= PARTS_MAX, f"a list of at most {PARTS_MAX} of {said}"
    )


_NAME = Kind(lambda value: is_text(value, NAME_CHARS_MAX), f"a name of 1 to {NAME_CHARS_MAX} characters")
_JOB_ID = Kind(
    lambda value: isinstance(value, str) and _ID.fullmatch(value) is not None,
    "1 to 100 letters, digits, - and _",
)
_RESUMED = Kind(lambda value: isinstance(value, str) and _is_resumable(value), "the id of a job, or savepoint:NAME")
_QUEUE = Kind(lambda value: is_text(value, 200), "a queue's name of 1 to 200 characters")
_TEXT = Kind(is_text, f"a text of 1 to {TEXT_CHARS_MAX} characters")
_TRUTH = Kind(lambda value: type(value) is bool, "True or False")
_REF = Kind(is_reference, "a function, or `package.module:name`")
_KEY = Kind(
    lambda value: (is_text(value, NAME_CHARS_MAX) and ":" not in value) or is_reference(value),
    "a field's name, a function, or `package.module:name`",
)
_PREDICATE = Kind(
    lambda value: value is None or isinstance(value, (Predicate, And, Or, Not)),
    "a predicate, a function, or `package.module:name`",
)
_VALUES = Kind(_is_values, "a map from strings to values that msgpack holds")
_OPTIONS = Kind(
    lambda value: (
        isinstance(value, Mapping) and all(is_text(key, 200) and is_text(said, least=0) for key, said in value.items())
    ),
    "a map from strings to strings",
)
_NAMES = Kind(
    lambda value: isinstance(value, Mapping) and all(is_text(word) for pair in value.items() for word in pair),
    "a map from names to names",
)
_SQL = Kind(
    lambda value: isinstance(value, str) and is_text(value.translate(_BLANKS), SQL_CHARS_MAX),
    f"a query in SQL, of 1 to {SQL_CHARS_MAX} characters",
)
_MEMORY = Kind(is_memory, "a size of memory such as 512m or 2g")
_SETTINGS = Kind(
    lambda value: isinstance(value, Mapping) and all(is_text(name, 200) for name in value),
    "a map from settings of Spark to texts",
)
_COLUMN = Kind(lambda value: is_text(value, NAME_CHARS_MAX) and ":" not in value, "the name of a column")
_SLOTS = {
    "min_slots": _integer(1, SLOTS_MAX),
    "max_slots": _integer(1, SLOTS_MAX).or_none(),
    "percentage": _integer(0, 100),
}
_TIME = _integer(0, TIME_MS_MAX)
_SOME_TIME = _integer(1, TIME_MS_MAX).or_none()
_TASK_NAME = Kind(
    lambda value: is_text(value, NAME_CHARS_MAX) and value not in ("all", "none") and "/" not in value,
    f"a name of 1 to {NAME_CHARS_MAX} characters without /, and not all or none",
)
_EXTERNAL = {
    "name": _TASK_NAME,
    "queue": _QUEUE.or_none(),
    "format": _NAME.or_none(),
    "path": _TEXT.or_none(),
    "options": _OPTIONS,
}
_COLUMNS = Kind(lambda value: is_text(value, 100_000), "names and types of columns as in SQL")
_EVENT_TIME = {"time": _COLUMN.or_none(), "watermark_ms": _TIME}
_FRAME = {
    "name": _TASK_NAME,
    "schema": Kind(
        lambda value: _COLUMNS.fits(value) or (_NAMES.fits(value) and bool(value)),
        "names and types of columns as in SQL, or a map from tasks to them",
    ).or_none(),
    **_EVENT_TIME,
}
EXCEPTION_WORDS = ("kill", "restart", "defer")
AGGREGATIONS = ("count", "sum", "min", "max", "average", "conj")

KINDS: Mapping[type[Any], Mapping[str, Kind]] = {
    model.Input: {
        **_EXTERNAL,
        "schema": _COLUMNS.or_none(),
        "bounded": _TRUTH,
        "max_rows": _integer(1, 10_000_000),
        "static": _TRUTH,
        "since_ms": _integer(0, INPUT_SINCE_MS_MAX).or_none(),
        **_EVENT_TIME,
    },
    model.Output: {
        **_EXTERNAL,
        "priority": _integer(PRIORITY_MIN, PRIORITY_MAX),
        "ordering_key": _NAME.or_none(),
        "delay_ms": _TIME,
        "foreach_batch": _REF.or_none(),
        "errors": _NAME.or_none(),
        "dead_letters": _TRUTH.or_none(),
    },
    model.Function: {"name": _TASK_NAME, "fn": _REF, "params": _VALUES, "dead_letters": _TRUTH.or_none(), **_SLOTS},
    model.Reduce: {"name": _TASK_NAME, "dead_letters": _TRUTH.or_none(), **_SLOTS},
    model.Join: {
        "name": _TASK_NAME,
        "left": _NAME,
        "right": _NAME,
        "on": _KEY,
        "how": _word("inner", "left"),
        "within_ms": _SOME_TIME,
        "time": _KEY.or_none(),
        "watermark_ms": _TIME,
        "keep_all": _TRUTH,
        **_SLOTS,
    },
    model.Frame: {**_FRAME, "fn": _REF, "params": _VALUES, "frames": _NAMES},
    model.Sql: {**_FRAME, "sql": _SQL},
    model.BatchFunction: {**_FRAME, "fn": _REF, "params": _VALUES, "returns": _COLUMNS},
    model.Condition: {
        "from_": _NAME,
        "to": _many(_NAME, ("all", "none")),
        "when": _PREDICATE,
        "exclude": _many(_NAME),
        "short_circuit": _TRUTH,
        "exceptions": _TRUTH,
        "transform": _REF.or_none(),
        "errors_to": _many(_NAME, ("all", "none")).or_none(),
    },
    Predicate: {"fn": _REF, "params": _VALUES, "whole": _TRUTH},
    model.Aggregation: {"init": _REF, "fold": _REF, "merge": _REF.or_none(), "result": _REF.or_none()},
    model.Window: {
        "id": _NAME,
        "task": _NAME,
        "kind": _word("fixed", "sliding", "session", "global"),
        "range_ms": _SOME_TIME,
        "slide_ms": _SOME_TIME,
        "gap_ms": _SOME_TIME,
        "key": _KEY.or_none(),
        "time": _KEY.or_none(),
        "aggregation": Kind(
            lambda value: isinstance(value, model.Aggregation) or (isinstance(value, str) and value in AGGREGATIONS),
            f"one of {', '.join(AGGREGATIONS)}, or an Aggregation",
            AGGREGATIONS,
        ),
        "field": _NAME.or_none(),
        "watermark_ms": _TIME,
    },
    model.Trigger: {
        "window": _NAME,
        "on": _word("batch", "timer", "watermark", "segments", "punctuation"),
        "period_ms": _SOME_TIME,
        "count": _integer(1, SEGMENTS_MAX).or_none(),
        "predicate": _PREDICATE,
        "refinement": _word("accumulating", "discarding"),
        "emit_to": _many(_NAME).or_none(),
    },
    model.Lifecycle: {
        "task": _NAME,
        **dict.fromkeys(("before_job", "after_job", "before_batch", "after_batch"), _REF.or_none()),
        "on_exception": Kind(
            lambda value: (isinstance(value, str) and value in EXCEPTION_WORDS) or is_reference(value),
            f"one of {', '.join(EXCEPTION_WORDS)}, a function, or `package.module:name`",
            EXCEPTION_WORDS,
        ),
    },
    HostSettings: {
        **dict.fromkeys(("driver_memory", "executor_memory"), _MEMORY.or_none()),
        **dict.fromkeys(("driver_cores", "executor_cores"), _integer(1, 1_024).or_none()),
        **dict.fromkeys(("packages", "jars", "py_files"), _many(_TEXT)),
        "environment": _TEXT.or_none(),
        "conf": _SETTINGS,
        "submit_wait_ms": _TIME.or_none(),
    },
    model.Job: {
        "id": _JOB_ID,
        "workflow": Kind(
            lambda value: isinstance(value, tuple) and len(value) <= EDGES_MAX and all(map(_is_edge, value)),
            f"a list of at most {EDGES_MAX} pairs (from, to) of names",
        ),
        "catalog": _list("Input, Function, Reduce, Join, Frame, Sql, BatchFunction and Output"),
        "flow_conditions": _list("Condition"),
        "windows": _list("Window"),
        "triggers": _list("Trigger"),
        "lifecycles": _list("Lifecycle"),
        "scheduler": _word("balanced", "greedy", "percentage"),
        **_SLOTS,
        "tags": _many(_NAME),
        "zones": _many(_NAME),
        "beside": _JOB_ID.or_none(),
        "own_host": _TRUTH,
        "host": Kind(lambda value: value is None or isinstance(value, HostSettings), "a HostSettings, or None"),
        "checkpoint": _TEXT.or_none(),
        "trigger_ms": _integer(1, 86_400_000),
        "resume": _RESUMED.or_none(),
        "drop_state": _many(_NAME),
        "restarts": _integer(0, 1_000),
        "key_groups": _integer(1, GROUPS_MAX).or_none(),
        "dead_letters": _TRUTH,
        "metadata": _VALUES,
    },
}
"""Every field of every part of a job."""

LISTS: Mapping[str, tuple[type[Any], ...]] = {
    "catalog": (model.Input, model.Function, model.Reduce, model.Join, *model.FRAME_TASKS, model.Output),
    "flow_conditions": (model.Condition,),
    "windows": (model.Window,),
    "triggers": (model.Trigger,),
    "lifecycles": (model.Lifecycle,),
}
"""Types of the items in the lists of a job."""


def _is_edge(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(is_text(name, NAME_CHARS_MAX) for name in value)


def problems(job: model.Job) -> Iterator[Problem]:
    """Yield the fields with wrong values, each with the expected one."""
    yield from _of_fields(job, "")
    if isinstance(job.host, HostSettings):
        yield from _of_fields(job.host, "host")
    for name, kinds in LISTS.items():
        parts = getattr(job, name)
        for place, part in enumerate(parts if isinstance(parts, tuple) else ()):
            where = f"{name}[{place}]"
            if type(part) not in kinds:
                names = " or ".join(kind.__name__ for kind in kinds)
                yield where, f"must be a {names}, not {part!r:.80}"
                continue
            yield from _of_fields(part, where)
            yield from _of_inner(part, where)


def _of_fields(part: Any, path: str) -> Iterator[Problem]:
    kinds = KINDS[type(part)]
    for attribute in attrs.fields(type(part)):
        value = getattr(part, attribute.name)
        if not kinds[attribute.name].fits(value):
            yield f"{path}.{attribute.name.rstrip('_')}".lstrip("."), kinds[attribute.name].complaint(value)


def _of_inner(part: Any, path: str) -> Iterator[Problem]:
    if isinstance(part, model.Condition) and part.when is not None:
        yield from _of_predicate(part.when, f"{path}.when")
    if isinstance(part, model.Trigger) and part.predicate is not None:
        yield from _of_predicate(part.predicate, f"{path}.predicate")
    if isinstance(part, model.Window) and isinstance(part.aggregation, model.Aggregation):
        yield from _of_fields(part.aggregation, f"{path}.aggregation")


def _of_predicate(said: Any, path: str, depth: int = 0) -> Iterator[Problem]:
    if depth > 8:
        yield path, "is more than 8 levels deep"
    elif isinstance(said, Predicate):
        yield from _of_fields(said, path)
    elif isinstance(said, Not):
        yield from _of_predicate(said.negated, f"{path}.not", depth + 1)
    elif isinstance(said, (And, Or)):
        word = "and" if isinstance(said, And) else "or"
        parts = said.all if isinstance(said, And) else said.any
        if not isinstance(parts, tuple) or not parts:
            yield f"{path}.{word}", "must be a list of one predicate or more"
            return
        for place, one in enumerate(parts):
            yield from _of_predicate(one, f"{path}.{word}[{place}]", depth + 1)
    elif depth:
        yield path, f"must be a predicate, a function, or `package.module:name`, not {said!r:.80}"
