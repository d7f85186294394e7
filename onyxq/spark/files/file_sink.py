"""Outputs that are folders of files, or tables: written to a hidden place, visible once their batch is committed.

Executors write into ``<path>/_onyxq/<job>/``, which readers of the folder ignore. Before a batch is committed, its
files are listed in ``<batch>.<mark>.json``. The log decides whether the batch is committed, or Spark's checkpoint in
a query without a log. Then `publish` moves the listed files into the folder, or gives their rows to a table. Both
steps may be repeated, also by another process: a file moves once, and a table counts a batch once. Other files of the
batch, from attempts that died or from a replaced driver, never become visible and are removed.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from pyarrow import fs

from onyxq.spark.files.formats import united_schema, widened
from onyxq.spark.files.staging import HIDDEN, Folder, Written
from onyxq.spark.places import exists, listed, read, write
from onyxq.spark.sinks import tables

DONE = "done"
Write: TypeAlias = Callable[[Folder, tables.Files, tables.Batch], None]
"""Writes the rows of a committed batch to a table."""


def stage(folders: Sequence[Folder], written: Sequence[Written], *, job: str, batch: int, mark: str = "") -> str:
    """Note the files of a batch before it is committed, and return the mark that identifies them.

    The mark is random if not given. The note is one file, in the first of the folders, so that it exists for all or for
    none. If the columns of an output were found in segments, all its files get the same columns first. Raises
    `BadRequest` if a column has two types.
    """
    mark = mark or secrets.token_hex(8)
    system, aside = folders[0].hidden(job)
    system.create_dir(aside, recursive=True)
    before = _last_note(folders, job=job, batch=batch)
    schemas, names = dict(before.get("schemas", {})), []
    for folder in folders:
        mine = [one for one in written if one.out == folder.name]
        made = list(dict.fromkeys(one.schema for one in mine if one.schema))
        if made:
            schema = united_schema(folder.of_files(), schemas.get(folder.name, ""), made)
            if schema != schemas.get(folder.name):
                tables.check(folder, schema)
            schemas[folder.name] = schema
        for one in mine:
            names.append([one.out, one.folder, _alike(folder, job, one, schemas.get(folder.name, ""))])
    note = {"files": names, "schemas": schemas, "mark": mark, "run": before.get("run", mark)}
    _note(system, f"{aside}/{batch}.{mark}.json", note)
    return mark


def _alike(folder: Folder, job: str, one: Written, schema: str) -> str:
    """Return the name of a file with these columns: a new file if this one has fewer."""
    if one.schema == schema or not one.schema:
        return one.name
    system, aside = folder.hidden(job)
    name = f"{one.name.removesuffix('.parquet')}-{secrets.token_hex(4)}.parquet"
    with system.open_input_file(f"{aside}/{one.name}") as source:
        stream = system.open_output_stream(f"{aside}/{name}", compression=None)
        widened(source, stream, folder, schema)
    return name


def found_schemas(folders: Sequence[Folder], *, job: str, batch: int) -> dict[str, str]:
    """Return output -> schema that was found in the committed batches before this one."""
    return dict(_last_note(folders, job=job, batch=batch).get("schemas", {}))


def _last_note(folders: Sequence[Folder], *, job: str, batch: int) -> dict[str, Any]:
    """Return the note of the last published batch before this one, or an empty dict."""
    system, aside = folders[0].hidden(job)
    notes = filter(_is_done, listed(system, aside))
    before = [one for one in notes if _batch_of(one.base_name) < batch]
    last = max(before, key=lambda one: _batch_of(one.base_name), default=None)
    return {} if last is None else dict(json.loads(read(system, last.path)))


def _is_done(info: fs.FileInfo) -> bool:
    return str(info.base_name).endswith(f".{DONE}.json")


def staged(folders: Sequence[Folder], *, job: str, batch: int) -> str | None:
    """Return the mark of a noted attempt at the batch, or None.

    Some of its files may be visible already.
    """
    system, aside = folders[0].hidden(job)
    for found in listed(system, aside):
        number, _, rest = found.base_name.partition(".")
        if number == str(batch) and rest.endswith(".json"):
            return str(rest.removesuffix(".json"))
    return None


def is_staged(folders: Sequence[Folder], *, job: str, batch: int, mark: str) -> bool:
    """Return whether an attempt at the batch is noted under the mark.

    If its driver was stopped, the log may have committed it, and some of its files may be visible already. So another
    attempt with the same offsets must not replace the note.
    """
    system, aside = folders[0].hidden(job)
    return exists(system, f"{aside}/{batch}.{mark}.json")


def publish(
    folders: Sequence[Folder], *, job: str, batch: int, mark: str, version: int = 0, write: Write = tables.write
) -> None:
    """Make the committed attempt visible: move its files, or ``write`` them to their tables; then remove hidden files.

    ``version`` is the driver's allocation. A repeat, also by another driver, changes nothing.
    """
    notes, aside = folders[0].hidden(job)
    noted, done = f"{aside}/{batch}.{mark}.json", f"{aside}/{batch}.{DONE}.json"
    if mark != DONE and exists(notes, noted) and not _is_published(notes, done, mark):
        note = json.loads(read(notes, noted))
        for folder in folders:
            mine = [(place, name) for out, place, name in note["files"] if out == folder.name]
            if not tables.is_table(folder):
                _show(folder, job, mine)
        for given in _for_tables(folders, note, job, batch, version):
            write(*given)
        _note(notes, done, note)
    for folder in folders:
        _clear(*folder.hidden(job), batch)


@contextlib.contextmanager
def prepared(
    folders: Sequence[Folder], *, job: str, batch: int, mark: str, version: int
) -> Iterator[list[tables.Prepared]]:
    """Yield prepared writes of the noted rows to tables, for commits after the log has committed the batch.

    Raises `BadRequest` for rows that a table refuses. Writes that are not committed in the context are rolled back.
    """
    system, aside = folders[0].hidden(job)
    note = json.loads(read(system, f"{aside}/{batch}.{mark}.json"))
    with contextlib.ExitStack() as open_ones:
        found = []
        for given in _for_tables(folders, note, job, batch, version):
            one = tables.prepare(*given)
            if one is not None:
                open_ones.callback(one.close)
                found.append(one)
        yield found


def _for_tables(
    folders: Sequence[Folder], note: Mapping[str, Any], job: str, batch: int, version: int
) -> Iterator[tuple[Folder, tables.Files, tables.Batch]]:
    """Yield the tables that get rows of a batch."""
    for folder in filter(tables.is_table, folders):
        system, hidden = folder.hidden(job)
        paths = [f"{hidden}/{name}" for out, _, name in note["files"] if out == folder.name]
        if paths:
            yield folder, tables.Files(system, paths), tables.Batch(job, folder.name, note["run"], batch, version)


def _is_published(system: fs.FileSystem, done: str, mark: str) -> bool:
    """Return whether this attempt was published; an earlier job of the same id may have left a note of the batch."""
    return exists(system, done) and bool(json.loads(read(system, done))["mark"] == mark)


def _show(folder: Folder, job: str, files: Sequence[tuple[str, str]]) -> None:
    """Move hidden files, given by partition and name, to where readers see them."""
    system, path = folder.system()
    for place, name in files:
        if exists(system, f"{path}/{HIDDEN}/{job}/{name}"):
            to = f"{path}/{place}" if place else path
            system.create_dir(to, recursive=True)
            try:
                system.move(f"{path}/{HIDDEN}/{job}/{name}", f"{to}/{name}")
            except OSError:
                if exists(system, f"{path}/{HIDDEN}/{job}/{name}"):
                    raise  # Otherwise another driver has moved it.


def forget(folders: Sequence[Folder], *, job: str) -> None:
    """Remove the hidden files of a job that has ended."""
    for folder in folders:
        system, path = folder.system()
        if exists(system, f"{path}/{HIDDEN}/{job}"):
            system.delete_dir(f"{path}/{HIDDEN}/{job}")
            if not system.get_file_info(fs.FileSelector(f"{path}/{HIDDEN}")):
                system.delete_dir(f"{path}/{HIDDEN}")


def _clear(system: fs.FileSystem, aside: str, batch: int) -> None:
    """Remove files of attempts up to a batch, except for the note that this one is done."""
    for found in listed(system, aside):
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
