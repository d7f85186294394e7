"""Every command of the command line, declared: name, body, help, example and options."""

from __future__ import annotations

from onyxq.interfaces.cli.commands.history import HISTORY_COMMANDS
from onyxq.interfaces.cli.commands.operations import OPERATION_COMMANDS
from onyxq.interfaces.cli.commands.own import OWN_COMMANDS
from onyxq.interfaces.cli.commands.task import ARCHIVES, EVERY, LEASE_DEFAULT, TASK_COMMANDS
from onyxq.interfaces.cli.parser import (
    LIMIT_SETTINGS,
    TLS_SETTINGS,
    Command,
    local_command,
    option,
    peer_command,
    setting,
)
from onyxq.system.settings import SECRET, SETTINGS

NOUNS = {
    "peer": "start, list and drain peers",
    "cluster": "create, show, back up, restore, recover and destroy clusters",
    "zookeeper": "run ZooKeeper on this machine, to try and test OnyxQ",
    "task": "enqueue, show, claim and finish tasks",
    "queue": "show queues, pause them, and set their limits",
    "dead": "show, requeue and discard dead letters: tasks that failed for good",
    "flow": "make, show, wait for and cancel flows: tasks that depend on each other",
    "periodic": "enqueue tasks on a schedule",
    "timer": "make callbacks at a later time",
    "job": "run data pipelines on Spark",
    "ring": "show the ring: which peer watches which",
    "partition": "show the nodes and leaders of partitions",
    "log": "show, dump, replay and trim the replicated log",
    "archive": "write the records of the log to Parquet files",
    "history": "check and summarize archives of tasks on Spark",
    "replica": "show the replica: the state on which all peers agree",
    "worker": "run the tasks of an application, and list workers",
    "outbox": "relay tasks that programs wrote in the transactions of a database",
    "config": "show settings and their sources",
}

SECTIONS = {
    "everyday": ("dev", "worker", "task", "queue", "dead", "periodic", "top", "demo"),
    "more kinds of work": ("flow", "timer", "job", "outbox"),
    "finished work": ("sql", "archive", "history"),
    "operations": ("peer", "cluster", "doctor", "config", "zookeeper", "completion"),
    "inside the cluster": ("log", "replica", "partition", "ring", "simulate"),
}
"""Sections of the list of commands: the first words of commands."""

PEER_SETTINGS = tuple(name for name in SETTINGS if name not in ("connect", *LIMIT_SETTINGS, *SECRET))
"""Settings of a peer that have a flag. Secrets have none, because every user of a machine sees arguments."""
SPARK_SETTINGS = (
    "spark",
    "slots",
    "tags",
    "spark_master",
    "spark_conf",
    "spark_warm",
    "spark_quick_start",
    "checkpoints",
    "allow_pickled",
    "allow_local_code",
    "job_modules",
)
ARCHIVE_SETTINGS = ("archive", "record_archive", "task_archive")
TIMER_SETTINGS = ("timer_targets", "timer_timeout_ms")
LOG_SETTINGS = ("log_format", "log_level")
PEER_SECTIONS = {
    "credentials and TLS": ("access", "allow_anyone", "http_hosts", *TLS_SETTINGS),
    "ZooKeeper and the log": (
        "zookeeper",
        "zookeeper_ca",
        "zookeeper_cert",
        "zookeeper_key",
        "session_timeout_ms",
        "gc_records",
        "gc_bytes",
    ),
    "copies of tasks": ("absent_after_ms", "yield_after_ms", "sync_bytes_per_s"),
    "finished tasks and archives": (*ARCHIVE_SETTINGS, "purge_bucket_ms", "purge_margin_ms"),
    "jobs on Spark": SPARK_SETTINGS,
    "callbacks and task store": (*TIMER_SETTINGS, "taskstore", "taskstore_unit"),
    "server log": LOG_SETTINGS,
}
"""Sections of the settings of a peer, for the help."""
ZOOKEEPER_NEEDED = setting("zookeeper", required=False, help="HOST:PORT,... of ZooKeeper (required)")
DATABASE = (
    option(
        "--database",
        default="",
        metavar="URL",
        help="PostgreSQL with the outbox; PGHOST, PGPASSWORD and so on add what the URL does not name",
    ),
    option("--table", default="onyxq_outbox", metavar="NAME", help="table of the outbox (default onyxq_outbox)"),
)
REFUSED_ROW = option("row", type=int, metavar="ROW", help="number of the row, as `onyxq outbox list` prints it")
PARTITIONS = option(
    "--partitions", type=int, default=64, metavar="N", help="number of partitions; cannot be changed later (default 64)"
)
CONCURRENCY = option(
    "--concurrency",
    default="1",
    metavar="N",
    help="number of parallel tasks of the worker: 8, or a range like 2-16 that follows the load (default 1)",
)
IMPORTS = option(
    "--import", dest="imports", metavar="MODULE,...", help="further modules with functions of the application"
)
REPLICAS = option("--replicas", type=int, default=3, metavar="N", help="number of copies of every task (default 3)")


