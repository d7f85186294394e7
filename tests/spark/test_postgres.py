"""Tables of PostgreSQL as outputs: a batch counts once, refused rows never count, values come back unchanged."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import HealthCheck, given, settings

pytest.importorskip("psycopg")
pytest.importorskip("pyarrow")

import psycopg
import pyarrow

from onyxq.errors import BadRequest, Unavailable
from onyxq.jobs.values import pack
from onyxq.spark.files.file_sink import prepared, stage
from onyxq.spark.files.formats import check_schema, described
from onyxq.spark.files.staging import Folder, Staging
from onyxq.spark.sinks import tables
from tests.outbox.postgres import Postgres, database, postgres
from tests.spark import unchanged_tables
from tests.spark.generated_columns import Rows, alike, rows, without_nulls
from tests.spark.hidden_batches import show, staged
from tests.spark.independent_readers import json_value

__all__ = ["database", "postgres"]

COLUMNS = pyarrow.schema([pyarrow.field("id", pyarrow.int64(), nullable=False), ("said", pyarrow.string())])


def output(database: str, folder: Path, schema: Any = COLUMNS, **options: str) -> Folder:
    """An output that is a table."""
    given = {"url": database, "table": "words", **options}
    return Folder("out", "postgres", str(folder / "hidden"), given, described(schema))


def do(database: str, *statements: str) -> list[Any]:
    """Run statements, and return the rows of the last one."""
    with psycopg.connect(database) as connection:
        for said in statements:
            cursor = connection.execute(said.encode())
        return cursor.fetchall() if cursor.description else []


WORDS = "CREATE TABLE words (id bigint PRIMARY KEY, said text CHECK (said <> 'no'), more integer DEFAULT 5)"


@pytest.fixture
def words(database: str) -> str:
    """A database with a table."""
    do(database, WORDS)
    return database


def test_rows_are_inserted_or_replace_those_of_their_key(words: str, tmp_path: Path) -> None:
    """Of two rows in a batch the last one counts; columns that the job does not have stay."""
    out = output(words, tmp_path, key="id")
    tables.check(out, out.schema)
    staged(out, 0, [{"id": 1, "said": "a"}, {"id": 2, "said": "b"}, {"id": 1, "said": "c"}])
    show(out, 0)
    do(words, "UPDATE words SET more = 6")
    staged(out, 1, [{"id": 2, "said": None}, {"id": 3, "said": "d"}])
    show(out, 1)
    assert do(words, "SELECT * FROM words ORDER BY id") == [(1, "c", 6), (2, None, 6), (3, "d", 5)]


def test_a_batch_counts_once_however_often_it_is_published(words: str, tmp_path: Path) -> None:
    """Also if the note of the folder is lost, and for a driver that was replaced and writes an earlier batch."""
    do(words, "ALTER TABLE words DROP CONSTRAINT words_pkey")
    out = output(words, tmp_path)
    tables.check(out, out.schema)
    files = {}
    for number in range(2):
        staged(out, number, [{"id": number, "said": "x"}])
        files[number] = kept(out, tmp_path / str(number))
        show(out, number)
        show(out, number)
    for number in (0, 1, 0):
        tables.write(out, files[number], tables.Batch("j", "out", "m", number, 1))
    assert do(words, "SELECT id FROM words ORDER BY id") == [(0,), (1,)]
    assert do(words, "SELECT writer, batch, version FROM onyxq_batches") == [("onyxq/j/out/m", 1, 7)]


def kept(out: Folder, to: Path) -> tables.Files:
    """The staged files, copied to where a publish does not remove them."""
    system, aside = out.hidden("j")
    to.mkdir()
    for file in Path(aside).glob("part-*"):
        system.copy_file(str(file), f"{to}/{file.name}")
    return tables.Files(system, [str(file) for file in to.iterdir()])


DIES = """
import os, signal, sys
from pathlib import Path
from tests.spark.test_postgres import output, show
from onyxq.spark.sinks import postgres
commit = postgres.Prepared.commit
def dies(self):
    if sys.argv[3] == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    commit(self)
    os.kill(os.getpid(), signal.SIGKILL)
postgres.Prepared.commit = dies
show(output(sys.argv[1], Path(sys.argv[2])), 0)
"""


@pytest.mark.long
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_killed_driver_leaves_a_batch_that_counts_once(words: str, tmp_path: Path, when: str) -> None:
    """SIGKILL before the database's commit, and between it and the note that the batch is done."""
    do(words, "ALTER TABLE words DROP CONSTRAINT words_pkey")
    out = output(words, tmp_path)
    tables.check(out, out.schema)
    staged(out, 0, [{"id": 1, "said": "x"}])
    died = subprocess.run([sys.executable, "-c", DIES, words, str(tmp_path), when], timeout=240, check=False)
    assert died.returncode == -signal.SIGKILL
    show(out, 0)
    assert do(words, "SELECT id, said FROM words") == [(1, "x")]


