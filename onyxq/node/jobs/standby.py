"""Starting the Spark host before the log says that this peer drives (design: jobs on Spark).

A peer that dies is out of the ring when its session with the log has ended, seconds later; a host
takes seconds to start.  So a peer whose host does not run asks the drivers of jobs whether they are there,
and when one is not, and the log would give one of its jobs to this peer, starts its host meanwhile.
It is a guess that decides nothing: a host that nobody needs after all is stopped as any other.
"""

from __future__ import annotations

import trio

from onyxq.core.errors import OnyxqError
from onyxq.core.jobs.allocation import offers
from onyxq.core.jobs.lifetime import RUNNING, active
from onyxq.core.jobs.placement import placed
from onyxq.core.replica import Replica
from onyxq.node.jobs.hosts import KeptHost
from onyxq.node.node import Node
from onyxq.wire.protocol import PING

LOOK_EVERY_S = 0.5
ANSWER_S = 2.0
"""A driver that has not answered by then is taken for lost, as is one that refuses twice."""


def heirs(replica: Replica, lost: str) -> dict[str, str]:
    """Who would drive each job of a peer, by id, if that left now; jobs with a host of their own are not among them."""
    left = [offer for offer in offers(replica) if offer.peer != lost]
    drivers = placed(active(replica), left)
    return {job.id: drivers.get(job.id, "") for job in active(replica) if job.driver == lost and not job.own_host}


async def foresee(node: Node, host: KeptHost) -> None:
    """Have the host start when it is about to be needed, until cancelled."""
    silent: dict[str, int] = {}
    while True:
        await trio.sleep(LOOK_EVERY_S)
        if host.state != "off" or not node.peer_id:
            silent.clear()
            continue
        drivers = {job.driver for job in active(node.replica) if job.state == RUNNING} - {node.peer_id}
        silent = {peer: silent.get(peer, 0) for peer in sorted(drivers)}
        for peer in silent:
            silent[peer] = 0 if await _answers(node, peer) else silent[peer] + 1
            if silent[peer] == 2 and node.peer_id in heirs(node.replica, peer).values():
                host.expect()


async def _answers(node: Node, peer: str) -> bool:
    found = node.replica.peers.get(peer)
    if found is None:
        return True  # it is gone already: what is to be done the log has said
    try:
        await node.call(found.node, PING, {}, timeout_s=ANSWER_S)
    except OnyxqError:
        return False
    return True
