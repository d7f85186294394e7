"""The commands of ``onyxq task``, declared."""

from __future__ import annotations

from typing import get_args

from onyxq.core.limits import OnConflict, UniqueUntil
from onyxq.core.queue_settings import DEFAULTS
from onyxq.interfaces.cli.parser import Command, option, peer_command

STATES = ("scheduled", "waiting", "ready", "claimed", "completed", "failed", "cancelled")
SOME_ID = "0196f0c5a1b20007d4c3b2a19080706000000000"

ID_HELP = "id of the task: 40 hex digits, or its first digits if no other id begins with them"
ID = option("id", metavar="ID", help=ID_HELP)
IDS = option("id", metavar="ID", nargs="+", help=ID_HELP)
TOKEN_OF_CLAIM = option(
    "--token",
    dest="claim_token",
    metavar="T",
    type=int,
    required=True,
    help="fencing token of the claim, as task claim prints it; the credential is --auth-token here",
)
LEASE_DEFAULT = f"{DEFAULTS.lease_ms // 1000}s"
QUEUE_FILTER = option("--queue", metavar="QUEUE", help="only tasks of this queue")
ARCHIVES = option("--archive", action="append", metavar="DIR", help="directory with trimmed records; may be repeated")
TASK_ARCHIVES = option(
    "--archive",
    action="append",
    metavar="DIR",
    help="read from this archive of purged tasks instead of a peer; may be repeated",
)
DATA = option("--data", metavar="JSON", help="the task's data, as JSON")
FILE = option("--file", metavar="FILE", help="the task's data, as the bytes of a file (- for stdin)")
PRIORITY = option(
    "--priority", type=int, default=0, metavar="N", help="tasks with a higher priority run first (default 0)"
)
OLDEST_FIRST = option("--oldest-first", action="store_true", help="in the order of the ids: the oldest first")
EVERY = option("--every", default="2s", metavar="TIME", help="pause before the next output (default 2s)")
WATCH = (option("--watch", action="store_true", help="repeat the command until Ctrl-C, see --every"), EVERY)
TIMEOUT = option("--timeout", metavar="TIME", help="longest wait; then exit with code 6 (default: no limit)")
PAGING = (
    option("--after", metavar="ID", help="start after this id, in the order of the list"),
    option("--limit", type=int, default=100, metavar="N", help="print at most N (default 100)"),
    option("--all", action="store_true", help="print all, one line each"),
)


