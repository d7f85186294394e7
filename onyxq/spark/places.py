"""Places of checkpoints and files: a path, or a URI that both Arrow (which copies) and Spark (which writes) can use.

URIs have the form that Hadoop uses: ``s3a://BUCKET/PATH``, ``gs://...``, ``abfs://...`` and ``hdfs://...``. Arrow
has other names for some schemes.
"""

from __future__ import annotations

from typing import Any

from pyarrow import ArrowException, fs

from onyxq.core.errors import Incomplete
from onyxq.spark import java

ARROW = {"s3a": "s3"}
"""Hadoop's scheme -> Arrow's, where they differ."""
BRINGS = {
    "s3a": "org.apache.hadoop:hadoop-aws",
    "abfs": "org.apache.hadoop:hadoop-azure",
    "abfss": "org.apache.hadoop:hadoop-azure",
    "gs": "com.google.cloud.bigdataoss:gcs-connector",
}
"""Scheme -> package that adds it to Spark."""


def scheme_of(path: str) -> str:
    """Return the scheme of a URI; empty for a path."""
    scheme, colon, _ = path.partition("://")
    return scheme.lower() if colon else ""


def located(path: str) -> tuple[fs.FileSystem, str]:
    """Return the file system of a path or URI, and the path in it.

    Raises `Incomplete` for a scheme that Arrow lacks.
    """
    scheme = scheme_of(path)
    if not scheme:
        return fs.LocalFileSystem(), path.rstrip("/")
    uri = ARROW.get(scheme, scheme) + path[len(scheme) :]
    try:
        found, inside = fs.FileSystem.from_uri(uri)
    except (ArrowException, OSError, ValueError) as error:
        raise Incomplete(
            f"{path} cannot be reached: {error}",
            hint="Name a path that all peers reach, or a URI such as s3a://BUCKET/PATH, gs://, abfs:// or hdfs://.",
        ) from error
    return found, inside.rstrip("/")


def exists(system: fs.FileSystem, path: str) -> bool:
    """Return whether there is a file or folder."""
    return bool(system.get_file_info(path).type != fs.FileType.NotFound)


def listed(system: fs.FileSystem, path: str) -> list[fs.FileInfo]:
    """Return the files in a folder; none if there is no folder."""
    selector = fs.FileSelector(path, allow_not_found=True)
    try:
        return list(system.get_file_info(selector))
    except FileNotFoundError:  # Another process made the folder between Arrow's two looks at it.
        return list(system.get_file_info(selector))


def read(system: fs.FileSystem, path: str) -> bytes:
    """Return the content of a file."""
    with system.open_input_stream(path, compression=None) as stream:
        data: bytes = stream.read()
        return data


def write(system: fs.FileSystem, path: str, data: bytes) -> None:
    """Write a file, and make its folder if it is missing."""
    system.create_dir(path.rpartition("/")[0], recursive=True)
    with system.open_output_stream(path, compression=None) as stream:
        stream.write(data)


def check_place(session: Any, path: str, *, field: str) -> None:
    """Raise `Incomplete` unless Spark supports the scheme of a path.

    The place itself is not accessed.
    """
    from py4j.protocol import Py4JJavaError

    scheme = scheme_of(path)
    if not scheme:
        return
    systems = java.packages(session).org.apache.hadoop.fs.FileSystem
    try:
        systems.getFileSystemClass(scheme, java.hadoop_configuration(session))
    except Py4JJavaError as error:
        said = str(error.java_exception.toString())
        raise Incomplete(
            f"{field}: Spark has no file system for {scheme}:// here, so it cannot open {path} ({said})",
            hint=_hint(scheme),
        ) from error
    located(path)


def _hint(scheme: str) -> str:
    if scheme in BRINGS:
        return f"Add this line to the --spark-conf file: spark.jars.packages {BRINGS[scheme]}:VERSION"
    return "Use s3a:// instead, as Hadoop does." if scheme == "s3" else "Use a path, or a URI that Spark can open."
