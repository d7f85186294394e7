"""A job as a value: what flows where, by which functions, kept how long (design: jobs on Spark).

Everything is frozen and compares by value.  Lists become tuples; nothing else is looked at
here, so that a wrong job can be made and `onyxq.jobs.job_check` can say what is wrong with it.
`onyxq.jobs.encoding` makes the bytes that are submitted.

A segment is any value that msgpack holds.  A function is given as ``package.module:name``, or
as itself: then the submitting client names it if its module can be imported elsewhere, and
pickles it otherwise.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any, TypeAlias

import attrs
from attrs import frozen

from onyxq.jobs.predicates import And, Not, Or, Pickled, Predicate, Ref, predicate, tupled

__all__ = [
    "Aggregation",
    "And",
    "Condition",
    "Function",
    "Input",
    "Job",
    "Join",
    "Lifecycle",
    "Not",
    "Or",
    "Output",
    "Pickled",
    "Predicate",
    "Reduce",
    "Ref",
    "Task",
    "Trigger",
    "Window",
]


@frozen
class Input:
    """Where segments come from: a queue, or whatever Spark can read.

    Tasks of a ``queue`` are claimed, and completed when what was made of them is committed: data
    enqueued as JSON is its value, anything else bytes.  Otherwise ``format`` is one of Spark's (``text``,
    ``json``, ``csv``, ``parquet``, ``rate``, ``kafka`` ...) with its ``path`` and ``options``; a
    segment is then a map of the row's columns, like ``{"value": line}`` of a text.
    """

    name: str
    queue: str | None = None
    format: str | None = None
    path: str | None = None
    options: Mapping[str, str] = attrs.field(factory=dict)
    schema: str | None = None
    """Names and types of the columns as SQL has them, for formats that do not tell."""
    bounded: bool = attrs.field(kw_only=True)
    """Whether all that there will be is there at the start; files are, unless this says they are not."""
    max_rows: int = attrs.field(default=10_000, kw_only=True)
    """Segments of one batch, at most."""

    @bounded.default
    def _files_end(self) -> bool:
        return self.queue is None and self.path is not None


@frozen
class Output:
    """Where segments go: a queue, or whatever Spark can write.

    In a ``queue`` bytes stay bytes, anything else becomes JSON.
    """

    name: str
    queue: str | None = None
    format: str | None = None
    path: str | None = None
    options: Mapping[str, str] = attrs.field(factory=dict)
    priority: int = attrs.field(default=0, kw_only=True)
    ordering_key: str | None = attrs.field(default=None, kw_only=True)
    """The field of a segment whose value is its ordering key."""
    delay_ms: int = attrs.field(default=0, kw_only=True)


@frozen
class Function:
    """A task that turns a segment into another, into a list of others, or (None) into nothing.

    It is called as ``fn(segment, **params)``.
    """

    name: str
    fn: Ref
    params: Mapping[str, Any] = attrs.field(factory=dict)
    min_slots: int = attrs.field(default=1, kw_only=True)
    max_slots: int | None = attrs.field(default=None, kw_only=True)
    percentage: int = attrs.field(default=0, kw_only=True)


@frozen
class Reduce:
    """A task that keeps windows: what it emits is what their triggers say, see `Window`."""

    name: str
    min_slots: int = attrs.field(default=1, kw_only=True)
    max_slots: int | None = attrs.field(default=None, kw_only=True)
    percentage: int = attrs.field(default=0, kw_only=True)


@frozen
class Join:
    """A task that pairs segments of two tasks before it by key: ``{"left": ..., "right": ...}``.

    ``on`` is a field, or a function of the segment.  With ``how="left"`` a left segment without
    partner is emitted with None.  Of inputs that never end only pairs are found whose times are at most
    ``within_ms`` apart; then ``time`` says which field or function gives a segment's time, in milliseconds.
    """

    name: str
    left: str = attrs.field(kw_only=True)
    right: str = attrs.field(kw_only=True)
    on: Ref = attrs.field(kw_only=True)
    how: str = attrs.field(default="inner", kw_only=True)
    within_ms: int | None = attrs.field(default=None, kw_only=True)
    time: Ref | None = attrs.field(default=None, kw_only=True)
    watermark_ms: int = attrs.field(default=0, kw_only=True)
    """How much later than the newest a segment may come and still find its partners."""
    min_slots: int = attrs.field(default=1, kw_only=True)
    max_slots: int | None = attrs.field(default=None, kw_only=True)
    percentage: int = attrs.field(default=0, kw_only=True)


Task: TypeAlias = Input | Output | Function | Reduce | Join
"""An entry of the catalog."""


@frozen
class Condition:
    """Which of a task's segments go on to which of the tasks after it.

    A segment of a task without conditions goes to all.  Otherwise it goes wherever a condition that
    holds says, in the order of the job's list; one that short-circuits ends the search.  The fields
    of ``exclude`` are taken out of what goes on.

    ``exceptions`` are of what the task's function raised: the exception takes the segment's place in
    the predicate, and ``transform(segment, exception)`` gives the segment that goes on
    instead.  Without a condition that takes it the exception is the job's.
    """

    from_: str
    to: tuple[str, ...] | str = attrs.field(converter=tupled)
    """Names of tasks, or ``all`` or ``none``."""
    when: Any = attrs.field(default=None, converter=predicate)
    """A predicate, or a function as one; None holds always."""
    exclude: tuple[str, ...] = attrs.field(default=(), converter=tupled, kw_only=True)
    short_circuit: bool = attrs.field(default=False, kw_only=True)
    exceptions: bool = attrs.field(default=False, kw_only=True)
    transform: Ref | None = attrs.field(default=None, kw_only=True)


@frozen
class Aggregation:
    """An aggregation of the user's own; its states are segments.

    ``init()`` is the state of nothing, ``fold(state, segment)`` the next state.  ``merge(one, other)``
    joins the states of sessions that grew together, and lets parts be folded where the segments are.
    ``result(state)`` is what is emitted; without, the state itself.
    """

    init: Ref
    fold: Ref
    merge: Ref | None = None
    result: Ref | None = None


@frozen
class Window:
    """Segments of a `Reduce` task gathered by key and time, and folded into one state for each.

    ``key`` and ``time`` are fields, or functions of the segment; without ``time`` it is the time at
    which the batch was planned.  ``field`` is what is aggregated: without, the segment itself.
    A window is over once the watermark, which stays ``watermark_ms`` behind the newest time seen,
    passes its end; later segments of it are dropped.
    """

    id: str
    task: str
    kind: str = "global"
    """``fixed`` (of ``range_ms``), ``sliding`` (of ``range_ms``, one each ``slide_ms``), ``session``
    (over after ``gap_ms`` without a segment) or ``global`` (never over)."""
    range_ms: int | None = attrs.field(default=None, kw_only=True)
    slide_ms: int | None = attrs.field(default=None, kw_only=True)
    gap_ms: int | None = attrs.field(default=None, kw_only=True)
    key: Ref | None = attrs.field(default=None, kw_only=True)
    time: Ref | None = attrs.field(default=None, kw_only=True)
    aggregation: str | Aggregation = attrs.field(default="conj", kw_only=True)
    """``count``, ``sum``, ``min``, ``max``, ``average``, ``conj`` (a list of all), or one's own."""
    field: str | None = attrs.field(default=None, kw_only=True)
    watermark_ms: int = attrs.field(default=0, kw_only=True)


