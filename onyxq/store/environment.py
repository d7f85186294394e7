"""LMDB's errors, judged in one place, and the opening of its files (design: facts and the store).

`judge` classifies every error of LMDB: a full map, an environment that must be opened again, a
damaged file, a disk that refused a write, or a bug.
"""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any

import lmdb

from onyxq.core.errors import Corrupt, StoreFailed
from onyxq.store.integrity.lmdb_check import examine


class Failure(Enum):
    """Meaning of an error for the file and its process."""

    FULL = "the memory map is full"
    STOPPED = "the environment takes nothing until it is opened again"
    DAMAGE = "the file is damaged"
    ROW = "a row does not match its checksum; it is repaired from its cohort"
    WRITE = "the disk or the machine refused it; what was there before is as it was"
    BUG = "a mistake in this program, or contents of a shape that it does not expect"


_DAMAGE = (
    lmdb.BadChecksumError,
    lmdb.BadTxnError,  # an earlier operation of the transaction met damage
    lmdb.CorruptedError,
    lmdb.CursorFullError,  # a tree deeper than possible
    lmdb.IncompatibleError,  # flags of a tree that were never written
    lmdb.InvalidError,
    lmdb.PageFullError,
    lmdb.PageNotFoundError,
    lmdb.ProblemError,
    lmdb.VersionMismatchError,
)
_BUGS = (
    lmdb.BadDbiError,
    lmdb.BadRslotError,
    lmdb.BadValsizeError,
    lmdb.CryptoFailError,
    lmdb.DbsFullError,
    lmdb.EnvEncryptionError,
    lmdb.InvalidParameterError,
    lmdb.KeyExistsError,
    lmdb.ReadersFullError,
    lmdb.TlsFullError,
)


def judge(error: BaseException) -> Failure:
    """Classify an error of LMDB, or of the code that reads the contents of its file."""
    if isinstance(error, lmdb.MapFullError):
        return Failure.FULL
    if isinstance(error, lmdb.PanicError):
        return Failure.STOPPED
    if isinstance(error, _DAMAGE):
        return Failure.DAMAGE
    if isinstance(error, Corrupt):
        return Failure.ROW
    if isinstance(error, lmdb.Error | OSError | MemoryError) and not isinstance(error, _BUGS):
        return Failure.WRITE
    return Failure.BUG


def open_file(directory: Path, **options: Any) -> lmdb.Environment:
    """Examine and open the LMDB file of a directory, or create it.

    Raises `Corrupt` if it is damaged, and `OSError` or `lmdb.Error` if it cannot be used now.
    """
    try:
        examine(directory)
        return lmdb.open(str(directory), **options)
    except lmdb.Error as error:
        if judge(error) is Failure.DAMAGE:
            raise Corrupt(str(error)) from error
        raise


def cannot_open(error: BaseException, directory: Path) -> Corrupt | StoreFailed:
    """Return the error for a store that cannot be opened.

    Raises the given error itself if its cause is another.
    """
    if isinstance(error, Corrupt) or judge(error) is Failure.DAMAGE:
        said = error.message if isinstance(error, Corrupt) else str(error)
        return Corrupt(f"the store in {directory} is damaged: {said}")
    if judge(error) in (Failure.WRITE, Failure.STOPPED):
        return StoreFailed(f"the store in {directory} cannot be opened: {error}")
    raise error
