"""The commands that follow from the table of operations: arguments, options and help are an operation's."""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec import inspect

from onyxq.core.limits import Member
from onyxq.interfaces.cli.commands.task import DATA, FILE, OLDEST_FIRST, PAGING, WATCH
from onyxq.interfaces.cli.parser import Command, Option, option
from onyxq.operations.table.everything import OPERATIONS
from onyxq.operations.table.operation import Operation, Verb

RUN = "onyxq.interfaces.cli.operations:run"


def command_of(operation: Operation[Any, Any], verb: Verb) -> Command:
    """Return the command for one verb of an operation."""
    example = f"onyxq {verb.name} {verb.example}".rstrip()
    options = partial(_all_options, operation, verb)
    return Command(verb.name, verb.run or RUN, verb.about, example, options, talks=True, row=(operation, verb))


def _all_options(operation: Operation[Any, Any], verb: Verb) -> list[Option]:
    options = [one for member in offered(operation, verb) for one in _options(member, verb)]
    if verb.pairs:
        about = f"{', '.join(setting_names(operation, verb))}; a time may be written 30s; default resets a setting"
        options.insert(1, option("settings", metavar="KEY=VALUE", nargs="+", help=about))
    options += PAGING if verb.pages else ()
    options += [OLDEST_FIRST] if verb.pages and "newest_first" in operation.members else []
    waits = any("--timeout" in flags for flags, _ in verb.more)
    options += WATCH if operation.reads and not waits else ()
    options += [option(*flags, **details) for flags, details in verb.more]
    return options


def offered(operation: Operation[Any, Any], verb: Verb) -> list[Member]:
    """Return the arguments that the command has, those that are positional first."""
    known = operation.members
    paging = ("after", "limit", "newest_first") if verb.pages else ()
    wanted = known if verb.fields is None else verb.fields
    names = [name for name in wanted if name not in (*verb.fixed, *paging)]
    has_data = any("data" in known[name].marks for name in names)
    found = [known[name] for name in names if not (has_data and name == "format")]
    return sorted(found, key=lambda member: not is_positional(member, verb))


def is_positional(member: Member, verb: Verb) -> bool:
    """Return whether an argument is given by its place."""
    return member.required or member.name in verb.positional


def setting_names(operation: Operation[Any, Any], verb: Verb) -> list[str]:
    """Return the names that KEY may be."""
    return [name for name in operation.members if name not in (verb.fields or ())]


def _options(member: Member, verb: Verb) -> list[Option]:
    if "data" in member.marks:
        return [DATA, FILE]
    about = member.about[:1].lower() + member.about[1:].partition(". ")[0].removesuffix(".")
    whole = isinstance(member.node, inspect.IntType) and "ms" not in member.name.split("_")
    number = {"type": int} if whole and "null" not in member.marks else {}  # null may be a word, such as none
    if is_positional(member, verb):
        return [option(member.name, metavar=member.name.upper(), help=about or None, **number)]
    name = member.name.removesuffix("_ms") if "moment" in member.marks else member.name
    flag = f"--{name.replace('_', '-')}"
    if "moment" in member.marks:
        about += ": such as 2031-05-01T12:00, or 1h for an hour ago"
    if isinstance(member.node, inspect.BoolType):
        return [option(flag, action="store_true", default=None, help=about)]
    if "caller" in member.marks:
        about += " (default: your user name and this machine)"
    elif member.default not in (None, ""):
        about += f" (default {member.default})"
    if isinstance(member.node, inspect.LiteralType):
        return [option(flag, choices=member.node.values, help=about)]
    return [option(flag, dest=member.name, metavar=name.upper(), help=about, **number)]


OPERATION_COMMANDS: tuple[Command, ...] = tuple(command_of(one, verb) for one in OPERATIONS for verb in one.verbs)
