"""Settings of the Spark process of one job: memory, cores, packages, Python, and further settings of Spark.

They travel with the job, so every reader of the job sees them. A job may set only what is known here by name: OnyxQ
owns what commits, slots and checkpoints depend on, and secrets are for the file of the peer (``--spark-conf``).
`with_settings` adds them to the settings of the peer that starts the job's host.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
from attrs import frozen

from onyxq.jobs.predicates import tupled
from onyxq.system.settings import did_you_mean

ENVIRONMENT = "environment"
"""Name under which Spark unpacks the Python environment of a job."""
ARCHIVES, CORES = "spark.archives", "spark.driver.cores"
"""Settings of Spark that the host itself reads."""


@frozen(kw_only=True)
class HostSettings:
    """Settings of the Spark process of a job with ``own_host``, and of its executors.

    They take effect when the process starts. For everything else the settings of the job's peer hold.
    """

    driver_memory: str | None = None
    """Heap of the driver's virtual machine, such as ``2g``."""
    driver_cores: int | None = None
    """Number of processors that the driver's virtual machine uses for its own threads."""
    executor_memory: str | None = None
    """Heap of each executor, such as ``4g``."""
    executor_cores: int | None = None
    """Cores of each executor."""
    packages: tuple[str, ...] = attrs.field(default=(), converter=tupled)
    """Maven coordinates ``group:artifact:version``."""
    jars: tuple[str, ...] = attrs.field(default=(), converter=tupled)
    """Paths at the peer, or URIs."""
    py_files: tuple[str, ...] = attrs.field(default=(), converter=tupled)
    """Modules (``.py``) and packages (``.zip``, ``.egg``) for workers and driver: paths at the peer, or URIs."""
    environment: str | None = None
    """Path at the peer of a packed Python environment (``.tar.gz``), in which workers then run."""
    conf: Mapping[str, str] = attrs.field(factory=dict)
    """Further settings of Spark."""
    submit_wait_ms: int | None = None
    """Time for which a peer waits for a process that a user has started, before it starts one itself.

    None: peers start the process at once, and take none that a user has started.
    """


SINGLE = {
    "driver_memory": "spark.driver.memory",
    "driver_cores": CORES,
    "executor_memory": "spark.executor.memory",
    "executor_cores": "spark.executor.cores",
}
LISTS = {
    "packages": "spark.jars.packages",
    "jars": "spark.jars",
    "py_files": "spark.submit.pyFiles",
    "environment": ARCHIVES,
}
"""Field -> the setting of Spark with its comma-separated values; those of the peer stay."""

_OWNED = (
    "spark.app. spark.driver.bindAddress spark.driver.extraJavaOptions spark.driver.host "
    "spark.executorEnv.ONYXQ spark.executorEnv.PATH spark.executorEnv.PYSPARK spark.executorEnv.PYTHON spark.local.dir "
    "spark.log.level spark.master "
    "spark.python.daemon. spark.scheduler. spark.sql.adaptive. spark.sql.execution.arrow.maxRecordsPerBatch "
    "spark.sql.files.minPartitionNum spark.sql.session.timeZone spark.sql.streaming. "
    "spark.sql.warehouse.dir spark.submit. spark.ui."
).split()
"""Beginnings of settings on which commits, checkpoints and slots depend, or which have another place in a job."""
_INSTEAD = {"spark.cores.max": "max_slots", "spark.sql.shuffle.partitions": "key_groups"}
SECRET = re.compile(r"(?i)secret|password|token|access[.]?key|credential|keytab|principal|authenticat|[.]ssl[.]")
"""Names of settings with secrets, or with their address."""
_WITH_PASSWORD = re.compile(r"://[^/@]*:[^/@]*@")
_OPEN = tuple(
    "spark.executor.resource. spark.executorEnv. spark.hadoop. spark.kubernetes. spark.sql.catalog. "
    "spark.task.resource. spark.yarn.".split()
)
"""Beginnings of settings whose names Spark leaves open. Their values may name code."""
_CODE = frozenset(
    "spark.executor.extraJavaOptions spark.jars.excludes spark.jars.repositories spark.sql.extensions".split()
)
_FAMILIES = {
    "spark.broadcast.": "compress",
    "spark.driver.": "maxResultSize memoryOverhead memoryOverheadFactor",
    "spark.dynamicAllocation.": "enabled executorAllocationRatio executorIdleTimeout initialExecutors maxExecutors "
    "minExecutors schedulerBacklogTimeout shuffleTracking.enabled",
    "spark.executor.": "heartbeatInterval instances maxNumFailures memoryOverhead memoryOverheadFactor pyspark.memory",
    "spark.io.compression.": "codec lz4.blockSize zstd.level",
    "spark.kryoserializer.": "buffer.max",
    "spark.locality.": "wait wait.node wait.process wait.rack",
    "spark.memory.": "fraction offHeap.enabled offHeap.size storageFraction",
    "spark.network.": "timeout",
    "spark.": "rdd.compress reducer.maxSizeInFlight rpc.askTimeout rpc.message.maxSize task.maxFailures",
    "spark.shuffle.": "compress file.buffer service.enabled spill.compress",
    "spark.sql.": "ansi.enabled autoBroadcastJoinThreshold broadcastTimeout caseSensitive codegen.wholeStage "
    "csv.filterPushdown.enabled inMemoryColumnarStorage.batchSize join.preferSortMergeJoin "
    "json.filterPushdown.enabled legacy.timeParserPolicy storeAssignmentPolicy",
    "spark.sql.files.": "ignoreCorruptFiles ignoreMissingFiles maxPartitionBytes openCostInBytes",
    "spark.sql.orc.": "compression.codec filterPushdown mergeSchema",
    "spark.sql.parquet.": "compression.codec datetimeRebaseModeInRead filterPushdown int96RebaseModeInRead "
    "mergeSchema outputTimestampType",
}
KNOWN = frozenset(_CODE.union(first + last for first, names in _FAMILIES.items() for last in names.split()))
"""Settings that a job may have, apart from those whose names Spark leaves open."""

