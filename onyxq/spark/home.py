"""A Spark home that starts fast, built at first use in the user's cache.

PySpark as installed gives its workers a zip without byte code. So each of the five or more kinds of worker that
a query starts compiles PySpark again, which takes over a second each. The home made here links to the installed
programs and jars and has no such zip: workers import the installed, byte-compiled package. The class-data
archive beside it holds the classes that a session loads, so the next virtual machine maps them instead of
reading jars. It is built once per machine by a session that runs to its end (`build_archive`).

The names of both are derived from what they were made from, and each appears by one rename. So two builders do
not disturb each other.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path

from attrs import frozen

from onyxq.core.errors import Incomplete
from onyxq.system.java import find_java

LINKED = ("bin", "sbin", "jars")
ARCHIVE = "classes.jsa"
LOGGING = "log4j2.properties"
"""Not in a folder ``conf``: an archive must not depend on a folder that is not empty."""
ARCHIVE_TIMEOUT_S = 600.0
JAVA_MINIMUM = 17
_LAYOUT = "4"
"""Changes whenever the output of `_fill` or the input of archives changes, so that older homes are not used."""
_HINT = "Install it with: pip install 'onyxq[spark]'."
_QUIET = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex{4}
logger.executor.name = org.apache.spark.executor
logger.executor.level = off
logger.scheduler.name = org.apache.spark.scheduler
logger.scheduler.level = off
logger.writing.name = org.apache.spark.sql.execution.datasources.v2
logger.writing.level = off
logger.utils.name = org.apache.spark.util.Utils
logger.utils.level = off
"""
"""Spark's log settings.

A failed task causes one line, that its query failed; the job's error has the rest.
"""


@frozen
class Home:
    """A Spark home, and the path of its archive, which may not be built yet."""

    path: Path
    archive: Path | None
    """None: this home is not ours, and has no archive."""

    @property
    def archived(self) -> bool:
        """Whether the archive can be used."""
        return self.archive is not None and self.archive.exists()


def missing() -> Incomplete | None:
    """Return what this machine lacks to run Spark, or None.

    Imports nothing and starts only ``java -version``.
    """
    for module in ("pyspark", "pyarrow", "pandas", "google.protobuf"):
        if not _installed(module):
            return Incomplete(f"jobs run on Spark, and {module} is not installed", hint=_HINT)
    try:
        java = find_java()
    except Incomplete as error:
        return Incomplete("jobs run on Spark, which needs Java: none in JAVA_HOME or on PATH", hint=error.advice)
    found = _java_version(java)
    if found < JAVA_MINIMUM:
        return Incomplete(
            f"jobs run on Spark, which needs Java {JAVA_MINIMUM} or newer; {java} is {found or 'unknown'}",
            hint="Debian: apt-get install openjdk-17-jre-headless; or point JAVA_HOME at a newer one.",
        )
    return None


def find_home(environment: Mapping[str, str] = os.environ) -> Home:
    """Return the home from which Spark starts, made if it does not exist yet; raises `Incomplete`.

    A ``SPARK_HOME`` of the environment is the user's own distribution, and is used as it is.
    """
    if environment.get("SPARK_HOME"):
        return Home(path=Path(environment["SPARK_HOME"]), archive=None)
    lacking = missing()
    if lacking is not None:
        raise lacking
    installed = _pyspark()
    path = cache_folder(environment) / _key(installed)
    if not path.exists():
        _make(path, installed)
    return Home(path=path, archive=path / ARCHIVE)


def cache_folder(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the folder of this user's homes: ``$XDG_CACHE_HOME/onyxq/spark``."""
    base = environment.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "onyxq" / "spark"


def build_archive(home: Home) -> bool:
    """Build the archive by running a small job in its own session; takes about half a minute.

    Returns whether it exists afterwards; False if another process is building it.
    """
    if home.archive is None or home.archive.exists():
        return home.archived
    with _only_builder(home.path) as mine:
        if mine and not home.archive.exists():
            part = home.path / f".{ARCHIVE}.{uuid.uuid4().hex}"
            command = ["nice", "-n", "19", sys.executable, "-m", "onyxq.spark.warm_up", str(part)]
            try:
                subprocess.run(command, check=False, timeout=ARCHIVE_TIMEOUT_S, stdin=subprocess.DEVNULL, stdout=2)
                if part.exists():
                    part.replace(home.archive)
            finally:
                part.unlink(missing_ok=True)
    return home.archived


# --- making the home ----------------------------------------------------------


def _make(path: Path, installed: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.parent / f".{path.name}.{uuid.uuid4().hex}"
    _fill(part, installed)
    try:
        part.rename(path)
    except OSError:  # Another process made the same home first.
        shutil.rmtree(part)
        if not path.is_dir():
            raise
    _forget(path.parent)


def _forget(folder: Path) -> None:
    """Remove the homes of installations that are gone, for example of deleted environments."""
    for home in folder.iterdir():
        jars = home / "jars"
        if jars.is_symlink() and not jars.exists():
            shutil.rmtree(home, ignore_errors=True)


def _fill(part: Path, installed: Path) -> None:
    (part / "python" / "lib").mkdir(parents=True)
    (part / LOGGING).write_text(_QUIET)
    for name in LINKED:
        (part / name).symlink_to(installed / name)


def _key(installed: Path) -> str:
    """Return a home's name, derived from everything that it and an archive of its classes depend on."""
    jars = [f"{jar.name} {jar.stat().st_size}" for jar in sorted((installed / "jars").iterdir())]
    java = os.path.realpath(find_java())
    said = [_LAYOUT, str(installed), java, str(os.stat(java).st_mtime_ns), *jars]
    return hashlib.blake2b("\n".join(said).encode(), digest_size=8).hexdigest()


@contextlib.contextmanager
def _only_builder(path: Path) -> Iterator[bool]:
    with open(path / ".building", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True


# --- what is installed --------------------------------------------------------


def _pyspark() -> Path:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise Incomplete("jobs run on Spark, and pyspark is not installed", hint=_HINT)
    return Path(next(iter(spec.submodule_search_locations))).resolve()


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # A parent package.
        return False


def _java_version(java: str) -> int:
    """Return the major version, or 0 if it is unknown."""
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False, timeout=60).stderr
    found = re.search(r'version "(?:1\.)?(\d+)', said)
    return int(found.group(1)) if found else 0
