"""A job as a value: its tasks, edges, conditions, windows and limits (design: jobs on Spark).

Everything is frozen and compares by value. Lists become tuples; nothing else is checked here, so a wrong job can be
made and `onyxq.jobs.job_check` can report its faults. `onyxq.jobs.encoding` makes the bytes that are submitted.

A segment is any value that msgpack holds. A function is given as ``package.module:name``, or as itself. In the second
case the submitting client uses its name if its module can be imported elsewhere, and pickles it otherwise.
"""

from __future__ import annotations

import importlib
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import attrs
from attrs import frozen

from onyxq.jobs.host_settings import HostSettings
from onyxq.jobs.predicates import And, Not, Or, Pickled, Predicate, Ref, predicate, tupled

__all__ = [
    "Aggregation",
    "And",
    "BatchFunction",
    "Condition",
    "Frame",
    "Function",
    "HostSettings",
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
    "Sql",
    "Task",
    "Trigger",
    "Window",
]

PREVIEW = "onyxq.jobs.preview"
"""Module that runs previews. It is loaded by name, because it imports this module."""
SAVEPOINT = "savepoint:"
"""Begins a ``resume`` that names a savepoint; ids of jobs have no colon."""


@frozen
class Input:
    """Source of segments: a queue, or any format that Spark can read.

    Tasks of a ``queue`` are claimed, and completed when their results are committed. A segment is the value of a task
    enqueued as JSON, otherwise its bytes. Without a queue, ``format`` is one of Spark's (``text``, ``json``, ``csv``,
    ``parquet``, ``rate``, ``kafka`` ...) with its ``path`` and ``options``. A segment is then a map of the row's
    columns, such as ``{"value": line}`` for text.
    """

    name: str
    queue: str | None = None
    format: str | None = None
    path: str | None = None
    options: Mapping[str, str] = attrs.field(factory=dict)
    schema: str | None = None
    """Names and types of the columns as in SQL, for formats that do not hold them.

    A queue needs it if it feeds a frame task: its tasks are then JSON objects with these fields.
    """
    bounded: bool = attrs.field(kw_only=True)
    """Whether all data exists at the start; default: True for files, False otherwise."""
    max_rows: int = attrs.field(default=10_000, kw_only=True)
    """Largest number of segments in one batch."""
    static: bool = attrs.field(default=False, kw_only=True)
    """Whether the input is a table beside the streams, which each batch reads as a whole; for joins in frame tasks."""
    time: str | None = attrs.field(default=None, kw_only=True)
    """The timestamp column of Spark's watermark, for frame tasks."""
    watermark_ms: int = attrs.field(default=0, kw_only=True)
    """How much older than the newest row a row may be, in milliseconds; older rows are late."""
    since_ms: int | None = attrs.field(default=None, kw_only=True)
    """Time at which the input begins, in milliseconds since the epoch; for files and Kafka.

    Of files, those that were modified then or later; of Kafka, messages with that timestamp or a later one. Default:
    files begin with the oldest one, Kafka as its options say.
    """

    @bounded.default
    def _files_end(self) -> bool:
        return self.queue is None and self.path is not None


@frozen
class Output:
    """Destination of segments: a queue, a format of files or tables, or a function.

    In a ``queue`` bytes stay bytes; any other value becomes JSON.
    """

    name: str
    queue: str | None = None
    format: str | None = None
    path: str | None = None
    options: Mapping[str, str] = attrs.field(factory=dict)
    priority: int = attrs.field(default=0, kw_only=True)
    ordering_key: str | None = attrs.field(default=None, kw_only=True)
    """The field of a segment with its ordering key."""
    delay_ms: int = attrs.field(default=0, kw_only=True)
    foreach_batch: Ref | None = attrs.field(default=None, kw_only=True)
    """A function that is called as ``fn(rows, facts)`` with each committed batch, at least once.

    ``rows`` is a list of segments, or an Arrow table if the options have a schema. With the option ``rows`` as
    ``frame`` it is a DataFrame of Spark, and the function runs in the host. ``facts`` is a dict of ``job``,
    ``version``, ``task``, ``batch`` and ``key``. A repeated call has the same ``key``. ``path`` is a folder for the
    rows until the call.
    """
    errors: str | None = attrs.field(default=None, kw_only=True)
    """The output for segments that this one refuses; default: such a segment fails the job.

    It gets a dict of the strings ``output``, ``error`` and ``segment``. The segment is JSON, or its ``repr`` if JSON
    cannot hold it.
    """
    dead_letters: bool | None = attrs.field(default=None, kw_only=True)
    """Whether segments that it refuses become dead letters; default: as the job says, unless it has ``errors``."""


