"""Idempotency keys: a repeated request makes the same ids, hence the same tasks.

The ids of a keyed request follow from the key (maker field), from the time of its first arrival and from the
partitions chosen then. The last two are remembered here, in memory.

Limits: a key is remembered for 24 hours by the peer that got it, but not after a restart of that peer. At most 65,536
keys are kept; above that the credential with the most keys loses its oldest one.  A request that must be safe to
repeat beyond that, or to another peer, carries ids from ``GET /v1/ids``.
"""

from __future__ import annotations

from hashlib import blake2b

from attrs import define

from onyxq.core.errors import Conflict
from onyxq.core.ids import Run, make_id

KEYS_MAX = 65_536
KEY_AGE_MAX_MS = 24 * 3_600_000


@define
class Keyed:
    """The remembered parts of a key's first request."""

    owner: str
    """Name of the credential that sent the key."""
    key: bytes
    body: bytes
    """Digest of the request's body."""
    at_ms: int
    partitions: tuple[int, ...] = ()
    """The partition of each run, once chosen."""

    def run(self, index: int, count: int, *, due_ms: int) -> Run:
        """Return the ids of the request's run number ``index``."""
        maker = blake2b(self.key + index.to_bytes(4, "big"), digest_size=8).digest()
        first = make_id(max(due_ms, self.at_ms), self.partitions[index], int.from_bytes(maker, "big"), 0)
        return Run(first, count)


class Keys:
    """The recent keys: credentials with many keys make room for those with few."""

    def __init__(self, *, keys_max: int = KEYS_MAX) -> None:
        self._keys_max = keys_max
        self._seen: dict[str, dict[bytes, Keyed]] = {}
        """Owner -> its keys, oldest first."""
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def find(self, key: str, *, owner: str, body: bytes, now_ms: int) -> Keyed:
        """Return the record of the key, or a first record of it that is not stored yet.

        ``owner`` separates the keys of different credentials. Raises `Conflict` if the key was sent with another body
        before.
        """
        digest = blake2b(f"{len(owner)}:{owner}{key}".encode("utf-8", "surrogatepass"), digest_size=16).digest()
        body_digest = blake2b(body, digest_size=16).digest()
        keyed = self._seen.get(owner, {}).get(digest)
        if keyed is None or keyed.at_ms <= now_ms - KEY_AGE_MAX_MS:
            return Keyed(owner, digest, body_digest, now_ms)
        if keyed.body != body_digest:
            raise Conflict(
                "this Idempotency-Key was sent with another body before",
                field="Idempotency-Key",
                hint="Use a fresh key for each new request.",
            )
        return keyed

    def store(self, keyed: Keyed) -> None:
        """Remember the record of a request that is about to be sent on."""
        own = self._seen.setdefault(keyed.owner, {})
        if own.get(keyed.key) is keyed:
            return
        self._count -= own.pop(keyed.key, None) is not None
        while own and next(iter(own.values())).at_ms <= keyed.at_ms - KEY_AGE_MAX_MS:
            self._forget(keyed.owner)
        while self._count >= self._keys_max:
            self._forget(max(self._seen, key=lambda owner: len(self._seen[owner])))
        self._seen.setdefault(keyed.owner, {})[keyed.key] = keyed
        self._count += 1

    def _forget(self, owner: str) -> None:
        """Forget the oldest key of an owner."""
        found = self._seen[owner]
        del found[next(iter(found))]
        self._count -= 1
        if not found:
            del self._seen[owner]
