"""Batches of jobs at the node that coordinates them: any node does (design: jobs on Spark).

A batch is many transactions and one entry.  Each writer of a share prepares its transaction.  The entry,
``commit_batch``, commits all of them: once, under the job's present version, in the order of the batches.
Prepared shares that are never committed are dropped at their deadline.  A driver without an answer to a
commit sends it again, to any node.
"""

from __future__ import annotations

import trio

from log_entries import commit_batch, commit_transaction
from onyxq.core.entry import APPLIED
from onyxq.core.errors import (
    BadRequest,
    Conflict,
    LogUnavailable,
    OnyxqError,
    StaleToken,
    Superseded,
    TooLarge,
    Unavailable,
    Unknown,
)
from onyxq.core.jobs.lifetime import absence, refusal
from onyxq.core.limits import DEADLINE_AHEAD_MS_MAX
from onyxq.core.transactions import Prepared, known_as, stale
from onyxq.leader.transaction_parts import stale_token
from onyxq.node.node import Node
from onyxq.node.routing import insist
from onyxq.operations.checks import batches
from onyxq.operations.checks.batches import Asked, Fence
from onyxq.operations.checks.transactions import Contents
from onyxq.operations.table.transaction import CommitBatch, CommittedBatch, PrepareBatch, PreparedBatch
from onyxq.operations.transactions import UNKNOWN_TIMEOUT_S, Transactions, held

COMPLETE_AHEAD_MS = 60_000
"""Log time for which the completions of a batch may wait for its commit, which follows at once."""
BEGIN_AGAIN = "Start the query again from the job's offsets."
"""Hint for a driver that began with an old state of its job."""


