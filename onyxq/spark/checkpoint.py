"""Checkpoints that match the log: Spark continues after the last batch in the log, wherever it starts.

A job's checkpoint has one folder for each version of its allocation, so a replaced driver disturbs no other. A new
driver copies the folder of the previous one, if it can reach it, and drops what Spark planned after the last
committed batch. That batch is planned again; its claims were released. If no folder can be reached and the job has
no state, a fresh folder is made from what the log recorded with the batch (`recorded`). Batch numbers continue. A
folder counts only if it has the last committed batch with the offsets that the log recorded.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import time
import uuid
import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgpack
from attrs import frozen
from pyarrow import fs

from onyxq.core.errors import Incomplete
from onyxq.jobs.inherited_state import keeps_state
from onyxq.jobs.model import Job
from onyxq.spark.places import exists, located, read, write
from onyxq.spark.plan.regions import streams
from onyxq.spark.plan.rows import END
from onyxq.spark.progress import EVENT_TIME_MAX_MS

RECORD_BYTES_MAX = 60 * 1024
"""Maximum size of what the log records with a batch, with some reserve."""
SOURCES_BYTES_MAX = 1 << 30
"""Most bytes of the logs of files that inputs have read; a record in the log may have fewer."""
RESTORED, JOB = "restored", "job"
"""Files in a version's folder: the batch that it has with the state that the job takes over; the job's bytes."""
ENDED = "ended"
"""File in a job's folder: until when the folder of the ended job is kept, and the job's last version; see `_end_of`."""
SAVEPOINTS = "_savepoints"
"""Folder in a place of checkpoints. The id of a job cannot begin with an underscore."""
BATCHES_BEHIND_MAX = 5
"""How many batches Spark may be ahead of a batch after its files were copied: it keeps those of the last ten."""
PARTS = "spark.sql.shuffle.partitions"
"""Setting of Spark: the number of parts of each exchange and of the state."""
_NO_OFFSET = "-"
_END = re.compile(rb"(\d+) (\d+)\n")
_STATE_FILE = re.compile(r"(?P<operator>\d+)/(?P<part>\d+)/(?P<version>\d+)_(?P<id>[0-9a-f-]+)\.(changelog|zip)")
_STATE_NOTE = re.compile(r"\d+/_metadata/v2/\d+")
_STATE_OF_BATCH = re.compile(r"(?P<version>\d+)_[0-9a-f-]+\.(changelog|zip)")
_NEVER_CHANGED = (".changelog", ".zip", ".sst")
_SAVED = (JOB, "metadata", "offsets", "commits", "state", "sources")
"""Files and folders of a checkpoint that a savepoint has."""
_BY_BATCH = ("offsets", "commits")
_COMMITTED = 'v1\n{"nextBatchWatermarkMs":0}'


@frozen
class Checkpoints:
    """A host's checkpoints of jobs that name no place of their own."""

    base: str
    beside: str = ""
    """Folder of the savepoints of these jobs; empty: one in ``base``."""

    def savepoints(self, job: Job) -> str:
        """Return the folder of the savepoints of a job, which no end of a job deletes."""
        base = job.checkpoint or self.base
        return self.beside if self.beside and not job.checkpoint else f"{base.rstrip('/')}/{SAVEPOINTS}"

    def fit(self, job: Job, *, version: int, batch: int, recorded: bytes, resumes: bool = False) -> str:
        """Return the folder from which the job continues after ``batch`` (-1: none was committed).

        ``resumes``: before its first batch the job takes over state of another one (`onyxq.spark.state_copy`). Then the
        folder has that state, or does not exist. Raises `Incomplete` if this peer cannot reach what the job needs.
        """
        base = job.checkpoint or self.base
        folder = f"{base.rstrip('/')}/{job.id}/{version}"
        system, root = located(f"{base.rstrip('/')}/{job.id}")
        mine = f"{root}/{version}"
        end = _end_of(system, root)
        if end is not None and end[1] < version:  # An earlier job had the id.
            system.delete_dir(root)
        if resumes and batch < 0:
            after = restored_batch(folder)
            if exists(system, mine) and after < 0:
                system.delete_dir(mine)
            _drop(system, mine, after)
            if not _listed(system, f"{mine}/commits"):
                _drop_state(system, mine)
            return folder
        last = max(batch, 0) if recorded else batch  # A job that begins elsewhere has a batch 0 that read nothing.
        committed = recorded if batch >= 0 else b""
        if exists(system, mine) and not _has(system, mine, last, committed):
            if keeps_state(job, recorded):
                raise Incomplete(
                    f"job {job.id} cannot continue on this peer: under {base} it has the state of another attempt at "
                    f"batch {last} than the log",
                    hint="Submit the job again, to begin from a savepoint or at the start of its inputs.",
                )
            system.delete_dir(mine)
        if not exists(system, mine):
            before = _before(system, root, version, last, committed)
            if before is not None:
                _copy(system, f"{root}/{before}", mine, last)
            elif recorded:
                if batch >= 0 and keeps_state(job, recorded):
                    raise _unreachable(job, base)
                _fresh(system, mine, last, recorded, streams(job) if inputs_in(recorded) else None)
            elif batch >= 0:
                raise _unreachable(job, base)
        _drop(system, mine, last)
        if not _listed(system, f"{mine}/commits"):
            _drop_state(system, mine)
        if not keeps_state(job, recorded):  # Copied state names its schema by the folder in which it was written.
            for older in _versions(system, root, below=version)[1:]:
                system.delete_dir(f"{root}/{older}")
        return folder

    def forget(self, job: Job, *, version: int = 0, until_ms: int = 0) -> None:
        """Remove the folders of a job that has ended; with ``until_ms`` only after that time, in ms since the epoch.

        ``version``: the job's last one. Folders of other ended jobs at the same place are removed if their time has
        passed.
        """
        base = (job.checkpoint or self.base).rstrip("/")
        system, root = located(base)
        mine = f"{root}/{job.id}"
        if not until_ms and exists(system, mine):
            system.delete_dir(mine)
        elif exists(system, mine):
            write(system, f"{mine}/{ENDED}", b"%d %d\n" % (until_ms, version))
        for found in system.get_file_info(fs.FileSelector(root, allow_not_found=True)):
            end = _end_of(system, found.path)
            if end is not None and end[0] < time.time_ns() // 1_000_000:
                system.delete_dir(found.path)

    def left_by(self, name: str, job: Job, batch: int, record: bytes) -> str:
        """Return the folder in which an ended job left its state after ``batch``, for a job that takes it over.

        If Spark noted the end of the batch in none of the folders, it is the oldest one with the batch: its driver
        committed it, and later ones began to repeat it (see `finish`). Raises `Incomplete` if this peer cannot reach
        it.
        """
        offsets = msgpack.unpackb(record)["offsets"]
        for base in dict.fromkeys((job.checkpoint or self.base, self.base)):
            system, root = located(f"{base.rstrip('/')}/{name}")
            mine = [f"{root}/{version}" for version in _versions(system, root)]
            mine = [
                path for path in mine if exists(system, f"{path}/{JOB}") and _planned(system, path, batch) == offsets
            ]
            done = [path for path in mine if exists(system, f"{path}/commits/{batch}")] or mine[-1:]
            if done:
                return f"{base.rstrip('/')}/{name}/{done[0].rpartition('/')[2]}"
        raise Incomplete(
            f"job {job.id} cannot take over the state of job {name} on this peer: another peer kept its checkpoint, "
            f"or it was deleted; it is not under {job.checkpoint or self.base}",
            hint="Give jobs, or their peers, a checkpoint path that all peers reach (--checkpoints).",
        )


