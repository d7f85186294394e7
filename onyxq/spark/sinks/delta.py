"""Delta tables: each batch becomes one version of the table.

The version stores the writer and the number of the batch (``txn`` in the table's log). A batch whose number the table
has already is skipped.
"""

from __future__ import annotations

from typing import Any

import pyarrow
from pyarrow import types

from onyxq.core.errors import BadRequest, Incomplete, Unavailable
from onyxq.jobs.options import names_in
from onyxq.spark.files.staging import Folder
from onyxq.spark.sinks.tables import Batch, Files

TRIES = 5
"""Number of attempts to write a version while other writers add versions."""

try:
    import deltalake
    from deltalake import exceptions
except ImportError as error:
    raise Incomplete(
        f"outputs of the format delta need a package: {error}", hint="pip install 'onyxq[delta]'"
    ) from error


def check(folder: Folder, schema: Any) -> None:
    """Raise `BadRequest` if the table has other partitions, or columns that do not fit."""
    for part in () if schema is None else schema:
        inside = _parts(part.type) if types.is_nested(part.type) else []
        if any(types.is_timestamp(kind) and kind.tz is None for kind in inside):
            raise _wrong(
                folder, f"{part.name}: is {part.type}; a timestamp_ntz can only be a column of its own in Delta"
            )
        if any(map(types.is_null, inside)):
            raise _wrong(
                folder, f"{part.name}: is {part.type}, with a part that has no type yet: name it in the schema"
            )
    table = _table(folder)
    if table is None and schema is not None and not len(_without_nulls(schema)):
        raise _wrong(
            folder, "the table does not exist, and its first batch has no column with a value: name the columns"
        )
    if table is None or schema is None:
        return
    has = {part.name: part.type for part in pyarrow.schema(table.schema().to_arrow())}
    wanted, found = _partitions(folder), tuple(table.metadata().partition_columns)
    if wanted != found:
        raise _wrong(folder, f"partition_by is {_listed(wanted)}, but the table has {_listed(found)}")
    for part in _without_nulls(schema):
        if part.name not in has:
            if folder.options.get("other_fields") != "add":
                names = ", ".join(sorted(has))
                raise _wrong(folder, f"{part.name}: the table has no such column; it has {names}", "other_fields")
        elif not _same(has[part.name], part.type):
            raise _wrong(folder, f"{part.name}: is {part.type}, but the table's column is {has[part.name]}")


def write(folder: Folder, files: Files, batch: Batch) -> None:
    """Append the rows as one version, unless the table has the batch."""
    schema = _without_nulls(files.schema())
    for _ in range(TRIES):
        table = _table(folder) or _created(folder, schema)
        last = table.transaction_version(batch.writer)
        if last is not None and last >= batch.number:
            return
        reader = pyarrow.RecordBatchReader.from_batches(schema, (one.select(schema.names) for one in files.batches()))
        try:
            _append(table, reader, batch)
            return
        except exceptions.CommitFailedError as error:
            failure = error
    raise Unavailable(f"output {folder.name}: other writers added versions during {TRIES} attempts: {failure}")


def _append(table: Any, reader: Any, batch: Batch) -> None:
    """Write the version after the one that was read; raises `CommitFailedError` if another writer has added it."""
    mark = deltalake.Transaction(batch.writer, batch.number)
    deltalake.write_deltalake(
        table,
        reader,
        mode="append",
        schema_mode="merge",
        commit_properties=deltalake.CommitProperties(
            app_transactions=[mark], max_commit_retries=0, custom_metadata={"onyxq": batch.writer}
        ),
    )


def _table(folder: Folder) -> Any:
    """Return the table, or None if it does not exist yet."""
    try:
        return deltalake.DeltaTable(folder.path)
    except exceptions.TableNotFoundError:
        return None


def _created(folder: Folder, schema: Any) -> Any:
    """Create the table without rows, unless another writer does, so that each batch follows a known version."""
    parts = list(_partitions(folder)) or None
    return deltalake.DeltaTable.create(folder.path, schema, mode="ignore", partition_by=parts)


def _partitions(folder: Folder) -> tuple[str, ...]:
    said = folder.options.get("partition_by")
    return names_in(said) if said else ()


def _without_nulls(schema: Any) -> Any:
    """Return the columns that have a type: Delta has no column of Nones alone, and reads a missing one as None."""
    return pyarrow.schema([part for part in schema if not types.is_null(part.type)])


def _same(one: Any, other: Any) -> bool:
    """Return whether two types hold the same values; names of list items and layouts of strings do not count."""
    if one == other or (_is_text(one) and _is_text(other)) or (_is_bytes(one) and _is_bytes(other)):
        return True
    if types.is_timestamp(one) and types.is_timestamp(other):
        return (one.tz is None) == (other.tz is None)
    if _is_list(one) and _is_list(other):
        return _same(one.value_type, other.value_type)
    if types.is_map(one) and types.is_map(other):
        return _same(one.key_type, other.key_type) and _same(one.item_type, other.item_type)
    if types.is_struct(one) and types.is_struct(other):
        names = [part.name for part in one]
        return names == [part.name for part in other] and all(map(_same, _inside(one), _inside(other)))
    return False


def _parts(kind: Any) -> list[Any]:
    """Return the plain types inside a type."""
    if not types.is_nested(kind):
        return [kind]
    return [part for place in range(kind.num_fields) for part in _parts(kind.field(place).type)]


def _inside(kind: Any) -> list[Any]:
    return [part.type for part in kind]


def _is_text(kind: Any) -> bool:
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_bytes(kind: Any) -> bool:
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _is_list(kind: Any) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_list_view(kind))


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "none"


def _wrong(folder: Folder, what: str, option: str = "schema") -> BadRequest:
    return BadRequest(f"output {folder.name}: {what}", field=f"{folder.name}.options.{option}")
