"""The commands of ``onyxq queue``, ``dead`` and ``periodic``, declared."""

from __future__ import annotations

from onyxq.interfaces.cli.commands.task import DATA, FILE, ID, PAGING, PRIORITY, QUEUE_FILTER, SOME_ID
from onyxq.interfaces.cli.parser import Command, Option, option

QUEUE = option("queue", metavar="QUEUE")
BY = option("--by", metavar="NAME", help="who does it (default: you, on this machine)")
WHY = option("--why", metavar="TEXT", help="why; shown with the queue")
WHERE = option("--where", metavar="TEXT", help="only with this text in the error")
NAME = option("name", metavar="NAME")
IDS = option("id", metavar="ID", nargs="*", help="these; else all that the options say")


def _command(name: str, about: str, example: str, *options: Option) -> Command:
    noun = name.partition(" ")[0]
    module = {"queue": "queues"}.get(noun, noun)
    run = f"onyxq.interfaces.cli.{module}:{name.replace(' ', '_')}"
    return Command(name, run, about, f"onyxq {name} {example}".rstrip(), options, talks=True)


QUEUE_COMMANDS: tuple[Command, ...] = (
    _command("queue list", "queues with their depth by state, and which are paused", ""),
    _command("queue show", "one queue's depth by state and its settings", "mail --json", QUEUE),
    _command(
        "queue pause",
        "grant no task of a queue any more; claims in flight go on",
        "mail --why 'the relay is down'",
        QUEUE,
        BY,
        WHY,
    ),
    _command("queue resume", "go on with a paused queue", "mail", QUEUE, BY, WHY),
    _command(
        "queue set",
        "change settings of a queue: paused, lease_ms, retries, backoff_ms, on_dead, retention_ms, grace_ms, rate, "
        "concurrency, key_rate, durability, archive",
        "mail rate=50 concurrency=8 retries=none on_dead=stops lease_ms=1m",
        QUEUE,
        option("settings", metavar="KEY=VALUE", nargs="+", help="a time may be written 30s; default sets one back"),
        BY,
        WHY,
    ),
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
    _command("periodic list", "periodic tasks, and when each is due next", ""),
    _command("periodic show", "one periodic task", "nightly", NAME),
    _command(
        "periodic add",
        "have a task enqueued again and again, or change the one of that name",
        "nightly reports '30 3 * * mon-fri' --zone Europe/Berlin",
        NAME,
        QUEUE,
        option("schedule", metavar="SCHEDULE", help="five cron fields, or 'every 90s', as one argument"),
        option("--zone", default="UTC", metavar="ZONE", help="time zone of the cron fields (default UTC)"),
        DATA,
        FILE,
        PRIORITY,
        option(
            "--missed",
            default="once",
            choices=("skip", "once", "all"),
            metavar="WHAT",
            help="for times at which nobody could enqueue: skip, once (default) or all",
        ),
        option("--paused", action="store_true", help="set it up without starting it"),
    ),
    _command("periodic remove", "end a periodic task; the tasks that it made stay", "nightly", NAME),
    _command("periodic pause", "enqueue none of its tasks until it is resumed", "nightly", NAME),
    _command("periodic resume", "go on with the next time from now", "nightly", NAME),
)
