"""Every command of the command line, declared: name, body, help, example and options."""

from __future__ import annotations

from typing import Any

from onyxq.cli.parser import Command, Option, option, setting
from onyxq.config import SETTINGS

NOUNS = {
    "peer": "start, list and drain peers",
    "cluster": "create, look at and destroy clusters",
    "zookeeper": "a ZooKeeper for trying and testing",
    "task": "enqueue tasks, claim them, settle them, look at them",
    "queue": "look at queues",
    "ring": "who watches whom",
    "partition": "where partitions live and who leads them",
    "log": "look at the log, dump and replay it, collect its garbage",
    "replica": "what all peers agree on, now or at any position",
    "worker": "run an application's tasks",
    "config": "settings and where they came from",
}

STATES = ("scheduled", "waiting", "ready", "claimed", "completed", "failed", "cancelled")

ID = option("id", metavar="ID", help="40 hex digits")
TOKEN_OF_CLAIM = option("--token", dest="claim_token", metavar="T", type=int, required=True, help="the claim's token")
LEASE = option("--lease", metavar="TIME", default="30s", help="how long the claim holds (default 30s)")
QUEUE_FILTER = option("--queue", metavar="QUEUE", help="only of this queue")
ARCHIVES = option("--archive", action="append", metavar="DIR", help="read trimmed records from there; may be repeated")
PEER_SETTINGS = tuple(name for name in SETTINGS if name not in ("connect", "token"))
ZOOKEEPER_NEEDED = setting("zookeeper", required=False, help="HOST:PORT,... of ZooKeeper; needed")
PARTITIONS = option(
    "--partitions", type=int, default=64, metavar="N", help="partitions of the cluster, for good (default 64)"
)
REPLICAS = option("--replicas", type=int, default=3, metavar="N", help="copies of every task (default 3)")


def _task(verb: str, about: str, example: str, *options: Option) -> Command:
    return Command(f"task {verb}", f"onyxq.cli.tasks:task_{verb}", about, f"onyxq task {example}", options, talks=True)


def _shown(name: str, about: str, *options: Option, example: str = "") -> Command:
    run = f"onyxq.cli.views:{name.replace(' ', '_')}"
    return Command(name, run, about, f"onyxq {example or name}", options, talks=True)


def _history(name: str, about: str, example: str, *options: Option) -> Command:
    module = "tail" if name in ("log tail", "log show") else "history"
    run = f"onyxq.cli.{module}:{name.replace(' ', '_')}"
    return Command(name, run, about, f"onyxq {example}", options, talks=True)


