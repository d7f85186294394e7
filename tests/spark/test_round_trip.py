"""Values written to files, messages and queues are equal when read, or refused with the output's name."""

from __future__ import annotations

import decimal
import io
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("pyarrow")

import pyarrow

from onyxq.errors import BadRequest
from onyxq.jobs.values import pack, unpack_all
from onyxq.spark.files.columns import plain_rows, row_fitter
from onyxq.spark.files.formats import WRITERS, check_schema, described
from onyxq.spark.files.staging import Folder
from onyxq.spark.queues.options import QueueOutput
from onyxq.spark.queues.shares import task_of
from tests.jobs.generated_values import TEXTS, values
from tests.spark.generated_columns import Rows, Type, alike, breaks_csv, columns, rows, without_nulls
from tests.spark.independent_readers import from_csv, from_json, from_parquet
from tests.spark.unchanged_tables import COLUMN_CELLS, TYPES, VALUE_CELLS, VALUE_EDGES, VALUES, kept, refused

pytestmark = pytest.mark.long


EXAMPLES = settings(max_examples=200, suppress_health_check=list(HealthCheck))
KAFKA = {"brokers": "h:1", "topic": "t"}


class Kept(io.BytesIO):
    """A file whose bytes are kept after its close."""

    data = b""

    def close(self) -> None:
        """Keep the bytes."""
        self.data = self.data if self.closed else self.getvalue()
        super().close()


def output(kind: str, schema: Any = None, **options: str) -> Folder:
    """Return an output of files or messages."""
    given = {**(KAFKA if kind == "kafka" else {}), **options}
    return Folder("out", kind, "", given, "" if schema is None else described(schema))


def file_of(kind: str, found: list[Any], schema: Any = None, **options: str) -> bytes | None:
    """Return the file of these segments, or None if one was refused."""
    stream = Kept()
    writer = WRITERS[kind](stream, output(kind, schema, **options))
    try:
        for one in found:
            writer.add(pack(one))
        writer.close()
    except BadRequest as error:
        writer.abandon()
        assert error.message.startswith("output out: ")
        return None
    return stream.data


def from_messages(data: bytes, schema: Any) -> list[Any]:
    """Return the rows of messages of Kafka, which are JSON."""
    return from_json(b"".join(value + b"\n" for _, value, _ in unpack_all(io.BytesIO(data))), schema)


READERS: dict[str, Callable[[bytes, Any], list[Any]]] = {
    "parquet": lambda data, _: from_parquet(data),
    "json": from_json,
    "csv": from_csv,
    "kafka": from_messages,
    "foreach_batch": lambda data, _: from_parquet(data),
    "delta": lambda data, _: from_parquet(data),
    "postgres": lambda data, _: from_parquet(data),
}


# --- the tables of the page -----------------------------------------------------------


def test_the_tables_name_all_types_and_values() -> None:
    """A row that the tests do not know would say nothing."""
    assert [*COLUMN_CELLS] == [*TYPES]
    assert [*VALUE_CELLS] == [*VALUES]
    cells = [cell for row in (*COLUMN_CELLS.values(), *VALUE_CELLS.values()) for cell in row.values()]
    assert {*cells} == {"yes", "no"}


def edges_of(kind: str, one: Type) -> list[Any]:
    """Return the values of a type that an output may not refuse, and None."""
    found = [edge for edge in one.edges if kind != "csv" or not breaks_csv(edge)]
    return [*(map(without_nulls, found) if kind == "postgres" else found), None]


@pytest.mark.parametrize("kind", READERS)
def test_columns_that_the_table_has_come_back(kind: str) -> None:
    """Each type alone, with the values that are easily changed; none of these is refused."""
    for one in kept("parquet" if kind == "foreach_batch" else kind):
        sql, schema = columns({"a`b c": one, "n": TYPES["``boolean``"][0]})
        found = [{"a`b c": edge, "n": True} for edge in edges_of(kind, one)]
        check_schema(output(kind, schema))
        data = file_of(kind, found, schema)
        assert data is not None, sql
        assert alike(READERS[kind](data, schema), found), sql


@pytest.mark.parametrize("kind", ["parquet", "json", "csv", "kafka"])
def test_columns_that_the_table_excludes_are_refused_before_a_job_starts(kind: str) -> None:
    """The error names output and column."""
    assert refused(kind)
    for one in refused(kind):
        with pytest.raises(BadRequest, match="output out: .*odd_one"):
            check_schema(output(kind, pyarrow.schema([("odd_one", one.arrow)])))