COMMANDS: tuple[Command, ...] = (
    local_command(
        "demo",
        "demo:demo",
        "count words on a cluster that loses a peer meanwhile, and check the counts",
        "--input /usr/share/doc --peers 3",
        option(
            "--input", metavar="DIR", help="directory of text files (default: the sources of Python's standard library)"
        ),
        option("--peers", type=int, default=3, metavar="N", help="number of peers (default 3)"),
        option("--keep", action="store_true", help="keep the data of the peers and print its directory"),
    ),
    local_command(
        "simulate",
        "simulate:simulate",
        "run simulated clusters with faults, each from a seed, and check their properties",
        "--runs 100 --workload standard",
        option("--seed", type=int, metavar="N", help="first seed (default: a random one, which is printed)"),
        option("--runs", type=int, default=1, metavar="R", help="number of runs, with consecutive seeds (default 1)"),
        option("--workload", metavar="NAME", help="workload to run (default standard); --list shows all"),
        option("--jobs", type=int, metavar="N", help="number of parallel processes (default: one per core)"),
        option("--spark", metavar="MASTER", help="run on Spark instead: local[N], spark://..., yarn, k8s://..."),
        option("--list", action="store_true", help="list the workloads"),
        option("--probes", action="store_true", help="print how often each rare branch of the code was reached"),
        option(
            "--planted",
            action="store_true",
            help="check that each planted bug is found; with --workload, only the bugs planted for it",
        ),
    ),
    local_command(
        "dev",
        "processes.dev:dev",
        "run a whole cluster in one process until interrupted",
        "shop.tasks:app --peers 3 --data ./dev-data",
        option("app", nargs="?", metavar="MODULE:APP", help="application whose worker runs beside the cluster"),
        option("--reload", action="store_true", help="start the worker again when a Python file here changes"),
        CONCURRENCY,
        IMPORTS,
        option(
            "--peers",
            type=int,
            metavar="N",
            help="number of peers (default: all of the data, else 1); each has the ports after those of the one before",
        ),
        setting("data", help="directory of the data (default: a temporary one, which is deleted at the end)"),
        setting("listen"),
        setting("http"),
        *map(setting, ARCHIVE_SETTINGS),
        setting("access"),
        setting("allow_anyone"),
        setting("http_hosts"),
        setting("taskstore"),
        setting("taskstore_unit"),
        *map(setting, TLS_SETTINGS),
        *map(setting, (*SPARK_SETTINGS, *TIMER_SETTINGS, *LOG_SETTINGS)),
        sections=PEER_SECTIONS,
    ),
    peer_command(
        "doctor",
        "doctor:doctor",
        "check ZooKeeper, clocks, versions, disk, ports and Java; exit code 1 if a check fails",
        "--zookeeper zk1:2181,zk2:2181,zk3:2181 --data /var/lib/onyxq",
        *map(
            setting,
            (
                "zookeeper",
                "zookeeper_ca",
                "zookeeper_cert",
                "zookeeper_key",
                "data",
                "listen",
                "http",
                "access",
                "allow_anyone",
                "spark",
            ),
        ),
    ),
    peer_command(
        "top",
        "live:top",
        "show queues, rates and workers, and keep showing them on a terminal",
        "--every 5s",
        EVERY,
    ),
    local_command(
        "completion",
        "completion:completion",
        "print a script with which a shell completes commands",
        "bash",
        option("shell", choices=("bash", "zsh", "fish"), metavar="SHELL", help="bash, zsh or fish"),
    ),
    local_command(
        "peer start",
        "processes.daemons:peer_start",
        "run one peer; SIGTERM drains and stops it",
        "--zookeeper zk1:2181,zk2:2181 --data /var/lib/onyxq --zone a",
        *map(setting, PEER_SETTINGS),
        sections=PEER_SECTIONS,
    ),
    local_command(
        "cluster create",
        "clusters:create",
        "create a cluster on ZooKeeper",
        "main --zookeeper 127.0.0.1:2181 --partitions 64 --replicas 3",
        option("name", metavar="NAME", help="name of the cluster"),
        ZOOKEEPER_NEEDED,
        PARTITIONS,
        REPLICAS,
        *(setting(name) for name in ("absent_after_ms", "yield_after_ms", "gc_records", "gc_bytes")),
    ),
    local_command(
        "cluster protect",
        "clusters:protect",
        "give the znodes of a stopped cluster to the user of zookeeper_auth alone",
        "main --zookeeper 127.0.0.1:2181",
        option("name", metavar="NAME", help="name of the cluster"),
        ZOOKEEPER_NEEDED,
    ),
    local_command(
        "cluster destroy",
        "clusters:destroy",
        "delete the log of a cluster from ZooKeeper; this cannot be undone",
        "main --zookeeper 127.0.0.1:2181 --yes",
        option("name", metavar="NAME", help="name of the cluster"),
        ZOOKEEPER_NEEDED,
        option("--yes", action="store_true", help="confirm the deletion"),
    ),
    peer_command(
        "cluster backup",
        "past.backups:backup",
        "write a backup of a running cluster to a file: tasks, settings, state of the log",
        "/backups/main-monday",
        option("file", metavar="FILE", help="new file for the backup"),
    ),
    local_command(
        "cluster restore",
        "past.backups:restore",
        "make a new cluster from a backup: the log, and a data directory for each node",
        "/backups/main-monday --zookeeper 127.0.0.1:2181 --data /var/lib/onyxq-restored",
        option("file", metavar="FILE", help="file of the backup"),
        setting(
            "zookeeper", help="HOST:PORT,... of ZooKeeper; without it, the new cluster is for onyxq dev --data DIR"
        ),
        option("--name", metavar="NAME", help="name of the new cluster (default: the name in the backup)"),
        setting("data", help="new or empty directory for the data of the nodes (required)"),
    ),
    local_command(
        "cluster recover",
        "past.recovery:recover",
        "begin a new log after ZooKeeper lost the old one; docs/runbooks.rst has the steps",
        "main --zookeeper 127.0.0.1:2181 --data /var/lib/onyxq --from node-b.rec",
        option("name", metavar="NAME", help="name of the cluster"),
        setting(
            "zookeeper", help="HOST:PORT,... of ZooKeeper; leave it out only for a cluster of onyxq dev --data DIR"
        ),
        option(
            "--data",
            dest="directories",
            action="append",
            default=[],
            metavar="DIR",
            help="data directory of a stopped peer on this machine; may be repeated",
        ),
        option(
            "--from",
            dest="files",
            action="append",
            default=[],
            metavar="FILE",
            help="file that --export wrote on another machine; may be repeated",
        ),
        option(
            "--export",
            metavar="FILE",
            help="write to FILE what the node in --data knows of the log, for --from on another machine, and stop",
        ),
        option(
            "--without",
            action="append",
            default=[],
            metavar="NODE",
            help="recover without this node, because its directory is lost; may be repeated",
        ),
        option("--yes", action="store_true", help="replace the log; without --yes, only show what was found"),
    ),
    local_command(
        "zookeeper start",
        "processes.daemons:zookeeper_start",
        "run ZooKeeper on loopback until interrupted, from the jars in pyspark",
        "--servers 3 --port 2181",
        option("--servers", type=int, default=1, choices=(1, 3), help="1, or an ensemble of 3 (default 1)"),
        option(
            "--data",
            metavar="DIR",
            help="directory of the data (default: a temporary one, which is deleted at the end)",
        ),
        option("--port", type=int, default=2181, help="port of the first server (default 2181; 0: a free one)"),
    ),
    *TASK_COMMANDS,
    *OPERATION_COMMANDS,
    *OWN_COMMANDS,
    *HISTORY_COMMANDS,
    peer_command(
        "worker start",
        "processes.worker:start",
        "run the tasks of an application until Ctrl-C or SIGTERM",
        "shop.tasks:app --queues mail,orders --concurrency 8",
        option("app", metavar="MODULE:APP", help="module and name of the App object"),
        option(
            "--queues", metavar="Q,...", help="comma-separated queues (default: the queues of the application's tasks)"
        ),
        CONCURRENCY,
        option(
            "--lease",
            default=LEASE_DEFAULT,
            metavar="TIME",
            help=f"lease of its claims: the time until others get its tasks if it dies (default {LEASE_DEFAULT})",
        ),
        option(
            "--drain",
            metavar="TIME",
            help="how long running tasks may continue after the first Ctrl-C or SIGTERM (default 30s)",
        ),
        IMPORTS,
        option(
            "--tasks-per-process",
            type=int,
            metavar="N",
            help="replace a process after it has run N tasks (default: never)",
        ),
        option("--reload", action="store_true", help="for development: start again when a Python file here changes"),
        option("--name", metavar="NAME", help="name that is shown with its claims (default: host:pid)"),
        option("-q", "--quiet", action="store_true", help="print warnings and errors only, no line for each task"),
        *map(setting, LOG_SETTINGS),
        runs_others=True,
    ),
    peer_command(
        "outbox relay",
        "outbox:relay",
        "enqueue the tasks that programs wrote in their transactions, until Ctrl-C or SIGTERM",
        "--database postgresql://shop@db/shop",
        *DATABASE,
        option("--create", action="store_true", help="create the table first, unless it exists"),
        *map(setting, LOG_SETTINGS),
    ),
    local_command(
        "outbox create",
        "outbox:create",
        "create the table of the outbox, unless it exists",
        "--database postgresql://shop@db/shop",
        *DATABASE,
    ),
    local_command(
        "outbox list",
        "outbox:show",
        "show the rows that the cluster refused for good",
        "--database postgresql://shop@db/shop",
        *DATABASE,
        option("--limit", type=int, default=100, metavar="N", help="show at most N rows (default 100)"),
    ),
    local_command(
        "outbox retry",
        "outbox:retry",
        "let the relay send a refused row again",
        "42 --database postgresql://shop@db/shop",
        REFUSED_ROW,
        *DATABASE,
        option("--new-id", action="store_true", help="as a new task: if the old id was stored before, it runs twice"),
    ),
    local_command(
        "outbox discard",
        "outbox:discard",
        "delete a refused row",
        "42 --database postgresql://shop@db/shop",
        REFUSED_ROW,
        *DATABASE,
    ),
    peer_command(
        "log tail",
        "past.tail:log_tail",
        "describe the newest records of the log and the outcome of each entry",
        "--from 0 --json",
        option(
            "--from",
            dest="start",
            type=int,
            metavar="N",
            help="first position (default: the position of the 20th newest record)",
        ),
        option("--limit", type=int, metavar="N", help="print at most N records, and with --follow then end"),
        option("-f", "--follow", action="store_true", help="wait for new records until interrupted"),
        ARCHIVES,
    ),
    peer_command(
        "log show",
        "past.tail:log_show",
        "describe one record of the log",
        "42",
        option("position", type=int, metavar="N"),
        ARCHIVES,
    ),
    peer_command(
        "log dump",
        "past.history:log_dump",
        "write the log to a file, from which it can be replayed",
        "main.onyxqlog",
        option("file", metavar="FILE"),
        option(
            "--from-beginning",
            action="store_true",
            help="start with the first record instead of the snapshot; fails if the log was trimmed",
        ),
        ARCHIVES,
    ),
    local_command(
        "log replay",
        "past.history:log_replay",
        "replay a dump or an archive of the log, and check invariants; exit code 1 if one is broken",
        "main.onyxqlog --until 4711",
        option("file", metavar="FILE", help="a file that log dump wrote, or the directory of an archive"),
        option("--until", type=int, metavar="N", help="last position to replay (default: the end); only for a dump"),
        option("--spark", metavar="MASTER", help="replay in parallel on this Spark master; only for an archive"),
        option(
            "--check-every",
            type=int,
            default=100,
            metavar="N",
            help="number of records between checks of the invariants (default 100)",
        ),
    ),
    peer_command(
        "replica show",
        "past.history:replica_show",
        "show the replica, now or at an earlier position",
        "--at 4711 --path partitions/3",
        option("--at", type=int, metavar="N", help="position (default: now)"),
        option("--path", metavar="A/B", help="show only this part of the tree"),
        option("--file", metavar="FILE", help="read a dump instead of asking a peer"),
        ARCHIVES,
    ),
    peer_command(
        "config show",
        "settings:show",
        "show every setting and its source",
        "--listen 0.0.0.0:7400",
        *map(setting, PEER_SETTINGS),
        sections=PEER_SECTIONS,
    ),
)
