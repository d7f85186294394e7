"""Idempotency keys: a repeated request makes the same ids, hence the same tasks, at every peer and after restarts.

The ids of a keyed request follow from the key (maker field), from the time of its first arrival and from the
partitions chosen then.  That time, these partitions and a digest of the body are stored as a finished task of the queue
`REQUESTS_QUEUE`.  Its unique key is a digest of the idempotency key.  After it is purged, the key is new again.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from attrs import frozen

from onyxq.core.errors import Conflict
from onyxq.core.ids import Run, make_id
from onyxq.interfaces.http.endpoint import Call
from onyxq.interfaces.http.routes.enqueue import check_header
from onyxq.operations.table.enqueue import REMEMBER_REQUEST, FirstRequest, RememberRequest

HEADER = "Idempotency-Key"


@frozen
class Keyed:
    """A request with a key."""

    key: bytes
    """Digest of the key and of the credential that sent it: others may use the same key."""
    first: FirstRequest
    """What was stored of the first request with this key."""

    def run(self, index: int, count: int, *, home: int | None, due_ms: int) -> Run:
        """Return the ids of the request's run number ``index``; ``home``: the partition that it must lie in."""
        maker = blake2b(self.key + index.to_bytes(4, "big"), digest_size=8).digest()
        partition = self.first.partitions[index % len(self.first.partitions)] if home is None else home
        return Run(make_id(max(due_ms, self.first.at_ms), partition, int.from_bytes(maker, "big"), 0), count)


async def found(call: Call) -> Keyed | None:
    """Return the earlier request with the key of this one; None without one, or without a key. Raises `Conflict`."""
    return await _keyed(call, None)


async def stored(call: Call, *, at_ms: int, partitions: Sequence[int]) -> Keyed | None:
    """Return the first request with the key of this one, which may be this one; None without a key.

    ``at_ms``: the time of this request. ``partitions``: those that its runs use in turn. Raises `Conflict` if the key
    was sent with another body before.
    """
    return await _keyed(call, FirstRequest(body=_digest(call.raw), at_ms=at_ms, partitions=list(partitions)))


async def _keyed(call: Call, request: FirstRequest | None) -> Keyed | None:
    text = call.headers.get("idempotency-key")
    if text is None:
        return None
    check_header(HEADER, text)
    key = of_caller(call, text)
    first = (await call.do(REMEMBER_REQUEST, RememberRequest(key=key, request=request))).first
    if first is None:
        return None
    if first.body != _digest(call.raw):
        raise Conflict(
            f"this {HEADER} was sent with another body before",
            field=HEADER,
            hint="Use a fresh key for each new request.",
        )
    return Keyed(key, first)


def of_caller(call: Call, text: str) -> bytes:
    """Return the digest, of 16 bytes, of a key and of the credential that sent it: others may use the same key."""
    return _digest(f"{len(call.owner)}:{call.owner}{text}".encode("utf-8", "surrogatepass"))


def _digest(data: bytes) -> bytes:
    return blake2b(data, digest_size=16).digest()
