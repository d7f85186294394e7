"""The state of windows and joins, copied from the checkpoint of an ended job into that of the job that resumes it.

Spark's state belongs to one plan: to the numbers of its operators, its key groups, and its folder. So the copy holds
cells by the names of windows and joins and by their keys, in files of Parquet with a task and a payload in each row
(`onyxq.spark.plan.groups.Inherited`). A query of one batch stores them again, each in the group of its key. Only then
the places of the inputs are set, and the folder counts as complete (`onyxq.spark.checkpoint.continue_after`).

Nothing but Spark can read the state of frame tasks. If both jobs have the same plan, the whole checkpoint is copied
instead, and Spark continues in the copy (`onyxq.spark.checkpoint.adopt`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow
from attrs import frozen

from onyxq.core.errors import Incomplete
from onyxq.jobs import join_pairs, window_groups
from onyxq.jobs.encoding import decode
from onyxq.jobs.inherited_state import adopts, check_fit, has_state, kept_joins, kept_windows
from onyxq.jobs.key_state import later
from onyxq.jobs.model import Job, Reduce
from onyxq.jobs.values import pack, unpack
from onyxq.spark import java
from onyxq.spark.checkpoint import (
    SOURCES_BYTES_MAX,
    Checkpoints,
    adopt,
    continue_after,
    finish,
    has_ended,
    inputs_in,
    job_in,
    mark_of,
    recorded,
    restored_batch,
)
from onyxq.spark.files import file_sink
from onyxq.spark.files.staging import Folder
from onyxq.spark.places import located
from onyxq.spark.plan.compile import Setting, compiled, folders_of, restoring, sources
from onyxq.spark.plan.regions import operators, streams
from onyxq.spark.sinks import tables
from onyxq.spark.sinks.calls import call_with_frame
from onyxq.spark.sinks.frame_calls import serving

COLUMNS = "task string, payload binary"
_ARROW = pyarrow.schema([("task", pyarrow.string()), ("payload", pyarrow.binary())])


@frozen
class Resumed:
    """The job that another one resumes, as the log knows it."""

    job: str
    state: str
    """How it ended; empty if it is not known any more."""
    batch: int
    """Its last committed batch."""
    offsets: bytes
    """The record of that batch."""
    place: str = ""
    """Folder of the savepoint that has the state; empty: the checkpoint of the job has it."""


def resume(session: Any, job: Job, body: bytes, setting: Setting, resumed: Resumed, checkpoints: Checkpoints) -> None:
    """Give a job the state of the one that it resumes, and the places of its inputs; a repeat changes nothing.

    Raises `BadRequest` naming the field that does not fit, `Incomplete` if the state cannot be reached.
    """
    if restored_batch(setting.checkpoint) >= 0:
        return
    if resumed.batch < 0 or not resumed.offsets:
        raise Incomplete(
            f"job {resumed.job} is not known any more, so job {job.id} cannot resume it",
            hint="Submit the job without resume; it then begins at the start of its inputs.",
        )
    copy, record, cells = f"{setting.checkpoint}.state", resumed.offsets, []
    if resumed.place or (resumed.state != "completed" and has_state(record)):
        folder = resumed.place or checkpoints.left_by(resumed.job, job, resumed.batch, record)
        old = decode(job_in(folder))
        check_fit(old, job, record=record)
        recover(session, old, resumed.batch, record, setting.version)
        whole = adopts(old, job, record)
        if whole and not has_ended(record):
            adopt(folder, resumed.batch, setting.checkpoint)
            return
        finish(folder, resumed.batch)
        record = recorded(folder, resumed.batch, mark_of(record), inputs_in(record), bytes_max=SOURCES_BYTES_MAX)
        kept = {} if whole else _kept(old, job)  # After the end of the inputs no state is left.
        cells = [_state(session, folder, old, task, names, resumed.batch) for task, names in kept.items()]
    nothing = session.createDataFrame([("", b"")], COLUMNS)
    functools.reduce(lambda one, other: one.unionAll(other), cells, nothing).write.mode("overwrite").parquet(copy)
    stream = session.readStream.schema(COLUMNS).parquet(copy)
    restoring(session, job, body, setting, stream).start().awaitTermination()
    inputs = streams(job) or sources(java.frame_of(compiled(session, job, body, setting)))
    continue_after(setting.checkpoint, record, inputs)
    system, path = located(copy)
    system.delete_dir(path)


def recover(session: Any, job: Job, batch: int, record: bytes, version: int) -> None:
    """Make the files of the last committed batch of a job visible, if its driver ended before it did so."""
    mark = mark_of(record)
    if not folders_of(job) or not mark:
        return

    def write(folder: Folder, files: tables.Files, facts: tables.Batch) -> None:
        if folder.fn and not folder.takes_frame:  # A function of the user gets rows in a worker.
            session.sparkContext.parallelize([facts], 1).foreach(functools.partial(tables.write, folder, files))
        else:
            tables.write(folder, files, facts)

    with serving(session, job, call_with_frame) as calls:
        folders = folders_of(job, calls)
        file_sink.publish(folders, job=job.id, batch=batch, mark=mark, version=version, write=write)


def _kept(old: Job, new: Job) -> dict[str, tuple[str | None, ...]]:
    """Return each task of ``old`` with state to copy, and its windows in order: None for those that are dropped."""
    kept = {window.id for window in kept_windows(old, new)}
    found: dict[str, tuple[str | None, ...]] = {task.name: (task.name,) for task in kept_joins(old, new)}
    for task in old.catalog:
        names = tuple(one.id if one.id in kept else None for one in old.windows if one.task == task.name)
        if isinstance(task, Reduce) and any(names):
            found[task.name] = names
    return found


def _state(session: Any, folder: str, old: Job, task: str, names: tuple[str | None, ...], batch: int) -> Any:
    """Return a frame of the state of a task after a batch."""
    read = functools.partial(_read, session, folder, operators(old).index(task), batch)
    windows = isinstance(old.task(task), Reduce)
    indexes = [bytes(row[0]) for row in read("index").select("value.data").collect()]
    times = _times_of_windows(indexes, names) if windows else _times_of_join(indexes, task)
    known = session.createDataFrame([(task, pack([name, key, value])) for name, key, value in times], COLUMNS)
    return known.unionAll(read("buckets").mapInArrow(functools.partial(_cells, task, names, windows), COLUMNS))


def _read(session: Any, folder: str, operator: int, batch: int, name: str) -> Any:
    reader = session.read.format("statestore").option("path", folder).option("batchId", batch)
    found = reader.option("operatorId", operator).option("stateVarName", name).load()
    return found if name == "index" else found.select("user_map_value.data")


def _times_of_windows(indexes: list[bytes], names: tuple[str | None, ...]) -> Iterator[tuple[str, bytes | None, Any]]:
    """Yield what all groups know of the times of each window, and the number of late segments of all groups."""
    groups = [window_groups.Index.unpack(one, len(names)) for one in indexes]
    seen_ms = functools.reduce(later, (one.seen_ms for one in groups), None)
    for place, name in enumerate(names):
        if name is not None:
            yield name, None, [functools.reduce(later, (one.newest[place] for one in groups), None), seen_ms]
    yield "", b"", sum(one.late for one in groups)


def _times_of_join(indexes: list[bytes], task: str) -> Iterator[tuple[str, bytes | None, Any]]:
    groups = [join_pairs.Index.unpack(one) for one in indexes]
    yield task, None, [functools.reduce(later, (one.newest[side] for one in groups), None) for side in (0, 1)]
    yield "", b"", sum(one.late for one in groups)


def _cells(task: str, names: tuple[str | None, ...], windows: bool, batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the cells of buckets as rows of the copy; `mapInArrow` calls this in a worker."""
    for batch in batches:
        payloads: list[bytes] = []
        for data in batch.column("data").to_pylist():
            cells: Mapping[bytes, Any] = unpack(data)
            for key, cell in cells.items():
                place, key = window_groups.parted(key) if windows else (0, key)
                if names[place] is not None:
                    payloads.append(pack([names[place], key, cell]))
        columns = [pyarrow.array([task] * len(payloads), pyarrow.string()), pyarrow.array(payloads, pyarrow.binary())]
        yield pyarrow.RecordBatch.from_arrays(columns, schema=_ARROW)
