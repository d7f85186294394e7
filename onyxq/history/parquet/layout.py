"""Where archived tasks lie: ``<directory>/<table>/queue=<name>/day=<YYYY-MM-DD>/<file>``.

Pure.  ``queue`` and ``day`` are no columns of the files: whoever reads the directory as a
table partitioned in Hive's way gets them as columns, and reads only what he asks for.
The day is that of the time in a task's id, in UTC, so an id names its day.

A file's name says what it was made of, so the same bucket written again takes the place
of what it wrote before.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from hashlib import blake2b
from typing import NamedTuple

from onyxq.core.ids import ms_of, partition_of

NAME_BYTES_MAX = 200
"""Bytes of a directory's name; a longer queue name is cut and ends in a digest."""
SUFFIX = ".parquet"
_KEPT = re.compile(r"[A-Za-z0-9_.-]")
_NAME = re.compile(r"(\d{5})-(\d{15})-(\d{15})-[0-9a-f]{16}\.parquet")


class Place(NamedTuple):
    """Where a task's row belongs, in each table."""

    queue: str
    day: str

    @property
    def path(self) -> str:
        """The directory, below that of the table."""
        return f"queue={encoded(self.queue)}/day={self.day}"


class FileName(NamedTuple):
    """What a file's name says: times are those of ids, ``before_ms`` not included."""

    partition: int
    from_ms: int
    before_ms: int

    def with_digest(self, *parts: bytes) -> str:
        """The name of the file of a bucket that ``parts`` tell from others of the same times."""
        digest = blake2b(b"".join(parts), digest_size=8).hexdigest()
        return f"{self.partition:05d}-{self.from_ms:015d}-{self.before_ms:015d}-{digest}{SUFFIX}"

    def may_hold(self, task_id: bytes) -> bool:
        """Whether a task may be in such a file."""
        return self.partition == partition_of(task_id) and self.from_ms <= ms_of(task_id) < self.before_ms


def named(name: str) -> FileName | None:
    """What a name says; None if it is not that of an archive's file."""
    found = _NAME.fullmatch(name)
    return FileName(int(found[1]), int(found[2]), int(found[3])) if found else None


def day_of(ms: int) -> str:
    """The UTC day of a time in ms since the epoch."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d")


def encoded(queue: str) -> str:
    """A queue's name as part of a path.

    Of ASCII what is neither letter, digit, ``_``, ``.`` nor ``-`` is escaped as ``%`` and two
    hex digits; other characters stay, as readers decode the escapes each in their own way.
    """
    text = "".join(sign if sign > "\x7f" or _KEPT.match(sign) else f"%{ord(sign):02X}" for sign in queue)
    if len(text.encode()) <= NAME_BYTES_MAX:
        return text
    digest = blake2b(queue.encode(), digest_size=8).hexdigest()
    head = text.encode()[: NAME_BYTES_MAX - 20].decode(errors="ignore")
    return f"{re.sub('%[0-9A-F]?$', '', head)}~{digest}"
