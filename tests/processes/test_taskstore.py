"""The task store on real peers that are killed: the MapReduce is exact, and all answers equal the model's.

``ONYXQ_TEST_PROGRAMS`` is the number of programs of five requests over HTTP, instead of the usual
few.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from onyxq.history.dump import read
from onyxq.interfaces.cli.main import run
from onyxq.system.extensions import installed
from simulation.world.stored import Requests, Truth, as_answered
from tests.processes.cluster import ASK_TIMEOUT_S, Cluster, PeerProcess, bounded, surroundings
from tests.processes.collecting import gc

pytestmark = [pytest.mark.anyio, pytest.mark.long]

NAMES = ("a", "b", "c")
ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "taskstore_mapreduce" / "word_count.py"
PROGRAMS = int(os.environ.get("ONYXQ_TEST_PROGRAMS", "80"))
CLIENTS = 4
REQUESTS = 5
"""Requests of one program."""
GROUPS = ("map", "reduce/1")


# --- MapReduce


@bounded(300)
async def test_a_mapreduce_is_exact_while_workers_and_peers_are_killed(cluster: Cluster) -> None:
    """Six of its workers and two of three peers are killed at random; the remaining one continues alone."""
    await cluster.start(*NAMES)
    await cluster.whole(*NAMES)
    connect = ",".join(peer.address for peer in cluster.peers.values())
    options = ["--connect", connect, "--kills", "6", "--seed", "7", "--pause-ms", "80", "--lease-ms", "1500"]
    command = [sys.executable, str(EXAMPLE), str(ROOT / "docs" / "transactions.rst"), *options]
    ended: list[subprocess.CompletedProcess[bytes]] = []

    async def job() -> None:
        ended.append(
            await trio.run_process(
                command, capture_stdout=True, capture_stderr=True, check=False, env=surroundings(), cwd=cluster.root
            )
        )

    left = [0]

    async def goes_on() -> bool:
        now = await work_left(cluster, cluster["c"])
        left.append(now or left[-1])
        return left[-1] != left[-2]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(job)
        for name in ("a", "b"):
            await cluster.until("others go on with the work", goes_on)
            assert not ended, "it is killed in the middle"
            cluster[name].kill()
        await cluster.until("the last one goes on with the work", goes_on)
        await cluster.start("a", "b")
    said = ended[0].stdout.decode() + ended[0].stderr.decode()
    assert ended[0].returncode == 0 and "exact: yes" in said and said.count("is killed") == 6, said


async def work_left(cluster: Cluster, peer: PeerProcess) -> int:
    """Return the tasks of the job that a peer knows."""
    found = 0
    for group in await cluster.see(peer, "/taskstore/groups"):
        found += len(await cluster.see(peer, f"/taskstore/group/{group}?owned=1"))
    return found


# --- programs


class Whole(httpx.AsyncByteStream):
    """A body in one piece; httpx's own leaves a generator open when its connection breaks, which is warned about."""

    def __init__(self, body: bytes) -> None:
        self._left = [body]

    def __aiter__(self) -> Whole:
        return self

    async def __anext__(self) -> bytes:
        if not self._left:
            raise StopAsyncIteration
        return self._left.pop()


async def posted(cluster: Cluster, peer: PeerProcess, path: str, body: Any) -> httpx.Response:
    """Return the answer of a peer that may die meanwhile; raises `httpx.TransportError`."""
    data = json.dumps(body).encode()
    request = httpx.Request(
        "POST",
        f"http://{peer.http}{path}",
        headers={"host": peer.http, "content-type": "application/json", "content-length": str(len(data))},
        stream=Whole(data),
        extensions={"timeout": httpx.Timeout(ASK_TIMEOUT_S).as_dict()},
    )
    return await cluster._http.send(request)


