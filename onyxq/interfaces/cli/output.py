"""What commands print: JSON or tables on stdout, progress and errors on stderr.

Names, payloads and errors of tasks come from strangers. Every printed text passes `visible`, so that
it cannot move the cursor, change the terminal or show text in another order.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

from onyxq.core.errors import OnyxqError
from onyxq.core.texts import visible

if TYPE_CHECKING:
    from onyxq.interfaces.cli.terminal import Terminal

PROGRESS_EVERY_S = 2.0
"""Pause between lines of progress where stderr is not a terminal."""
REDRAW_EVERY_S = 0.1
"""Pause between two drawings of progress on a terminal."""
_FOREIGN = re.compile(r"[^\n -~]+")
CLEAR = "\x1b[H\x1b[J"
"""What moves a terminal's cursor to the top left and clears the screen."""


class Timed(str):
    """A time or an age as text, with the words in which people read it at a terminal."""

    words: str

    def __new__(cls, text: str, words: str) -> Timed:
        made = super().__new__(cls, text)
        made.words = words
        return made


class Output:
    """Print results as text or, with ``--json``, as JSON.

    A terminal gets colours, tables that fit its width, and a progress bar. ``NO_COLOR`` turns colours off.
    """

    def __init__(
        self,
        *,
        as_json: bool,
        environment: Mapping[str, str],
        stdout: IO[str] | None = None,
        stderr: IO[str] | None = None,
    ) -> None:
        self.as_json = as_json
        self.watching = False
        """Whether the same thing is printed again and again."""
        self._stdout = stdout or sys.stdout
        self._stderr = stderr or sys.stderr
        self._no_color = bool(environment.get("NO_COLOR"))
        self._clears = False
        self._terminals: dict[IO[str], Terminal] = {}
        self._progress_at = float("-inf")
        self._progress_text = ""

    def document(self, value: Any) -> None:
        """Print one JSON document, indented; with ``--watch`` in a line of its own."""
        self.end_progress()
        form: dict[str, Any] = {"separators": (",", ":")} if self.watching else {"indent": 2}
        print(json_text(value, **form), file=self._stdout, flush=self.watching)

    def line(self, value: Any, text: str) -> None:
        """Print one item of a stream at once: a JSON line, or the text."""
        self.text(json_text(value, separators=(",", ":")) if self.as_json else text, flush=True)

    def result(self, value: Any, text: str, *, people: str = "") -> None:
        """Print a single result: a JSON document, or the text; ``people``: the text on a terminal, if it differs."""
        if self.as_json:
            self.document(value)
        else:
            self.text(people if people and self.on_terminal else text)

    def text(self, text: str, *, flush: bool = False) -> None:
        """Print text on stdout."""
        self.end_progress()
        print(_lines(text), file=self._stdout, flush=flush)

    def table(
        self,
        value: Any,
        rows: Iterable[Mapping[str, Any]],
        columns: Sequence[str],
        *,
        empty: str = "",
        cut: bool = False,
    ) -> None:
        """Print rows as a table with the named columns, or ``empty``; with ``--json`` the whole ``value``.

        ``cut``: on a terminal, each row is one line, and the last column is cut at its end.
        """
        if self.as_json:
            self.document(value)
            return
        terminal = self._terminal(self._stdout)
        cells = [[cell(_read(row.get(column), terminal)) for column in columns] for row in rows]
        if not cells and empty:
            self.text(empty)
            return
        self.end_progress()
        heads = [visible(column.replace("_", " ")) for column in columns]
        right = [bool(cells) and all(_number(row[i]) for row in cells) for i in range(len(columns))]
        if terminal:
            terminal.table(heads, cells, right, cut=cut)
            return
        widths = [max(map(len, texts)) for texts in zip(heads, *cells, strict=True)]
        for row in (heads, *cells):
            padded = (t.rjust(w) if r else t.ljust(w) for t, w, r in zip(row, widths, right, strict=True))
            print("  ".join(padded).rstrip(), file=self._stdout)

    def fields(self, value: Mapping[str, Any]) -> None:
        """Print one thing, a field per line; with ``--json`` a document."""
        if self.as_json:
            self.document(value)
            return
        self.end_progress()
        terminal = self._terminal(self._stdout)
        fields = [(name.replace("_", " "), _field(item, terminal)) for name, item in value.items()]
        if terminal:
            terminal.fields(fields)
            return
        width = max((len(name) for name, _ in fields), default=0)
        for name, text in fields:
            print(f"{name:<{width}}  " + text.replace("\n", "\n" + " " * (width + 2)), file=self._stdout)

    def progress(self, text: str, done: float | None = None, total: float | None = None) -> None:
        """Show on stderr how far a command is: a bar on a terminal, elsewhere a line every few seconds."""
        terminal, now = self._terminal(self._stderr), time.monotonic()
        if now - self._progress_at < (REDRAW_EVERY_S if terminal else PROGRESS_EVERY_S):
            return
        if not terminal and text == self._progress_text:
            return
        self._progress_at, self._progress_text = now, text
        if terminal:
            terminal.progress(visible(text), done, total)
        else:
            print(visible(text), file=self._stderr, flush=True)

    def again(self) -> None:
        """Prepare to print the same thing again: the next text clears the screen, or follows an empty line."""
        if self._terminal(self._stdout):
            self._clears = True  # with the next text: until then, the old one stays
        elif not self.as_json:
            self.text("")

    def last(self) -> None:
        """Undo `again`: the next text does not clear the screen."""
        self._clears = False

    def note(self, text: str) -> None:
        """Print a line on stderr that stays."""
        self.end_progress()
        print(_lines(text), file=self._stderr, flush=True)

    @property
    def on_terminal(self) -> bool:
        """Whether stdout leads to a terminal."""
        return self._stdout.isatty()

    @property
    def notes_on_terminal(self) -> bool:
        """Whether stderr leads to a terminal."""
        return self._stderr.isatty()

    def log_line(self, text: str, style: str) -> None:
        """Print the text of a log record on stderr, its first line in a style."""
        self.end_progress()
        first, line_break, rest = text.partition("\n")
        self._say(first, style, line_break + rest)

    def error(self, error: OnyxqError) -> None:
        """Print an error and its hint on stderr."""
        self.end_progress()
        hint = error.advice or None
        if self.as_json:
            print(json_text({**error.to_map(), "hint": hint}, default=bytes.hex), file=self._stderr)
            return
        self._say("error: ", "bold red", error.named())
        if hint:
            self._say("hint: ", "bold", hint)

    def end_progress(self) -> None:
        """Remove the bar that `progress` shows, before anything else is printed."""
        for terminal in self._terminals.values():
            terminal.end_progress()
        if self._clears:
            self._clears = False
            print(CLEAR, end="", file=self._stdout)

    def _say(self, start: str, style: str, text: str) -> None:
        if terminal := self._terminal(self._stderr):
            terminal.styled(start, style)
        else:
            print(start, end="", file=self._stderr)
        print(_lines(text), file=self._stderr)

    def _terminal(self, stream: IO[str]) -> Terminal | None:
        """Return the terminal that a stream leads to; rich is loaded only for one."""
        if stream not in self._terminals and stream.isatty():
            from onyxq.interfaces.cli.terminal import Terminal

            self._terminals[stream] = Terminal(stream, colours=not self._no_color)
        return self._terminals.get(stream)