TASK_COMMANDS: tuple[Command, ...] = (
    peer_command(
        "task enqueue",
        "tasks:task_enqueue",
        "add a task to a queue and print its id",
        """mail --data '{"to": "a@example.org"}' --delay 10s""",
        option("queue", metavar="QUEUE"),
        DATA,
        FILE,
        PRIORITY,
        option("--delay", metavar="TIME", help="time from now until the task is due, such as 10s or 5m"),
        option(
            "--at",
            metavar="TIME",
            help="when the task is due: an ISO 8601 time (local without an offset), or milliseconds since the epoch",
        ),
        option(
            "--expires",
            metavar="TIME",
            help="when the task fails if no worker has started it: a time, or a duration from now",
        ),
        option("--ordering-key", metavar="K", help="tasks with the same key run one after the other, in order"),
        option("--unique-key", metavar="K", help="if a task of the queue holds this key, add none and print its id"),
        option(
            "--unique-until",
            choices=get_args(UniqueUntil),
            metavar="WHEN",
            help="when the key is free again: once its task has started, finished (default) or is purged",
        ),
        option("--unique-period", metavar="TIME", help="one task per key and period from the epoch, such as 1h"),
        option(
            "--on-conflict",
            choices=get_args(OnConflict),
            metavar="CHOICE",
            help="if a task holds the key: keep it, replace its data, priority and due time (default), extend its due "
            "time, or refuse",
        ),
        option("--after", action="append", metavar="ID", help="wait until this task is completed; may be repeated"),
        option(
            "--on-dependency-failed",
            choices=("fail", "cancel", "run"),
            metavar="FATE",
            help="what to do if a task of --after fails: fail (default), cancel or run",
        ),
        option("--callback", metavar="URL", help="send the outcome of the task to URL by POST when it ends"),
        option("--retries", metavar="N", help="number of retries, or none for no limit (default: the queue's setting)"),
        option(
            "--backoff",
            metavar="TIME",
            help="pause before the first retry; doubles with each retry (default: the queue's setting)",
        ),
        option(
            "--copies",
            type=int,
            metavar="N",
            help="number of nodes that must store the task before the command returns (default: a majority)",
        ),
    ),
    peer_command("task get", "tasks:task_get", "show one task and its claims", SOME_ID, ID, TASK_ARCHIVES, *WATCH),
    peer_command(
        "task log",
        "tasks:task_log",
        "show the updates that workers recorded about a task",
        SOME_ID,
        ID,
        TASK_ARCHIVES,
        *WATCH,
    ),
    peer_command(
        "task claim",
        "tasks:task_claim",
        "claim ready tasks of queues under a lease, and print them with their fencing tokens",
        "mail --max 10 --lease 30s --wait 5s --json",
        option("queue", metavar="QUEUE", nargs="+", help="queue to claim from"),
        option("--max", type=int, default=1, metavar="N", help="claim at most N tasks (default 1)"),
        option("--lease", metavar="TIME", help="how long the claim is valid (default: the queue's setting)"),
        option("--wait", metavar="TIME", default="0s", help="how long to wait for a ready task (default: no wait)"),
        option("--worker", metavar="NAME", help="name of the worker (default: host and process id)"),
    ),
    peer_command(
        "task complete",
        "tasks:task_complete",
        "complete a claimed task",
        f"{SOME_ID} --token 4711",
        ID,
        TOKEN_OF_CLAIM,
        option("--result", metavar="JSON", help="result of the task, as JSON (default: no result)"),
    ),
    peer_command(
        "task fail",
        "tasks:task_fail",
        "report that a claimed task failed; it is retried, or becomes a dead letter",
        f"{SOME_ID} --token 4711 --error 'no such host' --retry-in 1m",
        ID,
        TOKEN_OF_CLAIM,
        option("--error", default="", metavar="TEXT", help="what went wrong"),
        option("--retry-in", metavar="TIME", help="pause before the retry (default: the backoff of the task)"),
    ),
    peer_command(
        "task renew",
        "tasks:task_renew",
        "renew a claim: its lease starts again",
        f"{SOME_ID} --token 4711 --lease 1m",
        ID,
        TOKEN_OF_CLAIM,
        option("--lease", metavar="TIME", help="how long the claim is valid from now (default: the queue's setting)"),
    ),
    peer_command(
        "task cancel",
        "tasks:task_cancel",
        "cancel an unclaimed task; cancelling it again is not an error",
        f"{SOME_ID} --claimed",
        ID,
        option("--claimed", action="store_true", help="cancel the task even if it is claimed, and stop its worker"),
    ),
    peer_command(
        "task wait",
        "live:task_wait",
        "wait until tasks are finished and print the outcome of each; exit code 1 unless all completed",
        f"{SOME_ID} --timeout 10m",
        IDS,
        TIMEOUT,
    ),
    peer_command(
        "task retry", "dead:task_retry", "requeue failed tasks: run them again, with all their retries", SOME_ID, IDS
    ),
    peer_command(
        "task call",
        "calls:task_call",
        "enqueue a call of a function of an application, and print the id of the task",
        "shop.tasks:send ann@example.org copies=2 --wait",
        option("target", metavar="MODULE:FUNCTION", help="module and name of the function; this directory is searched"),
        option(
            "arguments",
            metavar="ARGUMENT",
            nargs="*",
            help="arguments in their order, or NAME=VALUE; each is JSON, or else a text",
        ),
        option("--data", metavar="JSON", help="the arguments instead: a list, or an object with their names"),
        option("--delay", metavar="TIME", help="time from now until the task is due, such as 10s or 5m"),
        option(
            "--wait", action="store_true", help="wait for the outcome and print it; exit code 1 unless it completed"
        ),
        TIMEOUT,
        runs_others=True,
    ),
    peer_command(
        "task explain",
        "past.history:task_explain",
        "describe everything that happened to a task",
        SOME_ID,
        ID,
        ARCHIVES,
    ),
)
