"""What clients asked of transactions, compared with the log, the disks and the answers (design: simulation).

The model knows the requests, and learns from the log which transactions are committed and settled. It judges:

* A commit comes at most once, under claims that are valid, and while a majority has the pending rows of each part.
* From the commit on, its tasks are done, and only the settlement of their partition ends the claims that it holds.
* A settled part is on the disks of a majority. No disk shows anything of a transaction that is not committed.
* The answers say what the log says.
* No task fails because of another one that a transaction completes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from attrs import define, field

from log_entries import commit_transaction, settle_transactions
from onyxq.core import facts
from onyxq.core.entry import APPLIED
from onyxq.core.errors import BadRequest, Conflict, OnyxqError, SequenceGap, StaleToken
from onyxq.core.ids import Run, TaskId, mask_of, partition_of, stretch_of
from onyxq.core.replica import EMPTY, Replica, claim_of
from onyxq.core.step import Step
from onyxq.leader.cohort.pending_facts import Part, part_key
from onyxq.leader.completion_rows import completions_of
from onyxq.leader.task_updates import updates_of
from onyxq.operations.table.transaction import Transact
from onyxq.store.memory import MemoryTables
from onyxq.store.store import Store
from simulation.checkers.enough_copies import DiskReads
from simulation.search.facts_model import Model, Task

HELD_MS = (1 << 63) - 1
"""Deadline of the claims that a transaction holds."""
FINAL = (StaleToken, BadRequest, Conflict, SequenceGap)
"""Errors after which a request has certainly done nothing, and is not tried again."""


@define(eq=False)
class Asked:
    """A transaction that clients asked for."""

    request: Transact
    number: int
    """Number of the event at which it was first sent."""
    completes: tuple[tuple[Task, int, bytes], ...]
    """Task, token and result of each completion."""
    requires: tuple[tuple[Task, int], ...]
    updates: tuple[tuple[Task, int, bytes], ...]
    """Task, token and data of each update."""
    enqueues: tuple[Task, ...]
    sends: int = 0
    position: int = 0
    """Position of its commit; 0: it is not committed."""
    epochs: dict[int, int] = field(factory=dict)
    """Epoch of each of its partitions at the commit."""
    deadline_ms: int = 0
    parts: dict[int, tuple[int, bytes]] = field(factory=dict)
    """Rows and digest of each part that is committed and not settled, by partition."""
    refused: str = ""
    """Why its only request was refused."""
    acked: int = 0
    """Number of the event at which a client heard that it is committed."""

    @property
    def name(self) -> str:
        """Its name."""
        return self.request.name

    @property
    def is_settled(self) -> bool:
        """Whether the log says that all of it can be read."""
        return bool(self.position) and not self.parts

    def needs(self) -> Iterable[tuple[Task, int]]:
        """Return the claims that must be valid."""
        yield from ((task, token) for task, token, _ in (*self.completes, *self.updates))
        yield from self.requires


@define(eq=False)
class TransactingModel(Model):
    """See the module's first paragraph; ``disks`` gives the disk of each node, by its id."""

    disks: Callable[[], Mapping[str, MemoryTables]] = dict
    reached: Callable[[str], None] = lambda _: None
    """Counts a probe; see `simulation.probes.TRANSACTIONS`."""
    replica: Replica = EMPTY
    """The replica after the last record."""
    asked: dict[str, Asked] = field(factory=dict)
    made_by: dict[TaskId, Asked] = field(factory=dict)
    """New task -> the transaction that enqueues it."""

    def wants(self, asked: Asked) -> None:
        """Note that a transaction is being sent."""
        self.asked[asked.name] = asked
        self.made_by |= {task.id: asked for task in asked.enqueues}

    def may_be_last(self, task_id: TaskId) -> bool:
        """Return whether a task may be in its last attempt; a later request of its unique key may set its retries."""
        task = self.tasks[task_id]
        return task.unique is not None or len(task.grants) >= task.attempts

    # --- the log

    def step(self, before: Replica, step: Step) -> None:
        """Judge the commits, the grants and the settlements of a record."""
        self.replica = step.replica
        applied = [outcome.args for outcome in step.outcomes if outcome.verdict == APPLIED]
        for args in applied:
            if isinstance(args, commit_transaction.Args):
                self._committed(args, before)
        super().step(before, step)
        for args in applied:
            if isinstance(args, settle_transactions.Args):
                self._settled(args)
        for outcome in step.outcomes:
            if isinstance(outcome.args, commit_transaction.Args) and outcome.verdict != APPLIED:
                self._count_refusal(outcome.verdict)
        if before.claims is not step.replica.claims:
            self._check_held()

    def _count_refusal(self, verdict: str) -> None:
        if verdict == commit_transaction.TOO_LATE:
            self.reached("a commit came after its deadline")
        elif verdict == commit_transaction.REPEAT:
            self.reached("a repeat was committed again")
        elif verdict.startswith(commit_transaction.STALE):
            self.reached("a claim ended between prepare and commit")

    def _committed(self, args: commit_transaction.Args, before: Replica) -> None:
        asked = self.asked[args.name]
        if asked.position:
            raise self.broken(f"{args.name} is committed again; it was at {asked.position}")
        if asked.refused:
            raise self.broken(f"{args.name} is committed; its only request was refused: {asked.refused}")
        if self.replica.log_time_ms > args.deadline_ms:
            raise self.broken(f"{args.name} is committed at {self.replica.log_time_ms}, after {args.deadline_ms}")
        asked.position, asked.deadline_ms = self.replica.position, args.deadline_ms
        asked.parts = {part.partition: (part.count, part.digest) for part in args.parts}
        asked.epochs = {number: self.replica.partitions[number].epoch for number in asked.parts}
        for task, token in asked.needs():
            claim = claim_of(before, task.id)
            if claim is None or claim[2] != token or claim[4] == HELD_MS or task.grants[-1] != token:
                raise self.broken(f"{args.name} is committed, although {token} does not hold {task.hex}")
        for task, token, result in asked.completes:
            self._done_by(asked, task, token, result)
        for number, (count, digest) in asked.parts.items():
            self._check_kept(asked, number, count, digest)
        if len(asked.parts) > 1:
            self.reached("a transaction of several partitions was committed")

    def _done_by(self, asked: Asked, task: Task, token: int, result: bytes) -> None:
        """Note that a commit completes a task, which nothing ended before the transaction was sent."""
        if task.cancelled:
            raise self.broken(f"{asked.name} completes {task.hex}, which was cancelled")
        if task.completed is not None and (task.over < asked.number or task.completed != (token, result)):
            raise self.broken(f"{asked.name} completes {task.hex}, which was completed with {task.completed}")
        task.completed = token, result
        task.ending.add(token)

    def _settled(self, args: settle_transactions.Args) -> None:
        for name in args.names:
            asked = self.asked[name]
            if args.partition not in asked.parts:
                continue
            for task, what in self._missing(asked, args.partition, self._majority_lacks):
                raise self.broken(f"{name} is settled, and a majority lacks {what} of {task.hex}")
            del asked.parts[args.partition]
            for task, _, _ in asked.completes:
                if partition_of(task.id) == args.partition:
                    task.over = task.over or self.count()
            if args.epoch > asked.epochs[args.partition]:
                self.reached("a transaction was settled by a successor")
            if asked.is_settled:
                self._over(asked)

    def _over(self, asked: Asked) -> None:
        """Note that all of a transaction can be read."""
        for task in asked.enqueues:
            task.open, task.answered = 0, self.count()

    def _check_held(self) -> None:
        """Judge that committed transactions hold the claims of the parts that have not settled."""
        for name in self.replica.transactions:
            asked = self.asked[name]
            for task, _, _ in asked.completes:
                claim = claim_of(self.replica, task.id)
                held = claim is not None and (claim[2], claim[4]) == (asked.position, HELD_MS)
                if partition_of(task.id) in asked.parts and not held:
                    raise self.broken(f"{name} is committed and not settled, and does not hold {task.hex}: {claim}")

    def _granted(self, task: Task, replica: Replica) -> None:
        asked = self.made_by.get(task.id)
        if asked is not None and not asked.position:
            raise self.broken(f"{task.hex} is granted, and {asked.name}, which makes it, is not committed")
        super()._granted(task, replica)

    # --- disks

    def _members(self, number: int) -> list[DiskReads]:
        disks = self.disks()
        return [DiskReads(disks[name]) for name in self.replica.partitions[number].members]

    def _majority_lacks(self, number: int, shows: Callable[[Store], bool]) -> bool:
        members = self._members(number)
        return sum(map(shows, members)) < len(members) // 2 + 1

    def _check_kept(self, asked: Asked, number: int, count: int, digest: bytes) -> None:
        """Judge that a majority has the pending rows of a part."""
        key = part_key(Part(asked.deadline_ms, digest, asked.name))
        if self._majority_lacks(number, lambda disk: len(disk.pending(number, key)) == count):
            raise self.broken(f"{asked.name} is committed, and a majority lacks its pending rows of partition {number}")

    @staticmethod
    def _missing(
        asked: Asked, number: int, lacks: Callable[[int, Callable[[Store], bool]], bool]
    ) -> Iterable[tuple[Task, str]]:
        """Yield what ``lacks`` does not find of a committed part; a task with a unique key may give way."""
        for task, token, _ in asked.completes:
            if partition_of(task.id) == number and lacks(number, _completed(task, token)):
                yield task, "the completion"
        for task in asked.enqueues:
            if partition_of(task.id) == number and not task.unique and lacks(number, _known(task)):
                yield task, "the row"
        for task, token, data in asked.updates:
            if partition_of(task.id) == number and lacks(number, _updated(task, token, data)):
                yield task, "an update"

    def look(self) -> None:
        """Judge that no disk shows anything of transactions that are not committed.

        A completion that its worker also asked for alone may be there.
        """
        disks = [DiskReads(tables) for tables in self.disks().values()]
        for asked in self.asked.values():
            if not asked.position:
                shown = [(task, _known(task)) for task in asked.enqueues]
                shown += [(task, _updated(task, token, data)) for task, token, data in asked.updates]
                shown += [(one, _completed(one, token)) for one, token, _ in asked.completes if token not in one.ending]
                for task, shows in shown:
                    if any(map(shows, disks)):
                        raise self.broken(f"{asked.name} is not committed, and a disk shows what it does to {task.hex}")
            else:
                for number, (count, digest) in asked.parts.items():
                    self._check_kept(asked, number, count, digest)

    # --- answers

    def answered(self, asked: Asked, position: int, *, settled: bool) -> None:
        """A client heard that a transaction is committed, and whether all of it can be read."""
        if position != asked.position:
            raise self.broken(f"{asked.name} is said to be committed at {position}; the log says {asked.position}")
        asked.acked = asked.acked or self.count()
        if settled and not asked.is_settled:
            raise self.broken(f"{asked.name} is said to be settled; partitions {sorted(asked.parts)} are not")
        for task in asked.enqueues if settled else ():
            if not task.unique:
                self.acked(task)

    def denied(self, asked: Asked, error: OnyxqError, sent: int) -> None:
        """A client heard an error; ``sent``: number of the event at which it sent the request."""
        if not isinstance(error, FINAL):
            return
        if 0 < asked.acked < sent:
            raise self.broken(f"{asked.name} was said to be committed; a repeat is refused: {error.message}")
        if asked.sends == 1:
            if asked.position:
                raise self.broken(f"{asked.name} is refused ({error.message}), and committed at {asked.position}")
            asked.refused = error.message
        for task_id, token, code, _ in error.details if isinstance(error, StaleToken) else ():
            if code == StaleToken.code:
                self.reached("a transaction was refused for a claim")
                self.stale(self.tasks[TaskId(task_id)], token, self.replica, completing=False)

    # --- at the end

    def finish(self, stores: dict[int, Store]) -> None:
        """Compare the effects of all transactions with the log, and the ends of tasks with the answers."""
        super().finish(stores)

        def lacks(number: int, shows: Callable[[Store], bool]) -> bool:
            return not shows(stores[number])

        for asked in self.asked.values():
            if asked.position:
                for number in range(len(stores)):
                    for task, what in self._missing(asked, number, lacks):
                        raise self.broken(f"{asked.name} is committed, and {what} of {task.hex} is not there")
        for task in self.tasks.values():
            if task.depends and not task.grants and not task.reopened:
                self._check_dependent(task, stores[partition_of(task.id)])
        self.look()

    def _check_dependent(self, task: Task, store: Store) -> None:
        """Judge that a task which never ran did not fail, if all tasks on which it depends completed."""
        failed = any(one.outcome == facts.FAILED for _, one in completions_of(store, Run(task.id, 1)))
        if failed and all(one.completed and not one.reopened and not one.unique for one in task.depends):
            raise self.broken(f"{task.hex} failed, although all tasks on which it depends were completed")


def _completed(task: Task, token: int) -> Callable[[Store], bool]:
    wanted = token, facts.COMPLETED
    return lambda store: any((one.token, one.outcome) == wanted for _, one in completions_of(store, Run(task.id, 1)))


def _known(task: Task) -> Callable[[Store], bool]:
    return lambda store: bool(store.known_bits(stretch_of(task.id)) & mask_of(task.id, 1))


def _updated(task: Task, token: int, data: bytes) -> Callable[[Store], bool]:
    return lambda store: any((one.token, one.data) == (token, data) for one in updates_of(store, task.id))
