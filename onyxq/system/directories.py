"""Directories that a user names in a setting, and files that no other user may read.

A directory is created. If it cannot be used, the error names the setting.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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


class NewFile:
    """A file that gets its name once it is complete and durable; an interrupted writer leaves nothing under it."""

    def __init__(self, part: Path) -> None:
        """Create the file under the temporary name ``part``; raises `OSError`."""
        self.stream = create(part)
        self._part = part

    def finish(self) -> None:
        """Make the content durable, still under the temporary name; raises `OSError`."""
        self.stream.flush()
        os.fsync(self.stream.fileno())
        self.stream.close()

    def publish(self, path: Path) -> None:
        """Give the file its name, in place of an old file; the directory must be synced after that."""
        self._part.replace(path)

    def abort(self) -> None:
        """Remove the file."""
        with suppress(OSError):
            self.stream.close()
        self._part.unlink(missing_ok=True)


def write_durably(path: Path, data: bytes) -> None:
    """Replace a file durably; after a crash it has the old or the new content. Raises `OSError`."""
    file = NewFile(path.with_name(path.name + ".new"))
    file.stream.write(data)
    file.finish()
    file.publish(path)
    sync_directory(path.parent)


@contextmanager
def writing(path: Path, field: str) -> Iterator[None]:
    """Turn an `OSError` of the block into a `BadRequest` that names the path; ``field`` is what the user named."""
    try:
        yield
    except OSError as error:
        raise BadRequest(f"{path} cannot be written: {error.strerror}", field=field) from None


def open_regular(path: Path) -> IO[bytes]:
    """Open a file for reading; raises `OSError`, also for what is not a regular file.

    A FIFO would block until another process writes to it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(descriptor, "rb")


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
