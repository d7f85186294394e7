"""Tables of PostgreSQL: one transaction has the rows of a batch and its number in ``onyxq_batches``.

When the log commits the batch, the transaction is open and has all rows. So the database refuses rows before the batch
counts. If the driver dies before the database's own commit, the next driver writes the batch from its hidden files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pyarrow import types

from onyxq.core.errors import BadRequest, Incomplete, Unavailable
from onyxq.jobs.options import names_in
from onyxq.jobs.values import Unfit
from onyxq.spark.files.columns import fitter, segments
from onyxq.spark.files.staging import Folder
from onyxq.spark.files.texts import json_form
from onyxq.spark.sinks.tables import Batch, Files

try:
    import psycopg
    from psycopg import sql
    from psycopg.types.json import Jsonb
except ImportError as error:
    raise Incomplete(
        f"outputs of the format postgres need a package: {error}", hint="pip install 'onyxq[outbox]'"
    ) from error

CONNECT_S = 30
_LOCK = 0x6F6E797871
"""Number of the advisory lock under which the table of batches is made."""
_NOTES = """
CREATE TABLE IF NOT EXISTS onyxq_batches (
    writer text PRIMARY KEY, batch bigint NOT NULL, version bigint NOT NULL, written_at timestamptz NOT NULL)"""
_NOTE = """
INSERT INTO onyxq_batches AS noted VALUES (%s, %s, %s, now())
ON CONFLICT (writer) DO UPDATE SET batch = excluded.batch, version = excluded.version, written_at = now()
WHERE noted.batch < excluded.batch"""
_COLUMNS = """
SELECT attname, format_type(atttypid, NULL), atttypmod, attnotnull, atthasdef OR attidentity <> ''
FROM pg_attribute WHERE attrelid = to_regclass(%s) AND attnum > 0 AND NOT attisdropped"""
_TYPES: tuple[tuple[Callable[[Any], bool], tuple[str, ...]], ...] = (
    (types.is_boolean, ("boolean",)),
    (lambda kind: types.is_int8(kind) or types.is_int16(kind), ("smallint", "integer", "bigint")),
    (types.is_int32, ("integer", "bigint")),
    (types.is_int64, ("bigint",)),
    (types.is_float32, ("real", "double precision")),
    (types.is_float64, ("double precision",)),
    (types.is_string, ("text", "character varying")),
    (types.is_binary, ("bytea",)),
    (types.is_date32, ("date",)),
    (lambda kind: types.is_timestamp(kind) and kind.tz is not None, ("timestamp with time zone",)),
    (types.is_timestamp, ("timestamp without time zone",)),
    (types.is_decimal, ("numeric",)),
)
"""Type of Arrow -> types of PostgreSQL that hold all its values."""


class Prepared:
    """A transaction that holds a batch."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def commit(self) -> None:
        """Make the batch count."""
        self._connection.commit()

    def close(self) -> None:
        """Roll back unless it was committed."""
        self._connection.close()


def check(folder: Folder, schema: Any) -> None:
    """Raise `BadRequest` unless the table holds all values of these columns, and has a unique index for the key."""
    for part in schema:
        try:
            _form(part.type)
        except Unfit as error:
            raise _wrong(folder, f"{part.name}: {error.why}") from None
    with _connected(folder) as connection:
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [_LOCK])
        connection.execute(_NOTES)
        found = {name: more for name, *more in connection.execute(_COLUMNS, [_quoted(folder, connection)])}
        if not found:
            made = ", ".join(f"{part.name} {_accepted(part.type)[0]}" for part in schema)
            missing = f"the database has no table {_table(folder)!r}; create it with the columns {made}"
            raise _wrong(folder, missing, "table")
        _check_columns(folder, schema, found)
        _staged(connection, folder, schema.names)
        try:
            connection.execute(sql.SQL("EXPLAIN ") + _insert(folder, schema.names))
        except psycopg.Error as error:
            raise _wrong(folder, str(error).partition("\n")[0], "key") from None


def _check_columns(folder: Folder, schema: Any, found: dict[str, Any]) -> None:
    for part in schema:
        if part.name not in found:
            raise _wrong(folder, f"{part.name}: the table has no such column; it has {', '.join(found)}")
        kind, size, required, _ = found[part.name]
        accepted = _accepted(part.type)
        if kind not in accepted or not _has_room(kind, size, part.type):
            raise _wrong(folder, f"{part.name}: is {part.type}; the table's column must be {' or '.join(accepted)}")
        if part.nullable and (required or part.name in _key(folder)):
            why = "is a key" if part.name in _key(folder) else "is NOT NULL in the table"
            raise _wrong(folder, f"{part.name}: {why}: write NOT NULL after its type in the schema as well")
    for name, (_, _, required, filled) in found.items():
        if required and not filled and name not in schema.names:
            raise _wrong(folder, f"{name}: the table's column is NOT NULL, has no default, and is not in the schema")
    for name in _key(folder):
        if name not in schema.names:
            raise _wrong(folder, f"key names {name!r}, but the schema has {', '.join(schema.names)}", "key")