def last_done(folder: str) -> int:
    """Return the last batch that Spark noted as done in a folder; -1 if there is none."""
    system, path = located(folder)
    return max((int(name) for name in _listed(system, f"{path}/commits") if name.isdigit()), default=-1)


def save(folder: str, batch: int, place: str) -> int:
    """Copy to a new folder what a job needs to continue after a batch that is done; return the size in bytes.

    The query of the folder may run: Spark writes each file under another name first, and changes none later. Files of
    the state are listed before the files that they refer to. Raises `Incomplete` if Spark may have deleted files of
    the batch meanwhile.
    """
    _copy_saved(folder, batch, place)
    system, to = located(place)
    if not exists(system, f"{to}/commits/{batch}") or last_done(folder) > batch + BATCHES_BEHIND_MAX:
        raise Incomplete(f"the job finished too many batches while the state of batch {batch} was copied")
    _own_schemas(system, to, place)
    return sum(int(one.size) for one in system.get_file_info(fs.FileSelector(to, recursive=True)) if one.is_file)


def adopt(folder: str, batch: int, place: str) -> None:
    """Copy all that a job left after a batch to the folder of a job with the same plan, under an id of its own.

    The copy is complete once the last file is written. If Spark did not note the end of the batch, it repeats it. If
    the driver had ended event time (`end_event_time`), event time continues where it was in the last batch.
    """
    _copy_saved(folder, batch, place)
    system, path = located(place)
    write(system, f"{path}/metadata", _metadata())
    _own_schemas(system, path, place)
    last = last_done(place)
    if last < 0:
        _drop_state(system, path)
    elif _note(system, path, last)[1].get("nextBatchWatermarkMs", 0) >= EVENT_TIME_MAX_MS:
        header = json.loads(offsets_of(place, last).decode().split("\n")[1])
        _set_watermark(system, path, last, int(header.get("batchWatermarkMs", 0)))
    write(system, f"{path}/{RESTORED}", b"%d" % batch)


