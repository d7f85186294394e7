"""The commands of ``onyxq dead``, declared."""

from __future__ import annotations

from onyxq.interfaces.cli.commands.task import ID, PAGING, QUEUE_FILTER, SOME_ID
from onyxq.interfaces.cli.parser import Command, Option, option

WHERE = option("--where", metavar="TEXT", help="only with this text in the error")
IDS = option("id", metavar="ID", nargs="*", help="these; else all that the options say")


def _command(name: str, about: str, example: str, *options: Option) -> Command:
    run = f"onyxq.interfaces.cli.dead:{name.replace(' ', '_')}"
    return Command(name, run, about, f"onyxq {name} {example}".rstrip(), options, talks=True)


DEAD_COMMANDS: tuple[Command, ...] = (
    _command(
        "dead list", "dead letters in id order", "--queue mail --where 'no such host'", QUEUE_FILTER, WHERE, *PAGING
    ),
    _command("dead show", "one dead letter and its claims", SOME_ID, ID),
    _command(
        "dead requeue",
        "have dead letters run again, with all their retries",
        "--queue mail --where 'no such host'",
        IDS,
        QUEUE_FILTER,
        WHERE,
        option("--all", action="store_true", help="every dead letter of every queue"),
    ),
    _command(
        "dead discard",
        "give dead letters up: they are cancelled",
        "--queue mail --where 'no such user'",
        IDS,
        QUEUE_FILTER,
        WHERE,
        option("--all", action="store_true", help="every dead letter of every queue"),
    ),
)
