"""The settings of one node, their limits, and the settings that other parts derive from them."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path

from attrs import field, frozen

from onyxq.access.certificates import PLAIN, Certificates
from onyxq.access.credentials import ANONYMOUS, ZookeeperCredentials
from onyxq.access.grants import OPEN, Access
from onyxq.access.host_names import Hosts, hosts
from onyxq.access.loopback import check_listening
from onyxq.core.cluster_settings import DEFAULTS, SETTINGS_LIMITS, Settings
from onyxq.core.entry import Entries
from onyxq.core.errors import BadRequest
from onyxq.core.purged import MARGIN_MS
from onyxq.core.taskstore.state import UNITS
from onyxq.history.parquet.schema import pyarrow
from onyxq.interfaces.callbacks.targets import targets
from onyxq.jobs.function_imports import ANY_FUNCTION, Allowed
from onyxq.leader.cohort.copy_pace import BYTES_PER_S
from onyxq.leader.purge import Plan
from onyxq.node.jobs.driver import SparkSettings
from onyxq.node.world import NodeSettings
from onyxq.system.directories import close_to_others, usable
from onyxq.system.settings import Setting

log = logging.getLogger(__name__)


@frozen
class PeerConfig:
    """Settings of one node."""

    data: str
    cluster: str = "main"
    zookeeper: str | None = None
    zookeeper_credentials: ZookeeperCredentials = ANONYMOUS
    listen: str = "127.0.0.1:7400"
    http: str | None = "127.0.0.1:7480"
    taskstore: str | None = None
    """Address of a port whose root is the task store, in addition to ``/taskstore``."""
    taskstore_unit: str = "ms"
    """Unit of times at that port."""
    archive: str | None = None
    """Directory for records that this node's peer trims from the log."""
    zone: str = ""
    slots: int = 0
    """Number of job slots if the node hosts Spark."""
    tags: tuple[str, ...] = ()
    """Tags that jobs can require of their peer."""
    spark: bool = False
    """Whether the node hosts Spark and runs jobs."""
    spark_master: str = "local"
    spark_conf: Mapping[str, str] = field(factory=dict)
    """Settings of Spark itself. They take precedence over those of OnyxQ."""
    spark_warm: bool = False
    spark_quick_start: bool = False
    """Whether a Spark session is kept open, so that jobs start faster."""
    checkpoints: str | None = None
    """Path or URI of the checkpoints of jobs that name none; all peers must reach it."""
    partitions: int = DEFAULTS.partitions
    replicas: int = DEFAULTS.replicas
    session_timeout_ms: int = DEFAULTS.session_timeout_ms
    absent_after_ms: int = DEFAULTS.absent_after_ms
    yield_after_ms: int = DEFAULTS.yield_after_ms
    gc_records: int = DEFAULTS.gc_records
    gc_bytes: int = DEFAULTS.gc_bytes
    sync_bytes_per_s: int = BYTES_PER_S
    """Most bytes per second that this node sends, and that it receives, to make copies."""
    purge_bucket_ms: int = 3_600_000
    """Span of task id times that is purged together, in ms."""
    purge_margin_ms: int = 600_000
    """Age below which no task is purged and no new task id is refused, in ms."""
    record_archive: str | None = None
    """Directory for records that this node's peer trims, as Parquet files."""
    access: Access = OPEN
    """Credentials that the node asks for."""
    certificates: Certificates = PLAIN
    """Certificates for TLS on all ports and to other peers."""
    allow_pickled: bool = False
    """Whether jobs with pickled functions are accepted even if the node asks for credentials."""
    job_modules: tuple[str, ...] = ()
    """Modules whose functions jobs may name if the node asks for credentials; ``any``: all."""
    allow_anyone: bool = False
    """Whether the node may listen for other machines without asking for credentials."""
    http_hosts: str = ""
    """Additional host names of HTTP; see `onyxq.access.host_names`."""
    task_archive: str | None = None
    """Directory for purged tasks, for queues with the setting ``archive``."""
    timer_targets: str = ""
    """Allowed targets of callbacks; see `onyxq.interfaces.callbacks.targets`."""
    timer_timeout_ms: int = 10_000
    """Longest time for a receiver to answer a callback, in milliseconds."""
    given: tuple[Setting, ...] = ()
    """The settings of the process with their sources and without secrets, for people."""


