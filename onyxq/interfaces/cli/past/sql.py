"""``onyxq sql``: queries over tasks, claims, attempts and entries of the log, live and archived."""

from __future__ import annotations

import csv
import io
import itertools
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

from onyxq.core.errors import BadRequest
from onyxq.history.live_log import Call
from onyxq.history.parquet.schema import pyarrow
from onyxq.history.tables.sources import Sources
from onyxq.interfaces.cli.context import Context


def sql(context: Context) -> None:
    """Print the answer to a query."""
    pyarrow()
    from onyxq.interfaces.cli.past.sql_engine import answer

    args = context.args
    if args.format == "csv" and context.out.as_json:
        raise BadRequest("--json and --format csv were both given", field="format", hint="Give one of them.")
    query = sys.stdin.read() if args.query == "-" else args.query
    sources = Sources(
        **{name: tuple(map(Path, getattr(args, name) or ())) for name in ("archives", "records", "logs", "dumps")}
    )
    with _cluster(context) as call:
        found = answer(query, sources, call)
    names = _distinct(found.column_names)
    rows = [dict(zip(names, row, strict=True)) for row in _rows(found)]
    if args.format == "csv":
        _print_csv(context, names, rows)
    else:
        context.out.table(rows, rows, names, empty="no rows")


@contextmanager
def _cluster(context: Context) -> Iterator[Call | None]:
    """Yield the calls of a cluster; None with ``--offline``."""
    if context.args.offline:
        yield None
    else:
        with context.client() as client:
            yield client.call


def _distinct(names: list[str]) -> list[str]:
    """Return the names of columns; a repeated name gets a number, such as ``id:1``."""
    found: list[str] = []
    for name in names:
        others = (f"{name}:{number}" for number in itertools.count(1))
        found.append(next(one for one in itertools.chain([name], others) if one not in found))
    return found


def _rows(found: Any) -> Iterator[list[Any]]:
    columns = map(_values, found.column_names, found.columns)
    return map(list, zip(*columns, strict=True))


def _values(name: str, column: Any) -> list[Any]:
    try:
        return [_plain(value) for value in column.to_pylist()]
    except (OverflowError, ValueError) as error:
        raise BadRequest(
            f"query: column {name!r} has a value that cannot be shown: {error}",
            field="query",
            hint="Convert the column to text in the query: cast(... as text).",
        ) from None


def _plain(value: Any) -> Any:
    """Return a value as JSON can show it: bytes as text, or in hexadecimal; times in UTC."""
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    shown = next((show for kind, show in _SHOWN if isinstance(value, kind)), str)
    return None if value is None else shown(value)


def _text(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.hex()


def _time(value: datetime) -> str:
    moment = value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)
    exact = moment.isoformat(timespec="microseconds" if moment.microsecond % 1_000 else "milliseconds")
    return exact if value.tzinfo is None else f"{exact}Z"


def _number(value: Decimal) -> int | float:
    return int(value) if value == value.to_integral_value() else float(value)


def _real(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)  # JSON has neither infinity nor NaN


def _same(value: Any) -> Any:
    return value


_SHOWN: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (bytes, _text),
    (datetime, _time),
    (Decimal, _number),
    (float, _real),
    ((str, bool, int), _same),
)


def _print_csv(context: Context, names: list[str], rows: list[dict[str, Any]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([row[name] for name in names] for row in rows)
    context.out.text(text.getvalue().removesuffix("\n"))
