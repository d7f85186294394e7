"""A copied data directory of a node: one of the two processes ends, with the reason."""

from __future__ import annotations

import shutil

import pytest
import trio

from tests.processes.cluster import POLL_S, Cluster, PeerProcess, bounded

pytestmark = [pytest.mark.anyio, pytest.mark.long]

ENDED_S = 30.0


async def ended(cluster: Cluster, *peers: PeerProcess) -> PeerProcess:
    """Return the first of the peers whose process ended."""
    with trio.fail_after(ENDED_S):
        while all(peer.runs for peer in peers):
            await trio.sleep(POLL_S)
    return next(peer for peer in peers if not peer.runs)


def copy_of(cluster: Cluster, name: str, new: str) -> PeerProcess:
    """Add a peer whose data directory is a copy of another one's."""
    copy = cluster.add(new)
    shutil.copytree(cluster[name].data, copy.data, dirs_exist_ok=True)
    return copy


@bounded(120)
async def test_a_copy_that_is_started_beside_the_original_ends_one_of_them(cluster: Cluster) -> None:
    """The other one stays in the ring, the cluster serves, and the error names the cause."""
    await cluster.start("a", "b")
    await cluster.whole("a", "b")
    original, copy = cluster["a"], copy_of(cluster, "a", "a2")
    copy.spawn()
    loser = await ended(cluster, original, copy)
    assert "node_copied" in loser.stderr() and "from another data directory" in loser.stderr()
    assert "Traceback" not in loser.stderr()
    assert loser.process is not None and loser.process.returncode == 1
    winner = copy if loser is original else original
    if winner is copy:
        await copy.ready()
    async with cluster.client() as client:
        await client.enqueue("q", b"x")
        assert len(await client.claim(["q"], wait_ms=10_000, worker="w")) == 1


@bounded(120)
async def test_a_directory_whose_copy_has_run_since_is_refused(cluster: Cluster) -> None:
    """The copy may have rows that this directory lacks, so this one must not represent it."""
    await cluster.start("a", "b")
    await cluster.whole("a", "b")
    original = cluster["a"]
    await original.terminate()
    copy = copy_of(cluster, "a", "a2")
    copy.spawn()
    await copy.ready()
    await copy.terminate()
    original.spawn()
    assert await ended(cluster, original) is original
    assert "node_copied" in original.stderr()