def node_settings(config: PeerConfig, node_id: str, entries: Entries) -> NodeSettings:
    """Return the settings of the node itself."""
    archive = Path(config.task_archive) if config.task_archive else None
    asks = bool(config.access)
    return NodeSettings(
        node_id=node_id,
        cluster_name=config.cluster,
        sync_bytes_per_s=config.sync_bytes_per_s,
        purging=Plan(config.purge_bucket_ms, config.purge_margin_ms, archive),
        credential=config.access.peer_secret,
        job_functions=Allowed(config.job_modules, pickled=config.allow_pickled) if asks else ANY_FUNCTION,
        entries=entries,
    )


def cluster_settings(config: PeerConfig) -> Settings:
    """Return the settings with which a new cluster is created."""
    return Settings(**{name: getattr(config, name) for name in SETTINGS_LIMITS})


def spark_settings(config: PeerConfig) -> SparkSettings:
    """Return the settings of a node that hosts Spark."""
    return SparkSettings(
        work=str(Path(config.data) / "spark"),
        slots=config.slots,
        master=config.spark_master,
        checkpoints=config.checkpoints,
        conf=dict(config.spark_conf),
        warm=config.spark_warm,
        quick_start=config.spark_quick_start,
        modules=(os.getcwd(),),
    )


def http_hosts(config: PeerConfig) -> Hosts:
    """Return the host names of the node's HTTP ports."""
    listens = [place for place in (config.listen, config.http, config.taskstore) if place]
    return hosts(config.http_hosts, listens=listens, asks=bool(config.access))


def check_config(config: PeerConfig) -> None:
    """Raise `BadRequest` for the first setting that is out of range."""
    limits = {
        **SETTINGS_LIMITS,
        "slots": (0, 10_000),
        "sync_bytes_per_s": (1 << 20, 1 << 40),
        "purge_bucket_ms": (1_000, 7 * 86_400_000),
        "purge_margin_ms": (2 * MARGIN_MS, 30 * 86_400_000),
        "timer_timeout_ms": (100, 3_600_000),
    }
    for name, (low, high) in limits.items():
        value = getattr(config, name)
        if not low <= value <= high:
            raise BadRequest(f"{name} must be {low} to {high}, not {value}", field=name)
    config.certificates.check_complete()
    for name, address in (("listen", config.listen), ("http", config.http), ("taskstore", config.taskstore)):
        if address:
            check_listening(address, field=name, asks=bool(config.access), allow_anyone=config.allow_anyone)
    if config.taskstore_unit not in UNITS:
        known = " or ".join(UNITS)
        raise BadRequest(f"taskstore_unit must be {known}, not {config.taskstore_unit!r}", field="taskstore_unit")
    targets(config.timer_targets, listens=(), asks=True)
    http_hosts(config)
    if config.access and config.zookeeper and not config.zookeeper_credentials.auth:
        log.warning("zookeeper_auth is not set: every user who can write to ZooKeeper can get the secret of the peers")
    if config.record_archive:
        pyarrow()  # Without pyarrow, the log could never be trimmed.


def make_directories(config: PeerConfig) -> None:
    """Create the directories in the settings; raises `BadRequest` for the first one that cannot be used."""
    for name in ("data", "archive", "record_archive", "task_archive"):
        if path := getattr(config, name):
            found = usable(path, name)
            if name == "data":
                _check_node(path)
                close_to_others(found)


def _check_node(data: str) -> None:
    """Raise `BadRequest` for the directory of a cluster: a peer there would be another, empty node beside its nodes."""
    nodes = nodes_in(data)
    if nodes and not is_node(data):
        alone = f" Or move {data}/log into the directory of the node, and name that." if nodes == 1 else ""
        raise BadRequest(
            f"{data} is not the directory of one peer: it has directories of nodes (node-0 ...)",
            field="data",
            hint=f"Start the cluster in one process: onyxq dev --data {data}.{alone}",
        )


def nodes_in(data: str) -> int:
    """Return the number of nodes that have stored something in the directory of a cluster."""
    return sum(1 for path in Path(data).glob("node-*[0-9]") if is_node(path))


def is_node(directory: str | Path) -> bool:
    """Return whether a node has stored something in a directory of its own."""
    return (Path(directory) / "data.mdb").exists()
