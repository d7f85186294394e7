"""Entry point of the command line: parse, run the command, turn errors into exit codes."""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

from onyxq.core.errors import OnyxqError, TimedOut, Unavailable
from onyxq.interfaces.cli.commands.all import COMMANDS, NOUNS, SECTIONS
from onyxq.interfaces.cli.context import Context, take_token
from onyxq.interfaces.cli.output import Output
from onyxq.interfaces.cli.parser import Command, build
from onyxq.system.directories import keep_private
from onyxq.system.settings import load, misspelt

EXIT_INTERRUPTED = 130
EXIT_PIPE_CLOSED = 141


def run(arguments: Sequence[str], *, private: bool = False) -> int:
    """Run one command and return its exit code; ``private``: keep its files unreadable for other users."""
    if arguments[:1] == ["help"]:
        arguments = [*arguments[1:], "--help"]
    args, unknown = build(COMMANDS, NOUNS, SECTIONS, words=arguments).parse_known_args(arguments)
    if unknown:
        args.parser.unknown(unknown)
    out = Output(as_json=args.json, environment=os.environ)
    if private and not args.command.runs_others:
        keep_private()
    try:
        take_token(args, out)
        for warning in misspelt(os.environ):
            out.note(warning)
        context = Context(args, load(os.environ, args.config), out)
        code = _body(args.command, again=getattr(args, "watch", False))(context) or 0
        print(end="", flush=True)  # A pipe that its reader closed is noticed here, not at exit. There may be no stdout.
        return code
    except OnyxqError as error:
        return _failed(out, error)
    except BrokenPipeError:
        # The reader of the pipe closed it. Without this, Python would print the same error again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_PIPE_CLOSED
    except (TimeoutError, ConnectionError) as error:
        problem = f"{args.command.name}: {error}"
        return _failed(out, TimedOut(str(error)) if isinstance(error, TimeoutError) else Unavailable(problem))
    except Exception as error:
        if not args.command.runs_others:
            raise
        out.end_progress()
        return _failed_there(error)
    except KeyboardInterrupt:
        out.note("interrupted")
        return EXIT_INTERRUPTED
    finally:
        out.end_progress()


def main() -> NoReturn:
    """Run the console script."""
    sys.exit(run(sys.argv[1:], private=True))


def _body(command: Command, *, again: bool) -> Callable[[Context], int | None]:
    module, _, function = command.run.partition(":")
    body: Callable[[Context], int | None] = getattr(importlib.import_module(module), function)
    if not again:
        return body
    from onyxq.interfaces.cli.live import watched

    return partial(watched, body)


def _failed_there(error: Exception) -> int:
    """Print an error of the user's code, such as one of its syntax, without OnyxQ's frames before it."""
    from onyxq.worker.console import trimmed

    trace = trimmed(error.__traceback__)
    if trace is None and not isinstance(error, SyntaxError):
        trace = error.__traceback__  # an error of OnyxQ itself
    traceback.print_exception(type(error), error, trace)
    return 1


def _failed(out: Output, error: OnyxqError) -> int:
    out.error(error)
    return error.exit_code
