"""Every command of the command line, declared: name, body, help, example and options."""

from __future__ import annotations

from typing import Any

from onyxq.interfaces.cli.commands.history import HISTORY_COMMANDS
from onyxq.interfaces.cli.commands.operations import OPERATION_COMMANDS
from onyxq.interfaces.cli.commands.own import OWN_COMMANDS
from onyxq.interfaces.cli.commands.task import ARCHIVES, TASK_COMMANDS
from onyxq.interfaces.cli.parser import TLS_SETTINGS, Command, Option, option, setting
from onyxq.system.settings import SECRET, SETTINGS

NOUNS = {
    "peer": "start, list and drain peers",
    "cluster": "create, look at, back up, restore, recover and destroy clusters",
    "zookeeper": "a ZooKeeper for trying and testing",
    "task": "enqueue tasks, claim them, settle them, look at them",
    "queue": "look at queues, pause them, set their limits",
    "dead": "tasks that failed for good: look, requeue, discard",
    "periodic": "tasks that are enqueued again and again",
    "timer": "callbacks that are made once a time has come",
    "job": "data pipelines that run on Spark",
    "ring": "who watches whom",
    "partition": "where partitions live and who leads them",
    "log": "look at the log, dump and replay it, collect its garbage",
    "archive": "keep the log's records as tables",
    "history": "archives of tasks, checked and summed up on Spark",
    "replica": "what all peers agree on, now or at any position",
    "worker": "run an application's tasks",
    "config": "settings and where they came from",
}

PEER_SETTINGS = tuple(name for name in SETTINGS if name not in ("connect", *SECRET))
"""Those that have a flag; secrets have none, as everybody on the machine sees a command's arguments."""
SPARK_SETTINGS = (
    "spark",
    "slots",
    "tags",
    "spark_master",
    "spark_conf",
    "spark_warm",
    "checkpoints",
    "allow_pickled",
    "allow_local_code",
    "job_modules",
)
TIMER_SETTINGS = ("timer_targets", "timer_timeout_ms")
LOG_SETTINGS = ("log_format", "log_level")
ZOOKEEPER_NEEDED = setting("zookeeper", required=False, help="HOST:PORT,... of ZooKeeper; needed")
PARTITIONS = option(
    "--partitions", type=int, default=64, metavar="N", help="partitions of the cluster, for good (default 64)"
)
REPLICAS = option("--replicas", type=int, default=3, metavar="N", help="copies of every task (default 3)")


def _history(name: str, about: str, example: str, *options: Option) -> Command:
    module = "tail" if name in ("log tail", "log show") else "history"
    run = f"onyxq.interfaces.cli.past.{module}:{name.replace(' ', '_')}"
    return Command(name, run, about, f"onyxq {example}", options, talks=True)


def _own(name: str, run: str, about: str, example: str, *options: Option, **details: Any) -> Command:
    return Command(name, f"onyxq.interfaces.cli.{run}", about, f"onyxq {example}", options, **details)


