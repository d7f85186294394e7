"""The settings of one node of a process, their limits, and what other parts make of them."""

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

log = logging.getLogger(__name__)


@frozen
class PeerConfig:
    """How one node of a process is run."""

    data: str
    cluster: str = "main"
    zookeeper: str | None = None
    zookeeper_credentials: ZookeeperCredentials = ANONYMOUS
    listen: str = "127.0.0.1:7400"
    http: str | None = "127.0.0.1:7480"
    taskstore: str | None = None
    """Where the task store is served at the root, besides under ``/taskstore``."""
    taskstore_unit: str = "ms"
    """Unit of times there."""
    archive: str | None = None
    """Directory that keeps what this node's peer trims."""
    zone: str = ""
    slots: int = 0
    """Job slots that it offers, if it hosts Spark."""
    tags: tuple[str, ...] = ()
    """What jobs may ask of the peer that drives them."""
    spark: bool = False
    """Whether it hosts Spark, and so drives jobs."""
    spark_master: str = "local"
    spark_conf: Mapping[str, str] = field(factory=dict)
    """Spark's own settings; they win over ours."""
    spark_warm: bool = False
    """A session is kept open, so that jobs start faster."""
    checkpoints: str | None = None
    """Path or URI, which all peers reach, of the checkpoints of jobs that name none."""
    partitions: int = DEFAULTS.partitions
    replicas: int = DEFAULTS.replicas
    session_timeout_ms: int = DEFAULTS.session_timeout_ms
    absent_after_ms: int = DEFAULTS.absent_after_ms
    yield_after_ms: int = DEFAULTS.yield_after_ms
    gc_records: int = DEFAULTS.gc_records
    gc_bytes: int = DEFAULTS.gc_bytes
    sync_bytes_per_s: int = BYTES_PER_S
    """At most so fast does this node send, and take, what brings copies up to date."""
    purge_bucket_ms: int = 3_600_000
    """Finished tasks are purged by so much of the time of their ids together."""
    purge_margin_ms: int = 600_000
    """Nothing younger is purged, and no id that is younger refused."""
    record_archive: str | None = None
    """Directory in which the records that this node's peer trims become a table."""
    access: Access = OPEN
    """The credentials that it asks for."""
    certificates: Certificates = PLAIN
    """For TLS on both ports, and to other peers."""
    allow_pickled: bool = False
    """It takes jobs with pickled functions although it asks for credentials."""
    job_modules: tuple[str, ...] = ()
    """Modules whose functions jobs may name, if it asks for credentials; ``any``: all."""
    allow_anyone: bool = False
    """It may listen for other machines without asking for credentials."""
    http_hosts: str = ""
    """Names that HTTP answers to besides its own; see `onyxq.access.host_names`."""
    task_archive: str | None = None
    """Directory in which tasks are archived before they are purged, where their queue asks for it."""
    timer_targets: str = ""
    """Where callbacks may go; see `onyxq.interfaces.callbacks.targets`."""
    timer_timeout_ms: int = 10_000
    """How long the receiver of a callback may take."""


def node_settings(config: PeerConfig, node_id: str, entries: Entries) -> NodeSettings:
    """The settings that the node itself works by."""
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
    """The settings that a cluster is created with and then keeps."""
    return Settings(**{name: getattr(config, name) for name in SETTINGS_LIMITS})


def spark_settings(config: PeerConfig) -> SparkSettings:
    """The settings of a node that hosts Spark."""
    return SparkSettings(
        work=str(Path(config.data) / "spark"),
        slots=config.slots,
        master=config.spark_master,
        checkpoints=config.checkpoints,
        conf=dict(config.spark_conf),
        warm=config.spark_warm,
        modules=(os.getcwd(),),
    )


def http_hosts(config: PeerConfig) -> Hosts:
    """The names that a node's HTTP ports answer to."""
    listens = [place for place in (config.listen, config.http, config.taskstore) if place]
    return hosts(config.http_hosts, listens=listens, asks=bool(config.access))


def check_config(config: PeerConfig) -> None:
    """Raise `BadRequest` naming the first setting that is out of range."""
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
        log.warning("zookeeper_auth is not set: anyone who can write to ZooKeeper can get the peers' secret")
    if config.record_archive:
        pyarrow()  # without it nothing could ever be trimmed


def make_directories(config: PeerConfig) -> None:
    """Make the directories that the settings name; raises `BadRequest` naming the first that cannot be used."""
    for name in ("data", "archive", "record_archive", "task_archive"):
        if path := getattr(config, name):
            found = usable(path, name)
            if name == "data":
                close_to_others(found)