def finish(folder: str, batch: int) -> None:
    """Note the end of a batch as Spark does, for a driver that ended between the log's commit and this note.

    The log commits a batch once its state is written. Each attempt at the batch has left files of its own; the last one
    counts.
    """
    system, path = located(folder)
    if exists(system, f"{path}/commits/{batch}"):
        return
    ids: dict[str, dict[int, str]] = {}
    files = system.get_file_info(fs.FileSelector(f"{path}/state", recursive=True, allow_not_found=True))
    for file in sorted(files, key=lambda one: one.mtime_ns):
        found = _STATE_FILE.fullmatch(file.path.removeprefix(f"{path}/state/"))
        if found and int(found["version"]) == batch + 1:
            ids.setdefault(found["operator"], {})[int(found["part"])] = found["id"]
    said = {operator: [[parts[part]] for part in sorted(parts)] for operator, parts in sorted(ids.items())}
    note = json.dumps({"nextBatchWatermarkMs": 0, "stateUniqueIds": said})
    _replace(system, f"{path}/commits", batch, f"v2\n{note}")


def end_event_time(folder: str) -> None:
    """Set Spark's watermark to the end of the year 9999, so that the next batch completes windows and joins of frames.

    No query may run in the folder. Spark reads the watermark from its record of the last batch.
    """
    system, path = located(folder)
    last = last_done(folder)
    if last >= 0:
        _set_watermark(system, path, last, EVENT_TIME_MAX_MS)


