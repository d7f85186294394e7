"""Claims of several claimers at once from the partitions that a node leads."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from onyxq.core.errors import LogUnavailable, OnyxqError
from onyxq.core.ids import Run, TaskId, partition_of
from onyxq.leader.grants.granter import ClaimRequest, Granted, Room
from onyxq.leader.grants.ready_heads import Head
from onyxq.leader.host import OperationsHost
from onyxq.system.procedures import CANCELLED, Wait

LOG_TIMEOUT_S = 4.0
"""Longest wait for the log's decision, in seconds; the asking node waits a second longer."""

Asked = tuple[list[str], int, int | None, str, int]
"""One claimer's question: ``(queues, maximum of tasks, lease in ms, worker, ahead_ms)``.

Without a lease, each queue's lease applies.
"""


class _Answers:
    """The outcomes of claims that are made together from the partitions that this node leads."""

    def __init__(self, claims: int) -> None:
        self.by_place: dict[int, list[Granted] | OnyxqError] = {}
        self.all = Wait()
        self.wanted = True
        """Whether the claimers still wait."""
        self._claims = claims

    def take(self, place: int, granted: list[Granted], error: OnyxqError | None) -> bool:
        """Take the outcome of a claim; return whether its claimer still waits."""
        if self.wanted:
            self.by_place[place] = error if error is not None else granted
            if len(self.by_place) == self._claims:
                self.all.end()
        return self.wanted


async def claim_here(
    host: OperationsHost, requests: Sequence[Asked], wanted: int
) -> tuple[list[list[Granted] | OnyxqError], dict[str, Head | None]]:
    """Claim from the partitions that this node leads; return the outcome of each request, and the heads after it.

    ``wanted``: how many tasks the heads should list.
    """
    room, answers = Room(), _Answers(len(requests))
    for place, (queues, maximum, lease_ms, worker, ahead_ms) in enumerate(requests):
        reply = partial(answers.take, place)
        host.granter.submit(ClaimRequest(queues, maximum, lease_ms or 0, worker, reply, ahead_ms, room))
    try:
        await answers.all.wait(LOG_TIMEOUT_S if requests else 0.0)
    except CANCELLED:
        for answer in answers.by_place.values():
            for one in answer if not isinstance(answer, OnyxqError) else ():
                _give_back(host, one)
        raise
    finally:
        answers.wanted = False
        room.left = 0  # a request that still waits for its round gets nothing
    late = LogUnavailable("the log did not answer in time")
    ahead = any(one[4] for one in requests)
    queues_asked = sorted({queue for one in requests for queue in one[0]})
    heads = {queue: host.granter.heads.head(queue, ahead=ahead, wanted=wanted) for queue in queues_asked}
    return [answers.by_place.get(place, late) for place in range(len(requests))], heads


def _give_back(host: OperationsHost, granted: Granted) -> None:
    """Release a claim on a partition that this node leads."""
    count = int.from_bytes(granted.body[4:8], "little")
    host.give_back(partition_of(granted.first), granted.token, [Run(TaskId(granted.first), count)])
