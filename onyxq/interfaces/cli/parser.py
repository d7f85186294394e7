"""The argument parser, built from the declared commands, with suggestions for typing errors.

A command is data (`Command`). It names its body and does not import it, so ``--help`` and usage errors
load no other part of OnyxQ.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NoReturn, TypeAlias

from attrs import field, frozen

from onyxq import __version__
from onyxq.operations.table.operation import Operation, Verb
from onyxq.system.settings import SETTINGS, did_you_mean

EXIT_USAGE = 2
EXIT_CODES = "exit codes: 0 done, 1 failed, 2 usage, 3 not found, 4 conflict, 5 unavailable, 6 timed out"

Option: TypeAlias = tuple[tuple[str, ...], dict[str, Any]]

_NEGATIVE = re.compile(r"-[\d.]")
"""Beginning of a negative number or duration, which is the value of an option. No option begins like this."""
_NO_COMMAND = "the following arguments are required: COMMAND"
USUAL_NAMES = {
    "status": ("top", "show", "list"),
    "get": ("show",),
    "ls": ("list",),
    "delete": ("remove", "purge", "discard", "cancel", "destroy", "kill"),
}
"""Names of commands in other programs, and ours for the same thing: the first one that there is."""
_CHOICE = re.compile(r"argument (?P<place>.*?): invalid choice: '(?P<word>.*?)' \(choose from (?P<all>.*)\)")


def option(*flags: str, **details: Any) -> Option:
    """Return an argument of a command, in the form of `argparse.ArgumentParser.add_argument`."""
    return flags, details


TLS_SETTINGS = ("tls_ca", "tls_cert", "tls_key")
LIMIT_SETTINGS = ("request_timeout_ms", "connect_timeout_ms")
"""Settings of every command that talks to a peer."""


def setting(name: str, **details: Any) -> Option:
    """Return the flag of a setting. Its default is None, because the value may come from another source."""
    known = SETTINGS[name]
    if known.kind is bool:
        switch = {"action": argparse.BooleanOptionalAction, "default": None, "help": known.about, **details}
        return ("--" + name.replace("_", "-"),), switch
    if known.kind is int:
        details = {"type": int, "metavar": "MS" if name.endswith("_ms") else "N", **details}
    shown = f" (default {known.default})" if known.default not in (None, "") else ""
    details.setdefault("help", known.about + shown)
    return ("--" + name.replace("_", "-"),), {"default": None, "metavar": name.upper(), **details}


@frozen
class Command:
    """One command: ``run`` is the ``module:function`` that gets a `onyxq.interfaces.cli.context.Context`."""

    name: str
    """``noun verb``, or only a verb."""
    run: str
    about: str
    example: str
    options: Callable[[], Sequence[Option]]
    """What it takes. Called only for a command that the command line may name."""
    runs_others: bool = False
    """Whether the command runs code of the user. Files of that code follow the user's umask."""
    talks: bool = False
    """Whether the command talks to a peer, and so has ``--connect`` and ``--token``."""
    row: tuple[Operation[Any, Any], Verb] | None = None
    """The operation from which the command is made, and the operation's form as a command."""
    sections: Mapping[str, Sequence[str]] = field(factory=dict)
    """Title of each section of a long list of options -> settings; other options come first."""


def local_command(name: str, run: str, about: str, example: str, *options: Option, **details: Any) -> Command:
    """Return a command; ``run``: module and function in this package, ``example``: arguments of an example."""
    whole = f"onyxq {name} {example}".rstrip()
    return Command(name, f"onyxq.interfaces.cli.{run}", about, whole, lambda: options, **details)


peer_command = partial(local_command, talks=True)
"""The same, for a command that talks to a peer."""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help that keeps the line breaks of examples, and short options on one line."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=28)


class Parser(argparse.ArgumentParser):
    """An argument parser that suggests what was probably meant."""

    def __init__(self, **details: Any) -> None:
        details.setdefault("formatter_class", _Help)
        super().__init__(allow_abbrev=False, **details)
        self._negative_number_matcher = _NEGATIVE
        self.sections: dict[str, dict[str, str]] = {}
        """Titles of the sections of its list of commands -> command -> what it does; none: the list has no sections."""

    def format_help(self) -> str:
        """Return the help, with the list of commands in its sections."""
        if self.sections:
            self.description = f"{self.description}\n\n{_listed(self.sections)}"
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        """Print a message with suggestions, and exit with the code of a usage error; without a command, print help."""
        if message == _NO_COMMAND:
            self.print_help(sys.stderr)
            sys.exit(EXIT_USAGE)
        print(f"{self.prog}: {self._friendly(message)}", file=sys.stderr)
        print(f"hint: {self.prog} --help shows all commands and options.", file=sys.stderr)
        sys.exit(EXIT_USAGE)

    def unknown(self, words: Sequence[str]) -> NoReturn:
        """Refuse arguments that the command does not have."""
        self.error("unrecognized arguments: " + " ".join(words))

    def _friendly(self, message: str) -> str:
        choice = _CHOICE.match(message)
        if choice:
            known = [word.strip(" '") for word in choice["all"].split(",")]
            place = "command" if choice["place"] == "COMMAND" else choice["place"]
            usual = next((one for one in USUAL_NAMES.get(choice["word"], ()) if one in known), None)
            meant = (
                f"; did you mean {usual}?"
                if usual
                else did_you_mean(choice["word"], known) or f"; choose from {', '.join(known)}"
            )
            return f"{place}: there is no {choice['word']!r}{meant}"
        if message.startswith("unrecognized arguments: "):
            word = message.split(": ", 1)[1].split()[0].partition("=")[0]
            flags = {flag: action.metavar for action in self._actions for flag in action.option_strings}
            if not word.startswith("-") and flags.get("--data") == "JSON":
                return f"{message}; write data as --data '{json.dumps(word)}'"
            return message + did_you_mean(word, flags)
        return message