def prepare(folder: Folder, files: Files, batch: Batch) -> Prepared | None:
    """Return an open transaction with the batch; None if the table has the batch already.

    Raises `BadRequest` if the database refuses a row.
    """
    connection = _connected(folder)
    try:
        if not connection.execute(_NOTE, [batch.writer, batch.number, batch.version]).rowcount:
            connection.close()
            return None
        schema = files.schema()
        names = schema.names
        _staged(connection, folder, names)
        copy = sql.SQL("COPY pg_temp.onyxq_rows ({}) FROM STDIN").format(_listed(names))
        with connection.cursor() as cursor, cursor.copy(copy) as rows:
            for row in _rows(schema, files):
                rows.write_row(row)
        connection.execute(_insert(folder, names))
        connection.execute("SET CONSTRAINTS ALL IMMEDIATE")
    except BaseException as error:
        connection.close()
        if isinstance(error, psycopg.IntegrityError | psycopg.DataError):
            raise BadRequest(f"output {folder.name}: {str(error).strip()}", field=folder.name) from error
        raise
    return Prepared(connection)


def write(folder: Folder, files: Files, batch: Batch) -> None:
    """Write the batch, unless the table has it."""
    prepared = prepare(folder, files, batch)
    if prepared is not None:
        prepared.commit()
        prepared.close()


def _connected(folder: Folder) -> Any:
    try:
        return psycopg.connect(folder.options["url"], connect_timeout=CONNECT_S)
    except psycopg.OperationalError as error:
        raise Unavailable(
            f"output {folder.name}: {str(error).strip()}",
            hint="Passwords come from ~/.pgpass, PGPASSWORD or a service file of the user that runs Spark.",
        ) from error
    except psycopg.ProgrammingError as error:
        raise _wrong(folder, str(error).strip(), "url") from None


# --- statements --------------------------------------------------------------------


def _table(folder: Folder) -> str:
    return folder.options["table"]


def _identifier(folder: Folder) -> Any:
    return sql.Identifier(*_table(folder).split("."))


def _quoted(folder: Folder, connection: Any) -> str:
    return str(_identifier(folder).as_string(connection))


def _key(folder: Folder) -> tuple[str, ...]:
    return names_in(folder.options["key"]) if "key" in folder.options else ()


def _listed(names: Any) -> Any:
    return sql.SQL(", ").join(map(sql.Identifier, names))


def _staged(connection: Any, folder: Folder, names: list[str]) -> None:
    """Make a table for the rows of the transaction, in their order."""
    made = "CREATE TEMPORARY TABLE onyxq_rows ON COMMIT DROP AS SELECT {} FROM {} WITH NO DATA"
    connection.execute(sql.SQL(made).format(_listed(names), _identifier(folder)))
    connection.execute("ALTER TABLE pg_temp.onyxq_rows ADD COLUMN onyxq_place bigint GENERATED ALWAYS AS IDENTITY")


def _insert(folder: Folder, names: list[str]) -> Any:
    """Return the statement that moves the rows into the table: of rows with the same key, the last one."""
    key = _key(folder)
    columns, target = _listed(names), _identifier(folder)
    if not key:
        said = "INSERT INTO {} ({}) SELECT {} FROM pg_temp.onyxq_rows ORDER BY onyxq_place"
        return sql.SQL(said).format(target, columns, columns)
    others = [name for name in names if name not in key]
    sets = sql.SQL(", ").join(sql.SQL("{0} = excluded.{0}").format(sql.Identifier(name)) for name in others)
    return sql.SQL(
        "INSERT INTO {} ({}) SELECT DISTINCT ON ({}) {} FROM pg_temp.onyxq_rows ORDER BY {}, onyxq_place DESC "
        "ON CONFLICT ({}) DO "
    ).format(target, columns, _listed(key), columns, _listed(key), _listed(key)) + (
        sql.SQL("UPDATE SET ") + sets if others else sql.SQL("NOTHING")
    )


# --- values ------------------------------------------------------------------------


def _accepted(kind: Any) -> tuple[str, ...]:
    """Return the types of PostgreSQL for a type of Arrow: an array for a list of plain values, else jsonb."""
    for fits, names in _TYPES:
        if fits(kind):
            return names
    if types.is_list(kind) and not types.is_nested(kind.value_type):
        return tuple(f"{name}[]" for name in _accepted(kind.value_type))
    return ("jsonb",)


def _has_room(kind: str, size: int, part: Any) -> bool:
    """Return whether a column with a size, such as ``numeric(10,2)``, holds all values of a type."""
    while types.is_list(part):
        part = part.value_type
    if size < 0 or kind == "jsonb":
        return True
    if types.is_decimal(part):
        digits, scale = (size - 4) >> 16 & 0xFFFF, size - 4 & 0x7FF
        return bool(scale >= part.scale and digits - scale >= part.precision - part.scale)
    return False


def _rows(schema: Any, files: Files) -> Iterator[list[Any]]:
    forms = [(part.name, _form(part.type)) for part in schema]
    for batch in files.batches():
        for row in segments(batch):
            yield [None if row[name] is None else form(row[name]) for name, form in forms]


def _form(kind: Any) -> Callable[[Any], Any]:
    """Return a function from a segment's value to the value that psycopg writes; raises `Unfit`."""
    if _accepted(kind) != ("jsonb",):
        return lambda value: value
    fit, form = fitter(kind), json_form(kind, signed_zero=False)
    return lambda value: Jsonb(form(fit(value)))


def _wrong(folder: Folder, what: str, option: str = "schema") -> BadRequest:
    return BadRequest(f"output {folder.name}: {what}", field=f"{folder.name}.options.{option}")
