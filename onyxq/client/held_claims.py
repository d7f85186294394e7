"""Operations of a client on the claims it holds (design: claims).

Every operation is a list of items ``[first id, count, token, ...]``; whole runs stay whole. A peer answers with
the parts it refused. Parts refused for a temporary reason are sent again until the deadline; all operations are
safe to repeat.
"""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import anyio

from onyxq.client.claims import Claim, ClaimBatch, Claims, pieces_of
from onyxq.client.pool import RETRYABLE, Backoff, Group, Pool
from onyxq.client.single import time_for
from onyxq.core.errors import BadRequest, BatchRefused, OnyxqError, Refused, from_map
from onyxq.core.ids import STRETCH_TASKS, counter_of, ids_of, offset_of, partition_of, with_counter

ITEMS_MAX = 1000
"""Largest number of items in one request."""
RESULT_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of results from which a request takes no further item."""
RESULTS = 4
"""Index of the results in an item of ``complete``."""

Item = list[Any]


class Holder:
    """Sender of one client's completions, failures, renewals and releases."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._groups: dict[tuple[str, str | None], Group[Item, bool]] = {}

    async def act(self, method: str, claims: Claims, items: list[Item], *, until: float) -> None:
        """Apply ``method`` to items; raise the error itself for a single `Claim`, otherwise `BatchRefused`.

        If nothing at all was done, for temporary reasons, the first of these errors is raised.
        """
        if isinstance(claims, Claim):
            await self._one(method, items[0], until)
            return
        refused: list[Refused] = []
        if len(items) == 1 and items[0][1] == 1:
            # A batch of one task is sent like a single claim, together with other calls.
            try:
                await self._one(method, items[0], until)
            except OnyxqError as error:
                refused.append(Refused(items[0][0], 1, error))
        else:
            for request in requests_of(items):
                refused += await self._insist(method, request, until)
        if refused:
            whole = sum(part.count for part in refused) == sum(item[1] for item in items)
            if whole and all(isinstance(part.error, RETRYABLE) for part in refused):
                raise refused[0].error
            raise BatchRefused(refused)

    async def update(self, claim: Claim, data: bytes, *, w: int | None = None, until: float) -> int:
        """Store the claim's next update on ``w`` nodes; return its sequence number. One at a time per claim."""
        if type(data) is not bytes:
            raise BadRequest(f"an update is bytes, not {type(data).__name__}", field="data")
        if claim.lock is None:
            claim.lock = anyio.Lock()
        async with claim.lock:
            if claim.unsure is not None:
                # It may be stored under this number already, so no other update may take the number.
                await self._send_update(claim, claim.unsure, w, until)
            await self._send_update(claim, data, w, until)
            return claim.seq - 1

    async def _send_update(self, claim: Claim, data: bytes, w: int | None, until: float) -> None:
        is_new, claim.unsure = claim.unsure is None, data
        backoff = Backoff(until, self._pool.generator)
        args: dict[str, Any] = {"items": [[claim.id, claim.token, claim.seq, data]]}
        if w is not None:
            args["w"] = w
        while True:
            try:
                answer = await self._pool.call("update", args, until=until, address=self._address([[claim.id]]))
            except BadRequest:
                if is_new:
                    claim.unsure = None  # any peer refuses it before it has an effect, so it is stored nowhere
                raise
            (refusal,) = answer["results"]
            if refusal is None:
                claim.seq += 1
                claim.unsure = None
                return
            error = from_map(refusal)
            if not isinstance(error, RETRYABLE) or backoff.over(margin_s=time_for(error)):
                if not isinstance(error, RETRYABLE):
                    claim.unsure = None
                raise error
            await backoff.wait()

    async def _one(self, method: str, item: Item, until: float) -> None:
        backoff = Backoff(until, self._pool.generator)
        while True:
            key = (method, self._address([item]))
            group = self._groups.get(key)
            if group is None:
                self._groups = {kept: group for kept, group in self._groups.items() if not group.idle}
                group = self._groups[key] = Group(self._pool, partial(self._send_group, method), size_max=ITEMS_MAX)
            try:
                await group.add(item, until=until)
                return
            except RETRYABLE:
                if backoff.over():
                    raise
            await backoff.wait()

    async def _send_group(self, method: str, items: list[Item], until: float) -> list[bool | OnyxqError]:
        errors: dict[tuple[bytes, int], OnyxqError] = {}
        for request in requests_of(merged(items)):
            # Two claims of one task may be in the request, and only one of them refused.
            for item, parts in zip(request, await self._answers(method, request, until), strict=True):
                for first, count, error in parts:
                    errors.update(((task_id, item[2]), from_map(error)) for task_id in ids_of(first, count))
        return [errors.get((item[0], item[2]), True) for item in items]

    async def _insist(self, method: str, items: list[Item], until: float) -> list[Refused]:
        backoff = Backoff(until, self._pool.generator)
        final: list[Refused] = []
        while True:
            refused = await self._attempt(method, items, until)
            passing = [(item, part) for item, part in refused if isinstance(part.error, RETRYABLE)]
            final += [part for _, part in refused if not isinstance(part.error, RETRYABLE)]
            if not passing or backoff.over():
                return final + [part for _, part in passing]
            items = [narrowed(item, part) for item, part in passing]
            self._pool.refresh_soon()
            await backoff.wait()

    async def _attempt(self, method: str, items: list[Item], until: float) -> list[tuple[Item, Refused]]:
        """Return the refused parts, each with its item."""
        answers = await self._answers(method, items, until)
        return [
            (item, Refused(first, count, from_map(error)))
            for item, parts in zip(items, answers, strict=True)
            for first, count, error in parts
        ]

    async def _answers(self, method: str, items: list[Item], until: float) -> list[Any]:
        """Return the refused parts of each item."""
        answer = await self._pool.call(method, {"items": items}, until=until, address=self._address(items))
        found: list[Any] = answer["results"]
        return found

    def _address(self, items: list[Item]) -> str | None:
        """Return the address of the peer that leads all partitions of the items; None if there is none."""
        leaders = {self._pool.leader_of(partition_of(item[0])) for item in items}
        return leaders.pop() if len(leaders) == 1 else None


