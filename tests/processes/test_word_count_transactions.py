"""Word count by map and reduce, one transaction per step, with killed workers and peers: counts are exact."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import trio

from onyxq.client import AsyncClient
from onyxq.system.parent_death import killed_with_parent
from tests.processes.cluster import Cluster, bounded, surroundings
from tests.processes.counting_worker import MAP, REDUCE, RESULT, WORD_PARTITIONS, unpack
from tests.processes.workload import states

pytestmark = [pytest.mark.anyio, pytest.mark.long]

KILLS = int(os.environ.get("ONYXQ_TEST_KILLS", "6"))
"""Number of kills; before a release it is 50."""
SEED = int(os.environ.get("ONYXQ_TEST_SEED", "3"))
NAMES = ("a", "b", "c")
WORKERS = 3
TEXTS_PER_KILL = 12
TEXT_WORDS = 40
VOCABULARY = 60
PAUSE_S_MAX = 1.5
"""Longest time between two kills, without the restart of a peer."""


class Workers:
    """Worker processes, started again when they are killed."""

    def __init__(self, directory: Path, texts: int, rng: random.Random) -> None:
        self._directory = directory
        self._texts = texts
        self._rng = rng
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self, addresses: Sequence[str]) -> None:
        """Start one more worker."""
        number = len(self._running)
        seed = str(self._rng.getrandbits(32))
        command = [sys.executable, "-m", "tests.processes.counting_worker", f"w{number}", seed, str(self._texts)]
        with open(self._directory / f"worker-{number}.err", "ab") as stderr:
            self._running.append(
                subprocess.Popen(
                    [*command, *addresses],
                    stdin=subprocess.DEVNULL,
                    stdout=stderr,
                    stderr=stderr,
                    env=surroundings(),
                    start_new_session=True,
                    preexec_fn=killed_with_parent(),  # noqa: PLW1509  # two system calls, their library loaded before
                )
            )

    def kill_one(self) -> None:
        """Kill one of them with SIGKILL."""
        victim = self._running.pop(self._rng.randrange(len(self._running)))
        assert victim.poll() is None, f"a worker ended by itself, with {victim.returncode}"
        victim.send_signal(signal.SIGKILL)
        victim.wait()

    def end(self) -> None:
        """Kill all."""
        for worker in self._running:
            worker.kill()
            worker.wait()


@contextlib.contextmanager
def workers_of(directory: Path, texts: int, rng: random.Random) -> Iterator[Workers]:
    """Return workers, none at first, which end with the block."""
    workers = Workers(directory, texts, rng)
    try:
        yield workers
    finally:
        workers.end()


def make_texts(count: int, rng: random.Random) -> list[str]:
    """Return texts of words, some of them frequent."""
    words = [f"word{number}" for number in range(VOCABULARY)]
    weights = [1 / (rank + 1) for rank in range(VOCABULARY)]
    return [" ".join(rng.choices(words, weights, k=TEXT_WORDS)) for _ in range(count)]


async def results(client: AsyncClient) -> list[tuple[int, Counter[str]]]:
    """Return the contents of the result queue, which no worker claims; raises `OnyxqError`."""
    page = await client.list(RESULT, limit=100)
    return [unpack(task.data) for task in page.tasks]


@bounded(180 + 15 * KILLS)
async def test_every_word_is_counted_once_whoever_is_killed(cluster: Cluster) -> None:
    """There are new texts before each kill of a worker or peer; at the end the sums are those of a plain count."""
    await cluster.start(*NAMES)
    await cluster.whole(*NAMES)
    rng = random.Random(SEED)
    texts = make_texts(TEXTS_PER_KILL * (KILLS + 1), rng)
    killed: Counter[str] = Counter()
    with workers_of(cluster.root, len(texts), rng) as workers:
        for _ in range(WORKERS):
            workers.start([peer.address for peer in cluster.serving])
        async with cluster.client(timeout_ms=60_000) as client:
            for round_number in range(KILLS):
                batch = texts[round_number * TEXTS_PER_KILL :][:TEXTS_PER_KILL]
                await client.enqueue_many(MAP, [text.encode() for text in batch])
                with trio.move_on_after(rng.random() * PAUSE_S_MAX):
                    await trio.sleep_forever()
                if rng.random() < 0.5:
                    killed["worker"] += 1
                    workers.kill_one()
                    workers.start([peer.address for peer in cluster.serving])
                else:
                    victim = cluster[rng.choice(NAMES)]
                    killed["peer"] += 1
                    victim.kill()
                    await cluster.start(victim.name)
            await client.enqueue_many(MAP, [text.encode() for text in texts[KILLS * TEXTS_PER_KILL :]])

            async def done() -> list[tuple[int, Counter[str]]] | None:
                found = await results(client)
                return found if len(found) >= WORD_PARTITIONS else None

            found = await cluster.until("all results", done, seconds=90 + KILLS)
            assert found is not None
            print(f"{len(texts)} texts, killed {dict(killed)}")
            assert [count for count, _ in found] == [len(texts)] * WORD_PARTITIONS
            assert sum((counts for _, counts in found), Counter[str]()) == Counter(" ".join(texts).split())
            await nothing_is_left(cluster, client, len(texts))
    assert killed["worker"] and killed["peer"]


async def nothing_is_left(cluster: Cluster, client: AsyncClient, texts: int) -> None:
    """Check that each text's task is completed, and each part that was added up."""
    for queue in (MAP, *map(REDUCE.format, range(WORD_PARTITIONS))):

        async def read(queue: str = queue) -> dict[bytes, str]:
            return await states(client, queue)

        found = await cluster.until(f"reading all of {queue}", read)
        assert set(found.values()) == {"completed"}, (queue, Counter(found.values()))
        assert queue != MAP or len(found) == texts