def _names(value: Any) -> Any:
    return (value,) if isinstance(value, str) else tupled(value)


@frozen
class Trigger:
    """When a window's states are emitted, as ``{"window", "key", "start_ms", "end_ms", "value"}``.

    ``batch``: those that a batch changed, after it.  ``timer``: those that changed, each ``period_ms``.
    ``watermark``: each once it is over.  With any of them, what has not been said yet is said when a
    window is over, and when bounded inputs have ended.
    """

    window: str
    on: str = "watermark"
    period_ms: int | None = attrs.field(default=None, kw_only=True)
    refinement: str = attrs.field(default="accumulating", kw_only=True)
    """``accumulating`` emits all so far, ``discarding`` only what came since it last fired."""
    emit_to: tuple[str, ...] | None = attrs.field(default=None, converter=_names, kw_only=True)
    """Tasks after the window's; all of them without."""


@frozen
class Lifecycle:
    """Functions that are called around a task's work, where it is done.

    Each is called with a map of what is known: ``job``, ``version``, ``task`` and, around batches,
    ``batch``.  ``on_exception`` says what an exception of the task does to the job: ``kill`` it
    (it has failed), ``restart`` it from the last batch, or ``defer`` to the next entry; or it is
    a function of the map (with ``exception``, ``segment``) that says one of these.
    """

    task: str = "all"
    before_job: Ref | None = attrs.field(default=None, kw_only=True)
    after_job: Ref | None = attrs.field(default=None, kw_only=True)
    before_batch: Ref | None = attrs.field(default=None, kw_only=True)
    after_batch: Ref | None = attrs.field(default=None, kw_only=True)
    on_exception: Ref = attrs.field(default="defer", kw_only=True)