_MEMORY = re.compile(r"[1-9]\d{0,5}[kmgt]")
_COORDINATES = re.compile(r"[\w.-]+:[\w.-]+:[\w.+-]+")
_PATHS: dict[str, tuple[Callable[[str], Any], str]] = {
    "packages": (_COORDINATES.fullmatch, "Maven coordinates group:artifact:version"),
    "jars": (lambda said: "," not in said, "a path or a URI without a comma"),
    "py_files": (
        lambda said: said.endswith((".py", ".zip", ".egg")) and "," not in said,
        "a path or a URI of a .py, .zip or .egg",
    ),
    "environment": (
        lambda said: said.endswith((".tar.gz", ".tgz")) and not {",", "#"} & set(said),
        "the path of a .tar.gz",
    ),
}


def is_memory(value: Any) -> bool:
    """Return whether a value is a size of memory, such as ``512m``."""
    return isinstance(value, str) and _MEMORY.fullmatch(value) is not None


def problems(given: HostSettings) -> Iterator[tuple[str, str]]:
    """Yield the fields with wrong values, and the settings that a job may not have; no value of a secret is shown."""
    for name, (fits, expected) in _PATHS.items():
        for place, said in _listed(given, name):
            if _WITH_PASSWORD.search(said):
                yield place, "contains a password, which every reader of the job would see"
            elif not fits(said):
                yield place, f"must be {expected}, not {said!r:.80}"
    for name, said in given.conf.items():
        wrong = _problem(name, said)
        if wrong:
            yield f"conf.{name[:100]}", wrong


def _listed(given: HostSettings, name: str) -> list[tuple[str, str]]:
    """Return the values of a field of paths, each with its place."""
    value = getattr(given, name)
    if isinstance(value, tuple):
        return [(f"{name}[{place}]", one) for place, one in enumerate(value)]
    return [] if value is None else [(name, value)]


def _problem(name: str, said: Any) -> str:
    """Return why a job may not have a setting of Spark with a value; empty if it may."""
    wrong = _refusal(name)
    if not wrong and not (isinstance(said, str) and said.isprintable()):
        wrong = "must be a text of one line"
    if not wrong and _WITH_PASSWORD.search(said):
        wrong = "contains a password, which every reader of the job would see"
    return wrong


def _refusal(name: str) -> str:
    """Return why no job may have a setting of that name; empty if it may."""
    fields = {setting: field for field, setting in (SINGLE | LISTS).items()}
    if not name.startswith("spark."):
        return "is not a setting of Spark: their names begin with spark."
    if name in fields:
        return f"has a field of its own: {fields[name]}"
    if name in _INSTEAD:
        return f"is set by OnyxQ: use {_INSTEAD[name]} of the job"
    if any(name.startswith(one) for one in _OWNED):
        return "is set by OnyxQ: commits, checkpoints and slots depend on it"
    if SECRET.search(name):
        return "is about secrets, which every reader of the job would see: put it into the peers' --spark-conf file"
    known = name in KNOWN or name.startswith(_OPEN)
    return "" if known else f"is not a setting that a job may have{did_you_mean(name, sorted(KNOWN))}"


def code_in(given: HostSettings) -> Iterator[str]:
    """Yield the places where settings bring code of the job's author, or may name it."""
    for name in LISTS:
        for place, _ in _listed(given, name):
            yield place
    for name in given.conf:
        if name in _CODE or name.startswith(_OPEN):
            yield f"conf.{name[:100]}"


def with_settings(peer: Mapping[str, str], given: HostSettings) -> dict[str, str]:
    """Return the settings of Spark with which a job's host starts: those of its peer, and over them the job's.

    Jars, packages and Python files of both are used.
    """
    found = {**peer, **given.conf}
    for name, setting in SINGLE.items():
        if getattr(given, name) is not None:
            found[setting] = str(getattr(given, name))
    for name, setting in LISTS.items():
        mine = [f"{said}#{ENVIRONMENT}" if setting == ARCHIVES else said for _, said in _listed(given, name)]
        if mine:
            found[setting] = ",".join(filter(None, [peer.get(setting, ""), *mine]))
    return found
