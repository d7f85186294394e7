"""Transactions of a client: gather operations first, commit at the end (design: transactions).

    async with client.transaction() as tx:
        tx.complete(claim, b"done")
        tx.enqueue("next", b"what follows")

Nothing is sent before the block ends, and nothing at all if it raises. The name, the ids of new tasks and their
partitions are chosen once, so a commit that is sent again takes effect at most once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Unpack

from attrs import frozen

from onyxq.client.claims import Claim, ClaimBatch, Claims, kept_claims
from onyxq.client.enqueues import Enqueuer, check_payloads, cut_with_ids
from onyxq.client.held_claims import completion_items, items_of, merged
from onyxq.client.policy import GatheredOptions, Policy, When
from onyxq.client.pool import Pool
from onyxq.client.single import named_by_caller
from onyxq.client.values import as_id
from onyxq.core.errors import BadRequest, Conflict
from onyxq.core.facts import pack_task, partition_of_keys
from onyxq.core.ids import TaskId, counter_of, partition_of
from onyxq.core.limits import NAME_CHARACTERS_MAX
from onyxq.operations.table.transaction import TRANSACT
from onyxq.system.tracing import carried

WAIT_MS = 10_000
"""Time that a peer may take to answer, beyond that of an ordinary request, in milliseconds."""
KEEP_OWN_MS = 120_000
"""How long the cluster remembers a random name, which only this client can send again, in milliseconds."""
RESULTS = 4


@frozen
class Committed:
    """Outcome of a committed transaction."""

    name: str
    token: int
    """The position of its commit in the log."""
    ids: tuple[TaskId, ...]
    """Ids of the tasks that it enqueued, in the order in which they were given."""
    settled: bool = True
    """Whether all of it was visible when the call was answered; if not, it will be soon."""


class _New(NamedTuple):
    policy: Policy
    when: When
    payloads: list[bytes]
    ids: list[TaskId] | None


class Gathered:
    """Operations of a transaction; made by `AsyncClient.transaction` and `Client.transaction`."""

    def __init__(self, *, name: str | None, random_name: Callable[[], str]) -> None:
        if name is not None and not (isinstance(name, str) and 1 <= len(name) <= NAME_CHARACTERS_MAX):
            raise BadRequest(f"a transaction's name has 1 to {NAME_CHARACTERS_MAX} characters", field="name")
        self.name = name or random_name()
        """Name of the commit; a repeat under the same name returns the first outcome."""
        self.committed: Committed | None = None
        """The outcome, once it is committed."""
        self._own_name = name is None
        self._complete: list[list[Any]] = []
        self._require: list[list[Any]] = []
        self._updates: list[tuple[Claim, bytes]] = []
        self._new: list[_New] = []
        self._args: dict[str, Any] | None = None
        self._ids: tuple[TaskId, ...] = ()

    def complete(
        self, claims: Claims, result: bytes | None = None, *, results: Sequence[bytes | None] | None = None
    ) -> None:
        """Complete claimed tasks, with one result for all of them or one each."""
        self._open()
        items = completion_items(kept_claims(claims), result, None if results is None else list(results))
        self._complete += [[*item[:3], None, item[RESULTS]] for item in items]

    def update(self, claim: Claim, data: bytes) -> None:
        """Append an update to a claimed task."""
        self._open()
        if type(data) is not bytes:
            raise BadRequest(f"an update is bytes, not {type(data).__name__}", field="data")
        self._updates.append((claim, data))

    def require(self, claims: Claims) -> None:
        """Commit only if these claims are still valid; leave them as they are."""
        self._open()
        self._require += items_of(kept_claims(claims))

    def enqueue(
        self, queue: str, payload: bytes, *, id: bytes | str | None = None, **options: Unpack[GatheredOptions]
    ) -> None:
        """Store a task; ``options`` are those of `AsyncClient.enqueue`. It is invisible before the commit."""
        self.enqueue_many(queue, [payload], ids=None if id is None else [id], **options)

    def enqueue_many(
        self,
        queue: str,
        payloads: Iterable[bytes],
        *,
        ids: Sequence[bytes | str] | None = None,
        **options: Unpack[GatheredOptions],
    ) -> None:
        """Store tasks that differ only in their payload."""
        self._open()
        policy, when = policy_of(queue, options)
        given = list(payloads)
        check_payloads(given)
        own = None if ids is None else [as_id(one) for one in ids]
        if own is not None and len(own) != len(given):
            raise BadRequest(f"{len(own)} ids for {len(given)} payloads", field="ids")
        last = self._new[-1] if self._new else None
        if own is None and last is not None and last.ids is None and (last.policy, last.when) == (policy, when):
            last.payloads.extend(given)
        elif given:
            self._new.append(_New(policy, when, given, own))

    def completes(self, claim: Claim) -> bool:
        """Return whether the transaction completes the claim's task."""
        offsets = (
            (counter_of(claim.id) - counter_of(first), first, n, token) for first, n, token, *_ in self._complete
        )
        return any(
            first[:16] == claim.id[:16] and 0 <= offset < n and token == claim.token
            for offset, first, n, token in offsets
        )

    @property
    def empty(self) -> bool:
        """Whether there is nothing to commit."""
        return not (self._complete or self._updates or self._require or self._new)

    def _open(self) -> None:
        if self._args is not None:
            raise Conflict("the transaction was sent already", hint="Begin another one.")

    def _arguments(self, enqueuer: Enqueuer, partitions: int) -> dict[str, Any]:
        """Return the arguments of the commit; they are made once, so that every retry sends the same."""
        if self._args is None:
            complete = [[*item[:3], item[RESULTS]] for item in merged(self._complete)]
            runs, ids = self._runs(enqueuer, partitions)
            self._args = {
                "name": self.name,
                "complete": complete,
                "update": self._numbered(),
                "enqueue": runs,
                "require": self._require,
            }
            if self._own_name:
                self._args["keep_ms"] = KEEP_OWN_MS
            self._ids = tuple(ids)
        return self._args

    def _numbered(self) -> list[list[Any]]:
        following: dict[tuple[bytes, int], int] = {}
        numbered = []
        for claim, data in self._updates:
            if claim.unsure is not None:
                raise Conflict(f"an update of task {claim.id.hex()} was sent and not answered", field="update")
            seq = following.get((claim.id, claim.token), claim.seq)
            following[claim.id, claim.token] = seq + 1
            numbered.append([claim.id, claim.token, seq, data])
        return numbered

    def _runs(self, enqueuer: Enqueuer, partitions: int) -> tuple[list[list[Any]], list[TaskId]]:
        """Return the runs to enqueue, and their ids.

        If there are no more new tasks than completed ones, they go to the partition of the completed tasks. Otherwise
        they share one partition, because each further partition costs a part of the transaction.
        """
        completed = sum(item[1] for item in self._complete)
        fresh = sum(len(new.payloads) for new in self._new if new.ids is None)
        partition = partition_of(self._complete[0][0]) if completed and fresh <= completed else None
        runs: list[list[Any]] = []
        made: list[TaskId] = []
        for policy, when, payloads, given in self._new:
            header = policy.header()
            if given is not None:
                ids = given
            elif policy.key is not None:
                there = partition_of_keys(policy.queue, policy.key, partitions)
                ids = [enqueuer.make_ids(1, when=when, partition=there)[0] for _ in payloads]
            else:
                ids = enqueuer.make_ids(len(payloads), when=when, partition=partition)
                partition = partition_of(ids[0]) if partition is None else partition
            made += ids
            cuts = _singly(len(payloads)) if policy.is_single else cut_with_ids(payloads, ids)
            for start, end in cuts:
                at_ms = named_by_caller(ids[start], when, policy)
                run = [ids[start], pack_task(header, payloads[start:end])]
                runs.append(run if at_ms is None else [*run, at_ms])
        return runs, made

    def _done(self, answer: Mapping[str, Any]) -> Committed:
        for claim, _ in self._updates:
            claim.seq += 1
        self.committed = Committed(self.name, answer["token"], self._ids, answer["settled"])
        return self.committed


