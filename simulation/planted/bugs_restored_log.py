"""Planted bugs of a log that goes back: what is not looked at, not compared, or promised to anybody."""

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
        "a node goes on with an older copy: tokens fall, finished tasks run again",
        "restored_log",
    ),
    Planted(
        "the digest of the log is not compared",
        "onyxq.core.log.digest:ReadMark.is_at",
        instead(_any_digest),
        "an older copy on which others have written is taken for the log",
        "restored_log",
    ),
    Planted(
        "the digests that a snapshot has of earlier positions are not compared",
        "onyxq.core.log.digest:ReadMark.contradicted_by",
        _milestones_only,
        "an older copy that was collected since is taken for the log",
        "restored_log",
    ),
    Planted(
        "a running node does not look at the log",
        "onyxq.node.membership:watch",
        instead(_never_looks),
        "a node whose session is refused says nothing",
        "restored_log",
    ),
    Planted(
        "a session that reconnects reads on without a check",
        "onyxq.node.membership:Peer._is_reconnected",
        returning(False),
        "records of another log follow on those of the one that was read",
        "restored_log",
    ),
    Planted(
        "a node that reconnects does not ask the others how far they have read",
        "onyxq.node.log_check:Witnesses.ask",
        returning(None),
        "a node that has read no more than the older copy leads and grants on it",
        "restored_log",
    ),
    Planted(
        "a node promises epochs to leaders of any log",
        "onyxq.operations.service:confirm_leader",
        returning(None),
        "new machines on an older copy lead with the votes of nodes that know better",
        "restored_log",
    ),
)
"""Planted bugs about these."""
