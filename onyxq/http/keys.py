"""Idempotency keys: a repeated request makes the same ids, hence the same tasks.

The ids of a keyed request follow from the key (maker field), from the time of its first
arrival and from the partitions chosen then; the last two are remembered here, in memory.

Limits: a key is remembered for 24 hours by the peer that got it, at most 65,536 keys at
a time (the oldest go first), and not across a restart of that peer.  A request that must
be safe to repeat beyond that, or to another peer, carries ids from ``GET /v1/ids``.
"""

from __future__ import annotations

from hashlib import blake2b

from attrs import define

from onyxq.errors import Conflict
from onyxq.ids import Run, make_id

KEYS_MAX = 65_536
KEY_AGE_MAX_MS = 24 * 3_600_000


@define
class Keyed:
    """What is remembered of a key's first request."""

    key: bytes
    body: bytes
    """Digest of the request's body."""
    at_ms: int
    partitions: tuple[int, ...] = ()
    """The partition of each run, once chosen."""

    def run(self, index: int, count: int, *, due_ms: int) -> Run:
        """The ids of the request's run number ``index``."""
        maker = blake2b(self.key + index.to_bytes(4, "big"), digest_size=8).digest()
        first = make_id(max(due_ms, self.at_ms), self.partitions[index], int.from_bytes(maker, "big"), 0)
        return Run(first, count)


class Keys:
    """The keys seen lately, oldest first."""

    def __init__(self, *, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._seen: dict[bytes, Keyed] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def find(self, key: str, *, owner: str, body: bytes, now_ms: int) -> Keyed:
        """What is known of the key, or a first record of it that is not stored yet.

        ``owner`` keeps the keys of different credentials apart. Raises `Conflict` if the
        key came with another body before.
        """
        digest = blake2b(f"{len(owner)}:{owner}{key}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
        body_digest = blake2b(body, digest_size=16).digest()
        keyed = self._seen.get(digest)
        if keyed is None or keyed.at_ms <= now_ms - KEY_AGE_MAX_MS:
            return Keyed(digest, body_digest, now_ms)
        if keyed.body != body_digest:
            raise Conflict(
                "this Idempotency-Key came with another body before",
                field="Idempotency-Key",
                hint="Use a fresh key for each new request.",
            )
        return keyed

    def store(self, keyed: Keyed) -> None:
        """Remember the record of a request that is about to be sent on."""
        if self._seen.get(keyed.key) is keyed:
            return
        while self._seen:
            digest, oldest = next(iter(self._seen.items()))
            if len(self._seen) < self._keys_max and oldest.at_ms > keyed.at_ms - KEY_AGE_MAX_MS:
                break
            del self._seen[digest]
        self._seen.pop(keyed.key, None)
        self._seen[keyed.key] = keyed