class Committer:
    """Sender of one client's transactions."""

    def __init__(self, pool: Pool, enqueuer: Enqueuer) -> None:
        self._pool = pool
        self._enqueuer = enqueuer

    def random_name(self) -> str:
        """Return a unique random name."""
        return f"{self._pool.generator.getrandbits(128):032x}"

    async def commit(self, gathered: Gathered, until: float) -> Committed:
        """Send the transaction until it is decided, or until ``until`` (monotonic second)."""
        if gathered.committed is not None:
            return gathered.committed
        if gathered.empty:
            raise BadRequest("a transaction must do something", field="complete")
        routes = await self._pool.loaded_routes(until)
        args = gathered._arguments(self._enqueuer, routes.partitions)
        first = next((item[0] for name in ("complete", "update", "enqueue") for item in args[name]), None)
        address = None if first is None else self._pool.leader_of(partition_of(first))
        return gathered._done(await self._pool.call(TRANSACT.name, args, until=until, address=address, wait_ms=WAIT_MS))


class AsyncTransaction(Gathered):
    """A transaction of an `AsyncClient`: committed at the end of ``async with``, or by `commit`."""

    def __init__(
        self, commit: Callable[[Gathered], Awaitable[Committed]], *, name: str | None, random_name: Callable[[], str]
    ) -> None:
        super().__init__(name=name, random_name=random_name)
        self._commit = commit

    async def commit(self) -> Committed:
        """Commit now. After an error, call it again to repeat the same transaction.

        Raises `StaleToken` if a claim is no longer valid: its ``details`` name these claims, and nothing was done.
        Raises `Unavailable` if the outcome is unknown.
        """
        return await self._commit(self)

    async def __aenter__(self) -> AsyncTransaction:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self.committed is None and not self.empty:
            await self.commit()