def test_rows_that_the_database_refuses_fail_before_the_log_commits(words: str, tmp_path: Path) -> None:
    """By a constraint here; without a commit of the log nothing is in the table."""
    out = output(words, tmp_path)
    tables.check(out, out.schema)
    staged(out, 0, [{"id": 1, "said": "yes"}, {"id": 2, "said": "no"}], mark="bad")
    with pytest.raises(BadRequest, match="output out: .*words_said_check"):
        with prepared([out], job="j", batch=0, mark="bad", version=1):
            raise AssertionError("the log must not be asked")
    staged(out, 0, [{"id": 1, "said": "yes"}], mark="good")
    with pytest.raises(ValueError, match="the log refuses"), prepared([out], job="j", batch=0, mark="good", version=1):
        raise ValueError("the log refuses")
    assert do(words, "SELECT * FROM words") == []
    with prepared([out], job="j", batch=0, mark="good", version=1) as found:
        for one in found:
            one.commit()
    show(out, 0, mark="good")
    assert do(words, "SELECT id FROM words") == [(1,)]


NOT_NULL = pyarrow.field("id", pyarrow.int64(), nullable=False)


@pytest.mark.parametrize(
    ("fields", "options", "said"),
    [
        ([NOT_NULL, ("x", pyarrow.string())], {}, "x: the table has no such column; it has id, said, more"),
        ([NOT_NULL, ("said", pyarrow.int64())], {}, "said: is int64; the table's column must be bigint"),
        ([NOT_NULL, ("more", pyarrow.int64())], {}, "more: is int64; the table's column must be bigint"),
        ([("id", pyarrow.int64())], {}, "id: is NOT NULL in the table: write NOT NULL after its type"),
        ([("said", pyarrow.string())], {}, "id: the table's column is NOT NULL, has no default, and is not in"),
        ([NOT_NULL], {"key": "said"}, "key names 'said', but the schema has id"),
        ([NOT_NULL, ("said", pyarrow.string())], {"key": "said"}, "said: is a key: write NOT NULL"),
        (
            [NOT_NULL, pyarrow.field("said", pyarrow.string(), nullable=False)],
            {"key": "said"},
            "there is no unique or exclusion constraint matching",
        ),
        ([NOT_NULL], {"table": "wrds"}, "the database has no table 'wrds'; create it with the columns id bigint"),
        ([NOT_NULL, ("said", pyarrow.map_(pyarrow.int64(), pyarrow.int64()))], {}, "said: JSON cannot hold"),
    ],
)
def test_a_table_that_does_not_fit_is_named_before_the_job_starts(
    words: str, tmp_path: Path, fields: list[Any], options: dict[str, str], said: str
) -> None:
    """The check changes nothing in the table."""
    out = output(words, tmp_path, pyarrow.schema(fields), **options)
    with pytest.raises(BadRequest, match=f"output out: {said}"):
        tables.check(out, out.schema)


def test_a_database_that_is_away_is_tried_again(tmp_path: Path) -> None:
    """Such an error is not the job's, so a restart may help."""
    out = output("postgresql://nobody@127.0.0.1:1/x", tmp_path)
    with pytest.raises(Unavailable, match="output out: "):
        tables.check(out, out.schema)


@pytest.mark.parametrize("url", ["shop", "postgresql://127.0.0.1:1/x?sslmod=require"])
def test_an_address_that_cannot_be_read_is_an_error_of_the_job(url: str, tmp_path: Path) -> None:
    """A restart would not help."""
    out = output(url, tmp_path)
    with pytest.raises(BadRequest, match="output out: ") as refused:
        tables.check(out, out.schema)
    assert refused.value.field == "out.options.url"


def test_the_null_character_is_refused_at_its_row(words: str, tmp_path: Path) -> None:
    """PostgreSQL's strings cannot hold it; binaries can."""
    task = Staging({"out": output(words, tmp_path)}, job="j", batch=0, part=0)
    with pytest.raises(BadRequest, match="output out: said: PostgreSQL cannot hold the null character"):
        task.add("out", pack({"id": 1, "said": "a\0b"}))
    task.add("out", pack({"id": 0, "said": "ab"}))
    task.discard()


SQL = {
    "int8": "smallint",
    "int16": "smallint",
    "int64": "bigint",
    "int32": "integer",
    "double": "double precision",
    "float": "real",
    "string": "text",
    "bool": "boolean",
    "date32[day]": "date",
    "timestamp[us]": "timestamp",
    "timestamp[us, tz=UTC]": "timestamptz",
    "decimal128(10, 2)": "numeric(10,2)",
    "binary": "bytea",
}