@frozen
class Function:
    """A task that turns a segment into another one, a list of others, or None for nothing.

    It is called as ``fn(segment, **params)``.
    """

    name: str
    fn: Ref
    params: Mapping[str, Any] = attrs.field(factory=dict)
    min_slots: int = attrs.field(default=1, kw_only=True)
    max_slots: int | None = attrs.field(default=None, kw_only=True)
    percentage: int = attrs.field(default=0, kw_only=True)
    dead_letters: bool | None = attrs.field(default=None, kw_only=True)
    """Whether segments at which it raises an exception become dead letters; default: as the job says."""


@frozen
class Reduce:
    """A task that keeps windows; their triggers decide what it emits, see `Window`."""

    name: str
    min_slots: int = attrs.field(default=1, kw_only=True)
    max_slots: int | None = attrs.field(default=None, kw_only=True)
    percentage: int = attrs.field(default=0, kw_only=True)
    dead_letters: bool | None = attrs.field(default=None, kw_only=True)
    """Whether late segments, and those without a key or time, become dead letters; default: as the job says."""


@frozen
class Join:
    """A task that pairs segments of two earlier tasks by key: ``{"left": ..., "right": ...}``.

    ``on`` is a field, or a function of the segment. With ``how="left"`` a left segment without a partner is emitted
    with None. With ``within_ms`` only segments with times at most that far apart are paired; ``time`` is then the field
    or function for a segment's time, in milliseconds. Inputs that never end need it, or ``keep_all``.
    """

    name: str
    left: str = attrs.field(kw_only=True)
    right: str = attrs.field(kw_only=True)
    on: Ref = attrs.field(kw_only=True)
    how: str = attrs.field(default="inner", kw_only=True)
    within_ms: int | None = attrs.field(default=None, kw_only=True)
    time: Ref | None = attrs.field(default=None, kw_only=True)
    watermark_ms: int = attrs.field(default=0, kw_only=True)
    """How much later than the newest segment one may arrive and still find its partners, in milliseconds."""
    keep_all: bool = attrs.field(default=False, kw_only=True)
    """Whether it may keep all segments of inputs that never end: its state then grows until they are sealed."""
    min_slots: int = attrs.field(default=1, kw_only=True)
    max_slots: int | None = attrs.field(default=None, kw_only=True)
    percentage: int = attrs.field(default=0, kw_only=True)


@frozen
class Frame:
    """A task that computes a DataFrame of Spark from DataFrames.

    ``fn(orders=frame, users=frame, **params)`` gets one frame for each task before it, and returns a frame. It runs in
    the driver, once for each start of the job's query. A parameter has the name of the task, or the name that
    ``frames`` maps to the task.
    """

    name: str
    fn: Ref
    params: Mapping[str, Any] = attrs.field(factory=dict)
    frames: Mapping[str, str] = attrs.field(factory=dict, kw_only=True)
    """Parameter of the function -> task before it, for tasks whose name is not the parameter."""
    schema: Any = attrs.field(default=None, kw_only=True)
    """Columns of the segments that come from functions, windows and joins, as in SQL; or a map from task to columns."""
    time: str | None = attrs.field(default=None, kw_only=True)
    """The timestamp column of the result that has Spark's watermark."""
    watermark_ms: int = attrs.field(default=0, kw_only=True)


@frozen
class Sql:
    """A task that computes a frame by a query in SQL, in which each task before it is a view."""

    name: str
    sql: str
    schema: Any = attrs.field(default=None, kw_only=True)
    """Columns of the segments that come from functions, windows and joins, as in SQL; or a map from task to columns."""
    time: str | None = attrs.field(default=None, kw_only=True)
    """The timestamp column of the result that has Spark's watermark."""
    watermark_ms: int = attrs.field(default=0, kw_only=True)


