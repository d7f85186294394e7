"""A job's inputs as streaming frames: queues by our own source, other inputs by Spark's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attrs import evolve, frozen

from onyxq.core.errors import BadRequest, Incomplete
from onyxq.jobs import letters
from onyxq.jobs.model import Input, Job
from onyxq.jobs.options import BAD_BYTES, CORRUPT, FILES, REPLACEMENT
from onyxq.jobs.values import Unfit
from onyxq.spark.failures import said_by
from onyxq.spark.files.columns import check_readable
from onyxq.spark.files.texts import NULL
from onyxq.spark.plan import rows
from onyxq.spark.progress import SHARED

PACKAGES = {
    "kafka": "org.apache.spark:spark-sql-kafka-0-10_2.13",
    "avro": "org.apache.spark:spark-avro_2.13",
}
"""Formats that Spark itself lacks -> the package that adds them, in Spark's own version."""
DEFAULTS = {
    "csv": {"escape": '"', "nullValue": NULL, "mode": "FAILFAST"},
    "json": {"mode": "FAILFAST"},
    "xml": {"mode": "FAILFAST"},
}
"""Options of an input unless it sets them itself.

A row that does not fit fails the job, unless the schema has a column for such rows. Otherwise Spark would replace
its values by Nones.
"""
BATCH_BYTES = 1 << 30
"""Bytes of files in one batch, unless an input sets ``maxFilesPerTrigger`` or ``maxBytesPerTrigger``."""


@frozen
class Opened:
    """The frame of an input or cut, and the shape of its rows."""

    frame: Any
    shape: str


def open_input(session: Any, job: Job, task: Input, common: dict[str, str]) -> Opened:
    """Return the frame of an input; raises `BadRequest` or `Incomplete` if Spark cannot read it.

    A static input is not a stream.
    """
    if task.queue is not None:
        from onyxq.spark.datasource import register

        register(session)
        worker = f"job/{job.id}/{common['version']}"
        options = {**common, "queue": task.queue, "input": task.name, "max_rows": str(task.max_rows), "worker": worker}
        shape = rows.LETTERS if letters.are_in(task.queue) else rows.QUEUE
        return Opened(session.readStream.format("onyxq").options(**options).load(), shape)
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    place = f"catalog[{[entry.name for entry in job.catalog].index(task.name)}]"
    try:
        frame = _columns(session, task)
    except (PySparkException, Py4JJavaError) as error:
        raise _explained(task, place, error) from error
    check_names(frame.columns, place, task.name)
    _check_orc(frame, place, task)
    return Opened(frame, rows.COLUMNS)


def _check_orc(frame: Any, place: str, task: Input) -> None:
    """Raise `BadRequest` if Spark would read a column of ORC as Nones: its name, or a name in it, has a backquote.

    Only a schema of the input has such names. Spark cuts those that it finds in files.
    """
    texts = {one.name: f"{one.name}{one.dataType.simpleString()}" for one in frame.schema}  # Without comments.
    wrong = [name for name, text in texts.items() if str(task.format).lower() == "orc" and "`" in text]
    if wrong:
        raise BadRequest(
            f"{place} of {task.name!r}: Spark reads Nones from the ORC column {wrong[0]!r}: its name, or the name of a "
            "field in it, has a backquote",
            field=place,
            hint="Leave the column out of the schema of the input, or store the rows as Parquet.",
        )


def keeps_list(task: Input) -> bool:
    """Return whether Spark keeps a list of the files that it has found and not read."""
    given = {str(name).lower() for name in task.options}
    return str(task.format).lower() in FILES and not given & {"latestfirst", "maxcachedfiles"}


def check_names(columns: Iterable[str], field: str, name: str) -> None:
    """Raise `BadRequest` if a column has a name that OnyxQ itself gives to columns beside those of a task."""
    for column in columns:
        if column.lower() in (rows.PART, rows.PLANNED):
            raise BadRequest(f"{field} of {name!r}: OnyxQ itself uses the column {column!r}; rename it", field=field)


def _columns(session: Any, task: Input) -> Any:
    from pyspark.sql import functions as of

    kind = str(task.format).lower()
    options = {str(name): str(value) for name, value in task.options.items()}
    if (
        kind in FILES
        and not task.static
        and not {"maxfilespertrigger", "maxbytespertrigger"} & {name.lower() for name in options}
    ):
        options["maxBytesPerTrigger"] = str(BATCH_BYTES)
    given = {name.lower(): value for name, value in options.items()}
    corrupt = given.get("columnnameofcorruptrecord", CORRUPT)
    for name, value in DEFAULTS.get(kind, {}).items():
        if name.lower() not in given and not (name == "mode" and corrupt in (task.schema or "")):
            options[name] = value
    if task.since_ms is not None and kind == "kafka":
        # A partition without later messages begins with the next one, instead of failing the job.
        options |= {"startingTimestamp": str(task.since_ms), "startingOffsetsByTimestampStrategy": "latest"}
    reader = (session.read if task.static else session.readStream).format(kind).options(**options)
    if task.schema:
        reader = reader.schema(task.schema)
    frame = reader.load(task.path) if task.path is not None else reader.load()
    if task.since_ms is not None and kind in FILES:
        # Spark lists older files in a batch, but does not open them.
        modified = frame.metadataColumn("_metadata").getField("file_modification_time")
        frame = frame.where(modified >= of.timestamp_millis(of.lit(task.since_ms)))
    if kind == "csv" and given.get(BAD_BYTES) != "replace":
        frame = _without_replacements(frame, task, corrupt)
    return of.broadcast(frame) if task.static else frame


