"""Planted bugs of an older copy of the log that was restored: checks that are missing."""

from __future__ import annotations

from collections.abc import Callable

import trio

from onyxq.core.log.digest import Milestones, ReadMark, Trail
from onyxq.core.log.interface import LogSession
from onyxq.node.membership import Peer
from simulation.planted.planted import Planted
from simulation.planted.seams import instead, returning

_Contradicted = Callable[[ReadMark, Trail, Milestones], int | None]


async def _as_in_the_middle(peer: Peer, session: LogSession) -> None:
    await peer._resume(session)


def _milestones_only(original: _Contradicted) -> _Contradicted:
    return lambda mark, trail, milestones: original(mark, (), milestones)


async def _never_looks(*_: object) -> None:
    await trio.sleep_forever()


def _any_digest(mark: ReadMark, position: int, digest: bytes) -> bool:
    return position == mark.position


RESTORED_LOG_BUGS: tuple[Planted, ...] = (
    Planted(
        "a node that starts does not check the log",
        "onyxq.node.membership:Peer._read_again",
        instead(_as_in_the_middle),
        "a node continues with an older copy: tokens fall and finished tasks run again",
        "restored_log",
    ),
    Planted(
        "the digest of the log is not compared",
        "onyxq.core.log.digest:ReadMark.is_at",
        instead(_any_digest),
        "an older copy with new records counts as the same log",
        "restored_log",
    ),
    Planted(
        "the digests of earlier positions in a snapshot are not compared",
        "onyxq.core.log.digest:ReadMark.contradicted_by",
        _milestones_only,
        "an older copy that was trimmed since counts as the same log",
        "restored_log",
    ),
    Planted(
        "a running node does not check the log",
        "onyxq.node.membership:watch",
        instead(_never_looks),
        "a node whose session is refused does not report an older copy",
        "restored_log",
    ),
    Planted(
        "a reconnected session continues without a check",
        "onyxq.node.membership:Peer._is_reconnected",
        returning(False),
        "records of another log are applied after those of the first one",
        "restored_log",
    ),
    Planted(
        "a reconnected node does not ask the others how far they have read",
        "onyxq.node.log_check:Witnesses.ask",
        returning(None),
        "a node that has read only the older copy leads and grants tasks with it",
        "restored_log",
    ),
    Planted(
        "a node promises epochs to leaders of another log",
        "onyxq.operations.service:confirm_leader",
        returning(None),
        "new machines with an older copy lead with the votes of nodes that have read more",
        "restored_log",
    ),
)
"""The planted bugs of a restored log."""