def _sentence(about: str) -> str:
    return f"{about[0].upper()}{about[1:]}."


class _Version(argparse.Action):
    """The option that prints the version."""

    def __call__(self, *_: Any) -> NoReturn:
        print(f"onyxq {__version__}")
        sys.exit(0)


def build(
    commands: Iterable[Command],
    nouns: Mapping[str, str],
    sections: Mapping[str, Sequence[str]] | None = None,
    *,
    words: Collection[str] | None = None,
) -> Parser:
    """Return the parser of all commands. It puts the parsed command into ``args.command``.

    ``sections``: title -> first words of commands, for the help.
    ``words``: the command line. If given, only the commands that it may name are made whole, which is quicker.
    """
    top = Parser(
        prog="onyxq",
        description="A distributed task queue on a replicated log.",
        epilog=f"onyxq COMMAND --help shows its options and an example.\n\n{EXIT_CODES}",
    )
    top.add_argument("--version", action=_Version, nargs=0, default=argparse.SUPPRESS, help="print the version")
    shown: dict[str, Any] = {"title": "commands"}
    if sections:
        top.usage, shown = "onyxq [-h] [--version] COMMAND ...", {"prog": "onyxq", "help": argparse.SUPPRESS}
    verbs = top.add_subparsers(metavar="COMMAND", required=True, parser_class=Parser, **shown)
    groups: dict[str, Any] = {}
    about: dict[str, str] = {}
    for command in commands:
        noun, _, verb = command.name.rpartition(" ")
        about.setdefault(noun or verb, nouns.get(noun, command.about))
        if noun and noun not in groups:
            group = verbs.add_parser(
                noun, help=nouns[noun], description=_sentence(nouns[noun]), epilog=f"example: {command.example}"
            )
            groups[noun] = group.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
        if noun and words is not None and noun not in words:
            continue
        parser = (groups[noun] if noun else verbs).add_parser(
            verb, help=command.about, description=_sentence(command.about), epilog=f"example: {command.example}"
        )
        if words is None or verb in words:
            _add_options(parser, command)
    top.sections = {title: {name: about[name] for name in names} for title, names in (sections or {}).items()}
    return top


def _listed(sections: Mapping[str, Mapping[str, str]]) -> str:
    """Return a list of commands in sections, in lines that fit the terminal."""
    import shutil
    import textwrap

    width, lines = shutil.get_terminal_size().columns - 2, list[str]()
    for title, commands in sections.items():
        lines += [f"{title}:"]
        for name, text in commands.items():
            lines += textwrap.wrap(f"{name:<11} {text}", width, initial_indent="  ", subsequent_indent=" " * 14)
        lines += [""]
    return "\n".join(lines[:-1])


def _positional(known: Option) -> str:
    """Return how the usage shows an argument; nothing for an option."""
    (name, *_), details = known
    shown = "" if name.startswith("-") else str(details.get("metavar") or name)
    return f"[{shown}]" if details.get("nargs") == "?" else shown


def _add_options(parser: Parser, command: Command) -> None:
    options = command.options()
    places: dict[str, Any] = {}
    for title, names in command.sections.items():
        places |= dict.fromkeys(names, parser.add_argument_group(title))
    for flags, details in options:
        places.get(flags[0].lstrip("-").replace("-", "_"), parser).add_argument(*flags, **details)
    if command.sections:
        parser.usage = " ".join(["%(prog)s [OPTION ...]", *map(_positional, options)]).rstrip()
    common = parser.add_argument_group("common options")
    if command.talks:
        flags, details = setting("connect", metavar="HOST:PORT")
        common.add_argument(*flags, **details)
        # In commands on a claim, --token is the fencing token. There the credential is only --auth-token.
        taken = any("--token" in flags for flags, _ in options)
        flags, details = setting("token", dest="token")
        details["help"] += "; other users of this machine can see it: --token-file is safer"
        common.add_argument(*(() if taken else flags), "--auth-token", **details)
        common.add_argument("--token-file", metavar="FILE", help="private file with the credential, or - for stdin")
        asked = [setting(name, metavar="FILE") for name in TLS_SETTINGS] + [setting(name) for name in LIMIT_SETTINGS]
        for flags, details in asked:
            if not any(flags == known for known, _ in options):
                common.add_argument(*flags, **details)
    common.add_argument(
        "--json", action="store_true", help="print JSON: one document, or one line for each item of a stream"
    )
    common.add_argument("--config", metavar="FILE", help="file of settings (default: ONYXQ_CONFIG, else onyxq.toml)")
    parser.set_defaults(command=command, parser=parser)