COMMANDS: tuple[Command, ...] = (
    _own(
        "demo",
        "demo:demo",
        "count words on a cluster that loses a peer on the way, and check the counts",
        "demo --input /usr/share/doc --peers 3",
        option("--input", metavar="DIR", help="directory of text files (default: Python's standard library)"),
        option("--peers", type=int, default=3, metavar="N", help="peers to start (default 3)"),
        option("--keep", action="store_true", help="keep the peers' data and say where it is"),
    ),
    _own(
        "simulate",
        "simulate:simulate",
        "play a simulated cluster from seeds, with faults, and check what must always hold",
        "simulate --runs 100 --workload standard",
        option("--seed", type=int, metavar="N", help="first seed (default: a fresh one, which is printed)"),
        option("--runs", type=int, default=1, metavar="R", help="consecutive seeds to play (default 1)"),
        option("--workload", metavar="NAME", help="what to play (default standard); see --list"),
        option("--jobs", type=int, metavar="N", help="processes side by side (default: one per core)"),
        option("--spark", metavar="MASTER", help="play them on Spark instead: local[N], spark://..., yarn, k8s://..."),
        option("--list", action="store_true", help="list the workloads"),
        option("--probes", action="store_true", help="print how often rare branches were reached"),
        option("--planted", action="store_true", help="check that planted bugs are found (with --workload: its own)"),
    ),
    _own(
        "dev",
        "daemons:dev",
        "a whole cluster in one process, until interrupted",
        "dev --peers 3 --data ./dev-data",
        option("--peers", type=int, default=1, metavar="N", help="peers to start (default 1)"),
        setting("data", help="directory to keep (default: one that goes when it stops)"),
        setting("listen"),
        setting("http"),
        setting("access"),
        setting("allow_anyone"),
        setting("http_hosts"),
        setting("taskstore"),
        setting("taskstore_unit"),
        *map(setting, TLS_SETTINGS),
        *map(setting, (*SPARK_SETTINGS, *TIMER_SETTINGS, *LOG_SETTINGS)),
    ),
    _own(
        "doctor",
        "doctor:doctor",
        "check ZooKeeper, clocks, versions, disk, ports and Java; exit code 1 if something is wrong",
        "doctor --zookeeper zk1:2181,zk2:2181,zk3:2181 --data /var/lib/onyxq",
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
        talks=True,
    ),
    _own(
        "completion",
        "completion:completion",
        "print the script that completes commands in a shell",
        "completion bash",
        option("shell", choices=("bash", "zsh"), metavar="SHELL", help="bash or zsh"),
    ),
    _own(
        "peer start",
        "daemons:peer_start",
        "run one peer until SIGTERM, which drains it and leaves",
        "peer start --zookeeper zk1:2181,zk2:2181 --data /var/lib/onyxq --zone a",
        *map(setting, PEER_SETTINGS),
    ),
    _own(
        "cluster create",
        "clusters:create",
        "create a cluster on ZooKeeper",
        "cluster create main --zookeeper 127.0.0.1:2181 --partitions 64 --replicas 3",
        option("name", metavar="NAME"),
        ZOOKEEPER_NEEDED,
        PARTITIONS,
        REPLICAS,
        *(setting(name) for name in ("absent_after_ms", "yield_after_ms", "gc_records", "gc_bytes")),
    ),
    _own(
        "cluster protect",
        "clusters:protect",
        "have a stopped cluster's znodes belong to zookeeper_auth alone",
        "cluster protect main --zookeeper 127.0.0.1:2181",
        option("name", metavar="NAME"),
        ZOOKEEPER_NEEDED,
    ),
    _own(
        "cluster destroy",
        "clusters:destroy",
        "delete a cluster's log from ZooKeeper, for good",
        "cluster destroy main --zookeeper 127.0.0.1:2181 --yes",
        option("name", metavar="NAME"),
        ZOOKEEPER_NEEDED,
        option("--yes", action="store_true", help="really do it"),
    ),
    _own(
        "cluster backup",
        "past.backups:backup",
        "write all tasks, settings and the state of the log to a file, while the cluster is in use",
        "cluster backup /backups/main-monday",
        option("file", metavar="FILE"),
        talks=True,
    ),
    _own(
        "cluster restore",
        "past.backups:restore",
        "make a new cluster of a backup: its log, and a data directory for each of its nodes",
        "cluster restore /backups/main-monday --zookeeper 127.0.0.1:2181 --data /var/lib/onyxq-restored",
        option("file", metavar="FILE"),
        setting("zookeeper", help="HOST:PORT,... of ZooKeeper; without, a cluster for onyxq dev --data DIR"),
        option("--name", metavar="NAME", help="of the new cluster (default: that of the backup)"),
        setting("data", help="directory, not there yet or empty, for the directories of the nodes; needed"),
    ),
    _own(
        "cluster recover",
        "past.recovery:recover",
        "begin a new log after ZooKeeper was wiped, replaced or set back; docs/runbooks.rst has the steps",
        "cluster recover main --zookeeper 127.0.0.1:2181 --data /var/lib/onyxq --from node-b.rec",
        option("name", metavar="NAME"),
        setting("zookeeper", help="HOST:PORT,... of ZooKeeper; leave it out only for onyxq dev --data DIR"),
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
            help="only write to FILE what the node of --data knows of the log, for --from elsewhere",
        ),
        option(
            "--without",
            action="append",
            default=[],
            metavar="NODE",
            help="recover without this node, whose directory is lost or out of reach; may be repeated",
        ),
        option("--yes", action="store_true", help="replace the log; without --yes, only show what was found"),
    ),
    _own(
        "zookeeper start",
        "daemons:zookeeper_start",
        "a real ZooKeeper on loopback from the jars that pyspark brings, until interrupted",
        "zookeeper start --servers 3 --port 2181",
        option("--servers", type=int, default=1, choices=(1, 3), help="1, or an ensemble of 3 (default 1)"),
        option("--data", metavar="DIR", help="directory to keep (default: one that goes when it stops)"),
        option("--port", type=int, default=2181, help="port of the first server (default 2181; 0: a free one)"),
    ),
    *TASK_COMMANDS,
    *OPERATION_COMMANDS,
    *OWN_COMMANDS,
    *HISTORY_COMMANDS,
    _own(
        "worker start",
        "worker:start",
        "run the tasks of an application until SIGTERM",
        "worker start shop.tasks:app --queues mail,orders --concurrency 8",
        option("app", metavar="MODULE:APP", help="where the App object is"),
        option("--queues", metavar="Q,...", help="only these queues (default: those of its tasks)"),
        option(
            "--concurrency", default="1", metavar="N", help="tasks at the same time: 8, or 2-16 as needed (default 1)"
        ),
        option(
            "--lease", default="30s", metavar="TIME", help="silence after which its tasks go elsewhere (default 30s)"
        ),
        *map(setting, LOG_SETTINGS),
        runs_others=True,
        talks=True,
    ),
    _history(
        "log tail",
        "the newest records in words, with what became of each entry",
        "log tail --from 0 --json",
        option("--from", dest="start", type=int, metavar="N", help="first position (default: the last few records)"),
        option("--limit", type=int, metavar="N", help="at most so many records"),
        option("-f", "--follow", action="store_true", help="go on with new records until interrupted"),
        ARCHIVES,
    ),
    _history("log show", "one record", "log show 42", option("position", type=int, metavar="N"), ARCHIVES),
    _history(
        "log dump",
        "write the log to a file, to replay it elsewhere",
        "log dump main.onyxqlog",
        option("file", metavar="FILE"),
        option("--from-beginning", action="store_true", help="not from the origin; fails if anything was trimmed"),
        ARCHIVES,
    ),
    _own(
        "log replay",
        "past.history:log_replay",
        "step every record of a dump, check invariants, and print the replica's digest",
        "log replay main.onyxqlog --until 4711",
        option("file", metavar="FILE", help="a dump, or a whole archive's directory"),
        option("--until", type=int, metavar="N", help="last position to step"),
        option("--spark", metavar="MASTER", help="replay an archive's files side by side on Spark"),
        option("--check-every", type=int, default=100, metavar="N", help="records between checks (default 100)"),
    ),
    _history(
        "replica show",
        "the replica, now or as it was at a position",
        "replica show --at 4711 --path partitions/3",
        option("--at", type=int, metavar="N", help="position (default: now)"),
        option("--path", metavar="A/B", help="only this part of the tree"),
        option("--file", metavar="FILE", help="from a dump instead of a peer"),
        ARCHIVES,
    ),
    _own(
        "config show",
        "settings:show",
        "every setting and where it came from",
        "config show --listen 0.0.0.0:7400",
        *map(setting, PEER_SETTINGS),
        talks=True,
    ),
)
