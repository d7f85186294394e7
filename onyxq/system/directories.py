"""Directories that a user names in a setting, and files that no other user may read.

A directory is created. If it cannot be used, the error names the setting.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import IO

from onyxq.core.errors import BadRequest

PRIVATE = 0o700
"""Mode of a new directory: data and archives contain the data of tasks."""
PRIVATE_FILE = 0o600
"""Mode of a new file with such contents."""

_log = logging.getLogger(__name__)
_given: list[int] = []
"""The umask that the process was started with, once it has another one."""

TEMPORARY, LOCAL = "temporary", "local"
"""Folders in the directory of a Spark session: its temporary files, and Spark's spilled data."""


def keep_private() -> None:
    """Set a umask so that no other user can read files that this process writes from now on."""
    found = os.umask(0o077)
    if not _given:
        _given.append(found)


def given_umask() -> int:
    """Return the umask for programs that run a user's code: the one from the start, or -1 if it was not changed."""
    return _given[0] if _given else -1


def close_to_others(directory: Path) -> None:
    """Remove the permissions of other users from a directory of ours, and log it if there were any."""
    found = directory.stat()
    if found.st_mode & 0o077 and found.st_uid == os.geteuid():
        directory.chmod(PRIVATE)
        _log.warning("%s could be read by other users of this machine; its mode is 0700 now", directory)


def create(path: Path) -> IO[bytes]:
    """Open a new file for writing that only this user may read, in place of an old one; raises `OSError`.

    Never follows a link: another user may have put one there, in a directory that is open to all.
    """
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, PRIVATE_FILE), "wb")


def usable(path: str | Path, field: str) -> Path:
    """Return a directory in which this process can make files; create it if it is missing.

    ``field``: the setting that names it. Raises `BadRequest` with the setting, the path and the reason.
    """
    directory = Path(path)
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=PRIVATE)
        if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
            raise PermissionError(0, "this user may not read and write it")
    except OSError as error:
        hint = "Name a directory that exists, or that this user can make, and that this user can write."
        reason = "it is a file" if isinstance(error, FileExistsError) else error.strerror
        raise BadRequest(f"{path} cannot be used as a directory: {reason}", field=field, hint=hint) from None
    return directory


__all__ = ["PRIVATE", "PRIVATE_FILE", "close_to_others", "create", "given_umask", "keep_private", "usable"]
