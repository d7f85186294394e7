"""The commands of ``onyxq timer``, declared."""

from __future__ import annotations

from onyxq.interfaces.cli.commands.task import PAGING
from onyxq.interfaces.cli.parser import Command, Option, option

STATES = ("scheduled", "ready", "claimed", "fired", "failed", "cancelled")
ID = option("id", metavar="ID", help="the timer's id")
CALLBACK = (
    option("--in", dest="timeout", required=True, metavar="TIME", help="due that much later, such as 10s or 5m"),
    option("--uri", required=True, metavar="URI", help="http://HOST/PATH, https://..., or tcp://HOST:PORT"),
    option("--transport", default="http", metavar="NAME", help="http (default), tcp, or one that peers have installed"),
    option("--method", default="POST", metavar="METHOD", help="of HTTP (default POST)"),
    option("--data", metavar="JSON", help="an object, sent as JSON"),
    option("--text", metavar="TEXT", help="a text, sent as it is as form data"),
)


def _timer(verb: str, about: str, example: str, *options: Option) -> Command:
    run = f"onyxq.interfaces.cli.timer:timer_{verb}"
    return Command(f"timer {verb}", run, about, f"onyxq timer {verb} {example}".rstrip(), options, talks=True)


TIMER_COMMANDS: tuple[Command, ...] = (
    _timer(
        "add",
        "have a callback made once a time has come",
        """--in 10m --uri https://shop.example/remind --data '{"order": 7}'""",
        option("--id", metavar="ID", help="the timer's id (default: one is made)"),
        *CALLBACK,
    ),
    _timer("show", "one timer, and what became of it", "order-7", ID),
    _timer(
        "list",
        "timers in the order in which they fall due",
        "--state scheduled",
        option("--state", choices=STATES, metavar="STATE", help=", ".join(STATES)),
        *PAGING,
    ),
    _timer(
        "replace", "set a timer anew that has not fired", "order-7 --in 5m --uri https://shop.example", ID, *CALLBACK
    ),
    _timer("cancel", "cancel a timer that has not fired", "order-7", ID),
)
