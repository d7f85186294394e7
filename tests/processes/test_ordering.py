"""Ordering keys on real peers: exact order through deaths, and a blocked key that delays no other."""

from __future__ import annotations

import os
import random
from collections import Counter

import pytest
import trio

from onyxq.client import AsyncClient, Claim
from onyxq.client.values import Task
from onyxq.errors import OnyxqError
from tests.processes.cluster import POLL_S, Cluster, PeerProcess, bounded
from tests.processes.workload import PAGE_TASKS, History, described

pytestmark = [pytest.mark.anyio, pytest.mark.long]

KEYS = int(os.environ.get("ONYXQ_TEST_KEYS", "20"))
KEY_TASKS = int(os.environ.get("ONYXQ_TEST_KEY_TASKS", "40"))
"""Tasks of a key; before a release there are 100 keys of 200 tasks."""
BEHIND = int(os.environ.get("ONYXQ_TEST_BEHIND", "500"))
"""Tasks that wait for one that always fails; before a release there are 5,000."""
NAMES = ("a", "b", "c")
QUEUE = "ordered"
KILL_EVERY_S = 10.0
IDLE_ROUNDS_MAX = 5
"""Kills after which no task was completed, one after the other, that fail the test."""
WORKERS_PER_PEER = 8
LEASE_MS = 2_000
"""Short lease, so that claims of dead workers expire during the test."""
FAILS, DIES, GIVES_BACK = 0.10, 0.02, 0.03
"""How often a worker fails a task, dies with it, or releases it."""
RETRY_MS = 50
SEED = 7


class Keys(History):
    """What producers and workers know of tasks with keys."""

    def __init__(self, queue: str) -> None:
        super().__init__(queue)
        self.ids: dict[str, list[bytes]] = {}
        """Key -> ids in the order in which they were acknowledged."""
        self.tried: set[bytes] = set()
        """Tasks whose completion was sent, whatever the answer was."""

    def handed(self, claim: Claim) -> None:
        """Record that a worker has a task: all earlier tasks of its key must be completed, or be reported so."""
        self.took([claim])
        key, _, number = claim.data.decode().partition(" ")
        before = [one for one in self.ids[key][: int(number)] if one not in self.tried]
        if before:
            self.wrong.append(f"{claim.id.hex()}, number {number} of {key}, came before {before[0].hex()}")
        behind = [one for one in self.ids[key][int(number) + 1 :] if one in self.granted]
        if behind:
            self.wrong.append(f"{claim.id.hex()}, number {number} of {key}, came after {behind[0].hex()}")


async def produce(history: Keys, client: AsyncClient, key: str) -> None:
    """Enqueue half of a key's tasks together, then one after the other."""
    ids = history.ids[key] = []
    half = KEY_TASKS // 2
    payloads = [b"%s %d" % (key.encode(), number) for number in range(KEY_TASKS)]
    ids += await client.enqueue_many(QUEUE, payloads[:half], ordering_key=key, retries=None, backoff_ms=RETRY_MS)
    history.enqueued.update(ids)
    for payload in payloads[half:]:
        ids.append(await client.enqueue(QUEUE, payload, ordering_key=key, retries=None, backoff_ms=RETRY_MS))
        history.enqueued.add(ids[-1])


async def work_badly(history: Keys, client: AsyncClient, worker: str, rng: random.Random) -> None:
    """Claim one task at a time until cancelled; complete, fail, release or forget it."""
    while True:
        try:
            claims = await client.claim([QUEUE], max=1, lease_ms=LEASE_MS, wait_ms=1_000, worker=worker)
            for claim in claims:
                history.handed(claim)
                await end_somehow(history, client, claim, rng.random())
        except OnyxqError:
            with trio.move_on_after(POLL_S):
                await trio.sleep_forever()


async def end_somehow(history: Keys, client: AsyncClient, claim: Claim, chance: float) -> None:
    """End one task in a random way; raises `OnyxqError`."""
    if chance < FAILS:
        await client.fail(claim, "by chance")
    elif chance < FAILS + DIES:
        return
    elif chance < FAILS + DIES + GIVES_BACK:
        await client.release(claim)
    else:
        history.tried.add(claim.id)
        await client.complete(claim)
        history.finished([claim])