def recorded(
    folder: str, batch: int, mark: str = "", inputs: Sequence[str] | None = None, *, bytes_max: int = RECORD_BYTES_MAX
) -> bytes:
    """Return what the log keeps with a batch: its offsets, and what a fresh folder needs to continue from there.

    ``mark`` identifies the files that the batch wrote, see `onyxq.spark.files.file_sink`. ``inputs`` are the names of
    the offsets (`onyxq.spark.plan.regions.streams`), for another job with other inputs. The record identifies a repeat
    of a batch: the same offsets give the same bytes, whatever was planned after them.
    """
    system, path = located(folder)
    offsets = offsets_of(folder, batch)
    if inputs is not None and len(inputs) != len(_lines(offsets)):
        inputs = None
    kept = {"offsets": _lean(offsets), "mark": mark, "inputs": inputs}
    seen = _seen_files(system, f"{path}/sources", offsets, inputs, 64 * bytes_max)
    packed: bytes = msgpack.packb({**kept, "sources": seen})
    if len(packed) > bytes_max:
        packed = msgpack.packb({**kept, "sources": None})
    return packed


def inputs_in(record: bytes) -> list[str] | None:
    """Return the names of the offsets in a record; None if it has no names."""
    inputs: list[str] | None = msgpack.unpackb(record)["inputs"]
    return inputs


def is_whole(record: bytes) -> bool:
    """Return whether a record names all files that inputs have read."""
    return bool(record) and msgpack.unpackb(record)["sources"] is not None


def continue_after(folder: str, record: bytes, inputs: Sequence[str]) -> None:
    """Let a query whose batch 0 read no input continue where another job's inputs were.

    The folder is then complete. ``inputs`` are those of the query.
    """
    system, path = located(folder)
    header = offsets_of(folder, 0).decode().split("\n")[:2]
    if exists(system, f"{path}/sources"):
        system.delete_dir(f"{path}/sources")
    offsets = _placed(system, path, record, inputs)
    _replace(system, f"{path}/offsets", 0, "\n".join([*header, *offsets]))
    write(system, f"{path}/{RESTORED}", b"")


def has_ended(record: bytes) -> bool:
    """Return whether the batch of a record, or an earlier one, had the end of all inputs."""
    lines = _lines(msgpack.unpackb(record)["offsets"])
    return any(line.startswith("{") and json.loads(line) == {"ended": 1} for line in lines)


def restored_batch(folder: str) -> int:
    """Return the batch of a folder that has the state which its job takes over; -1 if it does not have it."""
    system, file = located(f"{folder}/{RESTORED}")
    return int(read(system, file) or b"0") if exists(system, file) else -1


def note_job(folder: str, body: bytes) -> None:
    """Keep the job's bytes in its folder, for a job that resumes it after the log has forgotten them."""
    write(*located(f"{folder}/{JOB}"), body)


def job_in(folder: str) -> bytes:
    """Return the bytes of the job of a folder."""
    return read(*located(f"{folder}/{JOB}"))


def offsets_of(folder: str, batch: int) -> bytes:
    """Return the offsets that Spark noted for a batch."""
    system, path = located(folder)
    return read(system, f"{path}/offsets/{batch}")


def parts_in(folder: str) -> int | None:
    """Return in how many parts the query of a folder exchanges rows and keeps its state; None before its first batch.

    Spark notes it with each batch.
    """
    system, path = located(folder)
    planned = [int(name) for name in _listed(system, f"{path}/offsets") if name.isdigit()]
    if not planned:
        return None
    return int(json.loads(offsets_of(folder, max(planned)).decode().split("\n")[1])["conf"][PARTS])


def news_of(folder: str, batch: int) -> str:
    """Return the offsets of the sources from which the batch has read something.

    For the others Spark repeats its earlier note, with the claims of a batch that was committed long ago.
    """
    system, path = located(folder)
    before: list[str] = []
    if exists(system, f"{path}/offsets/{batch - 1}"):
        before = offsets_of(folder, batch - 1).decode().split("\n")
    lines = offsets_of(folder, batch).decode().split("\n")
    return "\n".join(line for place, line in enumerate(lines) if before[place : place + 1] != [line])


def mark_of(record: bytes) -> str:
    """Return the mark of the files that the recorded batch wrote."""
    return str(msgpack.unpackb(record)["mark"]) if record else ""