def _without_replacements(frame: Any, task: Input, corrupt: str) -> Any:
    """Return the rows of CSV so that a string with `REPLACEMENT` fails the job when it is read."""
    from pyspark.sql import functions as of

    def checked(field: Any) -> Any:
        column = of.col(quoted(field.name))
        if field.dataType.typeName() != "string" or field.name == corrupt:
            return column
        said = (
            f"BadRequest: input {task.name}: column {field.name}: bytes that are not text in the encoding "
            f"of the file, or U+FFFD itself. Set the option encoding, or {BAD_BYTES}=replace. The value begins with "
        )
        # Two texts: whole, it would be found in the plan, which Spark shows with every error.
        parts = [of.lit("onyxq.errors."), of.lit(said), of.substring(column, 1, 80), of.lit("\n")]
        wrong = of.raise_error(of.concat(*parts))
        return of.when(column.contains(REPLACEMENT), wrong).otherwise(column).alias(field.name)

    return frame.select(*(checked(field) for field in frame.schema))


def placed(opened: Opened, name: str) -> tuple[Any, tuple[str, ...]]:
    """Return the frame of a task as a region reads it, and the names of its columns (`unnamed`).

    A row of columns has its part of the batch, for lineage.

    Raises `BadRequest` if the columns cannot become segments.
    """
    from pyspark.sql import functions as of

    if opened.shape != rows.COLUMNS:
        return opened.frame, ()
    _check_readable(opened.frame, name)
    frame = opened.frame if rows.PART in opened.frame.columns else _with_part(opened.frame)
    frame = frame.select("*", of.unix_millis(of.current_timestamp()).alias(rows.PLANNED))
    return unnamed(frame), tuple(frame.columns)


def plain(opened: Opened, name: str) -> tuple[Any, tuple[str, ...]]:
    """Return the same for rows of columns that no region reads: without their part of the batch."""
    frame = opened.frame.drop(rows.PART)
    _check_readable(frame, name)
    return unnamed(frame), tuple(frame.columns)


def unnamed(frame: Any) -> Any:
    """Return the frame with plain names: Spark hands no column to Python whose name has a full stop or a backquote."""
    return frame.toDF(*(f"c{place}" for place in range(len(frame.columns))))


def _check_readable(frame: Any, name: str) -> None:
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema

    try:
        check_readable(to_arrow_schema(frame.schema, timezone="UTC"))
    except Unfit as error:
        raise BadRequest(f"rows of {name!r} cannot become segments: {error.message}", field=name) from None
    except PySparkException as error:
        raise BadRequest(f"rows of {name!r} cannot become segments: {said_by(error)}", field=name) from error


def _with_part(frame: Any) -> Any:
    from pyspark.sql import functions as of

    return frame.select("*", of.spark_partition_id().alias(rows.PART))


def shared(opened: Opened, parts: int) -> Opened:
    """Return the same rows, read and parsed once for all their uses in a plan; parts and their order do not change.

    Spark plans equal exchanges once, so the optimizer must not move projections or filters below the exchange. For
    this, the exchange's key names all columns, although only the part decides (no part is negative, so Spark
    never computes the hash of the columns). The exchange is `whole`.
    """
    from pyspark.sql import functions as of

    frame, part = _with_part(opened.frame), of.col(rows.PART)
    columns = [_hashable(of.col(quoted(field.name)), field.dataType) for field in opened.frame.schema]
    key = of.when(part < 0, of.xxhash64(*columns)).otherwise(part)
    exchanged = frame.repartition(parts, key).alias(SHARED)
    return evolve(opened, frame=whole(exchanged))


def whole(frame: Any) -> Any:
    """Return the same frame, below which the optimizer moves no filter: the one here is never false, but random.

    Spark regards the number of a part as random.
    """
    from pyspark.sql import functions as of

    return frame.where(of.spark_partition_id() >= 0)


def _hashable(column: Any, kind: Any) -> Any:
    """Return a column as a part of a key; Spark refuses maps and variants."""
    text = kind.simpleString()
    return column.isNull() if "map<" in text or "variant" in text else column


def quoted(name: str) -> str:
    """Return a name as Spark's SQL takes any name."""
    return "`" + name.replace("`", "``") + "`"


def _package(kind: str) -> str:
    """Return the package of a format, as Maven names it."""
    import pyspark

    return f"{PACKAGES[kind.lower()]}:{pyspark.__version__}" if kind.lower() in PACKAGES else "GROUP:NAME:VERSION"


def _explained(task: Input, place: str, error: Exception) -> BadRequest | Incomplete:
    said = said_by(error)
    if "Failed to find" in said:
        return Incomplete(
            f"{place}.format: Spark has no {task.format!r} here: {said}",
            hint=f"Add this line to the --spark-conf file: spark.jars.packages {_package(str(task.format))}",
        )
    return BadRequest(f"{place} ({task.name}): Spark cannot read it: {said}", field=place)