@frozen
class BatchFunction:
    """A task that turns Arrow batches of rows into others.

    ``fn(batch, **params)`` gets a `pyarrow.RecordBatch` and returns one with the columns that ``returns`` names, in any
    number of rows.
    """

    name: str
    fn: Ref
    params: Mapping[str, Any] = attrs.field(factory=dict)
    returns: str = attrs.field(kw_only=True)
    """Names and types of the result's columns as in SQL."""
    schema: Any = attrs.field(default=None, kw_only=True)
    """Columns of the segments that come from functions, windows and joins, as in SQL; or a map from task to columns."""
    time: str | None = attrs.field(default=None, kw_only=True)
    """The timestamp column of the result that has Spark's watermark."""
    watermark_ms: int = attrs.field(default=0, kw_only=True)


FrameTask: TypeAlias = Frame | Sql | BatchFunction
"""A task whose input and result are frames of columns instead of segments."""
FRAME_TASKS = (Frame, Sql, BatchFunction)
Task: TypeAlias = Input | Output | Function | Reduce | Join | FrameTask
"""An entry of the catalog."""


@frozen
class Condition:
    """A rule that decides which of a task's segments go to which of the next tasks.

    A segment of a task without conditions goes to all next tasks. Otherwise it goes to the tasks of every condition
    that holds, in the order of the job's list; a condition that short-circuits ends the search. The fields in
    ``exclude`` are removed from the segment.

    A condition with ``exceptions`` handles errors of the task's function. Its predicate gets the exception instead of
    the segment, and ``transform(segment, exception)`` returns the segment to send on. An exception that no condition
    takes is an exception of the job.

    An exception of a predicate is an exception of the job too, unless its condition has ``errors_to``. The segment then
    goes to these tasks only, as what ``transform(segment, exception)`` returns. Without ``transform`` it goes as a dict
    of the strings ``task``, ``error`` and ``segment``. The segment is JSON, or its ``repr`` if JSON cannot hold it.
    """

    from_: str
    to: tuple[str, ...] | str = attrs.field(converter=tupled)
    """Names of tasks, or ``all`` or ``none``."""
    when: Any = attrs.field(default=None, converter=predicate)
    """A predicate, or a function that serves as one; None always holds."""
    exclude: tuple[str, ...] = attrs.field(default=(), converter=tupled, kw_only=True)
    short_circuit: bool = attrs.field(default=False, kw_only=True)
    exceptions: bool = attrs.field(default=False, kw_only=True)
    transform: Ref | None = attrs.field(default=None, kw_only=True)
    errors_to: tuple[str, ...] | str | None = attrs.field(default=None, converter=tupled, kw_only=True)
    """Names of tasks, or ``all`` or ``none``, for segments at which the predicate raises an exception."""


@frozen
class Aggregation:
    """A user-defined aggregation; its states are segments.

    ``init()`` returns the empty state, ``fold(state, segment)`` the next state. ``merge(one, other)`` joins the states
    of sessions that have become one. It also lets the engine fold parts where the segments are. ``result(state)``
    returns the value to emit; default: the state itself.
    """

    init: Ref
    fold: Ref
    merge: Ref | None = None
    result: Ref | None = None


@frozen
class Window:
    """Segments of a `Reduce` task, grouped by key and time and folded into one state per group.

    ``key`` and ``time`` are fields, or functions of the segment. Without ``time`` it is the time at which the batch was
    planned. ``field`` is the value to aggregate; default: the segment itself. The watermark is the newest time seen,
    less ``watermark_ms``. A window is over once the watermark passes its end; later segments are dropped.
    """

    id: str
    task: str
    kind: str = "global"
    """Kind of the window.

    ``fixed`` (of ``range_ms``), ``sliding`` (of ``range_ms``, a new one every ``slide_ms``), ``session`` (over after
    ``gap_ms`` without a segment) or ``global`` (never over).
    """
    range_ms: int | None = attrs.field(default=None, kw_only=True)
    slide_ms: int | None = attrs.field(default=None, kw_only=True)
    gap_ms: int | None = attrs.field(default=None, kw_only=True)
    key: Ref | None = attrs.field(default=None, kw_only=True)
    time: Ref | None = attrs.field(default=None, kw_only=True)
    aggregation: str | Aggregation = attrs.field(default="conj", kw_only=True)
    """``count``, ``sum``, ``min``, ``max``, ``average``, ``conj`` (a list of all), or an `Aggregation`."""
    field: str | None = attrs.field(default=None, kw_only=True)
    watermark_ms: int = attrs.field(default=0, kw_only=True)