def _end_of(system: fs.FileSystem, root: str) -> tuple[int, int] | None:
    """Return until when the folder of an ended job is kept, in ms since the epoch, and the job's last version.

    None if the job has not ended, or if its host died while it noted the end.
    """
    file = f"{root}/{ENDED}"
    found = _END.fullmatch(read(system, file)) if exists(system, file) else None
    return None if found is None else (int(found[1]), int(found[2]))


def _unreachable(job: Job, base: str) -> Incomplete:
    return Incomplete(
        f"job {job.id} cannot continue on this peer: another peer kept its checkpoint, and it is not under {base}",
        hint="Give the job, or its peers, a checkpoint path that all of them reach (--checkpoints).",
    )


def _metadata() -> bytes:
    """Return the file that identifies a query; Spark runs only one query of an id at a time."""
    return json.dumps({"id": str(uuid.uuid4())}).encode()


def _fresh(system: fs.FileSystem, path: str, batch: int, record: bytes, inputs: Sequence[str] | None) -> None:
    write(system, f"{path}/metadata", _metadata())
    header = msgpack.unpackb(record)["offsets"].decode().split("\n")[:2]
    offsets = "\n".join([*header, *_placed(system, path, record, inputs)]).encode()
    for number in {max(batch - 1, 0), batch}:  # Spark reads the last two, even to continue after the last.
        write(system, f"{path}/offsets/{number}", offsets)
    write(system, f"{path}/commits/{batch}", _COMMITTED.encode())


def _placed(system: fs.FileSystem, path: str, record: bytes, inputs: Sequence[str] | None) -> list[str]:
    """Write the logs of files that inputs have read, and return the offsets of the inputs, from the record of a batch.

    An input without a name in the record begins at its start, and the end of inputs is not reached. Without
    ``inputs`` the query is the one of the record.
    """
    said = msgpack.unpackb(record)
    if said["sources"] is None:
        raise Incomplete(
            "the job has read too many files for the log to know them, and its checkpoint is at another peer",
            hint="Give the job, or its peers, a checkpoint path that all of them reach (--checkpoints).",
        )
    lines, before = _lines(said["offsets"]), said["inputs"]
    if inputs is None:
        before = inputs = [str(place) for place in range(len(lines))]
    elif before is None:
        raise Incomplete("the log does not name the places of the inputs, so another job cannot continue there")
    numbers = dict(zip(before, _numbers(before), strict=True))
    moved = {
        str(numbers[name]): number for name, number in zip(inputs, _numbers(inputs), strict=True) if name in numbers
    }
    for name, data in msgpack.unpackb(zlib.decompress(said["sources"])).items():
        number, _, file = name.partition("/")
        if number in moved:
            write(system, f"{path}/sources/{moved[number]}/{file}", data)
    found = dict(zip(before, lines, strict=True))
    return [json.dumps({"ended": 0}) if name == END else found.get(name, _NO_OFFSET) for name in inputs]


def _lines(offsets: bytes) -> list[str]:
    """Return the offsets of a batch, one for each use of an input."""
    return offsets.decode().split("\n")[2:]


def _numbers(inputs: Sequence[str]) -> list[int]:
    """Return for each use of an input the number that Spark gives to its source."""
    found = {name: number for number, name in enumerate(dict.fromkeys(inputs))}
    return [found[name] for name in inputs]


def _lean(offsets: bytes) -> bytes:
    """Return the offsets without the claims of their batch, which are useless once it is committed."""
    lines = []
    for line in offsets.decode().split("\n"):
        try:
            said: Any = json.loads(line)
        except ValueError:
            said = None
        held = isinstance(said, dict) and "claims" in said
        lines.append(json.dumps({**said, "claims": []}) if held else line)
    return "\n".join(lines).encode()


