"""The input of the demo: the text files, their chunks, and a count in one process to compare with.

A word is a longest sequence of ``\\w`` characters, in lower case.  A file is decoded as UTF-8, and bytes
that cannot be decoded are replaced.  `plain_count` shares no code with the workers.
"""

from __future__ import annotations

import os
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from onyxq.core.errors import NotFound

SNIFF_BYTES = 8192
CHUNK_BYTES = 1 << 20
"""Size of a chunk. Larger files become several map tasks, divided at line ends."""
SKIPPED = frozenset({"site-packages", "__pycache__", ".git"})


class Chunk(NamedTuple):
    """Bytes ``start`` to ``end`` of a file, whose path is relative to the input directory."""

    path: str
    start: int
    end: int


def default_directory() -> Path:
    """Return the directory of Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def text_files(directory: Path) -> list[Path]:
    """Return the sorted files under ``directory`` that have no zero byte near their start. Links are not followed.

    Raises `NotFound` if there is no such directory, or no text in it.
    """
    if not directory.is_dir():
        raise NotFound(f"there is no directory {directory}", field="input", hint="Name a directory with text files.")
    found = []
    for place, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if name not in SKIPPED]
        found += [path for path in (Path(place, name) for name in names) if _is_text(path)]
    if not any(path.stat().st_size for path in found):
        raise NotFound(f"there is no text under {directory}", field="input", hint="Name another directory.")
    return sorted(found)


def chunks(directory: Path, files: list[Path]) -> Iterator[Chunk]:
    """Yield the chunks of the map tasks. Each byte of each file is in exactly one."""
    for file in files:
        size, start = file.stat().st_size, 0
        while start < size:
            end = _line_end(file, start + CHUNK_BYTES, size)
            yield Chunk(os.fspath(file.relative_to(directory)), start, end)
            start = end


def plain_count(files: list[Path]) -> Counter[str]:
    """Count the words of whole files in this process, one file after the other."""
    counts: Counter[str] = Counter()
    for file in files:
        for word in re.split(r"\W+", file.read_bytes().decode(errors="replace")):
            if word:
                counts[word.lower()] += 1
    return counts


def _is_text(path: Path) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    try:
        with path.open("rb") as stream:
            return b"\0" not in stream.read(SNIFF_BYTES)
    except OSError:
        return False


def _line_end(file: Path, wanted: int, size: int) -> int:
    """Return the first line end at or after ``wanted``. No word and no UTF-8 sequence crosses a line end."""
    if wanted >= size:
        return size
    with file.open("rb") as stream:
        stream.seek(wanted)
        stream.readline()
        return min(stream.tell(), size)
