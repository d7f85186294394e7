"""Outputs that are folders of files: written to a hidden place, visible once their batch is committed.

Executors write into ``<path>/_onyxq/<job>/``, which readers of the folder ignore. Before a batch is committed, its
files are listed in ``<batch>.<mark>.json``. The log decides whether the batch is committed, or Spark's checkpoint in
a query without a log. Then `publish` moves the listed files into the folder. Both steps may be repeated, also by
another process: a file moves once. Other files of the batch, from attempts that died or from a replaced driver, never
become visible and are removed.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen
from pyarrow import fs

from onyxq.spark.files.formats import WRITERS, Parquet, Writer, united_schema, widened
from onyxq.spark.places import exists, located, read, write

HIDDEN = "_onyxq"
DONE = "done"


@frozen
class Folder:
    """A file output of a job, in the form that executors get."""

    name: str
    format: str
    path: str
    options: dict[str, str]
    schema: str = ""
    """Names and types of the columns (an Arrow schema, base64), or empty: found in the segments."""

    def system(self) -> tuple[fs.FileSystem, str]:
        """Return the file system, and the path in it."""
        return located(self.path)


@frozen
class Written:
    """A hidden file that one task of a batch wrote."""

    out: str
    name: str
    schema: str = ""
    """The columns that were found in its segments, as `Folder.schema`; empty if they were given."""


class Staging:
    """The hidden files of one task of a batch: one for each output that gets segments."""

    def __init__(self, folders: dict[str, Folder], *, job: str, batch: int, part: int) -> None:
        self._folders = folders
        self._job = job
        self._stem = f"part-{batch:08d}-{part:05d}-{secrets.token_hex(4)}"
        self._open: dict[str, tuple[str, Writer]] = {}

    def add(self, out: str, payload: bytes) -> None:
        """Write a segment, as msgpack, to an output."""
        if out not in self._open:
            self._open[out] = self._opened(self._folders[out])
        self._open[out][1].add(payload)

    def add_batch(self, out: str, batch: Any) -> None:
        """Write rows of an Arrow batch with the columns of the output."""
        if out not in self._open:
            self._open[out] = self._opened(self._folders[out])
        self._open[out][1].add_batch(batch)

    def finish(self) -> list[Written]:
        """Close all files."""
        return [Written(out, name, writer.close()) for out, (name, writer) in self._open.items()]

    def discard(self) -> None:
        """Remove what was written."""
        for out, (name, writer) in self._open.items():
            writer.abandon()
            system, path = self._folders[out].system()
            system.delete_file(f"{path}/{HIDDEN}/{self._job}/{name}")

    def _opened(self, folder: Folder) -> tuple[str, Writer]:
        system, path = folder.system()
        name = f"{self._stem}.{folder.format}"
        system.create_dir(f"{path}/{HIDDEN}/{self._job}", recursive=True)
        stream = system.open_output_stream(f"{path}/{HIDDEN}/{self._job}/{name}", compression=None)
        if folder.format == "parquet" and not folder.schema:
            found = _found(list(self._folders.values()), self._job).get(folder.name, "")
            return name, Parquet(stream, folder, found)
        return name, WRITERS[folder.format](stream, folder)


def stage(folders: Sequence[Folder], written: Sequence[Written], *, job: str, batch: int, mark: str = "") -> str:
    """Note the files of a batch before it is committed, and return the mark that identifies them.

    The mark is random if not given. The note is one file, in the first of the folders, so that it exists for all or for
    none. Files of an output whose columns were found get the same columns first. Raises `BadRequest` if a column
    has two types.
    """
    mark = mark or secrets.token_hex(8)
    system, aside = _notes(folders, job)
    system.create_dir(aside, recursive=True)
    schemas, names = _found(folders, job), []
    for folder in folders:
        mine = [one for one in written if one.out == folder.name]
        found = list(dict.fromkeys(one.schema for one in mine if one.schema))
        if found:
            schemas[folder.name] = united_schema(folder, found) if len(found) > 1 else found[0]
        names += [[one.out, _alike(folder, job, one, schemas.get(folder.name, ""))] for one in mine]
    _note(system, f"{aside}/{batch}.{mark}.json", {"files": names, "schemas": schemas})
    return mark


def _alike(folder: Folder, job: str, one: Written, schema: str) -> str:
    """Return the name of a file with these columns: a new file if this one has fewer."""
    if one.schema == schema or not one.schema:
        return one.name
    system, path = folder.system()
    name = f"{one.name.removesuffix('.parquet')}-{secrets.token_hex(4)}.parquet"
    with system.open_input_file(f"{path}/{HIDDEN}/{job}/{one.name}") as source:
        stream = system.open_output_stream(f"{path}/{HIDDEN}/{job}/{name}", compression=None)
        widened(source, stream, folder, schema)
    return name


def _found(folders: Sequence[Folder], job: str) -> dict[str, str]:
    """Return output -> schema that was found in committed batches."""
    system, aside = _notes(folders, job)
    done = [one for one in system.get_file_info(fs.FileSelector(aside, allow_not_found=True)) if _is_done(one)]
    last = max(done, key=lambda one: _batch_of(one.base_name), default=None)
    return {} if last is None else dict(json.loads(read(system, last.path))["schemas"])


def _is_done(found: fs.FileInfo) -> bool:
    return str(found.base_name).endswith(f".{DONE}.json")


def staged(folders: Sequence[Folder], *, job: str, batch: int) -> str | None:
    """Return the mark of a noted attempt at the batch, or None.

    Some of its files may be visible already.
    """
    system, aside = _notes(folders, job)
    for found in system.get_file_info(fs.FileSelector(aside, allow_not_found=True)):
        number, _, rest = found.base_name.partition(".")
        if number == str(batch) and rest.endswith(".json"):
            return str(rest.removesuffix(".json"))
    return None


def publish(folders: Sequence[Folder], *, job: str, batch: int, mark: str) -> None:
    """Make the files of the committed attempt visible, and remove other files up to this batch."""
    notes, aside = _notes(folders, job)
    noted = f"{aside}/{batch}.{mark}.json"
    if mark != DONE and exists(notes, noted):
        written = json.loads(read(notes, noted))
        for folder in folders:
            system, path = folder.system()
            for name in (name for out, name in written["files"] if out == folder.name):
                if exists(system, f"{path}/{HIDDEN}/{job}/{name}"):
                    system.move(f"{path}/{HIDDEN}/{job}/{name}", f"{path}/{name}")
        _note(notes, f"{aside}/{batch}.{DONE}.json", written)
    for folder in folders:
        system, path = folder.system()
        _clear(system, f"{path}/{HIDDEN}/{job}", batch)


def forget(folders: Sequence[Folder], *, job: str) -> None:
    """Remove the hidden files of a job that has ended."""
    for folder in folders:
        system, path = folder.system()
        if exists(system, f"{path}/{HIDDEN}/{job}"):
            system.delete_dir(f"{path}/{HIDDEN}/{job}")
            if not system.get_file_info(fs.FileSelector(f"{path}/{HIDDEN}")):
                system.delete_dir(f"{path}/{HIDDEN}")


def _notes(folders: Sequence[Folder], job: str) -> tuple[fs.FileSystem, str]:
    system, path = folders[0].system()
    return system, f"{path}/{HIDDEN}/{job}"


def _clear(system: fs.FileSystem, aside: str, batch: int) -> None:
    """Remove files of attempts up to a batch, except for the note that this one is done."""
    for found in system.get_file_info(fs.FileSelector(aside, allow_not_found=True)):
        name = found.base_name
        if _batch_of(name) <= batch and name != f"{batch}.{DONE}.json":
            system.delete_file(found.path)


def _batch_of(name: str) -> int:
    number = name.split("-")[1] if name.startswith("part-") else name.partition(".")[0]
    return int(number)


def _note(system: fs.FileSystem, path: str, note: Mapping[str, Any]) -> None:
    """Write a note as a file that appears complete or not at all."""
    part = f"{path}.{secrets.token_hex(4)}.part"
    write(system, part, json.dumps(note).encode())
    system.move(part, path)