def through_queue(value: Any) -> Any:
    """Return what a job reads of a segment that another one wrote to a queue; raises `BadRequest`."""
    made, payload, _ = task_of(QueueOutput("q"), pack(value), "out")
    return json.loads(payload) if made.format == "json" else payload


def through(kind: str, value: Any) -> Any:
    """Write a segment without a schema, and return what comes back; raises `BadRequest`."""
    if kind == "queue":
        return through_queue(value)
    data = file_of(kind, [value])
    if data is None:
        raise BadRequest("output out: refused")
    if kind == "json":
        return json.loads(data)
    return from_parquet(data)[0] if kind == "parquet" else next(unpack_all(io.BytesIO(data)))


def check_cell(kind: str, made: st.SearchStrategy[Any], *, keeps: bool) -> None:
    """Try values of a row of the table of values, each as a field of a segment, and in a list."""

    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    @given(made)
    def one(value: Any) -> None:
        for segment in ({"a": value}, {"a": {"b": [value]}}):
            if keeps:
                assert alike(through(kind, segment), segment)
            else:
                with pytest.raises(BadRequest, match="output out: "):
                    through(kind, segment)

    one()


@pytest.mark.parametrize("kind", next(iter(VALUE_CELLS.values())))
def test_values_without_a_schema_are_kept_or_refused_as_the_table_says(kind: str) -> None:
    """Nothing is changed silently."""
    for row, cells in VALUE_CELLS.items():
        check_cell(kind, VALUES[row], keeps=cells[kind] == "yes")
        for edge in VALUE_EDGES.get(row, []) if cells[kind] == "yes" else []:
            assert alike(through(kind, {"a": edge}), {"a": edge})


# --- anything -------------------------------------------------------------------------


@EXAMPLES
@given(rows(nested=True))
def test_columns_of_parquet(made: Rows) -> None:
    """With a schema."""
    data = file_of("parquet", made.rows, made.arrow)
    assert data is None or alike(from_parquet(data), made.rows)


@EXAMPLES
@given(rows(nested=False))
def test_plain_rows_are_those_that_no_column_changes(made: Rows) -> None:
    """The way without `row_fitter` takes no row that it would refuse or change."""
    plain, fit = plain_rows(made.arrow), row_fitter(made.arrow)
    for row in made.rows:
        found = plain(row)
        assert found is None or alike(list(found), fit(row))


def test_plain_rows_leave_half_of_a_surrogate_pair_to_packing() -> None:
    """It refuses such a string and names the function, at the row; Arrow would fail a whole row group."""
    plain = plain_rows(pyarrow.schema([("s", pyarrow.string())]))
    found = [plain({"s": text}) for text in ("a", "\u00e9\U0001f600", None, "a\ud83d", "\ude00")]
    assert found == [("a",), ("\u00e9\U0001f600",), (None,), None, None]


@EXAMPLES
@given(rows(nested=True, astray=False, least=1))
def test_what_fits_its_columns_is_not_refused(made: Rows) -> None:
    """This is about Parquet and JSON, which have all types of columns."""
    assert file_of("parquet", made.rows, made.arrow) is not None
    assert file_of("json", made.rows, made.arrow) is not None


@EXAMPLES
@given(st.lists(st.dictionaries(st.sampled_from("abc"), values(), max_size=3), max_size=4))
def test_columns_of_parquet_that_are_found(found: list[Any]) -> None:
    """Without a schema, the columns are those of all rows together."""
    data = file_of("parquet", found)
    assert data is None or alike(from_parquet(data), found)


@EXAMPLES
@given(st.lists(values(), max_size=4))
def test_lines_of_json(found: list[Any]) -> None:
    """Without a schema, values are those of JSON."""
    data = file_of("json", found)
    assert data is None or alike([json.loads(line) for line in data.decode().split("\n")[:-1]], found)


@EXAMPLES
@given(rows(nested=True))
def test_columns_of_json(made: Rows) -> None:
    """With a schema, the text of a value is read by its type; a message of Kafka is such a line."""
    data = file_of("json", made.rows, made.arrow)
    assert data is None or alike(from_json(data, made.arrow), made.rows)
    messages = file_of("kafka", made.rows, made.arrow)
    assert (messages is None) == (data is None)
    assert messages is None or alike(from_messages(messages, made.arrow), made.rows)


@EXAMPLES
@given(st.lists(values() | st.binary() | st.text(), max_size=4))
def test_keys_and_headers_of_messages(found: list[Any]) -> None:
    """Bytes are unchanged, strings are UTF-8 and integers are digits; all others are refused."""
    segments = [{"k": one, "v": one, "h": one} for one in found]
    data = file_of("kafka", segments, key="k", value="v", headers="h")
    if data is not None:
        said = [one if isinstance(one, bytes) or one is None else str(one).encode() for one in found]
        assert {type(one) for one in found} <= {str, int, bytes, type(None)}
        wanted = [[one, one, [] if one is None else [["h", one]]] for one in said]
        assert list(unpack_all(io.BytesIO(data))) == wanted


