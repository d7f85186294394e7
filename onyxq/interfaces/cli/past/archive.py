"""``onyxq archive``: records of the log as Parquet files."""

from __future__ import annotations

import time
from pathlib import Path

from onyxq.core.errors import BadRequest
from onyxq.history.archive import Part, parts
from onyxq.history.live_log import end_of, live
from onyxq.history.parquet.records import Written, write_records
from onyxq.interfaces.cli.context import Context
from onyxq.system.durations import milliseconds

PROGRESS_RECORDS = 2_000
EVERY_MS_MIN = 1_000


def archive_log(context: Context) -> None:
    """Write the records that the directory does not have, once or repeatedly."""
    args = context.args
    every_ms = milliseconds(args.every, field="every")
    if every_ms < EVERY_MS_MIN:
        raise BadRequest(f"every must be at least 1s, not {args.every}", field="every")
    _show(context, _once(context))
    while args.follow:
        time.sleep(every_ms / 1_000)
        written = _once(context)
        if written.records:
            _show(context, written)


def _once(context: Context) -> Written:
    args, directory = context.args, Path(context.args.directory)
    archived = parts(map(Path, args.archive or ()))
    if archived and not args.live:
        return _write(context, archived, directory, None)
    with context.client() as client:
        newest = live(client.call)
        return _write(context, [newest, *archived], directory, end_of(client.call))


def _write(context: Context, pieces: list[Part], directory: Path, until: int | None) -> Written:
    written = Written()
    for written in write_records(pieces, directory, until=until):
        if written.records and written.records % PROGRESS_RECORDS == 0:
            context.out.progress(f"{written.records} records, up to {written.last}")
    return written


def _show(context: Context, written: Written) -> None:
    found = {
        "records": written.records,
        "entries": written.entries,
        "files": written.files,
        "first": written.first,
        "last": written.last,
    }
    if context.args.follow:
        context.out.line(found, f"{written.records} records up to {written.last} in {written.files} files")
    else:
        context.out.fields(found)
