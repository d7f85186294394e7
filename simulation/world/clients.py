"""Clients of a simulated cluster that note what they do and hear (design: simulation)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar, Unpack

import trio

from onyxq.client import AsyncClient
from onyxq.client.claims import Claim, ClaimBatch
from onyxq.client.policy import EnqueueOptions, Policy
from onyxq.client.transactions import AsyncTransaction, gather
from onyxq.client.values import as_id
from onyxq.core.errors import AlreadyFinished, BatchRefused, Conflict, NotFound, OnyxqError, StaleToken
from onyxq.core.ids import TaskId, ids_of
from simulation.world.audit import Audit
from simulation.world.history import (
    CANCEL,
    CLAIM,
    COMPLETE,
    DISCARD,
    FAIL,
    OK,
    REFUSED,
    RELEASE,
    RENEW,
    REQUEUE,
    STOP,
    UPDATE,
    Enqueued,
    Finished,
    Heard,
    History,
    Operation,
    Said,
    Sent,
    Transacted,
)

Answer = TypeVar("Answer")

REFUSALS = (StaleToken, AlreadyFinished, Conflict, NotFound)
"""Answers that promise that nothing was done; after any other error it may have been, or be still."""


async def tried(call: Awaitable[Answer]) -> Answer | None:
    """Await a call of a recording client; return None if it fails, which the client has noted."""
    with suppress(OnyxqError):
        return await call
    return None


class RecordingClient:
    """An `AsyncClient` whose calls and answers go into the history."""

    def __init__(
        self, client: AsyncClient, *, name: str, history: History, audit: Audit, log_end: Callable[[], int]
    ) -> None:
        self.client = client
        self.name = name
        self._history = history
        self._audit = audit
        self._log_end = log_end

    async def enqueue(
        self,
        queue: str,
        payloads: Sequence[bytes],
        *,
        ordering_key: str | None = None,
        unique_key: str | None = None,
        w: int | None = None,
        timeout_ms: int | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> list[TaskId]:
        """Enqueue; the ids of what stands; raises `OnyxqError`. All payloads of a run must be different."""
        options = {"retries": 25, "backoff_ms": 1_000, **options}
        policy, _ = Policy.of(queue, {**options, "unique_key": unique_key})
        depends = tuple(map(TaskId, map(as_id, policy.depends)))
        until, fate = policy.unique_until or "finished", policy.on_dependency_failed
        calls_back = policy.callback is not None
        said = Said(
            ordering_key, unique_key, until, depends, fate, policy.expires_ms, calls_back, policy.unique_period_ms
        )
        sent = [self._send(queue, data, said) for data in payloads]
        ids = await self._noting(
            self.client.enqueue_many(
                queue,
                payloads,
                ordering_key=ordering_key,
                unique_key=unique_key,
                w=w,
                timeout_ms=timeout_ms,
                **options,
            )
        )
        now_s = trio.current_time()
        for task_id, data, one in zip(ids, payloads, sent, strict=True):
            one.answered_s, one.task = now_s, task_id
            if unique_key is not None:
                self._audit.holds_key(task_id, one)
            self._history.enqueued.setdefault(task_id, Enqueued(queue, data, now_s, said))
            for other in said.depends:
                self._history.dependents.setdefault(other, []).append(task_id)
        self._audit.enough_copies.acknowledged(self._audit.replica, ids)
        return ids

    def _send(self, queue: str, data: bytes, said: Said) -> Sent:
        self._history.payloads[data] = self._history.payloads.get(data, 0) + 1
        return self._history.sent.setdefault(data, Sent(queue, said, trio.current_time()))

    async def claim(
        self,
        queues: str | Sequence[str],
        *,
        maximum: int = 1,
        lease_ms: int = 10_000,
        wait_ms: int = 0,
        ahead_ms: int = 0,
        timeout_ms: int | None = None,
    ) -> ClaimBatch:
        """Claim; raises `OnyxqError`."""
        invoked_s = trio.current_time()
        try:
            claims = await self._noting(
                self.client.claim(
                    queues,
                    max=maximum,
                    lease_ms=lease_ms,
                    wait_ms=wait_ms,
                    worker=self.name,
                    ahead_ms=ahead_ms,
                    timeout_ms=timeout_ms,
                )
            )
        except BaseException:
            self._history.claims_lost.append((invoked_s, trio.current_time()))
            raise
        now_s = trio.current_time()
        for claim in claims:
            granted = Operation(CLAIM, self.name, claim.token, invoked_s, now_s, OK, "", lease_ms, claim.attempts)
            self._history.begin(granted, claim.id)
            self._history.heard.setdefault(claim.id, {})[claim.token] = Heard(self.name, now_s, claim.expires)
            if claim.due > now_s:
                self._audit.probes.reached("a task was claimed before it was due")
            self._audit.claimed(claim, sent_s=claim.expires - lease_ms / 1000)
        return claims

    async def complete(self, claim: Claim, result: bytes | None = None, *, timeout_ms: int | None = None) -> None:
        """Complete one task; raises `OnyxqError`."""
        self._end(claim)
        stale = self._audit.one_claim.superseded(claim.id, claim.token)
        lapsed = self._lapsed(claim)
        await self._calling(COMPLETE, claim, self.client.complete(claim, result, timeout_ms=timeout_ms))
        self._refused(claim, "completion", stale=stale)
        if lapsed:
            self._audit.probes.reached("a completion was taken under a lapsed token")
        if claim.id not in self._history.completed:
            self._history.completed[claim.id] = Finished(claim.token, result, self._log_end())
        self._audit.catch_up()
        self._audit.rule_watcher.finished(claim.id, self._audit.replica)
        self._audit.done_stays_done.check(claim.id)
        self._audit.enough_copies.acknowledged(self._audit.replica, [claim.id])

    async def renew(self, claims: Claim | Sequence[Claim], lease_ms: int, *, timeout_ms: int | None = None) -> None:
        """Renew one claim, or several together; raises `OnyxqError`."""
        several = _several(claims)
        lapsed = any(map(self._lapsed, several))
        call = self.client.renew(claims, lease_ms, timeout_ms=timeout_ms)
        try:
            await self._calling(RENEW, claims, call, lease_ms=lease_ms)
            if lapsed:
                self._audit.probes.reached("a lapsed claim was renewed")
        finally:
            for claim in several:
                self._history.heard[claim.id][claim.token].valid_until_s = claim.expires

    async def fail(
        self,
        claim: Claim,
        error: str,
        retry_in_ms: int | None = None,
        *,
        traceback: str = "",
        timeout_ms: int | None = None,
    ) -> None:
        """Report a failed attempt; raises `OnyxqError`."""
        self._end(claim)
        failing = self.client.fail(claim, error, retry_in_ms, traceback=traceback, timeout_ms=timeout_ms)
        await self._calling(FAIL, claim, failing)

    async def release(self, claims: Claim | Sequence[Claim], *, timeout_ms: int | None = None) -> None:
        """Give one task back, or several together; raises `OnyxqError`."""
        for claim in _several(claims):
            self._end(claim)
        await self._calling(RELEASE, claims, self.client.release(claims, timeout_ms=timeout_ms))

    async def update(self, claim: Claim, data: bytes, *, timeout_ms: int | None = None) -> int:
        """Append an update; raises `OnyxqError`."""
        stale = self._audit.one_claim.superseded(claim.id, claim.token)
        number = await self._calling(UPDATE, claim, self.client.update(claim, data, timeout_ms=timeout_ms))
        self._refused(claim, "update", stale=stale)
        self._history.updates.setdefault(claim.id, {})[claim.token, number] = data
        self._audit.catch_up()
        self._audit.enough_copies.updated(self._audit.replica, claim.id, claim.token, number)
        return number

    async def transact(
        self,
        *,
        complete: Sequence[tuple[Claim, bytes | None]] = (),
        update: Sequence[tuple[Claim, bytes]] = (),
        enqueue: Sequence[tuple[str, bytes]] = (),
        require: Sequence[Claim] = (),
        timeout_ms: int | None = None,
        insist: bool = False,
        **options: Any,
    ) -> AsyncTransaction:
        """Commit a transaction; raises `OnyxqError`. Payloads and results must be of no other transaction.

        ``insist``: send it once more where its outcome is unknown.
        """
        transaction = self.client.transaction(timeout_ms=timeout_ms)
        gather(
            transaction,
            complete=complete,
            update=update,
            enqueue=[{"queue": queue, "data": data, **options} for queue, data in enqueue],
            require=require,
        )
        noted = Transacted(
            transaction.name,
            {claim.id: (claim.token, result) for claim, result in complete},
            tuple(data for _, data in enqueue),
        )
        self._history.transactions[noted.name] = noted
        said = Said(options.get("ordering_key"))
        for queue, data in enqueue:
            self._send(queue, data, said)
            self._history.transaction_of[data] = noted
        stale = [claim for claim, _ in complete if self._audit.one_claim.superseded(claim.id, claim.token)]
        for claim, _ in complete:
            self._end(claim)
        now_s = trio.current_time()
        calls = [
            self._history.begin(Operation(kind, self.name, claim.token, now_s), claim.id)
            for kind, pairs in ((UPDATE, update), (COMPLETE, complete))
            for claim, _ in pairs
        ]
        try:
            try:
                await self._noting(transaction.commit())
            except OnyxqError as error:
                if not insist or isinstance(error, REFUSALS):
                    raise
                await self._noting(transaction.commit())
        except REFUSALS as error:
            noted.outcome = REFUSED
            self._note_refused(error, calls, [claim for pairs in (update, complete) for claim, _ in pairs])
            raise
        self._note_committed(transaction, noted, calls, complete, update, enqueue)
        for claim in stale:
            self._refused(claim, "transaction", stale=True)
        return transaction

    def _note_refused(self, error: OnyxqError, calls: Sequence[Operation], claims: Sequence[Claim]) -> None:
        codes = {(one[0], one[1]): one[2] for one in error.details}
        for call, claim in zip(calls, claims, strict=True):
            call.answered_s, call.outcome = trio.current_time(), REFUSED
            call.code = codes.get((claim.id, claim.token), "refused together with others")

    def _note_committed(
        self,
        transaction: AsyncTransaction,
        noted: Transacted,
        calls: Sequence[Operation],
        complete: Sequence[tuple[Claim, bytes | None]],
        update: Sequence[tuple[Claim, bytes]],
        enqueue: Sequence[tuple[str, bytes]],
    ) -> None:
        committed = transaction.committed
        assert committed is not None
        now_s = trio.current_time()
        noted.outcome, noted.token = OK, committed.token
        for call in calls:
            call.answered_s, call.outcome = now_s, OK
        for claim, result in complete:
            self._history.completed.setdefault(claim.id, Finished(claim.token, result, self._log_end()))
        for place, (claim, data) in enumerate(update):
            later = sum(1 for other, _ in update[place:] if other.id == claim.id)
            self._history.updates.setdefault(claim.id, {})[claim.token, claim.seq - later] = data
        for task_id, (queue, data) in zip(committed.ids, enqueue, strict=True):
            sent = self._history.sent[data]
            if committed.settled:
                sent.answered_s = now_s
            self._history.enqueued[task_id] = Enqueued(queue, data, now_s, sent.said)
        self._audit.catch_up()
        for claim, _ in complete:
            self._audit.done_stays_done.check(claim.id)
        ids = [*committed.ids, *(claim.id for claim, _ in complete)]
        if not committed.settled:
            self._history.unsettled.update(dict.fromkeys(ids, transaction.name))
        self._audit.enough_copies.acknowledged(self._audit.replica, ids)

    async def cancel(self, task_id: TaskId, *, claimed: bool = False) -> None:
        """Cancel a task, even if it is ``claimed`` or only if not; raises `OnyxqError`."""
        kind = STOP if claimed else CANCEL
        operation = Operation(kind, self.name, -1, trio.current_time())
        held = bool(self._history.holders(task_id, trio.current_time()))
        await self._outcome(operation, task_id, self.client.cancel(task_id, claimed=claimed))
        self._history.cancelled.setdefault(task_id, self._log_end())
        self._audit.catch_up()
        self._audit.done_stays_done.check(task_id)
        if held and claimed:
            self._audit.probes.reached("a task was cancelled that a worker held")

    async def requeue(self, task_id: TaskId) -> None:
        """Have a dead letter run again; raises `OnyxqError`."""
        await self._outcome(
            Operation(REQUEUE, self.name, -1, trio.current_time()), task_id, self.client.requeue_dead([task_id])
        )
        self._audit.probes.reached("a dead letter was requeued")

    async def discard(self, task_id: TaskId) -> None:
        """Give a dead letter up; raises `OnyxqError`."""
        await self._outcome(
            Operation(DISCARD, self.name, -1, trio.current_time()), task_id, self.client.discard_dead([task_id])
        )
        self._history.discarded[task_id] = self._log_end()
        self._audit.probes.reached("a dead letter was discarded")

    def _refused(self, claim: Claim, what: str, *, stale: bool) -> None:
        if stale:
            raise self._audit.one_claim.broken(
                f"a {what} of {claim.id.hex()} was taken under {claim.token} although a newer claim was known"
            )

    def _end(self, claim: Claim) -> None:
        heard = self._history.heard.get(claim.id, {}).get(claim.token)
        if heard is not None:
            heard.ended = True

    def _lapsed(self, claim: Claim) -> bool:
        return claim.expires < trio.current_time()

    async def _calling(
        self, kind: str, claims: Claim | Sequence[Claim], call: Awaitable[Answer], *, lease_ms: int = 0
    ) -> Answer:
        """The call's answer; it is noted as an operation on the task of each claim."""
        now_s = trio.current_time()
        operations = {
            claim.id: self._history.begin(Operation(kind, self.name, claim.token, now_s, lease_ms=lease_ms), claim.id)
            for claim in _several(claims)
        }
        return await self._outcomes(operations, call)

    async def _outcome(self, operation: Operation, task_id: TaskId, call: Awaitable[Answer]) -> Answer:
        return await self._outcomes({task_id: self._history.begin(operation, task_id)}, call)

    async def _outcomes(self, operations: Mapping[TaskId, Operation], call: Awaitable[Answer]) -> Answer:
        try:
            answer = await self._noting(call)
        except BatchRefused as error:
            refused = {one: part.error for part in error.refused for one in ids_of(part.first, part.count)}
            for task_id, operation in operations.items():
                self._answered(operation, refused.get(task_id))
            raise
        except OnyxqError as error:
            for operation in operations.values():
                self._answered(operation, error)
            raise
        for operation in operations.values():
            self._answered(operation, None)
        return answer

    def _answered(self, operation: Operation, error: OnyxqError | None) -> None:
        if error is None:
            operation.answered_s, operation.outcome = trio.current_time(), OK
        elif isinstance(error, REFUSALS):
            operation.answered_s, operation.outcome, operation.code = trio.current_time(), REFUSED, error.code
            if isinstance(error, StaleToken):
                self._audit.probes.reached("a stale token was refused")

    async def _noting(self, call: Awaitable[Answer]) -> Answer:
        """The call's answer; notes the error that it raises."""
        try:
            return await call
        except OnyxqError as error:
            self._history.error(error.code)
            raise


def _several(claims: Claim | Sequence[Claim]) -> Sequence[Claim]:
    return [claims] if isinstance(claims, Claim) else claims