def _job_id(given: str | None) -> str:
    return secrets.token_hex(16) if given is None else given


def _edges(value: Any) -> Any:
    return tuple(map(tupled, value)) if isinstance(value, (list, tuple)) else value


@frozen(kw_only=True)
class Job:
    """A data pipeline: submitted once, it goes on until its inputs end or it is killed.

    Submitting the same job under the same ``id`` again is no second job.
    """

    id: str = attrs.field(default=None, converter=_job_id)
    """Letters, digits, ``-`` and ``_``; a random one without."""
    workflow: tuple[tuple[str, str], ...] = attrs.field(converter=_edges)
    """Edges ``(from, to)`` between names of the catalog; no way leads back."""
    catalog: tuple[Task, ...] = attrs.field(converter=tupled)
    flow_conditions: tuple[Condition, ...] = attrs.field(default=(), converter=tupled)
    windows: tuple[Window, ...] = attrs.field(default=(), converter=tupled)
    triggers: tuple[Trigger, ...] = attrs.field(default=(), converter=tupled)
    lifecycles: tuple[Lifecycle, ...] = attrs.field(default=(), converter=tupled)
    scheduler: str = "balanced"
    """How slots are shared with other jobs: ``greedy``, ``balanced`` or ``percentage``."""
    percentage: int = 0
    """Of all slots, with the scheduler ``percentage``."""
    min_slots: int = 1
    max_slots: int | None = None
    tags: tuple[str, ...] = attrs.field(default=(), converter=tupled)
    """What a peer must all offer to drive it."""
    zones: tuple[str, ...] = attrs.field(default=(), converter=tupled)
    """Zones that its peer may be in; any without."""
    beside: str | None = None
    """Id of a job whose peer it shares."""
    own_host: bool = False
    """Whether it has a Spark process of its own."""
    checkpoint: str | None = None
    """Path or URI that every peer can reach, for windows and joins to survive their peer."""
    trigger_ms: int = 200
    """Time between two batches, at least."""
    resume: str | None = None
    """Id of a job whose committed offsets it starts from."""
    restarts: int = 5
    """Failures in a row after which it has failed."""
    key_groups: int = 16
    """Parts of the state of windows and joins: the most slots that work on it at once."""
    metadata: Mapping[str, Any] = attrs.field(factory=dict)

    def task(self, name: str) -> Task:
        """The catalog's entry of that name; raises `KeyError`."""
        for entry in self.catalog:
            if entry.name == name:
                return entry
        raise KeyError(name)

    def after(self, name: str) -> tuple[str, ...]:
        """Names of the tasks that a task's segments may go to, in the workflow's order."""
        return tuple(to for source, to in self.workflow if source == name)

    def before(self, name: str) -> tuple[str, ...]:
        """Names of the tasks that a task's segments come from, in the workflow's order."""
        return tuple(source for source, to in self.workflow if to == name)
