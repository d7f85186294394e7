"""The outbox while the web process, the relay, the peers and the database are killed: no order without its one task.

``ONYXQ_TEST_ORDERS`` is the number of orders, ``ONYXQ_TEST_KILLS`` the number of kills.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import httpx
import psycopg
import pytest
import trio

from onyxq.client import AsyncClient
from onyxq.errors import OnyxqError
from onyxq.outbox import create_table
from onyxq.system.parent_death import killed_with_parent
from tests.outbox.postgres import Postgres, free_port
from tests.processes.cluster import POLL_S, Cluster, bounded, surroundings
from tests.processes.order_shop import KEYS, QUEUE

pytestmark = [pytest.mark.anyio, pytest.mark.long]

NAMES = ("a", "b", "c")
ORDERS = int(os.environ.get("ONYXQ_TEST_ORDERS", "300"))
KILLS = int(os.environ.get("ONYXQ_TEST_KILLS", "12"))
CUSTOMERS = 8
"""Callers of the web process."""
LEASE_MS = 5_000
VICTIMS = ("web", "relay", "spare relay", "peer", "database")


class Program:
    """A Python module as a process, which is killed and started again."""

    def __init__(self, root: Path, name: str, *arguments: str) -> None:
        self._arguments = [sys.executable, "-m", *arguments]
        self._said = root / f"{name.replace(' ', '-')}.out"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it."""
        with open(self._said, "ab") as said:
            self.process = subprocess.Popen(
                self._arguments,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                env=surroundings(),
                cwd=self._said.parent,
                start_new_session=True,
                preexec_fn=killed_with_parent(),  # noqa: PLW1509  # two system calls, their library loaded before
            )

    def kill(self) -> None:
        """Send SIGKILL; return when it is gone."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def tail(self) -> str:
        """Return the end of its output."""
        return self._said.read_text(errors="replace")[-3_000:]


class Shop:
    """All processes of a shop with an outbox, and what is known about its orders."""

    def __init__(self, cluster: Cluster, postgres: Postgres, database: str, rng: random.Random) -> None:
        self.cluster = cluster
        self.postgres = postgres
        self.database = database
        self.rng = rng
        self.url = f"http://127.0.0.1:{free_port()}"
        port = self.url.rpartition(":")[2]
        addresses = [cluster[name].address for name in NAMES]
        relay = ("onyxq", "outbox", "relay", "--database", database, "--connect")
        self.programs = {
            "web": Program(cluster.root, "web", "tests.processes.order_shop", port, database),
            "relay": Program(cluster.root, "relay", *relay, addresses[0]),
            "spare relay": Program(cluster.root, "spare relay", *relay, addresses[1]),
        }
        self.answered = 0
        """Orders whose caller got an answer."""
        self.allowed = 0
        """Orders that may be made until the next kill is over, so that every kill meets work."""
        self.done: dict[bytes, int] = {}
        """Task id -> order, of tasks that a worker completed."""
        self.kills: Counter[str] = Counter()

    async def customer(self, numbers: list[int]) -> None:
        """Order, each number until the web process has answered."""
        async with httpx.AsyncClient(timeout=5, trust_env=False) as http:
            for number in numbers:
                while self.answered >= self.allowed:
                    await trio.sleep(POLL_S / 10)
                status = 0
                while status != 200:
                    with contextlib.suppress(httpx.TransportError):
                        status = (await http.post(f"{self.url}/orders/{number}")).status_code
                    if status != 200:
                        await trio.sleep(POLL_S)
                self.answered += 1

    async def worker(self, client: AsyncClient) -> None:
        """Complete tasks for ever."""
        while True:
            try:
                claims = await client.claim(QUEUE, max=100, lease_ms=LEASE_MS, wait_ms=1_000)
                self.done |= {claim.id: int(claim.data) for claim in claims}
                await client.complete(claims)
            except OnyxqError:
                with trio.move_on_after(POLL_S):  # a lost claim expires, and is granted again
                    await trio.sleep_forever()

    async def kill(self, victim: str) -> None:
        """Kill a process, and start it again at once; return when it serves."""
        self.kills[victim] += 1
        if victim == "database":
            await trio.to_thread.run_sync(self.postgres.kill)
            self.postgres.spawn()
            await trio.to_thread.run_sync(self.postgres.wait)
        elif victim == "peer":
            peer = self.cluster[self.rng.choice(NAMES)]
            await trio.to_thread.run_sync(peer.kill)
            await self.cluster.start(peer.name)
            await self.cluster.whole(*NAMES)
        else:
            self.programs[victim].kill()
            self.programs[victim].start()

    async def faults(self) -> None:
        """Kill a process of each kind in turn, spread over the orders, and two kinds together now and then."""
        victims = [one for _ in range(KILLS) for one in self.rng.sample(VICTIMS, len(VICTIMS))][:KILLS]
        share = ORDERS // KILLS
        for turn, victim in enumerate(victims):
            self.allowed = (turn + 1) * share
            while self.answered < self.allowed - share // 2:
                await trio.sleep(POLL_S / 10)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.kill, victim)
                if turn % 3 == 2 and victim != "relay":
                    nursery.start_soon(self.kill, "relay")
        self.allowed = ORDERS

    def rows(self) -> list[tuple[int, bytes]]:
        """Return every order with the id of its task."""
        with psycopg.connect(self.database) as connection:
            found = connection.execute("SELECT id, task_id FROM orders ORDER BY id").fetchall()
            return [(number, bytes(task_id)) for number, task_id in found]

    def left(self) -> int:
        """Return the number of rows of the outbox."""
        with psycopg.connect(self.database) as connection:
            ((count,),) = connection.execute("SELECT count(*) FROM onyxq_outbox").fetchall()
            return int(count)


@bounded(240 + ORDERS / 5 + 10 * KILLS)
async def test_each_order_has_its_one_task_whatever_is_killed(
    cluster: Cluster, postgres: Postgres, database: str
) -> None:
    """Web process, two relays, three peers and the database get SIGKILL in turn; the tasks are exactly the orders'."""
    with psycopg.connect(database) as connection:
        connection.execute("CREATE TABLE orders (id bigint PRIMARY KEY, task_id bytea)")
        connection.execute(create_table().encode())
    for name in NAMES:
        cluster.more_options("--listen", f"127.0.0.1:{free_port()}")  # the last one is the peer's, also after a kill
        cluster.add(name)
    await cluster.start(*NAMES)
    await cluster.whole(*NAMES)
    shop = Shop(cluster, postgres, database, random.Random(7))
    began = trio.current_time()
    try:
        for program in shop.programs.values():
            program.start()
        async with cluster.client() as client, trio.open_nursery() as nursery:
            nursery.start_soon(shop.worker, client)
            async with trio.open_nursery() as busy:
                busy.start_soon(shop.faults)
                for number in range(CUSTOMERS):
                    busy.start_soon(shop.customer, list(range(number, ORDERS, CUSTOMERS)))
            ordered_s = trio.current_time() - began
            while shop.left() or len(shop.done) < ORDERS:
                await trio.sleep(POLL_S)
            nursery.cancel_scope.cancel()
        await check(shop, {"ordered_s": ordered_s, "done_s": trio.current_time() - began})
    except BaseException:
        for name, program in shop.programs.items():
            print(f"--- {name}\n{program.tail()}")
        raise
    finally:
        for program in shop.programs.values():
            program.kill()


async def check(shop: Shop, took: dict[str, float]) -> None:
    """Compare the orders in the database with all tasks in the cluster, and print the figures."""
    orders = shop.rows()
    async with shop.cluster.client() as client:
        tasks = sorted([(int(task.data), task.id) async for task in client.list_all(QUEUE)])
    counts = Counter(number for number, _ in tasks)
    lost = [number for number, _ in orders if not counts[number]]
    twice = [number for number, count in counts.items() if count > 1]
    figures = {
        "orders": len(orders),
        "tasks": len(tasks),
        "lost": len(lost),
        "twice": len(twice),
        "keyed": sum(1 for number, _ in orders if number % KEYS),
        "kills": dict(shop.kills),
        **{name: round(seconds, 1) for name, seconds in took.items()},
    }
    print(json.dumps(figures))
    assert (len(orders), lost, twice) == (ORDERS, [], [])
    assert tasks == orders
    assert sorted((number, task_id) for task_id, number in shop.done.items()) == orders
