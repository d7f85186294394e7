"""One Spark session for all jobs of a host: how it is configured, opened and ended.

The master is this process' own virtual machine with one thread per slot, or a cluster (``spark://``, ``yarn``,
``k8s://``) that the settings name. The cluster's machines need OnyxQ installed, or in the same folder; nothing else
of a job changes. Each job's query gets a pool of the fair scheduler, with its slots as weight, and its own SQL
settings.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import field, frozen

from onyxq.core.errors import BadRequest
from onyxq.jobs.host_settings import ARCHIVES, CORES, ENVIRONMENT
from onyxq.spark import java
from onyxq.spark.home import LOGGING, Home, find_home
from onyxq.system.directories import LOCAL, TEMPORARY, create

_LOOPBACK = "127.0.0.1"
PROPERTIES = "spark.properties"
"""Name of the file from which the virtual machine reads its settings; removed once it is up."""
_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_PROVIDER = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
REMOTE = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
"""Variables by which PySpark makes sessions of Spark Connect."""
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Variable by which ``spark-submit`` tells a program where its virtual machine is."""
_NEEDED = (
    "spark.python.daemon.module",
    "spark.scheduler.mode",
    "spark.sql.adaptive.enabled",
    "spark.sql.session.timeZone",
)
"""Settings on which jobs depend in any virtual machine, besides those of streams."""
_PATH = "/usr/local/bin:/usr/bin:/bin"
"""Where executors find other programs, besides those of a job's Python environment."""


@frozen
class Settings:
    """The settings of a session."""

    work: Path
    """Folder for Spark's files while it runs."""
    slots: int = 2
    master: str = "local"
    conf: Mapping[str, str] = field(factory=dict)
    """Spark's own settings; they win over ours."""
    quick_start: bool = False
    """Let the virtual machine compile simply: it is up sooner, and slower at large batches."""
    modules: tuple[str, ...] = ()
    """Folders from which executors import, in addition to this process' own."""
    archive_to: str | None = None
    """Write the class-data archive to this file at the end."""

    @property
    def local(self) -> bool:
        """Whether threads of this machine do the work."""
        return self.master == "local" or self.master.startswith("local[")

    @property
    def environment(self) -> str:
        """The path of the packed Python environment of workers; empty if they run in this process' own."""
        found = [said.rpartition("#") for said in self.conf.get(ARCHIVES, "").split(",")]
        return next((path for path, _, name in found if name == ENVIRONMENT), "")

    @property
    def url(self) -> str:
        """The master in Spark's form."""
        return f"local[{self.slots}]" if self.master == "local" else self.master


def configuration(settings: Settings, home: Home) -> dict[str, str]:
    """Return all of Spark's settings for a session."""
    ours = {
        "spark.app.name": "onyxq",
        "spark.master": settings.url,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.log.level": "ERROR",
        "spark.scheduler.mode": "FAIR",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": " ".join(_java_options(settings, home)),
        "spark.local.dir": str(settings.work / LOCAL),
        "spark.sql.warehouse.dir": str(settings.work / "warehouse"),
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.streaming.stateStore.providerClass": _PROVIDER,
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.stateStore.checkpointFormatVersion": "2",
        "spark.sql.streaming.minBatchesToRetain": "10",
        "spark.sql.streaming.numRecentProgressUpdates": "100",
        "spark.sql.session.timeZone": "UTC",
        "spark.executorEnv.PYTHONPATH": python_path(settings),
        "spark.python.daemon.module": "onyxq.spark.daemon",
    }
    if settings.local or _LOOPBACK in settings.master:
        ours |= {"spark.driver.bindAddress": _LOOPBACK, "spark.driver.host": _LOOPBACK}
    if not settings.local:
        ours["spark.cores.max"] = str(settings.slots)
        if settings.environment:
            ours["spark.executorEnv.PATH"] = f"./{ENVIRONMENT}/bin:{_PATH}"
    return {**ours, **settings.conf}


def is_ours(name: str) -> bool:
    """Return whether jobs depend on a setting of Spark, so that the defaults of a site must not change it."""
    masters = ("local", "yarn")
    ours = [configuration(Settings(Path(), master=one), Home(Path(), archive=None)) for one in masters]
    needed = {*ours[0], *ours[1]} - {"spark.driver.memory"}
    return name in needed or name.startswith(("spark.sql.streaming.", "spark.submit."))


def _java_options(settings: Settings, home: Home) -> list[str]:
    options = ["-XX:+UseSerialGC", "-Xshare:auto", "-Xlog:disable", "-Xlog:all=error:stderr"]
    if CORES in settings.conf:
        options.append(f"-XX:ActiveProcessorCount={settings.conf[CORES]}")
    if settings.quick_start:
        options.append("-XX:TieredStopAtLevel=1")
    options.append(f"-Djava.io.tmpdir={settings.work / TEMPORARY}")
    if home.archive is None:
        return options
    options.append(f"-Dlog4j2.configurationFile={home.path / LOGGING}")
    if settings.archive_to:
        return [*options, f"-XX:ArchiveClassesAtExit={settings.archive_to}"]
    return [*options, f"-XX:SharedArchiveFile={home.archive}"] if home.archived else options


def python_path(settings: Settings) -> str:
    """Return the import path of workers: the project itself, then this process' own path.

    A Python environment of their own has the project, and must not import the other packages that are beside it here.
    """
    project = "" if settings.environment else str(Path(__file__).resolve().parents[2])
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys(part for part in (*settings.modules, project, *given) if part))