class JobBatches:
    """Prepares and commits the batches of one node's clients."""

    def __init__(self, node: Node, transactions: Transactions) -> None:
        self._node = node
        self._transactions = transactions

    def _partitions(self) -> int:
        if self._node.replica.cluster is None:
            raise Unavailable("the cluster is not known here yet")
        return self._node.replica.settings.partitions

    async def prepare(self, args: PrepareBatch) -> PreparedBatch:
        """Store a share of a batch as pending facts; its commit takes the answer. Raises `OnyxqError`."""
        fence, wanted = batches.prepare(args, self._partitions())
        with self._transactions.under_way(wanted):
            return await insist(self._node, lambda: self._prepare(fence, wanted, args.deadline_ms))

    async def _prepare(self, fence: Fence, wanted: Contents, ahead_ms: int) -> PreparedBatch:
        self._check_fence(fence)
        ready = await self._transactions.prepared(wanted, ahead_ms)
        if ready is None:
            raise Conflict("this name was committed already", field="name", hint="Use a fresh name.")
        return PreparedBatch(prepared=batches.pack(ready))

    async def commit(self, args: CommitBatch) -> CommittedBatch:
        """Commit a batch, once; raises `Superseded`, `StaleToken`, other `OnyxqError`."""
        asked = batches.commit(args, self._partitions())
        return await insist(self._node, lambda: self._commit(asked))

    # --- fences

    def _check_fence(self, fence: Fence) -> None:
        """Raise `Superseded` unless the version is the job's present one, as far as is known here."""
        if not fence.job:
            return
        replica = self._node.replica
        if fence.version > replica.position:
            raise Unavailable("this node has not read the log as far as the version that was named")
        if refusal(replica, fence.job, fence.version):
            raise _superseded(fence, absence(replica, fence.job))

    def _known(self, asked: Asked) -> int | None:
        """Return a position by which the batch was committed, None if that is not known here. Raises `Conflict`."""
        replica = self._node.replica
        if asked.marker:
            known = known_as(replica, asked.marker[0].name)
            return None if known is None else known[0]
        job = replica.jobs[asked.fence.job]
        if asked.batch > job.batch:
            return None
        if asked.batch < job.batch:  # Its offsets are not known any more.
            raise Conflict(
                f"batch {asked.batch} of job {asked.fence.job} is before its last one, batch {job.batch}",
                field="batch",
                hint=BEGIN_AGAIN,
            )
        if asked.offsets != job.offsets:
            raise _conflict(asked)
        return replica.position

    # --- one attempt

    async def _commit(self, asked: Asked) -> CommittedBatch:
        self._check_fence(asked.fence)
        known = self._known(asked)
        if known is not None:
            return await self._answer(asked.prepared, known, repeat=True)
        done: tuple[Prepared, ...] = ()
        if asked.complete is not None:
            with self._transactions.under_way(asked.complete):
                ready = await self._transactions.prepared(asked.complete, COMPLETE_AHEAD_MS)
            if ready is None:  # it has been committed meanwhile, which is known here now
                return await self._again(asked)
            done = (ready,)
        args = self._entry(asked, done)
        position, verdict = await self._decided(asked, args)
        if verdict.startswith(commit_transaction.HELD):
            raise held(verdict)
        if verdict not in (APPLIED, commit_batch.REPEAT):
            raise self._refused(asked, args, verdict)
        if verdict == commit_batch.REPEAT and asked.fence.job:
            return await self._again(asked)
        return await self._answer(args.transactions, position, repeat=verdict != APPLIED)

    def _entry(self, asked: Asked, done: tuple[Prepared, ...]) -> commit_batch.Args:
        """Return the entry that commits what a batch wrote, and ``done``, the completion of what it read."""
        deadline_ms = self._node.replica.log_time_ms + DEADLINE_AHEAD_MS_MAX // 2
        marker = tuple(one._replace(deadline_ms=deadline_ms) for one in asked.marker)
        transactions = (*marker, *asked.prepared, *done)
        return commit_batch.Args(asked.fence.job, asked.fence.version, asked.batch, asked.offsets, transactions)

    async def _again(self, asked: Asked) -> CommittedBatch:
        self._check_fence(asked.fence)
        known = self._known(asked)
        if known is None:
            raise Conflict("what the batch completes was committed under this name before", field="name")
        return await self._answer(asked.prepared, known, repeat=True)

    async def _answer(self, prepared: tuple[Prepared, ...], position: int, *, repeat: bool) -> CommittedBatch:
        settled = await self._transactions.visible([one.name for one in prepared])
        return CommittedBatch(position=position, repeat=repeat, settled=settled)

    async def _decided(self, asked: Asked, args: commit_batch.Args) -> tuple[int, str]:
        """Return position and verdict of the entry; raises `Unknown` if it may or may not be written."""
        try:
            position, (verdict,) = await self._node.verdicts([args])
            return position, verdict
        except TooLarge as error:
            raise TooLarge(f"the batch is too large for the log: {error.message}", field="prepared") from None
        except LogUnavailable:
            with trio.move_on_after(UNKNOWN_TIMEOUT_S):
                while True:
                    self._check_fence(asked.fence)
                    known = self._known(asked)
                    if known is not None:
                        return known, APPLIED
                    await self._node.moved()
            raise Unknown("it is not known whether the batch was committed") from None

    def _refused(self, asked: Asked, args: commit_batch.Args, verdict: str) -> OnyxqError:
        """Return the error that a verdict means to the client."""
        if verdict == commit_transaction.TOO_LATE:
            return Conflict(
                "the batch took too long: the deadline of what was prepared has passed",
                field="prepared",
                hint="Prepare the batch again.",
            )
        if verdict == commit_batch.CONFLICT:
            return _conflict(asked)
        if verdict == commit_batch.OUT_OF_ORDER:
            return Conflict(f"batch {asked.batch} does not follow the last committed batch", field="batch")
        if verdict.startswith(commit_transaction.STALE):
            claims = [claim for one in args.transactions for claim in (*one.claims, *one.require)]
            gone = stale(self._node.replica, claims)
            why = StaleToken.code, "the claim was given up, or ran out, meanwhile"
            return stale_token([[one.id, one.token, *why] for one in gone]) if gone else StaleToken(verdict)
        if asked.fence.job and refusal(self._node.replica, asked.fence.job, asked.fence.version):
            return _superseded(asked.fence, verdict)
        return BadRequest(f"the batch was refused: {verdict}", field="prepared")


def _superseded(fence: Fence, why: str) -> Superseded:
    said = f": {why}" if why and why != Superseded.code else ""
    return Superseded(f"version {fence.version} of job {fence.job} may not commit any more{said}", field="version")


def _conflict(asked: Asked) -> Conflict:
    return Conflict(
        f"another attempt at batch {asked.batch} of job {asked.fence.job} was committed, with other offsets",
        field="offsets",
        hint=BEGIN_AGAIN,
    )
