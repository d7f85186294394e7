"""The demo's input: which files count, how they are cut, and the plain count to check against.

A word is a longest run of ``\\w`` characters of the file's text, in lower case; the text
is the bytes decoded as UTF-8 with undecodable bytes replaced.  `plain_count` follows
that definition on its own, sharing no code with the workers.
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
"""Larger files become several map tasks, cut at line ends."""
SKIPPED = frozenset({"site-packages", "__pycache__", ".git"})


class Chunk(NamedTuple):
    """Bytes ``start`` to ``end`` of a file; its path is relative to the input directory."""

    path: str
    start: int
    end: int


def default_directory() -> Path:
    """The sources of Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def text_files(directory: Path) -> list[Path]:
    """Files under ``directory`` without a zero byte near their start, sorted; links are not followed.

    Raises `NotFound` if it is no directory, and if there is no text in it.
    """
    if not directory.is_dir():
        raise NotFound(f"there is no directory {directory}", field="input", hint="Name one that holds text files.")
    found = []
    for place, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if name not in SKIPPED]
        found += [path for path in (Path(place, name) for name in names) if _is_text(path)]
    if not any(path.stat().st_size for path in found):
        raise NotFound(f"there is no text under {directory}", field="input", hint="Name another directory.")
    return sorted(found)


def chunks(directory: Path, files: list[Path]) -> Iterator[Chunk]:
    """The map tasks' shares: every byte of every file in exactly one."""
    for file in files:
        size, start = file.stat().st_size, 0
        while start < size:
            end = _line_end(file, start + CHUNK_BYTES, size)
            yield Chunk(os.fspath(file.relative_to(directory)), start, end)
            start = end


def plain_count(files: list[Path]) -> Counter[str]:
    """Words of whole files, counted in this process one after the other."""
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
    """The first line end at or behind ``wanted``. No word and no UTF-8 sequence crosses one."""
    if wanted >= size:
        return size
    with file.open("rb") as stream:
        stream.seek(wanted)
        stream.readline()
        return min(stream.tell(), size)
