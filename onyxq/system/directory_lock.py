"""A lock that admits one process at a time to a directory. The kernel releases it when the process ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from onyxq.core.errors import Conflict
from onyxq.system.directories import PRIVATE_FILE


def lock_file(path: Path, *, what: str, hint: str) -> int:
    """Lock a file in a data directory and return the descriptor that holds the lock.

    Close the descriptor at the end. ``what`` is guarded by the lock. The file contains the id of the process that
    holds it. Raises `Conflict` that names the setting ``data``.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE_FILE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise Conflict(f"{what} is in use by process {holder}", field="data", hint=hint) from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, b"%d\n" % os.getpid())
    return descriptor