def _lines(text: str) -> str:
    return visible(text, keep="\n")


def json_text(value: Any, **form: Any) -> str:
    """Return JSON in readable UTF-8, with JSON's own escapes for characters that `visible` escapes."""
    text = json.dumps(value, ensure_ascii=False, **form)
    return _FOREIGN.sub(lambda found: "".join(map(_escaped, found[0])), text)


def _escaped(sign: str) -> str:
    if sign.isprintable():
        return sign
    return "\\u007f" if sign == "\x7f" else json.dumps(sign)[1:-1]  # json leaves DEL as it is


def _read(value: Any, terminal: Terminal | None) -> Any:
    return value.words if terminal and isinstance(value, Timed) else value


def _field(value: Any, terminal: Terminal | None) -> str:
    text = cell(value, keep="\n")
    return f"{text} ({value.words})" if terminal and isinstance(value, Timed) else text


def cell(value: Any, *, keep: str = "") -> str:
    """Return a value as text for a table; ``keep``: characters that are not escaped."""
    if value is None or value in ("", []):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return " ".join(f"{visible(str(key))}={cell(item)}" for key, item in value.items()) or "-"
    if isinstance(value, (list, tuple)):
        return ",".join(map(cell, value))
    return visible(str(value), keep=keep)


def _number(text: str) -> bool:
    return text == "-" or text.replace(".", "", 1).replace("-", "", 1).isdigit()