def _seen_files(
    system: fs.FileSystem, path: str, offsets: bytes, inputs: Sequence[str] | None, bytes_max: int
) -> bytes | None:
    """Return the packed logs of files that sources have read; None if they are too large."""
    lasts = _log_offsets(offsets, inputs)
    logs: dict[str, list[str]] = {}
    for name in _listed(system, path):
        folder, _, file = name.rpartition("/")
        if file.partition(".")[0].isdigit() and _number(file) <= lasts.get(folder, _number(file)):
            logs.setdefault(folder, []).append(file)
    kept: dict[str, bytes] = {}
    for folder, names in logs.items():
        whole = max((_number(name) for name in names if name.endswith(".compact")), default=-1)
        for name in names:
            if _number(name) >= whole:
                kept[f"{folder}/{name}"] = read(system, f"{path}/{folder}/{name}")
    if sum(map(len, kept.values())) > bytes_max:
        return None
    return zlib.compress(msgpack.packb(kept))


def _log_offsets(offsets: bytes, inputs: Sequence[str] | None) -> dict[str, int]:
    """Return file source -> last valid entry of its log.

    Sources are numbered in the order of their first uses.
    """
    found, lines = {}, _lines(offsets)
    for number, line in zip(range(len(lines)) if inputs is None else _numbers(inputs), lines, strict=True):
        said = json.loads(line) if line.startswith("{") else None
        if isinstance(said, dict) and "logOffset" in said:
            found[str(number)] = int(said["logOffset"])
    return found


def _number(name: str) -> int:
    return int(name.partition(".")[0])


def _before(system: fs.FileSystem, root: str, version: int, batch: int, record: bytes) -> int | None:
    """Return the newest earlier version whose folder has the batch, or None."""
    for older in _versions(system, root, below=version):
        path = f"{root}/{older}"
        if batch < 0 or (exists(system, f"{path}/offsets/{batch}") and _has(system, path, batch, record)):
            return older if exists(system, f"{path}/metadata") else None
    return None


def _has(system: fs.FileSystem, path: str, batch: int, record: bytes) -> bool:
    """Return whether the batch of a folder is the one that the log recorded; True without a record.

    A driver may have planned a batch of that number with other offsets, and not have committed it.
    """
    return not record or _planned(system, path, batch) == msgpack.unpackb(record)["offsets"]


def _versions(system: fs.FileSystem, root: str, *, below: float = math.inf) -> list[int]:
    """Return the versions that have a folder, newest first."""
    names = [found.base_name for found in system.get_file_info(fs.FileSelector(root, allow_not_found=True))]
    return sorted((int(name) for name in names if name.isdigit() and int(name) < below), reverse=True)


def _copy(system: fs.FileSystem, old: str, new: str, batch: int) -> None:
    """Copy a folder under a temporary name first, so that it appears complete or not at all."""
    part = f"{new}.{uuid.uuid4().hex}.part"
    for name in _listed(system, old):
        if not _beyond(name, batch):
            data = read(system, f"{old}/{name}")
            write(system, f"{part}/{name}", data)
    system.move(part, new)


def _drop(system: fs.FileSystem, path: str, batch: int) -> None:
    for name in _listed(system, path):
        if _beyond(name, batch):
            system.delete_file(f"{path}/{name}")


def _drop_state(system: fs.FileSystem, path: str) -> None:
    """Drop the state of a first batch that was not finished: Spark refuses to run a first batch if state exists."""
    if exists(system, f"{path}/state"):
        system.delete_dir(f"{path}/state")


def _replace(system: fs.FileSystem, folder: str, batch: int, text: str) -> None:
    """Write Spark's note about a batch, without the checksum of an earlier one."""
    checksum = f"{folder}/.{batch}.crc"
    if exists(system, checksum):
        system.delete_file(checksum)
    write(system, f"{folder}/{batch}", text.encode())


def _planned(system: fs.FileSystem, path: str, batch: int) -> bytes:
    """Return the offsets of a batch as the log records them; empty if the folder does not have the batch."""
    file = f"{path}/offsets/{batch}"
    return _lean(read(system, file)) if exists(system, file) else b""


