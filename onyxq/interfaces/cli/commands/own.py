"""Commands on dead letters, timers and jobs whose options are not the arguments of one operation, declared."""

from __future__ import annotations

from onyxq.interfaces.cli.commands.task import ID, QUEUE_FILTER, SOME_ID
from onyxq.interfaces.cli.parser import Command, Option, option

CHOSEN = (
    option("id", metavar="ID", nargs="*", help="these; else all that the options name"),
    QUEUE_FILTER,
    option("--where", metavar="TEXT", help="only with this text in the error"),
    option("--all", action="store_true", help="every dead letter of every queue"),
)
TIMER = option("id", metavar="ID", help="the timer's id")
CALLBACK = (
    option("--in", dest="timeout", required=True, metavar="TIME", help="due that much later, such as 10s or 5m"),
    option("--uri", required=True, metavar="URI", help="http://HOST/PATH, https://..., or tcp://HOST:PORT"),
    option("--transport", default="http", metavar="NAME", help="http (default), tcp, or one that peers have installed"),
    option("--method", default="POST", metavar="METHOD", help="of HTTP (default POST)"),
    option("--data", metavar="JSON", help="an object, sent as JSON"),
    option("--text", metavar="TEXT", help="a text, sent as it is as form data"),
)
TIMEOUT = option("--timeout", metavar="TIME", help="give up after that, with exit code 6 (default: a day)")


def _command(name: str, about: str, example: str, *options: Option) -> Command:
    module = {"job": "jobs"}.get(noun := name.partition(" ")[0], noun)
    run = f"onyxq.interfaces.cli.{module}:{name.replace(' ', '_')}"
    return Command(name, run, about, f"onyxq {name} {example}", options, talks=True)


OWN_COMMANDS: tuple[Command, ...] = (
    _command("dead show", "one dead letter and its claims", SOME_ID, ID),
    _command(
        "dead requeue",
        "requeue dead letters, with all their retries",
        "--queue mail --where 'no such host'",
        *CHOSEN,
    ),
    _command(
        "dead discard", "discard dead letters: they are cancelled", "--queue mail --where 'no such user'", *CHOSEN
    ),
    _command(
        "timer add",
        "set a timer: a callback that is made once its time has come",
        """--in 10m --uri https://shop.example/remind --data '{"order": 7}'""",
        option("--id", metavar="ID", help="the timer's id (default: one is made)"),
        *CALLBACK,
    ),
    _command(
        "timer replace",
        "replace a timer that has not fired",
        "order-7 --in 5m --uri https://shop.example",
        TIMER,
        *CALLBACK,
    ),
    _command(
        "job submit",
        "have a job run on Spark; the same job under the same id again is the same job",
        "pipelines.py:job --id words --wait",
        option("target", metavar="FILE.py:NAME", help="where the onyxq.Job is; or MODULE:NAME"),
        option("--id", metavar="ID", help="instead of the one that the job has"),
        option("--wait", action="store_true", help="until it has ended; exit code 1 unless it completed"),
        TIMEOUT,
        option("--keep", metavar="TIME", help="how long its outcome is kept after it has ended (default 7d)"),
        option("--no-import", action="store_true", help="do not look here whether named functions can be imported"),
    ),
    _command(
        "job wait",
        "wait until it has ended; exit code 1 unless it completed",
        "words --timeout 10m",
        option("id", metavar="ID", help="id of the job"),
        TIMEOUT,
    ),
)
