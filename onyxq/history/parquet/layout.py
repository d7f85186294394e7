"""Paths of archived tasks: ``<directory>/<table>/queue=<name>/day=<YYYY-MM-DD>/<file>``.

Pure. The files have no columns ``queue`` and ``day``. A reader that treats the directory as a table with Hive
partitions gets them as columns, and reads only the files that it needs. The day is that of the time in a
task's id, in UTC, so an id determines its day.

A file's name is derived from its bucket, so a bucket that is written again replaces its earlier file.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from hashlib import blake2b
from typing import NamedTuple

from onyxq.core.ids import ms_of, partition_of

NAME_BYTES_MAX = 200
"""Maximum bytes of a directory's name.

A longer queue name is cut and ends in a digest.
"""
SUFFIX = ".parquet"
FAR_MS = 253_402_300_800_000
"""Beginning of the year 10000, from which no day has a name."""
_KEPT = re.compile(r"[A-Za-z0-9_.-]")
_NAME = re.compile(r"(\d{5})-(\d{15})-(\d{15})-[0-9a-f]{16}\.parquet")


class Place(NamedTuple):
    """Queue and day: where a task's rows are stored, in each table."""

    queue: str
    day: str

    @property
    def path(self) -> str:
        """The directory, below that of the table."""
        return f"queue={encoded(self.queue)}/day={self.day}"


class FileName(NamedTuple):
    """The parts of a file's name.

    Times are those of ids; ``before_ms`` is not included.
    """

    partition: int
    from_ms: int
    before_ms: int

    def with_digest(self, *parts: bytes) -> str:
        """Return the file name of a bucket.

        ``parts`` distinguish it from other buckets of the same times.
        """
        digest = blake2b(b"".join(parts), digest_size=8).hexdigest()
        return f"{self.partition:05d}-{self.from_ms:015d}-{self.before_ms:015d}-{digest}{SUFFIX}"

    def may_hold(self, task_id: bytes) -> bool:
        """Return whether a task may be in such a file."""
        return self.partition == partition_of(task_id) and self.from_ms <= ms_of(task_id) < self.before_ms


def named(name: str) -> FileName | None:
    """Return the parts of a file's name, or None if it is not a file of an archive."""
    found = _NAME.fullmatch(name)
    return FileName(int(found[1]), int(found[2]), int(found[3])) if found else None


def day_of(ms: int) -> str:
    """Return the UTC day of a time in ms since the epoch."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d")


def encoded(queue: str) -> str:
    """Return a queue's name as part of a path.

    ASCII characters other than letters, digits, ``_``, ``.`` and ``-`` are escaped as ``%`` and two hex digits.
    Other characters stay, because readers decode escapes of them in different ways.
    """
    text = "".join(sign if sign > "\x7f" or _KEPT.match(sign) else f"%{ord(sign):02X}" for sign in queue)
    if len(text.encode()) <= NAME_BYTES_MAX:
        return text
    digest = blake2b(queue.encode(), digest_size=8).hexdigest()
    head = text.encode()[: NAME_BYTES_MAX - 20].decode(errors="ignore")
    return f"{re.sub('%[0-9A-F]?$', '', head)}~{digest}"