def _names(value: Any) -> Any:
    return (value,) if isinstance(value, str) else tupled(value)


@frozen
class Trigger:
    """The time at which a window's states are emitted.

    A state is emitted as ``{"window", "key", "start_ms", "end_ms", "value"}``. With ``on="batch"`` each batch emits the
    states that it changed. ``timer`` emits changed states every ``period_ms``. ``watermark`` emits a state once its
    window is over. ``segments`` emits a state each time that it has taken ``count`` more segments. ``punctuation``
    emits a state when it has taken a segment for which ``predicate`` holds. With each of them, states not yet emitted
    are emitted when their window is over and when bounded inputs end.
    """

    window: str
    on: str = "watermark"
    period_ms: int | None = attrs.field(default=None, kw_only=True)
    count: int | None = attrs.field(default=None, kw_only=True)
    predicate: Any = attrs.field(default=None, converter=predicate, kw_only=True)
    """A predicate of a segment, or a function that serves as one."""
    refinement: str = attrs.field(default="accumulating", kw_only=True)
    """``accumulating`` emits everything so far, ``discarding`` only what is new since the last time."""
    emit_to: tuple[str, ...] | None = attrs.field(default=None, converter=_names, kw_only=True)
    """Tasks after the window's task; default: all of them."""


@frozen
class Lifecycle:
    """Functions that are called around a task's work, in the process that does it.

    Those around batches are called for each part of a batch. A part without rows may have no call, and if a bound of
    slots applies, several parts may share one.

    Each gets a map of facts: ``job``, ``version``, ``task`` and, around batches, ``batch``. ``on_exception`` decides
    what an exception of the task does to the job: ``kill`` it (it has failed), ``restart`` it from the last batch, or
    ``defer`` to the next entry. It may also be a function of the map (with ``exception`` and ``segment``) that returns
    one of these.
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


@frozen
class Preview:
    """The result of a preview."""

    outputs: dict[str, list[Any]]
    """Name of each output -> its segments, in the order in which they reached it."""
    late: dict[str, int]
    """Name of each task with windows or a join -> number of segments that came too late."""
    letters: dict[str, list[Any]] = attrs.field(factory=dict)
    """Name of each task with dead letters -> their segments."""
    dropped: int = 0
    """Number of rows that Spark's watermark dropped in frame tasks."""


