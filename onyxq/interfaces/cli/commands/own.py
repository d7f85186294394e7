"""Commands on dead letters, timers and jobs whose options are not the arguments of one operation, declared."""

from __future__ import annotations

from onyxq.interfaces.cli.commands.task import ID, QUEUE_FILTER, SOME_ID
from onyxq.interfaces.cli.parser import Command, option, peer_command

CHOSEN = (
    option("id", metavar="ID", nargs="*", help="ids of dead letters; without ids, the options choose them"),
    QUEUE_FILTER,
    option("--where", metavar="TEXT", help="only dead letters with this text in the error"),
    option("--all", action="store_true", help="every dead letter of every queue"),
)
TIMER = option("id", metavar="ID", help="id of the timer")
CALLBACK = (
    option(
        "--in",
        dest="timeout",
        required=True,
        metavar="TIME",
        help="time from now until the callback, such as 10s or 5m",
    ),
    option("--uri", required=True, metavar="URI", help="receiver: http://HOST/PATH, https://..., or tcp://HOST:PORT"),
    option(
        "--transport",
        default="http",
        metavar="NAME",
        help="http (default), tcp, or the name of a transport that is installed at the peers",
    ),
    option("--method", default="POST", metavar="METHOD", help="HTTP method (default POST)"),
    option("--data", metavar="JSON", help="JSON object for the receiver"),
    option("--text", metavar="TEXT", help="body for the receiver, sent unchanged with the content type of form data"),
)
TIMEOUT = option("--timeout", metavar="TIME", help="longest wait; then exit with code 6 (default: one day)")


OWN_COMMANDS: tuple[Command, ...] = (
    peer_command("dead show", "dead:dead_show", "show one dead letter and its claims", SOME_ID, ID),
    peer_command(
        "dead requeue",
        "dead:dead_requeue",
        "requeue dead letters: run them again, with all their retries",
        "--queue mail --where 'no such host'",
        *CHOSEN,
    ),
    peer_command(
        "dead discard",
        "dead:dead_discard",
        "discard dead letters: cancel them for good",
        "--queue mail --where 'no such user'",
        *CHOSEN,
    ),
    peer_command(
        "timer add",
        "timer:timer_add",
        "set a timer: make a callback at a later time",
        """--in 10m --uri https://shop.example/remind --data '{"order": 7}'""",
        option("--id", metavar="ID", help="id of the timer (default: a random one)"),
        *CALLBACK,
    ),
    peer_command(
        "timer replace",
        "timer:timer_replace",
        "replace a timer that has not fired",
        "order-7 --in 5m --uri https://shop.example",
        TIMER,
        *CALLBACK,
    ),
    peer_command(
        "job submit",
        "jobs:job_submit",
        "run a job on Spark; submitting it again under the same id changes nothing",
        "pipelines.py:job --id words --wait",
        option("target", metavar="FILE.py:NAME", help="file and name of the onyxq.Job; or MODULE:NAME"),
        option("--id", metavar="ID", help="id of the job (default: the id in its source)"),
        option("--resume", metavar="ID", help="take over the windows, joins and places of this job"),
        option("--from-savepoint", metavar="NAME", help="begin from this savepoint of another job"),
        option("--replace", action="store_true", help="end the job of --resume by the same step"),
        option(
            "--drop-state",
            metavar="NAME",
            action="append",
            help="begin this window, join or frame task empty, with --resume or --from-savepoint",
        ),
        option("--wait", action="store_true", help="wait until the job has ended; exit code 1 unless it completed"),
        TIMEOUT,
        option("--keep", metavar="TIME", help="how long the outcome is kept after the end of the job (default 7d)"),
        option(
            "--no-import",
            action="store_true",
            help="do not check on this machine that the functions of the job can be imported",
        ),
    ),
    peer_command(
        "job replay",
        "jobs:job_replay",
        "start a job that reads the inputs of another one again",
        "visits --from 2026-05-01T12:00:00 --output daily=/data/daily-again",
        option("id", metavar="ID", help="id of the job whose inputs are read again"),
        option(
            "--from",
            dest="begin",
            required=True,
            metavar="PLACE",
            help="where inputs begin: start (all that they still have), the number of a batch of the job, or an ISO "
            "8601 time, from which on files were modified or messages of Kafka were sent",
        ),
        option("--id", dest="new_id", metavar="NEW", help="id of the new job (default: made from ID)"),
        option(
            "--output",
            metavar="NAME=PLACE",
            action="append",
            help="give this output another queue, path, table or topic; once for each output",
        ),
        option("--same-outputs", action="store_true", help="all other outputs keep their places, and get rows again"),
        option("--wait", action="store_true", help="wait until the job has ended; exit code 1 unless it completed"),
        TIMEOUT,
        option("--keep", metavar="TIME", help="how long the outcome is kept after the end of the job (default 7d)"),
    ),
    peer_command(
        "job wait",
        "jobs:job_wait",
        "wait until a job has ended; exit code 1 unless it completed",
        "words --timeout 10m",
        option("id", metavar="ID", help="id of the job"),
        TIMEOUT,
    ),
)