@EXAMPLES
@given(rows(nested=False))
def test_columns_of_csv(made: Rows) -> None:
    """With a schema, which CSV needs."""
    data = file_of("csv", made.rows, made.arrow)
    assert data is None or alike(from_csv(data, made.arrow), made.rows)


@pytest.mark.parametrize("kind", ["parquet", "json", "kafka"])
def test_zeros_after_the_point_that_a_column_lacks_are_left_out(kind: str) -> None:
    """The value is the same. Arrow takes few of them, and its error would be about other rows."""
    schema = pyarrow.schema([("price", pyarrow.decimal128(5, 2)), ("all", pyarrow.list_(pyarrow.decimal128(5, 2)))])
    price, nothing = decimal.Decimal("-103.4" + "0" * 50), decimal.Decimal("0." + "0" * 50)
    made = [{"price": price, "all": [price, nothing]}]
    data = file_of(kind, made, schema)
    assert data is not None and alike(READERS[kind](data, schema), made)


@pytest.mark.parametrize("kind", ["json", "csv", "kafka"])
def test_decimals_that_lose_zeros_have_no_exponent(kind: str) -> None:
    """A reader may expect digits and a point. The column's own zeros stay."""
    schema = pyarrow.schema([("price", pyarrow.decimal128(9, 2))])
    for value, text in (("100.000", b"100.00"), ("-20.50000", b"-20.50"), ("0012.3400", b"12.34")):
        data = file_of(kind, [{"price": decimal.Decimal(value)}], schema)
        assert data is not None and text in data and text + b"0" not in data


@pytest.mark.parametrize("sep", ["\t", " ", ",", "\x1f"])
def test_a_line_of_csv_that_readers_skip_is_refused(sep: str) -> None:
    """Spark skips lines of white space, and of control characters, alone."""
    schema = pyarrow.schema([("a", pyarrow.int64()), ("b", pyarrow.string())])
    assert (file_of("csv", [{"a": None, "b": None}], schema, sep=sep) is None) == (sep != ",")
    assert file_of("csv", [{"a": None, "b": ""}], schema, sep=sep) is not None


@EXAMPLES
@given(values())
def test_tasks_of_queues(value: Any) -> None:
    """Bytes stay bytes, values that JSON has are read as they were, and all others are refused."""
    try:
        found = through_queue(value)
    except BadRequest as error:
        assert error.message.startswith("output out: ")
        return
    assert alike(found, value) and type(found) is type(value)


@EXAMPLES
@given(st.lists(values() | TEXTS, max_size=4))
def test_lines_of_text(found: list[Any]) -> None:
    """Strings of one line each, and nothing else."""
    data = file_of("text", found)
    if data is not None:
        wanted = [one["value"] if isinstance(one, dict) else one for one in found]
        assert re.split("\r\n|\n|\r", data.decode())[:-1] == wanted


# --- names ----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
@pytest.mark.parametrize(
    ("names", "said"), [("aa", "a: is the name of two columns"), ("aA", "A: is the name of two columns, as Spark")]
)
def test_two_columns_of_one_name_are_refused(kind: str, names: str, said: str) -> None:
    """Spark cannot read them, and one of the values would be lost."""
    schema = pyarrow.schema([(name, pyarrow.int64()) for name in names])
    inside = pyarrow.schema([("s", pyarrow.struct(list(schema)))])
    for one in (schema, inside) if kind != "csv" else (schema,):
        with pytest.raises(BadRequest, match=f"output out: {said}"):
            check_schema(output(kind, one))


def test_columns_that_are_found_and_differ_only_in_case_are_refused() -> None:
    """Parquet has both, but Spark cannot read them."""
    assert file_of("parquet", [{"a": 1, "A": 2}]) is None
    assert file_of("json", [{"a": 1, "A": 2}]) is not None


@pytest.mark.parametrize("kind", ["json", "csv"])
def test_a_column_for_lines_that_cannot_be_read_is_refused(kind: str) -> None:
    """Spark's readers would return None for each value of it."""
    with pytest.raises(BadRequest, match="output out: _corrupt_record: Spark's readers keep this name"):
        check_schema(output(kind, pyarrow.schema([("_corrupt_record", pyarrow.string()), ("n", pyarrow.int64())])))