@frozen(kw_only=True)
class Job:
    """A data pipeline: once submitted, it runs until its inputs end or it is killed.

    To submit the same job under the same ``id`` again changes nothing.
    """

    id: str = attrs.field(default=None, converter=_job_id)
    """Letters, digits, ``-`` and ``_``; default: a random id."""
    workflow: tuple[tuple[str, str], ...] = attrs.field(converter=_edges)
    """Edges ``(from, to)`` between names of the catalog, without cycles."""
    catalog: tuple[Task, ...] = attrs.field(converter=tupled)
    flow_conditions: tuple[Condition, ...] = attrs.field(default=(), converter=tupled)
    windows: tuple[Window, ...] = attrs.field(default=(), converter=tupled)
    triggers: tuple[Trigger, ...] = attrs.field(default=(), converter=tupled)
    lifecycles: tuple[Lifecycle, ...] = attrs.field(default=(), converter=tupled)
    scheduler: str = "balanced"
    """How slots are shared with other jobs: ``greedy``, ``balanced`` or ``percentage``."""
    percentage: int = 0
    """Share of all slots in percent, for the scheduler ``percentage``."""
    min_slots: int = 1
    max_slots: int | None = None
    tags: tuple[str, ...] = attrs.field(default=(), converter=tupled)
    """Tags that a peer must all have to drive the job."""
    zones: tuple[str, ...] = attrs.field(default=(), converter=tupled)
    """Zones in which its peer may be; default: any."""
    beside: str | None = None
    """Id of a job that runs on the same peer."""
    own_host: bool = False
    """Whether the job has its own Spark process."""
    host: HostSettings | None = None
    """Settings of that process."""
    checkpoint: str | None = None
    """Path or URI that every peer can reach; with it windows and joins survive their peer."""
    trigger_ms: int = 200
    """Shortest time between two batches, in milliseconds."""
    resume: str | None = None
    """Id of a job whose places in its inputs, windows and joins this one takes over; or ``savepoint:NAME``."""
    drop_state: tuple[str, ...] = attrs.field(default=(), converter=tupled)
    """Windows, joins and frame tasks of that job whose state this one does not take over."""
    restarts: int = 5
    """Largest number of failures in a row after which the query starts again; with 0 the first failure is final.

    A new batch, or a minute of running, ends the row: the next failure is the first one again.
    """
    key_groups: int | None = None
    """Number of parts of the state of windows and joins: at most this many slots work on it at once.

    Default: two for each slot of the job's first driver, at most two for each of ``max_slots``. It never changes.
    """
    dead_letters: bool = False
    """Whether segments at which its tasks fail become dead letters, instead of failing the job."""
    metadata: Mapping[str, Any] = attrs.field(factory=dict)

    @property
    def savepoint(self) -> str | None:
        """Name of the savepoint in ``resume``; None if it names none."""
        if self.resume is None or not self.resume.startswith(SAVEPOINT):
            return None
        return self.resume.removeprefix(SAVEPOINT)

    def preview(
        self,
        count: int = 10,
        rows: Mapping[str, Iterable[Any]] | None = None,
        *,
        batch_rows: int | None = None,
        ended: bool = True,
        spark: Any = None,
    ) -> Preview:
        """Run the workflow in this process on the first ``count`` rows of each input; return what reaches its outputs.

        No cluster is needed. Files on this machine are read, the oldest file first: text, JSON and Parquet. ``rows``:
        name of an input -> its segments, such as ``{"value": line}`` for the format ``text``; needed for other inputs.
        ``batch_rows``: largest number of segments of each input in a batch; default: all are one batch. ``ended``:
        whether the inputs end after these segments, so that every window is emitted. ``spark``: a session of Spark that
        runs the job, and reads files of any format. By default a job with a `Frame`, `Sql` or `BatchFunction` runs in
        the active session, or in one on this machine, which stays open. Other jobs need no Spark.

        Raises `BadRequest` if the job is not valid, or has an input that cannot be read here, and `Incomplete` if it
        needs Spark and something for it is not installed. Raises the exception of a function, with a note that names
        the task and the segment; on Spark `TaskFailed`, which names them.
        """
        run: Callable[..., Preview] = importlib.import_module(PREVIEW).of_files
        return run(self, count, rows or {}, batch_rows=batch_rows, ended=ended, spark=spark)

    def task(self, name: str) -> Task:
        """Return the catalog's entry of that name; raise `KeyError` if there is none."""
        for entry in self.catalog:
            if entry.name == name:
                return entry
        raise KeyError(name)

    def after(self, name: str) -> tuple[str, ...]:
        """Return the names of the tasks that a task's segments may go to, in the workflow's order."""
        return tuple(to for source, to in self.workflow if source == name)

    def before(self, name: str) -> tuple[str, ...]:
        """Return the names of the tasks that a task's segments come from, in the workflow's order."""
        return tuple(source for source, to in self.workflow if to == name)

    def ordered(self) -> list[str]:
        """Return the names of all tasks, each after those before it; otherwise in the catalog's order."""
        found: list[str] = []
        left = [task.name for task in self.catalog]
        while left:
            name = next(one for one in left if all(before in found for before in self.before(one)))
            found.append(name)
            left.remove(name)
        return found