def table_type(kind: Any) -> str:
    """Return the type of PostgreSQL's column for a type of Arrow."""
    if pyarrow.types.is_list(kind) and not pyarrow.types.is_nested(kind.value_type):
        return f"{table_type(kind.value_type)}[]"
    return SQL.get(str(kind), "numeric" if pyarrow.types.is_decimal(kind) else "jsonb")


def there_and_back(server: str, folder: Path, schema: Any, made: list[Any]) -> tuple[list[Any], list[Any]]:
    """Write rows to a table with these columns; return the rows that were not refused, and those in the table."""
    names = [f'"{name.replace(chr(34), chr(34) * 2)}"' for name in schema.names]
    columns = ", ".join(f"{name} {table_type(part.type)}" for name, part in zip(names, schema, strict=True))
    do(server, "DROP TABLE IF EXISTS words", f"CREATE TABLE words (row_ bigint, {columns})")
    out = output(server, folder, schema.append(pyarrow.field("row_", pyarrow.int64())))
    out = evolve(out, options={**out.options, "table": "public.words"})
    tables.check(out, out.schema)
    task, kept_rows = Staging({"out": out}, job="j", batch=0, part=0), []
    for number, row in enumerate(made):
        try:
            task.add("out", pack({**row, "row_": number}))
            kept_rows.append(row)
        except BadRequest as error:
            assert error.message.startswith("output out: ")
    show(out, 0, stage([out], task.finish(), job="j", batch=0))
    # As text a real has the digits that suffice for 32 bits, and Python would read another number.
    wide = {"real": "::double precision", "real[]": "::double precision[]"}
    said = [name + wide.get(table_type(part.type), "") for name, part in zip(names, schema, strict=True)]
    rows = do(server, f"SELECT {', '.join(said)} FROM words ORDER BY row_")
    read = [
        [
            json_value(part.type, one) if table_type(part.type) == "jsonb" else one
            for part, one in zip(schema, row, strict=True)
        ]
        for row in rows
    ]
    return kept_rows, [dict(zip(schema.names, one, strict=True)) for one in read]


@pytest.fixture(scope="module")
def server(postgres: Postgres) -> Iterator[str]:
    """The URL of the server's own database."""
    yield postgres.url


@pytest.mark.long
def test_columns_that_the_table_of_the_page_has_come_back(server: str, tmp_path: Path) -> None:
    """Each type with the values that are easily changed; the others are refused before the job starts."""
    for number, one in enumerate(unchanged_tables.kept("postgres")):
        made = [{'a`b "c': without_nulls(edge)} for edge in (*one.edges, None)]
        found = there_and_back(server, tmp_path / str(number), pyarrow.schema([('a`b "c', one.arrow)]), made)
        assert alike(*found), one.sql
        assert len(found[0]) == len(made), one.sql
    do(server, "DROP TABLE IF EXISTS words", "CREATE TABLE words (odd_one jsonb)")
    for one in unchanged_tables.refused("postgres"):
        out = output(server, tmp_path, pyarrow.schema([("odd_one", one.arrow)]))
        with pytest.raises(BadRequest, match="output out: .*odd_one"):
            check_schema(out)
            tables.check(out, out.schema)


@pytest.mark.long
@pytest.mark.parametrize("nested", [False, True])
def test_values_come_back_unchanged(server: str, tmp_path_factory: pytest.TempPathFactory, nested: bool) -> None:
    """Columns of PostgreSQL's own types, or of any type; a row that does not fit is refused."""

    @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
    @given(rows(nested=nested, least=1))
    def passes(made: Rows) -> None:
        assert alike(*there_and_back(server, tmp_path_factory.mktemp("typed"), made.arrow, made.rows))

    passes()


def test_the_fence_of_the_page_excludes_repeats_and_replaced_drivers(database: str) -> None:
    """The function of the page, in the order in which drivers may call it."""
    do(
        database,
        'CREATE TABLE charges ("order" text, "user" text, amount int)',
        "CREATE TABLE fences (job text PRIMARY KEY, version bigint, batch bigint)",
    )
    _, _, rest = unchanged_tables.PAGE.partition("   :caption: fenced.py\n\n")
    shown = textwrap.dedent(re.split(r"\n(?=\S)", rest)[0]).replace("dbname=shop", database)
    named: dict[str, Any] = {"psycopg": psycopg}
    exec(compile(shown, "fenced.py", "exec"), named)
    for version, batch in ((3, 0), (3, 0), (3, 1), (4, 1), (4, 2), (3, 2), (3, 3)):
        row = {"order": f"{version}/{batch}", "user": "ann", "amount": 7}
        named["charge"](pyarrow.Table.from_pylist([row]), {"job": "j", "version": version, "batch": batch})
    assert do(database, 'SELECT "order" FROM charges ORDER BY 1') == [("3/0",), ("3/1",), ("4/2",)]