def open_session(settings: Settings) -> Any:
    """Start the virtual machine and open the session.

    Raises `Incomplete` if something is not installed, and `BadRequest` for a Python environment that cannot be used.
    """
    for name in REMOTE:
        if os.environ.get(name):
            raise BadRequest(
                f"{name} is set: Spark Connect gives no access to Spark's virtual machine (py4j), which jobs need",
                field="session",
                hint=f"Unset {name}. Over Spark Connect, use the format onyxq.",
            )
    if _SUBMITTED in os.environ:
        return _submitted_session(settings)
    home = find_home()
    (settings.work / TEMPORARY).mkdir(parents=True, exist_ok=True)
    os.environ |= {
        "SPARK_HOME": str(home.path),
        "PYSPARK_PYTHON": "python" if settings.environment else sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": python_path(settings),
        "PYARROW_IGNORE_TIMEZONE": "1",
    }
    if settings.local or _LOOPBACK in settings.master:
        os.environ["SPARK_LOCAL_IP"] = _LOOPBACK
    if settings.environment:
        os.environ["PATH"] = f"{_unpacked(settings)}{os.pathsep}{os.environ.get('PATH', _PATH)}"
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    path = settings.work / PROPERTIES
    try:
        with create(path) as file:
            file.write(properties(configuration(settings, home)))
        with _submit_arguments(path):
            return SparkSession.builder.config(conf=SparkConf(loadDefaults=False)).getOrCreate()
    finally:
        path.unlink(missing_ok=True)
        if home.archive is not None:  # It is ours, not the caller's choice for other programs.
            del os.environ["SPARK_HOME"]


def _submitted_session(settings: Settings) -> Any:
    """Open the session in the virtual machine of ``spark-submit``, whose command decides all but our needs."""
    from pyspark.sql import SparkSession

    if SparkSession.getActiveSession() is not None:
        raise BadRequest("there is a Spark session already, without the settings on which jobs depend", field="session")
    ours = configuration(settings, Home(Path(), archive=None)).items()
    needed: dict[str, Any] = {}
    needed |= {name: said for name, said in ours if name in _NEEDED or name.startswith("spark.sql.streaming.")}
    return SparkSession.builder.config(map=needed).getOrCreate()


def _unpacked(settings: Settings) -> Path:
    """Unpack the Python environment of workers on this machine, and return the folder of its programs.

    Spark does so on executors. The driver needs it too: it starts Python workers that plan batches.
    """
    what, folder = f"host.environment {settings.environment}", settings.work / TEMPORARY / ENVIRONMENT
    try:
        with tarfile.open(settings.environment) as packed:
            packed.extractall(folder, filter="tar")
    except (OSError, tarfile.TarError) as error:
        raise BadRequest(f"{what} cannot be unpacked: {error}", field="host.environment") from None
    if not (folder / "bin" / "python").exists():
        raise BadRequest(f"{what} is not a Python environment: it lacks bin/python", field="host.environment")
    return folder / "bin"


@contextmanager
def _submit_arguments(path: Path) -> Iterator[None]:
    """Make the virtual machine read its settings from a file: other users could see PySpark's arguments."""
    before = os.environ.get(_ARGUMENTS)
    os.environ[_ARGUMENTS] = f"--properties-file {shlex.quote(str(path))} {before or 'pyspark-shell'}"
    try:
        yield
    finally:
        del os.environ[_ARGUMENTS]
        if before is not None:
            os.environ[_ARGUMENTS] = before


def properties(settings: Mapping[str, str]) -> bytes:
    """Return settings in the form of a Java properties file."""
    return "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in settings.items()).encode("ascii")


def _escaped(text: str) -> str:
    out = []
    for sign in text:
        if "!" < sign <= "~" and sign not in "\\=:#":
            out.append(sign)
        else:
            units = sign.encode("utf-16-be")
            out += [f"\\u{units[place : place + 2].hex()}" for place in range(0, len(units), 2)]
    return "".join(out)


def of_its_own(session: Any) -> Any:
    """Return a session with its own SQL settings in the same machine, and make it this thread's active one."""
    found = session.newSession()
    java.make_active(found)
    return found


def of_a_user(session: Any) -> Any:
    """Return `of_its_own` of a session that may lack the SQL settings on which jobs depend."""
    found = of_its_own(session)
    for name, said in configuration(Settings(Path()), Home(Path(), archive=None)).items():
        if name.startswith("spark.sql.") and found.conf.isModifiable(name):
            found.conf.set(name, said)
    return found


def machine_of(session: Any) -> int:
    """Return the process id of the session's virtual machine; ``spark-submit`` starts this process from there."""
    process = java.process(session)
    return os.getppid() if process is None else int(process.pid)


def kill_machine(pid: int) -> None:
    """Kill a virtual machine and all its descendants at once, Python workers in other process groups included.

    This process itself is not killed, even if it is one of them.
    """
    for one in {*descendants(pid), pid} - {os.getpid()}:
        try:
            os.kill(one, signal.SIGKILL)
        except ProcessLookupError:
            continue


def descendants(pid: int) -> list[int]:
    """Return the process ids of all descendants of a process."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                said = Path(f"/proc/{entry}/stat").read_text()
            except OSError:
                continue
            children.setdefault(int(said.rpartition(")")[2].split()[1]), []).append(int(entry))
    found, waiting = [], [pid]
    while waiting:
        started = children.get(waiting.pop(), [])
        found += started
        waiting += started
    return found
