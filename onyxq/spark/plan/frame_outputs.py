"""Frames that go to outputs of files: their rows are columns until they are in the file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from attrs import evolve
from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
)

from onyxq.core.errors import BadRequest
from onyxq.spark.failures import said_by
from onyxq.spark.files.formats import check_schema
from onyxq.spark.files.staging import Folder
from onyxq.spark.plan.frames import arrow_schema, columns_in
from onyxq.spark.plan.outputs import Struct

_DIGITS = {"tinyint": 3, "smallint": 5, "int": 10, "bigint": 19}
"""Digits of integers of each type."""
_WIDER = {
    "tinyint": ("smallint", "int", "bigint", "float", "double"),
    "smallint": ("int", "bigint", "float", "double"),
    "int": ("bigint", "double"),
    "float": ("double",),
}
"""Type of numbers -> types that hold all of them."""


def laid_out(
    frames: Sequence[tuple[str, str, Any]], folders: Iterable[Folder]
) -> tuple[list[Folder], list[tuple[Any, Struct]]]:
    """Return the outputs with their columns, and the frames that reach the sink, each with its outputs.

    ``frames``: task, output and the task's frame, for each edge. An output without the option ``schema`` gets the
    columns of its first frame. Raises `BadRequest` if a frame does not fit the columns of its output.
    """
    found = {folder.name: folder for folder in folders}
    columns = {folder.name: columns_in(folder.options["schema"]) for folder in folders if folder.schema}
    groups: dict[tuple[str, tuple[str, ...], str], tuple[Any, list[str]]] = {}
    for source, name, frame in frames:
        folder = found[name]
        frame = frame.toDF("value") if folder.format == "text" and len(frame.columns) == 1 else frame
        wanted = columns.setdefault(name, _nullable(frame.schema))
        fitted = _fitted(folder, frame, wanted)
        found[name] = folder = evolve(folder, schema=folder.schema or _described(folder, wanted))
        check_schema(folder)
        groups.setdefault((source, tuple(frame.columns), wanted.json()), (fitted, []))[1].append(name)
    return list(found.values()), [(frame, Struct(outs=names)) for frame, names in groups.values()]


def _described(folder: Folder, columns: StructType) -> str:
    try:
        return arrow_schema(columns)
    except PySparkException as error:
        raise _refused(folder, said_by(error)) from error


def _nullable(columns: StructType) -> StructType:
    """Return the columns as an output without a schema has them: any value may be missing."""
    return StructType([StructField(part.name, part.dataType) for part in columns])


def _fitted(folder: Folder, frame: Any, wanted: StructType) -> Any:
    """Return the frame with the columns of its output; numbers may become wider, and missing columns are null."""
    names = {name.lower() for name in wanted.names}
    others = [name for name in frame.columns if name.lower() not in names]
    if others and folder.options.get("other_fields") != "drop":
        what = f"its frame has the column {others[0]!r}, which is not one of its columns: {', '.join(wanted.names)}"
        raise _refused(folder, what)
    if len({name.lower() for name in frame.columns}) < len(frame.columns):
        raise _refused(folder, f"its frame has two columns of one name: {', '.join(frame.columns)}")
    if folder.format == "text" and [(part.name, part.dataType) for part in wanted] != [("value", StringType())]:
        raise _refused(folder, f"text has one column, a string, and its frame has {', '.join(frame.columns)}")
    if changed := _changed("", frame.schema, wanted):
        raise _refused(folder, changed)
    try:
        return frame.to(wanted)
    except PySparkException as error:
        raise _refused(folder, said_by(error)) from error


def _changed(path: str, kind: DataType, wanted: DataType) -> str:
    """Return which part of a type has values that Spark would change for the other type; empty if there is none."""
    pairs: list[tuple[str, DataType, DataType]] = []
    if isinstance(kind, StructType) and isinstance(wanted, StructType):
        columns = {part.name.lower(): part.dataType for part in wanted}
        for part in kind:
            place = f"{path}.{part.name}".removeprefix(".")
            if part.name.lower() in columns:
                pairs.append((place, part.dataType, columns[part.name.lower()]))
            elif path:
                return f"{place}: the column has no such part"
    elif isinstance(kind, ArrayType) and isinstance(wanted, ArrayType):
        pairs = [(f"{path}[]", kind.elementType, wanted.elementType)]
    elif isinstance(kind, MapType) and isinstance(wanted, MapType):
        pairs = [(f"{path}[]", kind.keyType, wanted.keyType), (f"{path}[]", kind.valueType, wanted.valueType)]
    elif not _holds(wanted, kind):
        said = f"its frame has {kind.simpleString()}, and {wanted.simpleString()} does not hold all its values"
        return f"{path}: {said}: cast it in the task before"
    return next(filter(None, (_changed(*pair) for pair in pairs)), "")


def _holds(wanted: DataType, kind: DataType) -> bool:
    """Return whether a plain type holds all values of another one."""
    if isinstance(kind, NullType) or (isinstance(kind, StringType) and isinstance(wanted, StringType)):
        return True
    name = kind.simpleString()
    if isinstance(wanted, DecimalType):
        scale = kind.scale if isinstance(kind, DecimalType) else 0
        whole = kind.precision - scale if isinstance(kind, DecimalType) else _DIGITS.get(name, wanted.precision + 1)
        return scale <= wanted.scale and whole <= wanted.precision - wanted.scale
    return name == wanted.simpleString() or wanted.simpleString() in _WIDER.get(name, ())


def _refused(folder: Folder, what: str) -> BadRequest:
    return BadRequest(f"output {folder.name}: {what}", field=folder.name)
