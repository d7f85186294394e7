"""Operators at the command line: a node leaves for good, and a partition must not be forced."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import trio

from tests.processes.cluster import Cluster, PeerProcess, bounded

pytestmark = [pytest.mark.anyio, pytest.mark.long]

TASKS = 400


async def onyxq(*words: str, peer: PeerProcess) -> subprocess.CompletedProcess[bytes]:
    """Run a command that asks a peer."""
    command = [sys.executable, "-m", "onyxq", *words, "--json", "--connect", peer.address]
    return await trio.run_process(
        command, capture_stdout=True, capture_stderr=True, check=False, env={"PYTHONPATH": ":".join(sys.path)}
    )


@bounded(120)
async def test_a_node_leaves_for_good_by_command(cluster: Cluster) -> None:
    """The command shows the progress and returns when the peer has ended; the others have everything."""
    names = ("a", "b", "c", "d")
    await cluster.start(*names)
    await cluster.whole(*names)
    asked, gone = cluster["a"], cluster["d"]
    async with cluster.client("a", "b") as client:
        ids = [await client.enqueue("q", b"%d" % number) for number in range(TASKS)]
        done = await onyxq("peer", "leave", gone.first_peer, "--permanent", peer=asked)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout) == {"peer": gone.first_peer, "node": gone.node, "left": True}
        assert b"partitions left to move" in done.stderr
        await cluster.whole("a", "b", "c")
        assert gone.process is not None and gone.process.wait(20) == 0
        await cluster.replicated(asked)
        seen = (await cluster.see(asked, "/v1/peers"))["nodes"]
        (node,) = [one for one in seen if one["node"] == gone.node]
        assert (node["peer"], node["copies"], node["leads"]) == (None, 0, 0)
        assert {(await client.get(task_id)).state for task_id in ids[::20]} == {"ready"}

    refused = await onyxq("partition", "force", "3", peer=asked)
    assert refused.returncode == 2 and b"lost" in refused.stderr
    refused = await onyxq("partition", "force", "3", "--yes", peer=asked)
    assert refused.returncode == 4 and b"a majority lives" in refused.stderr
    answer = await cluster.send(asked, "POST", "/v1/partitions/3/force")
    assert answer.status_code == 409 and answer.json()["code"] == "conflict"
