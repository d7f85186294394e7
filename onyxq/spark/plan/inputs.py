"""A job's inputs as streaming frames: queues by our own source, other inputs by Spark's."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from onyxq.core.errors import BadRequest, Incomplete
from onyxq.jobs.model import Input, Job
from onyxq.spark.failures import said_by
from onyxq.spark.files.texts import NULL
from onyxq.spark.plan import rows

FILES = frozenset({"text", "json", "csv", "parquet", "orc", "avro", "xml", "binaryfile"})
"""Formats whose rows contain the file that they are from."""
PACKAGES = {
    "kafka": "org.apache.spark:spark-sql-kafka-0-10_2.13",
    "avro": "org.apache.spark:spark-avro_2.13",
}
"""Formats that Spark itself lacks -> the package that adds them, in Spark's own version."""
DEFAULTS = {
    "csv": {"escape": '"', "nullValue": NULL, "mode": "FAILFAST"},
    "json": {"mode": "FAILFAST"},
}
"""Options of an input unless it sets them itself.

A row that does not fit fails the job, unless the schema has a column for such rows. Otherwise Spark would replace
its values by Nones.
"""
BATCH_BYTES = 1 << 30
"""Bytes of files in one batch, unless an input sets ``maxFilesPerTrigger`` or ``maxBytesPerTrigger``."""


@frozen
class Opened:
    """A streaming frame, and the shape of its rows."""

    frame: Any
    shape: str


def open_input(session: Any, job: Job, task: Input, common: dict[str, str]) -> Opened:
    """Return the frame of an input; raises `BadRequest` or `Incomplete` if Spark cannot read it."""
    if task.queue is not None:
        from onyxq.spark.datasource import register

        register(session)
        worker = f"job/{job.id}/{common['version']}"
        options = {**common, "queue": task.queue, "input": task.name, "max_rows": str(task.max_rows), "worker": worker}
        return Opened(session.readStream.format("onyxq").options(**options).load(), rows.QUEUE)
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    place = f"catalog[{[entry.name for entry in job.catalog].index(task.name)}]"
    try:
        return Opened(_columns(session, task), rows.COLUMNS)
    except (PySparkException, Py4JJavaError) as error:
        raise _explained(task, place, error) from error


def _columns(session: Any, task: Input) -> Any:
    from pyspark.sql import functions as of

    kind = str(task.format).lower()
    options = {str(name): str(value) for name, value in task.options.items()}
    if kind in FILES and not {"maxfilespertrigger", "maxbytespertrigger"} & {name.lower() for name in options}:
        options["maxBytesPerTrigger"] = str(BATCH_BYTES)
    given = {name.lower(): value for name, value in options.items()}
    corrupt = given.get("columnnameofcorruptrecord", "_corrupt_record")
    for name, value in DEFAULTS.get(kind, {}).items():
        if name.lower() not in given and not (name == "mode" and corrupt in (task.schema or "")):
            options[name] = value
    reader = session.readStream.format(kind).options(**options)
    if task.schema:
        reader = reader.schema(task.schema)
    frame = reader.load(task.path) if task.path is not None else reader.load()
    added = [of.unix_millis(of.current_timestamp()).alias(rows.PLANNED)]
    if kind not in FILES:
        added.append(of.spark_partition_id().alias(rows.PART))
    if kind in FILES:
        added.append(of.col("_metadata.file_path").alias(rows.FILE))
        added.append(of.col("_metadata.file_block_start").alias(rows.BLOCK))
    return frame.select("*", *added)


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
