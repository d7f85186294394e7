"""A job that reads inputs of another job again: the same definition, with inputs that begin earlier.

Pure. Windows and joins of the replay begin empty. Nothing recognises its rows as those of the other job, so each output
must get another place, or the caller says that it has the same one.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from itertools import islice

import msgpack
from attrs import evolve

from onyxq.core.errors import BadRequest
from onyxq.jobs.encoding import encode
from onyxq.jobs.fields import Problem
from onyxq.jobs.job_check import PROBLEMS_MAX
from onyxq.jobs.model import Input, Job, Output
from onyxq.jobs.options import CALL, FILES, format_of, names_in, starting_in
from onyxq.system.settings import did_you_mean

_OLD_ID_CHARS_MAX = 80
_DIGEST_BYTES = 4
_LACKING = "has no other place"
_CHOICE = "Give each output another place (--output NAME=PLACE), or let it keep its place (--same-outputs)."
_PLACE = {"kafka": ("brokers", "topic"), "postgres": ("url", "table")}
"""Format of an output -> the options that identify its place; other formats have a path."""
_PATTERN = "pattern"
"""Kind of a place that an input reads: a folder, or a pattern of folders."""
_CHOICES = re.compile(r"\{[^{}]*\}")
"""Alternatives in a pattern of paths, without others inside."""
_CUT = "\0"
"""Follows alternatives that have slashes: no name of a folder has this character."""
_TOPIC = re.compile(r'"([^"]*)"\s*:')
"""A topic in Spark's option ``assign``, which is a map in JSON."""


def check_replay(old: Job, *, since_ms: int | None, outputs: Mapping[str, str], same_outputs: bool) -> None:
    """Raise `BadRequest` with all problems if a job cannot be replayed with these places.

    ``since_ms``: time at which the inputs begin; None: somewhere else. ``outputs``: output -> another place (queue,
    path, table or topic). ``same_outputs``: the others keep theirs.
    """
    found = [*_of_inputs(old, since_ms), *_of_outputs(old, outputs, same_outputs)]
    for field, what in found:
        hint = _CHOICE if what.startswith(_LACKING) else ""
        raise BadRequest(f"{field} {what}", field=field, details=list(islice(found, PROBLEMS_MAX)), hint=hint)


def replayed(old: Job, *, id: str | None, since_ms: int | None, outputs: Mapping[str, str], begin: bytes = b"") -> Job:
    """Return the job that replays another one, which was checked.

    ``id``: default: the old one, ``-replay-`` and digits that follow from all else, so a repeat has the same id.
    ``begin``: places of the inputs (`places_in`), which then keep their definitions. Otherwise they begin at
    ``since_ms``, in ms since the epoch, or with all that they still have.
    """
    catalog = tuple(
        _begun(task, since_ms) if isinstance(task, Input) and not begin
        else _moved(task, outputs[task.name]) if isinstance(task, Output) and task.name in outputs
        else task
        for task in old.catalog
    )  # fmt: skip
    job = evolve(old, catalog=catalog, resume=None, drop_state=())
    return evolve(job, id=_id_of(job, begin) if id is None else id)


def places_in(record: bytes) -> bytes:
    """Return the record of a batch for a job that begins there; raise `BadRequest` if it has not all places.

    The record is that of `onyxq.spark.checkpoint.recorded`, here without the mark of the batch's own files.
    """
    said = msgpack.unpackb(record)
    for name, what in (
        ("sources", "its inputs had read more files by then than the log records"),
        ("inputs", "the log does not name the places of its inputs"),
    ):
        if said[name] is None:
            raise BadRequest(
                f"from_batch is not possible for this job: {what}",
                field="from_batch",
                hint="Replay from a time, or from the start.",
            )
    packed: bytes = msgpack.packb({**said, "mark": ""})
    return packed


def _id_of(job: Job, begin: bytes) -> str:
    digits = hashlib.blake2b(encode(job) + begin, digest_size=_DIGEST_BYTES).hexdigest()
    return f"{job.id[:_OLD_ID_CHARS_MAX]}-replay-{digits}"


# --- inputs -----------------------------------------------------------------------


def _of_inputs(old: Job, since_ms: int | None) -> Iterator[Problem]:
    for task in old.catalog:
        if not isinstance(task, Input) or task.static:
            continue
        if task.queue is not None:
            yield (
                "id",
                f"names job {old.id}, whose input {task.name!r} is the queue {task.queue!r}: "
                "its tasks were completed when they were read, and cannot be read again",
            )
        elif since_ms is not None and not _begins_at_times(task):
            yield "from_ms", f"is for files and Kafka, but input {task.name!r} of job {old.id} is {format_of(task)}"


def _begins_at_times(task: Input) -> bool:
    return format_of(task) in FILES or format_of(task) == "kafka"


def _begun(task: Input, since_ms: int | None) -> Input:
    """Return an input that begins at a time, or with all that it still has.

    Without a word about it, Kafka would begin with the next message.
    """
    if task.static or not _begins_at_times(task):
        return task
    dropped = starting_in(task)
    options = {name: value for name, value in task.options.items() if name not in dropped}
    if format_of(task) == "kafka" and since_ms is None:
        options["startingOffsets"] = "earliest"
    return evolve(task, options=options, since_ms=since_ms)


