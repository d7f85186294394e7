"""Log collections by real peers, and collectors that die during one."""

from __future__ import annotations

import httpx
import pytest
import trio

from tests.processes.cluster import POLL_S, STATE_TIMEOUT_S, Cluster, PeerProcess

GC_TIMEOUT_S = 60.0


async def gc(cluster: Cluster, peer: PeerProcess) -> dict[str, int]:
    """Request one collection from a peer, and wait until it is over; raises `httpx.TransportError`.

    It is requested again while the peer cannot reach the log, which on a busy machine may stall for a moment.
    """
    answer = await cluster.send(peer, "POST", "/v1/gc", seconds=GC_TIMEOUT_S)
    while answer.status_code == 503:
        await trio.sleep(POLL_S)
        answer = await cluster.send(peer, "POST", "/v1/gc", seconds=GC_TIMEOUT_S)
    assert answer.is_success, answer.text
    report: dict[str, int] = answer.json()
    return report


async def die_collecting(cluster: Cluster, victim: PeerProcess, step: str) -> None:
    """Start a node that dies at a step of a collection; return once others have finished the collection.

    The steps are those of `tests.processes.dying_peer`; a *between* or *within* step is passed once before.
    """
    survivors = [peer.name for peer in cluster.serving]
    victim.program = "tests.processes.dying_peer"
    victim.surroundings = {"DIE_AT": step, "DIE_COUNT": "1" if step.startswith(("between the", "within")) else "0"}
    await cluster.start(victim.name)
    await cluster.whole(*survivors, victim.name)
    with pytest.raises(httpx.TransportError):
        await gc(cluster, victim)
    with trio.fail_after(STATE_TIMEOUT_S):
        while victim.runs:
            await trio.sleep(POLL_S)
    witness = cluster[survivors[0]]

    async def finished() -> bool:
        return (await applied(cluster, witness))[-1:] == ["finish_gc"]

    await cluster.until(f"{step}: the collection ends", finished)
    victim.program = "onyxq"


async def applied(cluster: Cluster, witness: PeerProcess) -> list[str]:
    """Return the starts and ends of collections in the log, as far as a peer remembers it."""
    records = (await cluster.see(witness, "/v1/log?limit=1000"))["records"]
    names = [entry["entry"] for record in records for entry in record["entries"] if entry["verdict"] == "applied"]
    return [name for name in names if name in ("gc", "finish_gc")]


async def grown(cluster: Cluster, *, beyond: int, records: int) -> None:
    """Wait until the log has a number of records after a position."""
    witness = cluster.serving[0]

    async def look() -> bool:
        return bool((await cluster.see(witness, "/v1/cluster"))["position"] >= beyond + records)

    await cluster.until(f"{records} records beyond {beyond}", look)