def _own(name: str, run: str, about: str, example: str, *options: Option, **details: Any) -> Command:
    return Command(name, f"onyxq.cli.{run}", about, f"onyxq {example}", options, **details)


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
        option("--workload", default="standard", metavar="NAME", help="what to play (default standard); see --list"),
        option("--jobs", type=int, metavar="N", help="processes side by side (default: one per core)"),
        option("--list", action="store_true", help="list the workloads"),
        option("--probes", action="store_true", help="print how often rare branches were reached"),
        option("--planted", action="store_true", help="check that every deliberately planted bug is found"),
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
    ),
    _own(
        "peer start",
        "daemons:peer_start",
        "run one peer until SIGTERM, which drains it and leaves",
        "peer start --zookeeper zk1:2181,zk2:2181 --data /var/lib/onyxq --zone a",
        *map(setting, PEER_SETTINGS),
    ),
    _shown("peer list", "peers and nodes of the cluster"),
    _shown(
        "peer leave",
        "drain a peer: it hands its partitions over and leaves",
        option("peer", metavar="PEER", help="id of the peer"),
        option("--permanent", action="store_true", help="move its copies elsewhere first"),
        example="peer leave 3fb1c0de --permanent",
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
    ),
    _shown("cluster show", "name, settings and health of the cluster"),
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
        "zookeeper start",
        "daemons:zookeeper_start",
        "a real ZooKeeper on loopback from the jars that pyspark brings, until interrupted",
        "zookeeper start --servers 3 --port 2181",
        option("--servers", type=int, default=1, choices=(1, 3), help="1, or an ensemble of 3 (default 1)"),
        option("--data", metavar="DIR", help="directory to keep (default: one that goes when it stops)"),
        option("--port", type=int, default=2181, help="port of the first server (default 2181; 0: a free one)"),
    ),
    _task(
        "enqueue",
        "add a task to a queue and print its id",
        """enqueue mail --data '{"to": "a@example.org"}' --delay 10s""",
        option("queue", metavar="QUEUE"),
        option("--data", metavar="JSON", help="the task's data, as JSON"),
        option("--file", metavar="FILE", help="the task's data, as the bytes of a file (- for stdin)"),
        option("--priority", type=int, default=0, metavar="N", help="higher runs first (default 0)"),
        option("--delay", metavar="TIME", help="due that much later, such as 10s or 5m"),
        option("--at", metavar="TIME", help="due at an ISO 8601 time, or milliseconds since the epoch"),
        option("--retries", type=int, metavar="N", help="counted attempts after the first (default 25)"),
    ),
    _task("get", "one task and its claims", "get 0196f0c5a1b20007d4c3b2a19080706000000000", ID),
    _task("log", "the updates that workers sent about a task", "log 0196f0c5a1b20007d4c3b2a19080706000000000", ID),
    _task(
        "list",
        "tasks in id order",
        "list --queue mail --state ready",
        QUEUE_FILTER,
        option("--state", choices=STATES, metavar="STATE", help=", ".join(STATES)),
        option("--after", metavar="ID", help="go on behind this id"),
        option("--limit", type=int, default=100, metavar="N", help="at most so many (default 100)"),
    ),
    _task("count", "tasks by queue and state", "count --queue mail", QUEUE_FILTER),
    _task(
        "claim",
        "take tasks of a queue under a lease",
        "claim mail --max 10 --lease 30s --wait 5s --json",
        option("queue", metavar="QUEUE", nargs="+"),
        option("--max", type=int, default=1, metavar="N", help="at most so many (default 1)"),
        LEASE,
        option("--wait", metavar="TIME", default="0s", help="how long to wait for a task (default not)"),
        option("--worker", metavar="NAME", help="name of the claimer (default host and process)"),
    ),
    _task(
        "complete",
        "report a claimed task as done",
        "complete 0196f0c5a1b20007d4c3b2a19080706000000000 --token 4711",
        ID,
        TOKEN_OF_CLAIM,
        option("--result", metavar="JSON", help="result to keep with the task, as JSON"),
    ),
    _task(
        "fail",
        "report a claimed task as failed; it is retried as its policy says",
        "fail 0196f0c5a1b20007d4c3b2a19080706000000000 --token 4711 --error 'no such host' --retry-in 1m",
        ID,
        TOKEN_OF_CLAIM,
        option("--error", default="", metavar="TEXT", help="what went wrong"),
        option("--retry-in", metavar="TIME", help="when to try again (default: the task's backoff)"),
    ),
    _task(
        "renew",
        "prolong a claim",
        "renew 0196f0c5a1b20007d4c3b2a19080706000000000 --token 4711 --lease 1m",
        ID,
        TOKEN_OF_CLAIM,
        LEASE,
    ),
    _task("cancel", "cancel a task that nobody holds", "cancel 0196f0c5a1b20007d4c3b2a19080706000000000", ID),
    _shown("queue list", "queues with their depth by state"),
    _shown(
        "queue show", "one queue's depth by state", option("queue", metavar="QUEUE"), example="queue show mail --json"
    ),
    _own(
        "worker start",
        "worker:start",
        "run the tasks of an application until SIGTERM",
        "worker start shop.tasks:app --queues mail,orders --concurrency 8",
        option("app", metavar="MODULE:APP", help="where the App object is"),
        option("--queues", metavar="Q,...", help="only these queues (default: those of its tasks)"),
        option("--concurrency", type=int, default=1, metavar="N", help="tasks at the same time (default 1)"),
        talks=True,
    ),
    _shown("ring show", "members of the ring, whom each watches, and who is joining"),
    _shown("partition list", "cohort, leader and epoch of every partition"),
    _shown("partition show", "one partition", option("partition", type=int, metavar="P"), example="partition show 7"),
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
        "history:log_replay",
        "step every record of a dump, check invariants, and print the replica's digest",
        "log replay main.onyxqlog --until 4711",
        option("file", metavar="FILE"),
        option("--until", type=int, metavar="N", help="last position to step"),
        option("--check-every", type=int, default=100, metavar="N", help="records between checks (default 100)"),
    ),
    _shown("log gc", "snapshot the replica and trim the log behind it"),
    _history(
        "replica show",
        "the replica, now or as it was at a position",
        "replica show --at 4711 --path partitions/3",
        option("--at", type=int, metavar="N", help="position (default: now)"),
        option("--path", metavar="A/B", help="only this part of the tree"),
        option("--file", metavar="FILE", help="from a dump instead of a peer"),
        ARCHIVES,
    ),
    _history(
        "task explain",
        "everything that happened to a task, in words",
        "task explain 0196f0c5a1b20007d4c3b2a19080706000000000",
        ID,
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
