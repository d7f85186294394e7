"""Starting the Spark host before the log makes this peer a driver (design: jobs on Spark).

A dead peer leaves the ring when its session with the log has ended, which takes seconds. Starting a host takes
seconds too. So a peer without a running host pings the drivers of jobs. If one does not answer, and the log
would give one of its jobs to this peer, the peer starts its host meanwhile. This is only a guess and decides
nothing: a host that is not needed is stopped as usual.
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
"""Time limit for a driver's answer, in seconds.

A driver that fails twice counts as lost.
"""


def heirs(replica: Replica, lost: str) -> dict[str, str]:
    """Return job id -> peer that would drive it if its driver ``lost`` left now.

    Jobs with their own host are left out.
    """
    left = [offer for offer in offers(replica) if offer.peer != lost]
    drivers = placed(active(replica), left)
    return {job.id: drivers.get(job.id, "") for job in active(replica) if job.driver == lost and not job.own_host}


async def foresee(node: Node, host: KeptHost) -> None:
    """Start the host when it is likely to be needed, until cancelled."""
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
        return True  # It has left already: the log has decided.
    try:
        await node.call(found.node, PING, {}, timeout_s=ANSWER_S)
    except OnyxqError:
        return False
    return True