def _note(system: fs.FileSystem, path: str, batch: int) -> tuple[str, dict[str, Any]]:
    """Return Spark's note about the end of a batch: its version, and its fields."""
    version, _, said = read(system, f"{path}/commits/{batch}").decode().partition("\n")
    return version, json.loads(said)


def _set_watermark(system: fs.FileSystem, path: str, batch: int, watermark_ms: int) -> None:
    """Set Spark's watermark after a batch that is done."""
    version, note = _note(system, path, batch)
    said = json.dumps({**note, "nextBatchWatermarkMs": watermark_ms})
    _replace(system, f"{path}/commits", batch, f"{version}\n{said}")


def _copy_saved(folder: str, batch: int, place: str) -> None:
    """Copy the files of a folder that a query needs after a batch, those of the state first."""
    (system, path), (target, to) = located(folder), located(place)
    for name in (*_saved(system, path, batch, state=True), *_saved(system, path, batch, state=False)):
        with contextlib.suppress(FileNotFoundError):  # Spark does not need it any more; see `save`.
            _copy_file(system, f"{path}/{name}", target, f"{to}/{name}")


def _saved(system: fs.FileSystem, path: str, batch: int, *, state: bool) -> Iterator[str]:
    """Yield the files of a folder for a batch and those before it: those of the ``state``, or all others."""
    for name in _listed(system, path):
        version = _STATE_OF_BATCH.fullmatch(name.rpartition("/")[2])
        later = _beyond(name, batch) or (version is not None and int(version["version"]) > batch + 1)
        wanted = name.partition("/")[0] in _SAVED and not name.endswith(".tmp")
        if wanted and not later and state == (version is not None):
            yield name


def _copy_file(system: fs.FileSystem, old: str, target: fs.FileSystem, new: str) -> None:
    """Copy a file; on a local disk a second name is enough for those that are never written again."""
    if not system.equals(target):
        write(target, new, read(system, old))
        return
    system.create_dir(new.rpartition("/")[0], recursive=True)
    if isinstance(system, fs.LocalFileSystem) and new.endswith(_NEVER_CHANGED):
        with contextlib.suppress(OSError):
            os.link(old, new)
            return
    system.copy_file(old, new)


def _own_schemas(system: fs.FileSystem, path: str, place: str) -> None:
    """Let the notes about the state name the schemas in their own folder: Spark notes their whole paths."""
    for name in _listed(system, f"{path}/state"):
        if not _STATE_NOTE.fullmatch(name):
            continue
        version, _, said = read(system, f"{path}/state/{name}").decode().partition("\n")
        note = json.loads(said)
        for store in note["stateStoreInfo"]:
            tails = [one[one.rindex("/state/") :] for one in store.get("stateSchemaFilePaths", ())]
            if lacking := [tail for tail in tails if not exists(system, f"{path}{tail}")]:
                raise Incomplete(f"the checkpoint lacks the schema of its state, {lacking[0]}")
            if tails:
                store["stateSchemaFilePaths"] = [f"{place}{tail}" for tail in tails]
        folder, _, batch = f"{path}/state/{name}".rpartition("/")
        _replace(system, folder, int(batch), f"{version}\n{json.dumps(note)}")


def _beyond(name: str, batch: int) -> bool:
    """Return whether a file, or its checksum, is of a batch after this one, or was not finished."""
    folder, _, file = name.rpartition("/")
    number = file.removeprefix(".").removesuffix(".crc")
    return folder in _BY_BATCH and (not number.isdigit() or int(number) > batch)


def _listed(system: fs.FileSystem, path: str) -> list[str]:
    """Return the files under a folder, by their path in it, sorted."""
    found = system.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
    return sorted(one.path.removeprefix(f"{path}/") for one in found if one.type == fs.FileType.File)
