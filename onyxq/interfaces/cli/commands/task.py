"""The commands of ``onyxq task``, declared."""

from __future__ import annotations

from onyxq.interfaces.cli.parser import Command, Option, option

STATES = ("scheduled", "waiting", "ready", "claimed", "completed", "failed", "cancelled")
SOME_ID = "0196f0c5a1b20007d4c3b2a19080706000000000"

ID = option("id", metavar="ID", help="40 hex digits")
TOKEN_OF_CLAIM = option("--token", dest="claim_token", metavar="T", type=int, required=True, help="the claim's token")
LEASE = option("--lease", metavar="TIME", default="30s", help="how long the claim holds (default 30s)")
QUEUE_FILTER = option("--queue", metavar="QUEUE", help="only of this queue")
ARCHIVES = option("--archive", action="append", metavar="DIR", help="read trimmed records from there; may be repeated")
TASK_ARCHIVES = option(
    "--archive", action="append", metavar="DIR", help="read purged tasks from there; may be repeated (needs no peer)"
)
DATA = option("--data", metavar="JSON", help="the task's data, as JSON")
FILE = option("--file", metavar="FILE", help="the task's data, as the bytes of a file (- for stdin)")
PRIORITY = option("--priority", type=int, default=0, metavar="N", help="higher runs first (default 0)")
PAGING = (
    option("--after", metavar="ID", help="go on behind this id"),
    option("--limit", type=int, default=100, metavar="N", help="at most so many (default 100)"),
    option("--all", action="store_true", help="all of them, a line each as they come"),
)


def _task(verb: str, about: str, example: str, *options: Option) -> Command:
    return Command(
        f"task {verb}", f"onyxq.interfaces.cli.tasks:task_{verb}", about, f"onyxq task {example}", options, talks=True
    )


TASK_COMMANDS: tuple[Command, ...] = (
    _task(
        "enqueue",
        "add a task to a queue and print its id",
        """enqueue mail --data '{"to": "a@example.org"}' --delay 10s""",
        option("queue", metavar="QUEUE"),
        DATA,
        FILE,
        PRIORITY,
        option("--delay", metavar="TIME", help="due that much later, such as 10s or 5m"),
        option("--at", metavar="TIME", help="due at an ISO 8601 time, or milliseconds since the epoch"),
        option("--expires", metavar="TIME", help="fails if nobody has begun it by then; a time, or so much from now"),
        option("--ordering-key", metavar="K", help="tasks of the same key run one after the other, in order"),
        option("--unique-key", metavar="K", help="of this key the queue has one task: print that one's id"),
        option("--after", action="append", metavar="ID", help="wait until that task is done; may be repeated"),
        option(
            "--on-dependency-failed",
            choices=("fail", "cancel", "run"),
            metavar="FATE",
            help="if one of these fails: fail (default), cancel or run",
        ),
        option("--retries", metavar="N", help="counted attempts after the first, or none (default: the queue's, 25)"),
        option("--backoff", metavar="TIME", help="pause before the first retry; it doubles (default: the queue's, 1s)"),
        option(
            "--copies", type=int, metavar="N", help="nodes that must have it before the answer (default: a majority)"
        ),
    ),
    _task("get", "one task and its claims", f"get {SOME_ID}", ID, TASK_ARCHIVES),
    _task("log", "the updates that workers sent about a task", f"log {SOME_ID}", ID, TASK_ARCHIVES),
    _task(
        "claim",
        "take tasks of a queue under a lease",
        "claim mail --max 10 --lease 30s --wait 5s --json",
        option("queue", metavar="QUEUE", nargs="+"),
        option("--max", type=int, default=1, metavar="N", help="at most so many (default 1)"),
        option("--lease", metavar="TIME", help="how long the claim holds (default: the queue's, 30s)"),
        option("--wait", metavar="TIME", default="0s", help="how long to wait for a task (default not)"),
        option("--worker", metavar="NAME", help="name of the claimer (default host and process)"),
    ),
    _task(
        "complete",
        "report a claimed task as done",
        f"complete {SOME_ID} --token 4711",
        ID,
        TOKEN_OF_CLAIM,
        option("--result", metavar="JSON", help="result to keep with the task, as JSON"),
    ),
    _task(
        "fail",
        "report a claimed task as failed; it is retried as its policy says",
        f"fail {SOME_ID} --token 4711 --error 'no such host' --retry-in 1m",
        ID,
        TOKEN_OF_CLAIM,
        option("--error", default="", metavar="TEXT", help="what went wrong"),
        option("--retry-in", metavar="TIME", help="when to try again (default: the task's backoff)"),
    ),
    _task(
        "renew",
        "prolong a claim",
        f"renew {SOME_ID} --token 4711 --lease 1m",
        ID,
        TOKEN_OF_CLAIM,
        LEASE,
    ),
    _task(
        "cancel",
        "cancel a task that nobody holds, or with --claimed any that is not finished; again is no error",
        f"cancel {SOME_ID} --claimed",
        ID,
        option("--claimed", action="store_true", help="even if it is claimed: its worker is told to stop"),
    ),
    Command(
        "task explain",
        "onyxq.interfaces.cli.past.history:task_explain",
        "everything that happened to a task, in words",
        f"onyxq task explain {SOME_ID}",
        (ID, ARCHIVES),
        talks=True,
    ),
)