def completion_items(claims: Claims, result: bytes | None, results: list[bytes | None] | None) -> list[Item]:
    """Return the items of ``complete``, with one result for each claim or the same for all; raise `BadRequest`."""
    for one in (result,) if results is None else results:
        if one is not None and not _is_data(one):
            raise BadRequest(f"a result is bytes or None, not {type(one).__name__}", field="result")
    pieces = pieces_of(claims)
    if results is not None and len(results) != sum(piece.size for piece in pieces):
        raise BadRequest(f"{len(results)} results for {sum(piece.size for piece in pieces)} claims", field="results")
    items, start = [], 0
    for piece in pieces:
        part = results[start : start + piece.size] if results is not None else None
        if part is None and result is not None:
            part = [result] * piece.size
        start += piece.size
        items.append([*piece.item, piece.seq, part])
    return items


def _is_data(value: Any) -> bool:
    return isinstance(value, (bytes, bytearray, memoryview))


def items_of(claims: Claims, *more: Any) -> list[Item]:
    """Return the items of the other operations: id, count, token and further values."""
    return [[*piece.item, *more] for piece in pieces_of(claims)]


def renewal_items(claims: Claims, lease_ms: int | None) -> list[Item]:
    """Return the items of ``renew``, with the given lease or the one that each claim was granted with."""
    return [[*piece.item, lease_ms or piece.run.lease_ms] for piece in pieces_of(claims)]


def extend(claims: Claims, lease_ms: int | None, *, sent_at: float, refused: list[Refused]) -> None:
    """Record that claims were renewed by a request sent at ``sent_at`` (monotonic second)."""
    if isinstance(claims, ClaimBatch) and not refused:
        for run in claims.runs:
            run.expires = max(run.expires, sent_at + (lease_ms or run.lease_ms) / 1000)
        return
    lost = {task_id for part in refused for task_id in ids_of(part.first, part.count)}
    for claim in [claims] if isinstance(claims, Claim) else claims:
        if claim.id not in lost:
            claim.extend(sent_at + (lease_ms or claim.run.lease_ms) / 1000)


def merged(items: list[Item]) -> list[Item]:
    """Return the items with neighbours of one stretch joined where only the id and the result differ."""
    merged_items: list[Item] = []
    for item in sorted(items, key=lambda item: (item[2], item[0])):
        if merged_items and _joins(merged_items[-1], item):
            last = merged_items[-1]
            last[1] += item[1]
            if len(item) > RESULTS and isinstance(item[RESULTS], list):
                last[RESULTS] = last[RESULTS] + item[RESULTS]
        else:
            merged_items.append(list(item))
    return merged_items


def _joins(last: Item, item: Item) -> bool:
    follows = (
        item[0][:16] == last[0][:16]
        and counter_of(item[0]) == counter_of(last[0]) + last[1]
        and item[2] == last[2]
        and offset_of(last[0]) + last[1] + item[1] <= STRETCH_TASKS
    )
    if not follows or item[3:RESULTS] != last[3:RESULTS]:
        return False
    if len(item) > RESULTS and type(item[3]) is int:
        return False  # a completion with the number of its claim's updates
    if len(item) > RESULTS and isinstance(item[RESULTS], list) and isinstance(last[RESULTS], list):
        return True
    return item[RESULTS:] == last[RESULTS:]


def narrowed(item: Item, part: Refused) -> Item:
    """Return the part of the item that ``part`` refers to; raise `BadRequest` if the item does not hold it."""
    offset = counter_of(part.first) - counter_of(item[0])
    if item[0][:16] == part.first[:16] and offset >= 0 and offset + part.count <= item[1]:
        return _slice(item, offset, part.count)
    raise BadRequest("a peer refused a claim that was not in the request")


def requests_of(items: list[Item]) -> list[list[Item]]:
    """Return the items of each request; no request is too large for a frame."""
    requests: list[list[Item]] = [[]]
    size = 0
    for item in itertools.chain.from_iterable(map(_small, items)):
        item_bytes = _result_bytes(item)
        if requests[-1] and (len(requests[-1]) >= ITEMS_MAX or size + item_bytes > RESULT_BYTES_MAX):
            requests.append([])
            size = 0
        requests[-1].append(item)
        size += item_bytes
    return requests if requests[0] else []


def _small(item: Item) -> list[Item]:
    if item[1] == 1 or _result_bytes(item) <= RESULT_BYTES_MAX:
        return [item]
    half = item[1] // 2
    return _small(_slice(item, 0, half)) + _small(_slice(item, half, item[1] - half))


def _slice(item: Item, offset: int, count: int) -> Item:
    part = [with_counter(item[0], counter_of(item[0]) + offset), count, *item[2:]]
    if len(part) > RESULTS and isinstance(part[RESULTS], list):
        part[RESULTS] = part[RESULTS][offset : offset + count]
    return part


def _result_bytes(item: Item) -> int:
    if len(item) > RESULTS and isinstance(item[RESULTS], list):
        return sum(len(result) for result in item[RESULTS] if result is not None)
    return 0
