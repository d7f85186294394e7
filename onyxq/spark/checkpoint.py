"""Checkpoints that match the log: Spark continues after the last batch in the log, wherever it starts.

A job's checkpoint has one folder for each version of its allocation, so a replaced driver disturbs no other. A new
driver copies the folder of the previous one, if it can reach it, and drops what Spark planned after the last
committed batch. That batch is planned again; its claims were released. If no folder can be reached and the job has
no state, a fresh folder is made from what the log recorded with the batch (`recorded`). Batch numbers continue.
"""

from __future__ import annotations

import json
import uuid
import zlib
from typing import Any

import msgpack
from attrs import frozen
from pyarrow import fs

from onyxq.core.errors import Incomplete
from onyxq.jobs.model import Job
from onyxq.spark.places import exists, located, read, write
from onyxq.spark.plan.regions import stateful
from onyxq.spark.progress import EVENT_TIME_MAX_MS

RECORD_BYTES_MAX = 60 * 1024
"""Maximum size of what the log records with a batch, with some reserve."""
_BY_BATCH = ("offsets", "commits")
_COMMITTED = 'v1\n{"nextBatchWatermarkMs":0}'


@frozen
class Checkpoints:
    """A host's checkpoints of jobs that name no place of their own."""

    base: str

    def fit(self, job: Job, *, version: int, batch: int, recorded: bytes) -> str:
        """Return the folder from which the job continues after ``batch`` (-1: none was committed).

        Raises `Incomplete` if this peer cannot reach what the job needs.
        """
        base = job.checkpoint or self.base
        system, root = located(f"{base.rstrip('/')}/{job.id}")
        mine = f"{root}/{version}"
        if not exists(system, mine):
            before = _before(system, root, version, batch)
            if before is not None:
                _copy(system, f"{root}/{before}", mine, batch)
            elif recorded:
                if stateful(job) and batch >= 0:
                    raise _unreachable(job, base)
                _fresh(system, mine, max(batch, 0), recorded)
            elif batch >= 0:
                raise _unreachable(job, base)
        _drop(system, mine, batch if not recorded else max(batch, 0))
        if not _listed(system, f"{mine}/commits"):
            _drop_state(system, mine)
        if not stateful(job):  # Copied state names its schema by the folder in which it was written.
            for older in _versions(system, root, below=version)[1:]:
                system.delete_dir(f"{root}/{older}")
        return f"{base.rstrip('/')}/{job.id}/{version}"

    def forget(self, job: Job) -> None:
        """Remove the folders of a job that has ended."""
        system, root = located(f"{(job.checkpoint or self.base).rstrip('/')}/{job.id}")
        if exists(system, root):
            system.delete_dir(root)


def end_event_time(folder: str) -> None:
    """Set Spark's watermark to the end of the year 9999, so that the next batch completes windows and joins of frames.

    No query may run in the folder. Spark reads the watermark from its record of the last batch.
    """
    system, path = located(folder)
    done = [name for name in _listed(system, f"{path}/commits") if name.isdigit()]
    if not done:
        return
    last = max(done, key=int)
    version, _, said = read(system, f"{path}/commits/{last}").decode().partition("\n")
    note = {**json.loads(said), "nextBatchWatermarkMs": EVENT_TIME_MAX_MS}
    checksum = f"{path}/commits/.{last}.crc"
    if exists(system, checksum):
        system.delete_file(checksum)
    write(system, f"{path}/commits/{last}", f"{version}\n{json.dumps(note)}".encode())


def recorded(folder: str, batch: int, mark: str = "") -> bytes:
    """Return what the log keeps with a batch: its offsets, and what a fresh folder needs to continue from there.

    ``mark`` identifies the files that the batch wrote, see `onyxq.spark.files.file_sink`. The record identifies a
    repeat of a batch: the same offsets give the same bytes, whatever was planned after them.
    """
    system, path = located(folder)
    offsets = offsets_of(folder, batch)
    kept = {"offsets": _lean(offsets), "mark": mark}
    seen = _seen_files(system, f"{path}/sources", offsets)
    packed: bytes = msgpack.packb({**kept, "sources": seen})
    if len(packed) > RECORD_BYTES_MAX:
        packed = msgpack.packb({**kept, "sources": None})
    return packed


def offsets_of(folder: str, batch: int) -> bytes:
    """Return the offsets that Spark noted for a batch."""
    system, path = located(folder)
    return read(system, f"{path}/offsets/{batch}")


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


def _unreachable(job: Job, base: str) -> Incomplete:
    return Incomplete(
        f"job {job.id} cannot continue on this peer: another peer kept its checkpoint, and it is not under {base}",
        hint="Give the job, or its peers, a checkpoint path that all of them reach (--checkpoints).",
    )


def _fresh(system: fs.FileSystem, path: str, batch: int, record: bytes) -> None:
    said = msgpack.unpackb(record)
    if said["sources"] is None:
        raise Incomplete(
            "the job has read too many files for the log to know them, and its checkpoint is at another peer",
            hint="Give the job, or its peers, a checkpoint path that all of them reach (--checkpoints).",
        )
    write(system, f"{path}/metadata", json.dumps({"id": str(uuid.uuid4())}).encode())
    for name, data in msgpack.unpackb(zlib.decompress(said["sources"])).items():
        write(system, f"{path}/sources/{name}", data)
    for number in {max(batch - 1, 0), batch}:  # Spark reads the last two, even to continue after the last.
        write(system, f"{path}/offsets/{number}", said["offsets"])
    write(system, f"{path}/commits/{batch}", _COMMITTED.encode())


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


def _seen_files(system: fs.FileSystem, path: str, offsets: bytes) -> bytes | None:
    """Return the packed logs of files that sources have read; None if they are too large for the log."""
    lasts = _log_offsets(offsets)
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
    if sum(map(len, kept.values())) > 64 * RECORD_BYTES_MAX:
        return None
    return zlib.compress(msgpack.packb(kept))


def _log_offsets(offsets: bytes) -> dict[str, int]:
    """Return file source -> last valid entry of its log.

    Sources are numbered in the order of the offsets.
    """
    found = {}
    for place, line in enumerate(offsets.decode().split("\n")[2:]):
        said = json.loads(line) if line.startswith("{") else None
        if isinstance(said, dict) and "logOffset" in said:
            found[str(place)] = int(said["logOffset"])
    return found


def _number(name: str) -> int:
    return int(name.partition(".")[0])


def _before(system: fs.FileSystem, root: str, version: int, batch: int) -> int | None:
    """Return the newest earlier version whose folder has the batch, or None."""
    for older in _versions(system, root, below=version):
        if batch < 0 or exists(system, f"{root}/{older}/offsets/{batch}"):
            return older if exists(system, f"{root}/{older}/metadata") else None
    return None


def _versions(system: fs.FileSystem, root: str, *, below: int) -> list[int]:
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


def _beyond(name: str, batch: int) -> bool:
    """Return whether a file, or its checksum, is of a batch after this one, or was not finished."""
    folder, _, file = name.rpartition("/")
    number = file.removeprefix(".").removesuffix(".crc")
    return folder in _BY_BATCH and (not number.isdigit() or int(number) > batch)


def _listed(system: fs.FileSystem, path: str) -> list[str]:
    """Return the files under a folder, by their path in it, sorted."""
    found = system.get_file_info(fs.FileSelector(path, recursive=True, allow_not_found=True))
    return sorted(one.path.removeprefix(f"{path}/") for one in found if one.type == fs.FileType.File)