# --- outputs ----------------------------------------------------------------------


def _of_outputs(old: Job, outputs: Mapping[str, str], same_outputs: bool) -> Iterator[Problem]:
    known = {task.name: task for task in old.catalog if isinstance(task, Output)}
    for name, place in outputs.items():
        if name not in known:
            near = did_you_mean(name, list(known)) or f"; it has {', '.join(known)}"
            yield "outputs", f"names {name!r}, which is not an output of job {old.id}{near}"
        elif format_of(known[name]) == CALL:
            yield "outputs", f"names {name!r}, which calls a function: leave it out, and say same_outputs"
        else:
            moved = _moved(known[name], place)
            for other in (one for one in known.values() if _overlap(_target(moved), _target(one))):
                said = f"the place {place!r}, where job {old.id} has output {other.name!r} ({_target(other)[-1]!r})"
                instead = "leave it out, and say same_outputs" if other is known[name] else "choose another"
                yield "outputs", f"gives output {name!r} {said}: {instead}"
            for read in (one for one in old.catalog if isinstance(one, Input)):
                if any(_overlap(_target(moved), source) for source in _sources(read)):
                    yield "outputs", f"gives output {name!r} the place {place!r}, which input {read.name!r} reads"
    for name, task in known.items():
        if name not in outputs and not same_outputs:
            yield "outputs", f"{_LACKING} for output {name!r}: {_consequence(task)}"


def _moved(task: Output, place: str) -> Output:
    """Return an output with another queue, topic, table or path."""
    if task.queue is not None:
        return evolve(task, queue=place)
    kind = format_of(task)
    if kind in _PLACE:
        return evolve(task, options={**task.options, _PLACE[kind][-1]: place})
    return evolve(task, path=place)


def _target(task: Output) -> tuple[str, ...]:
    """Return what an output writes to: its kind, and the names that identify the place, the last one its own."""
    if task.queue is not None:
        return "queue", task.queue
    kind = format_of(task)
    if kind in _PLACE:
        return kind, *(task.options[name] for name in _PLACE[kind])
    return (CALL, task.name) if kind == CALL else ("folder", str(task.path))


def _sources(task: Input) -> Iterator[tuple[str, ...]]:
    """Yield what an input reads, in the form of `_target`; paths are patterns."""
    options = {name.lower(): value for name, value in task.options.items()}
    if task.queue is not None:
        yield "queue", task.queue
    elif format_of(task) == "kafka":
        brokers = options.get("kafka.bootstrap.servers", "")
        named = [*names_in(options.get("subscribe", "")), *_TOPIC.findall(options.get("assign", ""))]
        yield from (("kafka", brokers, topic) for topic in named)
    elif path := task.path or options.get("path"):
        yield _PATTERN, path


def _overlap(mine: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Return whether readers of one place also see what is written to the other.

    Brokers are not compared: one cluster has many names.
    """
    if mine[0] == "folder" and others[0] in ("folder", _PATTERN):
        folder, is_pattern = _folder(others[1]), others[0] == _PATTERN
        read = _names(_alike(folder) if is_pattern else folder)
        pairs = zip(_names(_folder(mine[1])), read, strict=False)
        return all(one == other or (is_pattern and fnmatchcase(one, other)) for one, other in pairs)
    if mine[0] == others[0] == "kafka":
        return mine[-1] == others[-1]
    return tuple(name.removeprefix("public.") for name in mine) == tuple(
        name.removeprefix("public.") for name in others
    )


def _alike(pattern: str) -> str:
    """Return a pattern of Hadoop as one of Python, which may fit more names.

    The result ends at alternatives that have slashes, because any folder may follow them.
    """
    found = 1
    while found:
        pattern, found = _CHOICES.subn(lambda one: f"*{_CUT}" if {"/", _CUT} & set(one[0]) else "*", pattern)
    return pattern.partition(_CUT)[0].replace("[^", "[!")


def _names(folder: str) -> list[str]:
    return folder.rstrip("/").split("/")


def _folder(path: str) -> str:
    """Return a path in its shortest form, with a slash at its end; a URI of this machine as its path."""
    if "://" in path:
        scheme, _, rest = path.partition("://")
        host, _, inside = rest.partition("/")
    else:
        scheme, host, inside = "file", "", path.removeprefix("file:")
    place = posixpath.normpath("/" + inside.lstrip("/")).rstrip("/") + "/"
    return place if scheme.lower() == "file" else f"{scheme.lower()}://{host}{place}"


def _consequence(task: Output) -> str:
    """Return what a replay would do at the place that an output has."""
    *_, place = _target(task)
    if task.queue is not None:
        return f"queue {place!r} would get its tasks again"
    kind = format_of(task)
    if kind == CALL:
        return "its function would be called again, with other keys"
    if kind == "kafka":
        return f"topic {place!r} would get its messages again"
    if kind == "postgres":
        return f"its rows in table {place!r} would be {'replaced' if 'key' in task.options else 'inserted again'}"
    return f"{place!r} would get its rows again"
