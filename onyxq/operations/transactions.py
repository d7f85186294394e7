"""Transactions at the node that coordinates them: any node does (design: transactions).

A transaction is split by partition.  The leaders keep their parts as pending facts (``lead.prepare``).
Then one entry, ``commit_transaction``, decides.  The leaders make committed parts visible, even if this
node stops.  The node answers once that is done, or `SETTLE_TIMEOUT_S` after the commit.  A client without
an answer sends the same transaction again under the same name, to any node: it happens at most once.

Parts that wait for the same leader are sent in one message.  The outbox does the same with the commits.
Concurrent transactions therefore share messages, disk writes and records.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from attrs import define, field

from log_entries import commit_transaction
from onyxq.core.entry import APPLIED
from onyxq.core.errors import (
    BadRequest,
    Conflict,
    LogUnavailable,
    NotLeader,
    OnyxqError,
    Overloaded,
    StaleToken,
    Unavailable,
    Unknown,
    from_map,
)
from onyxq.core.facts import task_header
from onyxq.core.ids import Run, TaskId, mask_of, partition_of, stretch_of
from onyxq.core.queues import settings_of
from onyxq.core.task_headers import UNIQUE_KEY
from onyxq.core.transactions import Claim, Part, Prepared, known_as, stale
from onyxq.leader.outcomes import UNSERVED
from onyxq.leader.transaction_parts import REPEAT, HeldClaim, PartRequest, stale_token
from onyxq.node.node import Node
from onyxq.node.routing import CALL_TIMEOUT_S, insist, is_passing, leader_of
from onyxq.operations.checks.runs import CallbackCheck
from onyxq.operations.checks.transactions import Contents, transaction
from onyxq.operations.table.transaction import DIGEST_BYTES, CommittedTransaction, Transact
from onyxq.system.failures import serving
from onyxq.system.procedures import Wait, gather, now, procedure

DEADLINE_MS = 60_000
"""Log time within which a prepared transaction must be committed."""
SETTLE_TIMEOUT_S = 5.0
UNKNOWN_TIMEOUT_S = 4.0
"""How long to wait for the outcome of a commit that is unknown, in seconds."""
UNDER_WAY_BYTES_MAX = 256 * 1024 * 1024
"""Most payload bytes of transactions that are coordinated at a time; above it clients get `Overloaded`."""
GROUP_PARTS_MAX = 256
GROUP_BYTES_MAX = 4 * 1024 * 1024
FLIGHTS = 2
"""Most messages with prepared parts in flight to one leader."""


@define(eq=False)
class _Waiting:
    asked: PartRequest
    size: int
    answer: Any = None
    done: Wait = field(factory=Wait)


class ToLeader:
    """Sends parts to one node."""

    def __init__(self, node: Node, leader: str) -> None:
        self._node = node
        self._leader = leader
        self._waiting: deque[_Waiting] = deque()
        self._flights = 0

    async def ask(self, asked: PartRequest) -> Any:
        """Return the leader's answer, or the map of the error instead of one."""
        waiting = _Waiting(asked, _size(asked))
        self._waiting.append(waiting)
        if self._flights < FLIGHTS:
            self._flights += 1
            self._node.start_soon(self._flight)
        await waiting.done.wait()
        return waiting.answer

    async def _flight(self) -> None:
        try:
            while self._waiting:
                group = self._take()
                for waiting, answer in zip(group, await self._answers([one.asked for one in group]), strict=True):
                    waiting.answer = answer
                    waiting.done.end()
        finally:
            self._flights -= 1

    def _take(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        size = 0
        while self._waiting and len(group) < GROUP_PARTS_MAX and (not group or size < GROUP_BYTES_MAX):
            group.append(self._waiting.popleft())
            size += group[-1].size
        return group

    async def _answers(self, asked: list[PartRequest]) -> list[Any]:
        try:
            if self._leader == self._node.node_id:
                with serving("lead.prepare"):
                    return await self._node.operations.transaction_parts.prepare(asked)
            parts = [[*one[:3], one.items, [list(claim) for claim in one.require]] for one in asked]
            answers = await self._node.call(self._leader, "lead.prepare", {"parts": parts}, timeout_s=CALL_TIMEOUT_S)
            return list(answers)
        except OnyxqError as error:
            return [error.to_map()] * len(asked)


def _size(asked: PartRequest) -> int:
    return sum(len(item[2]) if item[0] == "T" else 64 for item in asked.items)


class Transactions:
    """Coordinates the transactions of one node's clients."""

    def __init__(self, node: Node, check_callbacks: CallbackCheck) -> None:
        self._node = node
        self._check_callbacks = check_callbacks
        self._leaders: dict[str, ToLeader] = {}
        self._under_way = 0

    @procedure
    async def transact(self, args: Transact) -> CommittedTransaction:
        """Do all of a transaction or nothing; see ``docs/transactions.rst``. Raises `OnyxqError`."""
        if self._node.replica.cluster is None:
            raise Unavailable("the cluster is not known here yet")
        wanted = transaction(args, self._node.replica.settings.partitions)
        with self.under_way(wanted):
            return await self._decided(wanted)

    @contextmanager
    def under_way(self, wanted: Contents) -> Iterator[None]:
        """Count the bytes of a transaction while it is coordinated; raises `Overloaded`."""
        if self._under_way + wanted.size > UNDER_WAY_BYTES_MAX:
            raise Overloaded("too many bytes of transactions are under way here")
        self._under_way += wanted.size
        try:
            yield
        finally:
            self._under_way -= wanted.size

    async def _decided(self, wanted: Contents) -> CommittedTransaction:
        async def attempt() -> tuple[int, bytes]:
            while (known := known_as(self._node.replica, wanted.name)) is None:
                await self._attempt(wanted)
            return known

        return await self._answer(wanted, await insist(self._node, attempt))

    async def _answer(self, wanted: Contents, known: tuple[int, bytes]) -> CommittedTransaction:
        """Return the answer for a committed transaction, once it is visible or that takes too long."""
        position, note = known
        if note[:DIGEST_BYTES] != wanted.digest:
            raise Conflict("this name was given to another transaction", field="name", hint="Use a fresh name.")
        settled = await self.visible([wanted.name])
        made_ms = int.from_bytes(note[DIGEST_BYTES:], "big")
        return CommittedTransaction(token=position, settled=settled, made_ms=made_ms)

    async def visible(self, names: Sequence[str]) -> bool:
        """Wait until committed transactions can be read, for a limited time; return whether they can."""
        until = now() + SETTLE_TIMEOUT_S
        for name in names:
            await self._until(partial(self._is_settled, name), name, until)
        return all(map(self._is_settled, names))

    def _is_settled(self, name: str) -> bool:
        return name not in self._node.replica.transactions

    async def _until(self, condition: Callable[[], bool], name: str, until: float) -> None:
        """Wait until the log has done something with a transaction, at most until a time."""
        while not condition() and (left_s := until - now()) > 0:
            await self._node.operations.transaction_parts.heard_of(name, left_s)

    # --- one attempt

    async def _attempt(self, wanted: Contents) -> None:
        """Prepare and commit; return once the name is known, or if another attempt may start at once."""
        ready = await self.prepared(wanted, DEADLINE_MS)
        if ready is not None:
            await self._commit(commit_transaction.Args(*ready))

    async def prepared(self, wanted: Contents, ahead_ms: int) -> Prepared | None:
        """Have the leaders keep every part for ``ahead_ms`` of log time; None if the name is known by now.

        Raises `OnyxqError`.
        """
        self._node.outbox_now()  # nothing is written anywhere while nothing can be committed
        await self._check_new(wanted)
        deadline_ms = self._node.replica.log_time_ms + ahead_ms
        items = wanted.parts()
        answers = await self._prepare(wanted, items, deadline_ms)
        repeats = [answer[1] for answer in answers.values() if answer[0] == REPEAT]
        if repeats:
            await self._read_up_to(max(repeats))
            return None
        return Prepared(
            wanted.name,
            deadline_ms,
            _claims((first, count, token) for first, count, token, _ in wanted.complete),
            _claims(wanted.required()),
            tuple(Part(partition, *answers[partition]) for partition in sorted(items)),
            wanted.keep_ms,
            wanted.note,
        )

    async def _check_new(self, wanted: Contents) -> None:
        """Raise `BadRequest` for tasks that no leader would take, because leaders must take committed ones."""
        await self._check_callbacks(wanted.enqueue, "enqueue")
        others: dict[TaskId, int] = {}
        mine: dict[TaskId, int] = {}
        unique: set[TaskId] = set()
        for place, (first, body, at_ms) in enumerate(wanted.enqueue):
            header, count = task_header(body)
            if at_ms is not None:
                self._check_time(header["queue"], at_ms, place)
            for one in header.get("depends", ()):
                if one in unique:
                    raise _may_give_way(one, place)
                if not mine.get(stretch_of(one), 0) & mask_of(one, 1):
                    others.setdefault(TaskId(one), place)
            mine[stretch_of(first)] = mine.get(stretch_of(first), 0) | mask_of(first, count)
            if UNIQUE_KEY in header:
                unique.add(TaskId(first))
        if not others:
            return
        found = await self._node.operations.dependencies.outcomes_for(others)
        for one, place in others.items():
            said = found.get(one, UNSERVED)
            if said is None:
                behind = bool(mine.get(stretch_of(one), 0) & mask_of(one, 1))
                why = "comes after it in the transaction" if behind else "does not exist"
                raise BadRequest(
                    f"task {one.hex()}, on which enqueue[{place}] depends, {why}",
                    field=f"enqueue[{place}].depends",
                    hint="Put each task after those that it depends on. Dependencies must not form a cycle."
                    if behind
                    else None,
                )
            if isinstance(said, OnyxqError) or said == UNSERVED:
                raise NotLeader(f"it is not known now whether task {one.hex()} exists")

    def _check_time(self, queue: str, at_ms: int, place: int) -> None:
        grace_ms = settings_of(self._node.replica, queue).grace_ms
        late_ms = self._node.wall_ms() - at_ms
        if late_ms > grace_ms:
            raise BadRequest(
                f"at_ms lies {late_ms} ms in the past; at most {grace_ms} are allowed", field=f"enqueue[{place}].at_ms"
            )

    async def _commit(self, args: commit_transaction.Args) -> None:
        node = self._node
        try:
            _, (verdict,) = await node.verdicts([args])
        except LogUnavailable:
            until = now() + UNKNOWN_TIMEOUT_S
            await self._until(lambda: known_as(node.replica, args.name) is not None, args.name, until)
            if known_as(node.replica, args.name) is None:
                raise Unknown(f"it is not known whether transaction {args.name!r} was committed") from None
            return
        if verdict in (APPLIED, commit_transaction.REPEAT):
            return
        if verdict == commit_transaction.TOO_LATE:
            raise Unavailable("the transaction took too long: its deadline has passed")
        if verdict.startswith(commit_transaction.HELD):
            raise held(verdict)
        if not verdict.startswith(commit_transaction.STALE):
            raise BadRequest(f"the transaction was refused: {verdict}")
        gone = stale(node.replica, (*args.claims, *args.require))
        if not gone:  # the replica was replaced meanwhile
            raise StaleToken(f"nothing was done: {verdict}")
        why = StaleToken.code, "the claim was given up, or ran out, meanwhile"
        raise stale_token([[one.id, one.token, *why] for one in gone])

    async def _read_up_to(self, position: int) -> None:
        until = now() + UNKNOWN_TIMEOUT_S
        while self._node.replica.position < position and (left_s := until - now()) > 0:
            await self._node.moved(left_s)
        if self._node.replica.position < position:
            raise Unavailable("this node is behind: it has not read the outcome of the transaction")

    # --- prepare

    async def _prepare(
        self, wanted: Contents, items: Mapping[int, list[Any]], deadline_ms: int
    ) -> dict[int, list[Any]]:
        """Return every partition's answer; raises the first error, which names all invalid claims."""
        require: dict[int, list[HeldClaim]] = {}
        for claim in wanted.require:
            require.setdefault(partition_of(claim[0]), []).append(claim)
        asked = [
            PartRequest(wanted.name, deadline_ms, partition, items.get(partition, []), require.get(partition, []))
            for partition in sorted({*items, *require})
        ]
        found = await gather([self._ask(one) for one in asked])
        _raise_errors([from_map(answer) for answer in found if isinstance(answer, dict)])
        return {one.partition: answer for one, answer in zip(asked, found, strict=True)}

    async def _ask(self, asked: PartRequest) -> Any:
        """Return a leader's answer about one part, which may be an error map."""
        leader = leader_of(self._node, asked.partition)
        if not leader:
            return NotLeader(f"partition {asked.partition} has no leader now").to_map()
        sender = self._leaders.get(leader)
        if sender is None:
            sender = self._leaders[leader] = ToLeader(self._node, leader)
        return await sender.ask(asked)


def _may_give_way(task_id: TaskId, place: int) -> BadRequest:
    """Return the error for a dependency on a task of the transaction that may never be stored."""
    return BadRequest(
        f"task {task_id.hex()}, on which enqueue[{place}] depends, has a unique key: another task may take its place",
        field=f"enqueue[{place}].depends",
        hint="Give that task no unique_key, or enqueue it first and depend on the id in the answer.",
    )


def _raise_errors(errors: Sequence[OnyxqError]) -> None:
    """Raise the most important error: first all invalid claims, then errors that no retry can avoid."""
    gone = [one for error in errors if isinstance(error, StaleToken) for one in error.details]
    if gone:
        raise stale_token(gone)
    for error in errors:
        if not is_passing(error):
            raise error
    if errors:
        raise errors[0]


def held(verdict: str) -> Unavailable:
    """Return the error of a commit while transactions wait: nothing was done, and a retry may succeed."""
    return Unavailable(f"transactions wait, {verdict}", hint="A backup is being taken; try again in a moment.")


def _claims(held: Any) -> tuple[Claim, ...]:
    """Return the claims by partition and token, as the entry has them."""
    runs: dict[tuple[int, int], list[Run]] = {}
    for first, count, token in held:
        runs.setdefault((partition_of(first), token), []).append(Run(TaskId(first), count))
    return tuple(Claim(partition, token, tuple(found)) for (partition, token), found in sorted(runs.items()))
