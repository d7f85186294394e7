"""The first record of a log that continues the positions of a lost one."""

from __future__ import annotations

from collections.abc import Callable

from onyxq.core.log.interface import LogSession, segment_of
from onyxq.core.log.record import encode_record


async def begin_log(
    session: LogSession, cluster_id: str, writer: str, *, segment: int, now_ms: Callable[[], int]
) -> int:
    """Write a record that changes nothing into ``segment``, or a later present one; return its position.

    ``session``: of a log whose segments may be closed after one record.
    """
    number = 0
    while True:
        number += 1
        position = await session.append(encode_record(cluster_id, writer, number, now_ms(), []))
        if segment_of(position) >= segment:
            return position
        await session.rotate()