class Programs:
    """Random requests of several clients at a time, and their answers."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.requests = Requests(random.Random(seed), GROUPS)
        self.asked: dict[int, Any] = {}
        """Mark -> the answer; None if it was lost."""

    async def run(self, client: int, programs: int) -> None:
        """Run programs one after the other, each at another peer."""
        for _ in range(programs):
            peer = self.requests.random.choice(self.cluster.serving)
            for _ in range(REQUESTS):
                await self.request(peer, client)

    async def request(self, peer: PeerProcess, client: int) -> None:
        """Send an update or a claim, with a mark by which it is found in the log."""
        mark, kind, args = self.requests.next()
        self.asked[mark] = None
        with contextlib.suppress(httpx.TransportError):
            body = {"clientid": client, **(as_body(args) if kind == "update" else as_claim(args))}
            answer = await posted(self.cluster, peer, f"/taskstore/{kind}", body)
            assert answer.status_code in (200, 503), answer.text
            if answer.status_code == 200:
                self.asked[mark] = answer.json()
                self.requests.seen += [task["id"] for task in answer.json()["Tasks"] or ()]


def as_body(args: dict[str, Any]) -> dict[str, Any]:
    """Return an update in the form of HTTP."""
    return {
        "adds": [{"group": group, "data": data} for group, data, _ in args["adds"]],
        "updates": [{"id": number, "data": data, "timespec": at_ms} for number, data, at_ms in args["changes"]],
        "deletes": args["deletes"],
        "depends": args["depends"],
    }


def as_claim(args: dict[str, Any]) -> dict[str, Any]:
    """Return a claim in the form of HTTP."""
    return {"group": args["group"], "duration": args["duration_ms"]}


def answered(answer: Any) -> Any:
    """Return an answer in the form of the model's."""
    error = answer["Error"]
    if error is not None:
        return [None, error["Changes"], error["Deletes"], error["Depends"], error["Owned"]]
    found = answer["Tasks"] or []
    return [[task["id"], task["group"], task["timespec"], task["ownerid"], task["data"]] for task in found]


@bounded(300 + PROGRAMS / 2)
async def test_answers_over_http_are_the_models_while_peers_die_and_the_log_is_collected(
    cluster: Cluster, tmp_path: Path, zookeeper: Any
) -> None:
    """Every answer equals the model's at the request's place in the log, before and after a snapshot."""
    await cluster.start(*NAMES)
    await cluster.whole(*NAMES)
    programs, truth = Programs(cluster, seed=3), Truth()
    for turn, name in enumerate(("a", "b")):
        half = PROGRAMS // 2 // CLIENTS
        begun = programs.requests.marks
        async with trio.open_nursery() as nursery:
            for client in range(1, CLIENTS + 1):
                nursery.start_soon(programs.run, client, half)

            async def some(begun: int = begun, half: int = half) -> bool:
                return programs.requests.marks - begun > half * CLIENTS * REQUESTS // 3

            await cluster.until("requests are made", some, seconds=60 + PROGRAMS / 8)
            cluster[name].kill()
            await cluster.start(name)
        path = tmp_path / f"{turn}.dump"
        await dumped(cluster, path)
        dump = read(path)
        truth.follow(dump.start, dump.records, installed())
        await gc(cluster, cluster["c"])
    lost = [mark for mark, answer in programs.asked.items() if answer is None]
    for mark, answer in programs.asked.items():
        if answer is not None:
            assert [answered(answer)] == [as_answered(one) for one in truth.answers[mark]], mark
    assert set(truth.answers) <= set(programs.asked)
    print(f"{programs.requests.marks} requests of {PROGRAMS} programs, {len(lost)} without an answer")
    assert len(lost) < programs.requests.marks / 2
    for peer in cluster.peers.values():
        peer.kill()
    await cluster.start(*NAMES)
    await cluster.whole(*NAMES)
    sent = {"clientid": 1, "adds": [{"group": "new"}]}
    answer = await cluster.send(cluster["a"], "POST", "/taskstore/update", sent)
    assert answer.json()["Tasks"][0]["id"] > truth.model.highest, "ids go on behind a restart of all"


async def dumped(cluster: Cluster, path: Path) -> None:
    """Write the log to a file."""

    def body() -> int:
        with contextlib.redirect_stdout(io.StringIO()):
            return run(["log", "dump", str(path), "--connect", cluster["c"].address, "--json"])

    assert await trio.to_thread.run_sync(body) == 0
