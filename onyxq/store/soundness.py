"""Whether the file of a store may be opened: what was written, and nothing else, is in it.

A store that is closed leaves a note with the file's size and checksum beside it.  If that
still holds, the file is as it was.  If it does not, every page is followed before LMDB may
have the file.  A process that died left no note: then a small file is followed as well,
which takes about 3 s of CPU per GB, and a large one only if the process before died too, so a
damage that kills is met once.  A file that does not hang together is set aside whole:
what this node had promised can no longer be told from it, so it begins anew, as another
node, and its data comes from the cohort.
"""

from __future__ import annotations

import json
import logging
import os
import zlib
from pathlib import Path

from onyxq.store.pages import check_file

DATA = "data.mdb"
CLOSED = "store.closed"
"""The note of a store that was closed."""
OPENED = "store.opened"
"""How often the store was opened since it was last known to be sound."""
FOLLOW_BYTES_MAX = 256 * 1024 * 1024
"""Files up to this size are followed after every death of a process."""
SUM_BYTES_MAX = 4 * 1024 * 1024 * 1024
"""Larger files are not summed when they are closed, which would take too long."""
_CHUNK_BYTES = 1024 * 1024

_log = logging.getLogger(__name__)


def examine(directory: Path, *, follow_bytes_max: int = FOLLOW_BYTES_MAX) -> None:
    """Raise `Corrupt` if the store in a directory must not be opened. Nobody may have it open.

    It counts as open from now on.
    """
    path = directory / DATA
    size = path.stat().st_size if path.exists() else 0
    opened = _number(directory / OPENED)
    if size and not _as_closed(directory, path, size):
        if (directory / CLOSED).exists() or size <= follow_bytes_max or opened > 1:
            _log.info("the store in %s is checked page by page", directory)
            check_file(path)
            opened = 0
    else:
        opened = 0
    (directory / CLOSED).unlink(missing_ok=True)
    (directory / OPENED).write_text(str(opened + 1), encoding="ascii")


def note_closed(directory: Path) -> None:
    """Leave the note of a store that was closed."""
    path = directory / DATA
    size = path.stat().st_size
    if size > SUM_BYTES_MAX:
        return
    note = directory / (CLOSED + ".new")
    with note.open("w", encoding="ascii") as file:
        json.dump({"bytes": size, "crc32": _sum(path)}, file)
        file.flush()
        os.fsync(file.fileno())
    note.rename(directory / CLOSED)
    (directory / OPENED).unlink(missing_ok=True)


def set_aside(directory: Path, why: str) -> Path:
    """Rename a store's file, say so, and return its new name."""
    number = 1
    while (kept := directory / f"{DATA}.damaged-{number}").exists():
        number += 1
    (directory / DATA).rename(kept)
    for name in (CLOSED, OPENED):
        (directory / name).unlink(missing_ok=True)
    _log.error(
        "the store in %s is damaged (%s): it was set aside as %s, and this node begins anew; what it had comes "
        "from the other nodes once its old self is replaced. Check the disk.",
        directory,
        why,
        kept.name,
    )
    return kept


def _as_closed(directory: Path, path: Path, size: int) -> bool:
    """Whether a file is as it was when it was closed."""
    try:
        note = json.loads((directory / CLOSED).read_text(encoding="ascii"))
        return bool(note["bytes"] == size and note["crc32"] == _sum(path))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _sum(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            crc = zlib.crc32(chunk, crc)
    return crc


def _number(path: Path) -> int:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0
