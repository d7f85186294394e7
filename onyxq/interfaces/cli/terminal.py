"""Output on a terminal, with rich: tables that fit the width, colours, a bar for progress."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import IO

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

UNLIMITED_WIDTH = 1 << 20
"""Width in columns at which no line is broken."""
GAP = 2
"""Blanks between columns."""
CUT_MIN = 10
"""Narrowest column that is cut: the longest heading is as wide."""
STATE_COLUMNS = ("state", "outcome")
STYLES = {
    **dict.fromkeys(("ok", "completed", "joined", "fired"), "green"),
    **dict.fromkeys(("claimed", "running", "busy"), "cyan"),
    **dict.fromkeys(("scheduled", "waiting"), "blue"),
    **dict.fromkeys(("warning", "cancelled", "killed", "expired"), "yellow"),
    **dict.fromkeys(("failed", "unknown"), "bold red"),
}
"""Style of a state, in the notation of rich; other states have none."""


class Terminal:
    """Print texts that contain no control characters on a terminal."""

    def __init__(self, stream: IO[str], *, colours: bool) -> None:
        self._stream = stream
        self._console = Console(
            file=stream,
            force_terminal=True,
            color_system="auto" if colours else None,
            highlight=False,
            markup=False,
            emoji=False,
        )
        self._bar: Progress | None = None

    def table(
        self, columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool], *, cut: bool = False
    ) -> None:
        """Print rows as a table, or one below the other if words do not fit; ``right``: how columns are aligned.

        ``cut``: each row is one line, and the last column is cut at the end of the line.
        """
        if cut and (room := self._console.width - _width(columns, rows)) >= CUT_MIN:
            rows = [(*row[:-1], _cut(row[-1], room)) for row in rows]
        table = _grid(header=True)
        for number, name in enumerate(columns):
            # A column of single words keeps its width. Where there are blanks, lines may be broken.
            whole = cut or not any(" " in text for text in (name, *(row[number] for row in rows)))
            table.add_column(name, justify="right" if right[number] else "left", overflow="fold", no_wrap=whole)
        for row in rows:
            table.add_row(*map(_styled, columns, row))
        least = self._console.measure(table, options=self._console.options.update_width(UNLIMITED_WIDTH)).minimum
        if least <= self._console.width:
            self._print(table)
            return
        for row in rows:
            self.fields(zip(columns, row, strict=True))
            print(file=self._stream)

    def fields(self, fields: Iterable[tuple[str, str]]) -> None:
        """Print one thing, a field per line."""
        table = _grid(header=False)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, text in fields:
            table.add_row(name, _styled(name, text))
        self._print(table)

    def styled(self, text: str, style: str) -> None:
        """Print the beginning of a line in a style; the terminal breaks it if it is long."""
        self._console.print(text, style=style, end="", soft_wrap=True)

    def progress(self, text: str, done: float | None, total: float | None) -> None:
        """Draw how far a command is; without a total, the bar only shows activity.

        The bar is drawn here and not in a thread of rich, because a simulation forks.
        """
        if self._bar is None:
            columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
            self._bar = Progress(*columns, console=self._console, auto_refresh=False, transient=True)
            self._bar.add_task("")
        self._bar.update(self._bar.task_ids[0], description=text, completed=done, total=total)
        self._bar.start()
        self._bar.refresh()

    def end_progress(self) -> None:
        """Remove the bar and show the cursor again."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _print(self, table: Table) -> None:
        """Print a table without the blanks that rich puts at the ends of lines."""
        with self._console.capture() as captured:
            self._console.print(table)
        for line in captured.get().splitlines():
            print(line.rstrip(), file=self._stream)


def _grid(*, header: bool) -> Table:
    return Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), show_header=header)


def _width(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Return the width of all columns but the last one, with the gaps between columns."""
    texts = list(zip(columns, *rows, strict=True))[:-1]
    return sum(max(map(cell_len, column)) + GAP for column in texts)


def _cut(text: str, width: int) -> str:
    cut = Text(text)
    cut.truncate(width, overflow="ellipsis")
    return cut.plain


def _styled(name: str, text: str) -> Text:
    styled = Text()  # A style of the whole text would also be that of the blanks after it.
    styled.append(text, STYLES.get(text, "") if name in STATE_COLUMNS else "")
    return styled
