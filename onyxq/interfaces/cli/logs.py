"""The server log of long-running commands, on stderr: lines of text or JSON, without secrets."""

from __future__ import annotations

import json
import logging
import textwrap
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from onyxq.core.errors import BadRequest
from onyxq.core.texts import visible
from onyxq.interfaces.cli.context import Context
from onyxq.interfaces.cli.output import Output, json_text
from onyxq.system.settings import SECRET

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
ABOUT_THE_TASK = ("task_id", "task_name", "task_queue", "task_attempt", "outcome", "duration_ms")
STYLES = {"ERROR": "red", "WARNING": "yellow"}
NONE, HIDDEN = "-", "(hidden)"
SECRET_CHARS_MIN = 6
"""Length below which a secret is not hidden: it would be found in harmless words."""


def set_up(context: Context, text: str = TEXT, *, console: bool = False) -> None:
    """Start to log as the settings say; ``text``: format of a line of text. Raises `BadRequest`.

    ``console``: on a terminal, print short coloured lines for the person who started the command.
    """
    form, level = _one_of(context, "log_format", FORMATS), _one_of(context, "log_level", LEVELS)
    handler: logging.Handler = logging.StreamHandler()
    formatter = JsonLines() if form == "json" else TextLines(text)
    if console and form == "text" and context.out.notes_on_terminal:
        handler, formatter = TerminalHandler(context.out), TerminalLines()
    handler.setFormatter(Hiding(formatter, secrets_of(context)))
    logging.basicConfig(level=level.upper(), handlers=[handler])


def _one_of(context: Context, name: str, known: tuple[str, ...]) -> str:
    value = context.text(name).lower()
    if value not in known:
        raise BadRequest(f"{name} must be one of {', '.join(known)}, not {value!r}", field=name)
    return value


def secrets_of(context: Context) -> list[str]:
    """Return all secrets in the settings, also the parts of token lists and of names with passwords."""
    found: set[str] = set()
    for name in SECRET:
        value = context.text(name)
        found |= {value, *(one.partition("=")[0] for one in value.split()), value.rpartition(":")[2]}
    return [one for one in found if len(one) >= SECRET_CHARS_MIN]


class Hiding(logging.Formatter):
    """A formatter that hides secrets in the lines of another formatter."""

    def __init__(self, inner: logging.Formatter, secrets: Iterable[str]) -> None:
        super().__init__()
        self._inner = inner
        written = {one for secret in secrets for one in (secret, json.dumps(secret)[1:-1], repr(secret)[1:-1])}
        self._secrets = sorted(written, key=len, reverse=True)

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a message."""
        line = self._inner.format(record)
        for secret in self._secrets:
            line = line.replace(secret, HIDDEN)
        return line


class TextLines(logging.Formatter):
    """A formatter of one line per message. Text of callers cannot start a line that looks like a message.

    The lines of a traceback after a message are indented.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:  # logging calls it by this name
        """Return the line of a message."""
        record.message = visible(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        """Return the indented lines of a traceback."""
        lines = map(visible, super().formatException(ei).splitlines())
        return textwrap.indent("\n".join(lines), "  ", lambda line: True)


class TerminalLines(TextLines):
    """A formatter of short lines for a person: time of day, message, and the running task."""

    def __init__(self) -> None:
        super().__init__(datefmt="%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # logging calls it by this name
        """Return the line of a message."""
        level = (
            "" if record.levelno < logging.WARNING or hasattr(record, "outcome") else f"{record.levelname.lower()}: "
        )
        mark = getattr(record, "task_mark", "")
        return f"{self.formatTime(record, self.datefmt)} {level}{visible(record.message)}{visible(mark)}"


class TerminalHandler(logging.Handler):
    """A handler that prints on the terminal, warnings and errors in colour."""

    def __init__(self, out: Output) -> None:
        super().__init__()
        self._out = out

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record."""
        self._out.log_line(self.format(record), STYLES.get(record.levelname, ""))


class JsonLines(logging.Formatter):
    """A formatter of one JSON object per line: time, level, logger, message, traceback, and the task, if any."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line of a message."""
        said: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
        }
        if record.exc_info:
            said["error"] = self.formatException(record.exc_info)
        for name in ABOUT_THE_TASK:
            value = getattr(record, name, NONE)
            if value != NONE:
                said[name] = value
        return json_text(said, default=str)
