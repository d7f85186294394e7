"""What commands print: JSON or tables on stdout, progress and errors on stderr.

Names, payloads and errors of tasks come from strangers. All that is printed passes `visible`, so that
none of them moves the cursor, changes the terminal or shows text in another order.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

from onyxq.core.errors import OnyxqError
from onyxq.core.texts import visible

PROGRESS_EVERY_S = 2.0
"""Between lines of progress that are not written over."""
BOLD, RED, PLAIN = "\x1b[1m", "\x1b[31m", "\x1b[0m"
_FOREIGN = re.compile(r"[^\n -~]+")


class Output:
    """Prints results in the form that was asked for.

    Colours appear on terminals only, and not where ``NO_COLOR`` is set to anything.
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
        self._stdout = stdout or sys.stdout
        self._stderr = stderr or sys.stderr
        self._no_color = bool(environment.get("NO_COLOR"))
        self._progress_shown = False
        self._progress_at = -PROGRESS_EVERY_S

    def document(self, value: Any) -> None:
        """One JSON document, indented for reading."""
        print(json_text(value, indent=2), file=self._stdout)

    def line(self, value: Any, text: str) -> None:
        """One item of a stream: a JSON line or a line of text, seen at once."""
        shown = json_text(value, separators=(",", ":")) if self.as_json else _lines(text)
        print(shown, file=self._stdout, flush=True)

    def result(self, value: Any, text: str) -> None:
        """A single result: as a document or as text."""
        if self.as_json:
            self.document(value)
        else:
            print(_lines(text), file=self._stdout)

    def table(self, value: Any, rows: Iterable[Mapping[str, Any]], columns: Sequence[str], *, empty: str = "") -> None:
        """Rows as a table with the named columns; with ``--json`` the whole ``value``."""
        if self.as_json:
            self.document(value)
            return
        cells = [[cell(row.get(column)) for column in columns] for row in rows]
        if not cells and empty:
            print(_lines(empty), file=self._stdout)
            return
        for text in layout(columns, cells, bold=self._colour(self._stdout)):
            print(text, file=self._stdout)

    def fields(self, value: Mapping[str, Any]) -> None:
        """One thing, a field per line; with ``--json`` a document."""
        if self.as_json:
            self.document(value)
            return
        width = max(map(len, value), default=0)
        for name, item in value.items():
            shown = cell(item, keep="\n").replace("\n", "\n" + " " * (width + 2))
            print(f"{name.replace('_', ' '):<{width}}  {shown}", file=self._stdout)

    def progress(self, text: str) -> None:
        """Say on stderr how far it is: on a terminal one line written over, else now and then a line."""
        text = visible(text)
        if self._stderr.isatty():
            print(f"\r\x1b[K{text}", end="", file=self._stderr, flush=True)
            self._progress_shown = True
        elif time.monotonic() - self._progress_at >= PROGRESS_EVERY_S:
            self._progress_at = time.monotonic()
            print(text, file=self._stderr, flush=True)

    def note(self, text: str) -> None:
        """A line on stderr that stays."""
        self._end_progress()
        print(_lines(text), file=self._stderr, flush=True)

    def error(self, error: OnyxqError) -> None:
        """An error and what to do about it, on stderr."""
        self._end_progress()
        if self.as_json:
            print(json_text(error.to_map(), default=bytes.hex), file=self._stderr)
            return
        start, end = (RED, PLAIN) if self._colour(self._stderr) else ("", "")
        print(f"{start}error:{end} {_lines(error.named())}", file=self._stderr)
        if error.advice:
            print(f"hint: {_lines(error.advice)}", file=self._stderr)

    def _end_progress(self) -> None:
        if self._progress_shown:
            print(file=self._stderr)
            self._progress_shown = False

    def _colour(self, stream: IO[str]) -> bool:
        return stream.isatty() and not self._no_color


def _lines(text: str) -> str:
    return visible(text, keep="\n")


def json_text(value: Any, **form: Any) -> str:
    """Return JSON in readable UTF-8; signs that `visible` would escape are escaped as JSON does it."""
    text = json.dumps(value, ensure_ascii=False, **form)
    return _FOREIGN.sub(lambda found: "".join(map(_escaped, found[0])), text)


def _escaped(sign: str) -> str:
    if sign.isprintable():
        return sign
    return "\\u007f" if sign == "\x7f" else json.dumps(sign)[1:-1]  # json leaves DEL as it is


def cell(value: Any, *, keep: str = "") -> str:
    """A value as it stands in a table; ``keep``: signs that `visible` would escape."""
    if value is None or value in ("", []):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, dict):
        return " ".join(f"{visible(str(key))}={cell(item)}" for key, item in value.items()) or "-"
    if isinstance(value, (list, tuple)):
        return ",".join(map(cell, value))
    return visible(str(value), keep=keep)


def layout(columns: Sequence[str], rows: Sequence[Sequence[str]], *, bold: bool = False) -> list[str]:
    """Lines of a table: numbers to the right, all else to the left."""
    widths = [max([len(name), *(len(row[i]) for row in rows)]) for i, name in enumerate(columns)]
    right = [all(_number(row[i]) for row in rows) and bool(rows) for i in range(len(columns))]

    def line(cells: Sequence[str]) -> str:
        padded = (c.rjust(w) if r else c.ljust(w) for c, w, r in zip(cells, widths, right, strict=True))
        return "  ".join(padded).rstrip()

    head = line([name.replace("_", " ") for name in columns])
    return [f"{BOLD}{head}{PLAIN}" if bold else head, *map(line, rows)]


def _number(text: str) -> bool:
    return text == "-" or text.replace(".", "", 1).replace("-", "", 1).isdigit()
