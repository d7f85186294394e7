"""A worker process for `tests.processes.test_word_count_transactions`: every step is one transaction.

Run as ``python -m tests.processes.counting_worker NAME SEED TEXTS HOST:PORT...``, until it is
killed.

* A *map* task is a text. Its words are counted, and the transaction that completes it enqueues the
  counts of each word partition as a task of that partition's queue.
* A *reduce* step takes several tasks of one word partition. The transaction that completes them
  enqueues their sum as one task: in the same queue or, once all texts are included, in the queue of
  results.

So a step that is lost, incomplete or repeated makes the counts wrong.
"""

from __future__ import annotations

import json
import random
import sys
import zlib
from collections import Counter

import trio

from onyxq.client import AsyncClient, Claim
from onyxq.errors import OnyxqError
from tests.processes.cluster import POLL_S

MAP, REDUCE, RESULT = "map", "reduce-{}", "result"
WORD_PARTITIONS = 4
LEASE_MS = 2_000
WAIT_MS = 200
MERGED_MAX = 8
"""Tasks that one reduce step adds up."""
LOOPS = 2


def partition_of_word(word: str) -> int:
    """Return the partition of a word, the same in every process."""
    return zlib.crc32(word.encode()) % WORD_PARTITIONS


def pack(texts: int, counts: dict[str, int]) -> bytes:
    """Return the counts of a number of texts as a task's payload."""
    return json.dumps([texts, counts], sort_keys=True).encode()


def unpack(payload: bytes) -> tuple[int, Counter[str]]:
    """The reverse of `pack`."""
    texts, counts = json.loads(payload)
    return texts, Counter(counts)


async def map_step(client: AsyncClient, claim: Claim) -> None:
    """Count the words of one text."""
    parts: list[Counter[str]] = [Counter() for _ in range(WORD_PARTITIONS)]
    for word in claim.data.decode().split():
        parts[partition_of_word(word)][word] += 1
    async with client.transaction() as tx:
        tx.complete(claim)
        for number, counts in enumerate(parts):
            tx.enqueue(REDUCE.format(number), pack(1, counts))


async def some_of(client: AsyncClient, queue: str, name: str, rng: random.Random) -> list[Claim]:
    """Claim tasks of a queue, at least two if possible, because one call gets those of one peer."""
    claims = list(await client.claim([queue], max=MERGED_MAX, lease_ms=LEASE_MS, worker=name))
    if len(claims) == 1:
        wait_ms = rng.randrange(WAIT_MS)
        claims += await client.claim([queue], max=MERGED_MAX, lease_ms=LEASE_MS, wait_ms=wait_ms, worker=name)
    return claims


async def reduce_step(client: AsyncClient, number: int, claims: list[Claim], texts_in_all: int) -> None:
    """Combine several tasks into one; release a single task that is not complete yet."""
    texts, total = 0, Counter[str]()
    for claim in claims:
        part_texts, counts = unpack(claim.data)
        texts += part_texts
        total.update(counts)
    if len(claims) == 1 and texts < texts_in_all:
        await client.release(claims)
        return
    async with client.transaction() as tx:
        tx.complete(claims)
        tx.enqueue(RESULT if texts == texts_in_all else REDUCE.format(number), pack(texts, total))


async def work(client: AsyncClient, name: str, texts_in_all: int, rng: random.Random) -> None:
    """Do steps of both kinds for ever, of a random word partition each time."""
    while True:
        try:
            for claim in await client.claim([MAP], max=2, lease_ms=LEASE_MS, wait_ms=WAIT_MS, worker=name):
                await map_step(client, claim)
            number = rng.randrange(WORD_PARTITIONS)
            if claims := await some_of(client, REDUCE.format(number), name, rng):
                await reduce_step(client, number, claims, texts_in_all)
        except OnyxqError:
            with trio.move_on_after(POLL_S):  # a lost claim expires, and another worker gets the task
                await trio.sleep_forever()


async def main(name: str, seed: str, texts_in_all: str, *addresses: str) -> None:
    """Work until killed."""
    rng = random.Random(int(seed))
    async with AsyncClient(addresses) as client, trio.open_nursery() as nursery:
        for number in range(LOOPS):
            stream = random.Random(rng.getrandbits(32))
            nursery.start_soon(work, client, f"{name}-{number}", int(texts_in_all), stream)


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
