"""A process that runs several peers of one cluster, for `tests.processes.test_many_peers`.

It prints ``waiting`` when everything is loaded, begins when it reads a line, and prints one JSON
line for each peer that is in the ring and serves.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import trio

from onyxq.interfaces.cli.processes.daemons import spare_collections
from onyxq.interfaces.daemon import RunningNode
from onyxq.interfaces.peer_config import PeerConfig
from onyxq.log.zookeeper import ZookeeperBackend


async def run(node: RunningNode, nursery: trio.Nursery) -> None:
    """Run one node and print when it is ready."""
    nursery.start_soon(node.run)
    await node.ready.wait()
    assert node.addresses is not None
    print(json.dumps({"peer": node.addresses.peer, "node": node.addresses.node}), flush=True)


async def main(zookeeper: str, cluster: str, root: str, count: int, session_timeout_ms: int) -> None:
    """Run ``count`` nodes with data below ``root`` until killed."""
    backend = ZookeeperBackend(zookeeper, cluster, session_timeout_ms=session_timeout_ms, open_timeout_s=60.0)
    nodes = []
    for number in range(count):
        data = Path(root) / str(number)
        data.mkdir(parents=True)
        config = PeerConfig(
            data=str(data), listen="127.0.0.1:0", http=None, partitions=16, session_timeout_ms=session_timeout_ms
        )
        nodes.append(RunningNode(config, backend))
    print("waiting", flush=True)
    await trio.to_thread.run_sync(sys.stdin.readline)
    async with trio.open_nursery() as nursery:
        for node in nodes:
            nursery.start_soon(run, node, nursery)


if __name__ == "__main__":
    spare_collections()
    trio.run(main, *sys.argv[1:4], *map(int, sys.argv[4:]))
