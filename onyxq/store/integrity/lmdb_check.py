"""Whether an LMDB file may be opened: it must hold what was written, and nothing else.

A file that was closed in order, without damage, has a note with its size and checksum beside it.
If the note still matches, the file is unchanged.  Otherwise the pages of a small file are
followed before LMDB opens it, which takes about 3 s of CPU per GB.  A large file is followed
after damage was met in it, after a fatal signal, or after the deaths of two processes in a row.
So damage that kills processes is found after one or two of them.

A store with inconsistent pages is renamed as a whole.  It does not show any more what this node
had promised.  So the node begins with an empty store, and its data comes from the cohort.
"""

from __future__ import annotations

import faulthandler
import json
import logging
import os
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from onyxq.core.errors import Corrupt
from onyxq.store.integrity.lmdb_pages import check_file, meta_pages
from onyxq.system.directories import write_durably

DATA = "data.mdb"
CLOSED = "store.closed"
"""Name of the note of a file that was closed in order."""
OPENED = "store.opened"
"""Name of the file with the number of openings since the data file was last known to be sound."""
SUSPECT = "store.suspect"
"""Name of the file with the damage that was met while the data file was open, one per line."""
CRASHED = "store.crashed"
"""Name of the file with the last process's traceback of a fatal signal; empty if there was none."""
FOLLOW_BYTES_MAX = 256 * 1024 * 1024
"""Size of the largest files that are followed after every death of a process, in bytes."""
SUM_BYTES_MAX = 4 * 1024 * 1024 * 1024
"""Size of the largest files that get a checksum when closed, in bytes; for larger ones it takes too long."""
SUSPECTED_MAX = 2
"""Times LMDB may meet damage in a file until the file counts as damaged, even if its pages are consistent."""
_CHUNK_BYTES = 1024 * 1024

_log = logging.getLogger(__name__)


def examine(directory: Path, *, follow_bytes_max: int = FOLLOW_BYTES_MAX) -> None:
    """Raise `Corrupt` if the LMDB file in a directory must not be opened. No process may have it open.

    The file counts as open from now on.  Raises `OSError` if the directory cannot be written.
    """
    path = directory / DATA
    size = path.stat().st_size if path.exists() else 0
    opened, met, crashed = _number(directory / OPENED), _lines(directory / SUSPECT), _lines(directory / CRASHED)
    if len(met) >= SUSPECTED_MAX:
        raise Corrupt(met[-1])
    doubtful = bool(met or crashed) or opened != 1 or (directory / CLOSED).exists() or size <= follow_bytes_max
    if not size or (not met and _as_closed(directory, path, size)):
        opened = 0
    elif doubtful:
        why = f" ({(met or crashed)[-1]})" if met or crashed else ""
        _log.info("the file %s is checked page by page%s", path, why)
        _check(path)
        opened = 0
    if size:
        write_metas_again(path)
    _empty(directory / CRASHED)
    (directory / CLOSED).unlink(missing_ok=True)
    with suppress(OSError):  # on a full disk the number is missing, and the next start checks the pages
        (directory / OPENED).write_text(str(opened + 1), encoding="ascii")


def note_closed(directory: Path) -> None:
    """Write the note of a file that was closed in order and in which no damage was met."""
    path = directory / DATA
    size = path.stat().st_size
    note = {"bytes": size, "crc32": _sum(path) if size <= SUM_BYTES_MAX else None}
    write_durably(directory / CLOSED, json.dumps(note).encode())
    for name in (SUSPECT, OPENED):
        (directory / name).unlink(missing_ok=True)


def note_doubt(directory: Path, why: str = "") -> None:
    """Have the next opening check every page, even on a full disk; ``why``: the damage that LMDB met."""
    with suppress(OSError):
        (directory / OPENED).unlink(missing_ok=True)
    if why:
        with suppress(OSError), (directory / SUSPECT).open("a", encoding="utf-8") as file:
            file.write(" ".join(why.split()) + "\n")
            file.flush()
            os.fsync(file.fileno())


def set_aside(directory: Path, why: str) -> Path:
    """Rename a store's file, log that, and return its new name."""
    number = 1
    while (kept := directory / f"{DATA}.damaged-{number}").exists():
        number += 1
    (directory / DATA).rename(kept)
    for name in (CLOSED, OPENED, SUSPECT):
        (directory / name).unlink(missing_ok=True)
    _empty(directory / CRASHED)
    _log.error(
        "The store in %s is damaged (%s). It was set aside as %s. The node begins with an empty one, and its data "
        "comes from the other nodes. If no other node has a copy, the partitions stay not_ready: restore a backup, or "
        "accept the loss with `onyxq partition force`. Check the disk.",
        directory,
        why,
        kept.name,
    )
    return kept


@contextmanager
def fatal_signals_noted(directory: Path) -> Iterator[None]:
    """While the context is active, write the traceback of a fatal signal (SIGBUS, SIGSEGV) to the directory.

    LMDB reads the file through a memory map, so a page that cannot be read ends the process.
    If another part of the program has asked for tracebacks, it keeps them.
    """
    with ExitStack() as stack:
        if not faulthandler.is_enabled():
            with suppress(OSError):
                faulthandler.enable(stack.enter_context((directory / CRASHED).open("ab")))
                stack.callback(faulthandler.disable)
        yield


def write_metas_again(path: Path) -> None:
    """Make the two meta pages on the disk those that are read; raises `OSError`.

    After a failed write of a meta page, LMDB and the disk may disagree about the last
    transaction.  The next transaction would then overwrite pages that the disk's meta page still
    refers to.  The kernel may also count a page as written that is not, so both are written again.
    """
    with path.open("r+b", buffering=0) as file:
        for offset, data in meta_pages(file.fileno()):
            os.pwrite(file.fileno(), data, offset)
        os.fdatasync(file.fileno())


def _check(path: Path) -> None:
    """Raise `Corrupt` unless the file can be read and its pages are consistent."""
    # With the map, an unreadable page would kill the process.
    try:
        _sum(path)
    except OSError as first:
        _log.warning("%s cannot be read, and is tried once more: %s", path, first)
        try:
            _sum(path)
        except OSError as error:
            raise Corrupt(f"it cannot be read: {error}") from error
    check_file(path)


def _as_closed(directory: Path, path: Path, size: int) -> bool:
    """Return whether a file is unchanged since it was closed."""
    try:
        note = json.loads((directory / CLOSED).read_text(encoding="ascii"))
        return bool(note["bytes"] == size and (note["crc32"] is None or note["crc32"] == _sum(path)))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _sum(path: Path) -> int:
    crc = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            crc = zlib.crc32(chunk, crc)
    return crc


def _empty(path: Path) -> None:
    """Truncate a file that this process may still write to; do nothing if it does not exist."""
    with suppress(FileNotFoundError):
        os.truncate(path, 0)


def _number(path: Path) -> int:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    except OSError:
        return []