async def kill_leaders(history: Keys, cluster: Cluster, client: AsyncClient, total: int) -> int:
    """Kill and restart the peer that leads most every ten seconds until all is done; return how often."""
    kills = idle = 0
    with trio.move_on_after(KILL_EVERY_S):
        await history.until_completed(total // 3)
    while len(history.enqueued) < total or history.left:
        before = len(history.completed)
        victim = await most_leading(cluster)
        victim.kill()
        kills += 1
        await cluster.start(victim.name)
        with trio.move_on_after(KILL_EVERY_S):
            await history.until_completed(total - len(history.done))
        await history.look_up(client)
        idle = idle + 1 if len(history.completed) == before else 0
        if idle == IDLE_ROUNDS_MAX:
            stuck = [await described(client, task_id) for task_id in sorted(history.left)[:5]]
            pytest.fail(f"{total - len(history.completed)} of {total} tasks are left, no progress: {stuck}")
    return kills


async def most_leading(cluster: Cluster) -> PeerProcess:
    """Return the peer that leads most partitions, once there is a leader."""

    async def look() -> PeerProcess | None:
        seen_by = cluster.serving[-1]
        led = {peer.name: len(await cluster.led_by(peer, seen_by=seen_by)) for peer in cluster.serving}
        name = max(sorted(led), key=lambda name: led[name])
        return cluster[name] if led[name] else None

    found = await cluster.until("a leader", look)
    assert found is not None
    return found


async def all_of(client: AsyncClient, queue: str) -> dict[bytes, Task]:
    """Return every task of a queue; raises `OnyxqError`."""
    found: dict[bytes, Task] = {}
    after: bytes | None = None
    more = True
    while more:
        page = await client.list(queue, after=after, limit=PAGE_TASKS)
        found.update((task.id, task) for task in page.tasks)
        after = page.after
        more = after is not None
    return found


def check_order(key: str, tasks: list[Task]) -> None:
    """Check that every grant of a task comes before those of the next one, and its last one completed it."""
    before = -1
    for number, task in enumerate(tasks):
        assert task.data.decode() == f"{key} {number}"
        assert task.state == "completed", f"number {number} of {key} is {task.state}"
        tokens = [claim.token for claim in task.claims]
        assert tokens and min(tokens) > before, f"number {number} of {key}: {tokens} behind {before}"
        before = max(tokens)
        ends = Counter(claim.outcome for claim in task.claims)
        assert ends["completed"] == 1, f"number {number} of {key}: {task.claims}"


@bounded(180 + KEYS * KEY_TASKS / 20)
async def test_keys_keep_their_order_while_workers_fail_and_leaders_die(cluster: Cluster) -> None:
    """Workers fail, die and release at random, leaders are killed; each task is done once, in order."""
    await cluster.start(*NAMES)
    await cluster.whole(*NAMES)
    history, total, rng = Keys(QUEUE), KEYS * KEY_TASKS, random.Random(SEED)
    began = trio.current_time()
    async with cluster.client(timeout_ms=120_000) as producer, trio.open_nursery() as nursery:
        async with trio.open_nursery() as loading:
            for number in range(KEYS):
                loading.start_soon(produce, history, producer, f"key-{number}")
            for name in NAMES:
                nursery.start_soon(run_workers, cluster, history, name, rng.getrandbits(32))
            kills = await kill_leaders(history, cluster, producer, total)
        nursery.cancel_scope.cancel()
    print(f"{total} tasks of {KEYS} keys, {kills} kills: {trio.current_time() - began:.1f} s")
    assert kills
    assert history.wrong == []
    assert not history.left
    await cluster.whole(*NAMES)
    async with cluster.client() as client:
        found = await all_of(client, QUEUE)
    assert found.keys() == history.enqueued
    for key, ids in history.ids.items():
        check_order(key, [found[one] for one in ids])


async def run_workers(cluster: Cluster, history: Keys, first: str, seed: int) -> None:
    """Run workers that know one peer at first, each with its own random numbers."""
    rng = random.Random(seed)
    async with cluster.client(first) as client, trio.open_nursery() as nursery:
        for number in range(WORKERS_PER_PEER):
            nursery.start_soon(work_badly, history, client, f"{first}-{number}", random.Random(rng.getrandbits(32)))


@bounded(120 + BEHIND / 50)
async def test_a_key_whose_head_always_fails_holds_up_no_other(cluster: Cluster) -> None:
    """Thousands of tasks that wait for a failing one are not granted; all other keys are completed meanwhile."""
    await cluster.start(*NAMES)
    await cluster.whole(*NAMES)
    history = Keys(QUEUE)
    heads: Counter[bytes] = Counter()
    async with cluster.client() as client:
        head = await client.enqueue(QUEUE, b"poison 0", ordering_key="poison", retries=None, backoff_ms=RETRY_MS)
        behind = await client.enqueue_many(QUEUE, [b"poison"] * BEHIND, ordering_key="poison")
        async with trio.open_nursery() as nursery:
            for number in range(WORKERS_PER_PEER):
                nursery.start_soon(fail_the_head, history, client, heads, head, f"w-{number}")
            async with trio.open_nursery() as loading:
                for number in range(KEYS):
                    loading.start_soon(produce, history, client, f"key-{number}")
            await history.until_all_completed(client)
            await until_tried(history, heads, head, 3)
            nursery.cancel_scope.cancel()
        assert heads.keys() == {head}
        assert history.wrong == []
        await cancel_soon(cluster, client, head)
        claims = await client.claim([QUEUE], max=10, lease_ms=LEASE_MS, wait_ms=10_000)
        assert [claim.id for claim in claims] == behind[:1], "without its head the key goes on"


async def fail_the_head(history: Keys, client: AsyncClient, heads: Counter[bytes], head: bytes, worker: str) -> None:
    """Complete tasks until cancelled, but fail those of the poisoned key."""
    while True:
        claims = await client.claim([QUEUE], max=4, lease_ms=10 * LEASE_MS, wait_ms=1_000, worker=worker)
        for claim in claims:
            if claim.ordering_key == "poison":
                heads[claim.id] += 1
                await client.fail(claim, "poison", retry_in_ms=RETRY_MS)
                history.moved()
            else:
                history.handed(claim)
                history.tried.add(claim.id)
                await client.complete(claim)
                history.finished([claim])


async def until_tried(history: Keys, heads: Counter[bytes], head: bytes, times: int) -> None:
    """Wait until the head was granted that often."""
    while heads[head] < times:
        await history.until_moved()


async def cancel_soon(cluster: Cluster, client: AsyncClient, task_id: bytes) -> None:
    """Cancel a task that workers released a moment ago."""

    async def cancel() -> bool:
        await client.cancel(task_id)
        return True

    await cluster.until("the cancelling", cancel)