class BlockingTransaction(Gathered):
    """A transaction of a `Client`: committed at the end of ``with``, or by `commit`."""

    def __init__(
        self, commit: Callable[[Gathered], Committed], *, name: str | None, random_name: Callable[[], str]
    ) -> None:
        super().__init__(name=name, random_name=random_name)
        self._commit = commit

    def commit(self) -> Committed:
        """Commit now; see `AsyncTransaction.commit`."""
        return self._commit(self)

    def __enter__(self) -> BlockingTransaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self.committed is None and not self.empty:
            self.commit()


def gather(
    into: Gathered,
    *,
    complete: Claims | Iterable[tuple[Claim, bytes | None]],
    update: Iterable[tuple[Claim, bytes]],
    enqueue: Iterable[Mapping[str, Any]],
    require: Claims,
) -> None:
    """Put the arguments of `AsyncClient.transact` into a transaction."""
    if isinstance(complete, (Claim, ClaimBatch)):
        into.complete(complete)
    else:
        for one in complete:
            if isinstance(one, tuple):
                into.complete(one[0], one[1])
            else:
                into.complete(one)
    for claim, data in update:
        into.update(claim, data)
    for place, task in enumerate(enqueue):
        said = dict(task)
        missing = [name for name in ("queue", "data") if name not in said]
        if missing:
            raise BadRequest(f"enqueue[{place}] has no {' and no '.join(missing)}; both are needed", field="enqueue")
        into.enqueue(said.pop("queue"), said.pop("data"), **said)
    into.require(require)


def policy_of(queue: str, options: Mapping[str, Any]) -> tuple[Policy, When]:
    """Return the policy and the due time that the options of an enqueue describe; raise `BadRequest` for bad ones."""
    unknown = sorted(options.keys() - GatheredOptions.__annotations__.keys())
    if unknown:
        raise BadRequest(f"a task of a transaction has no option {unknown[0]!r}", field=unknown[0])
    policy, when = Policy.of(queue, {"trace": carried(), **options})
    policy.check()
    return policy, when


def _singly(count: int) -> Iterable[tuple[int, int]]:
    return ((place, place + 1) for place in range(count))
