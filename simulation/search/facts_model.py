"""What clients asked and heard about tasks, compared with the grants of the log (design: simulation).

The model knows requests and answers alone. It sees each record as it lands, and each answer as a client hears it.
"""

from __future__ import annotations

from typing import ClassVar

from attrs import define, field

from onyxq.core import facts
from onyxq.core.claims import lapsed
from onyxq.core.ids import Run, TaskId, mask_of, partition_of, stretch_of
from onyxq.core.replica import Replica, claim_of
from onyxq.core.step import Step
from onyxq.leader.completion_rows import completions_of
from onyxq.store.store import Store
from simulation.checkers import Broken, LogChecker, granted_in

QUEUE = "q"


@define(eq=False)
class Task:
    """What is known of a task."""

    id: TaskId
    number: int
    """Of how many requests it is, for the order."""
    body: bytes
    attempts: int
    """Attempts until it fails for good."""
    at_ms: int | None = None
    key: str = ""
    unique: str = ""
    depends: tuple[Task, ...] = ()
    acked: int = 0
    """Number of the event of its acknowledgement; 0: not acknowledged."""
    completed: tuple[int, bytes] | None = None
    """Token and result of the completion that was acknowledged."""
    cancelled: bool = False
    """Whether a cancel was acknowledged."""
    ending: set[int] = field(factory=set)
    """Tokens under which a completion has begun; -1: a cancel."""
    given_up: set[int] = field(factory=set)
    """Tokens under which a failure or a release has begun."""
    reopened: bool = False
    """Whether a request to requeue it was sent."""
    grants: list[int] = field(factory=list)
    payload: bytes | None = None
    """The data of its first grant."""

    @property
    def may_have_failed(self) -> bool:
        """Whether it may be cancelled, or have failed for good."""
        return (
            -1 in self.ending or len(self.grants) >= self.attempts or any(one.may_have_failed for one in self.depends)
        )

    @property
    def may_be_over(self) -> bool:
        """Whether it may be finished."""
        return bool(self.ending) or self.may_have_failed

    @property
    def hex(self) -> str:
        """Its id, for people."""
        return self.id.hex()[-8:] + f" of partition {partition_of(self.id)}"


@define(eq=False)
class Model(LogChecker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "facts"
    tasks: dict[TaskId, Task] = field(factory=dict)
    events: int = 0
    keys: dict[str, list[Task]] = field(factory=dict)
    unique: dict[str, TaskId] = field(factory=dict)
    rivals: dict[str, list[Task]] = field(factory=dict)
    dependents: dict[TaskId, list[Task]] = field(factory=dict)

    def count(self) -> int:
        """Return the number of a new event."""
        self.events += 1
        return self.events

    def sent(self, task: Task) -> None:
        """Note that a task is being enqueued."""
        self.tasks[task.id] = task
        if task.key:
            self.keys.setdefault(task.key, []).append(task)
        if task.unique:
            self.rivals.setdefault(task.unique, []).append(task)
        for one in task.depends:
            self.dependents.setdefault(one.id, []).append(task)

    def acked(self, task: Task) -> None:
        """Note that a task is stored."""
        task.acked = task.acked or self.count()

    def stands(self, key: str, task_id: TaskId) -> None:
        """Note the task that an answer names for a unique key."""
        if self.unique.setdefault(key, task_id) != task_id:
            raise self.broken(f"unique key {key} has the tasks {self.unique[key].hex()} and {task_id.hex()}")

    # --- the log

    def step(self, before: Replica, step: Step) -> None:
        """Judge the grants of a record."""
        for task_id in granted_in(step):
            task = self.tasks.get(task_id)
            if task is None:
                raise self.broken(f"{task_id.hex()} is granted and was never enqueued")
            self._granted(task, step.replica)

    def _granted(self, task: Task, replica: Replica) -> None:
        token = replica.position
        if task.completed is not None:
            raise self.broken(f"{task.hex} is granted under {token}; it was completed under {task.completed[0]}")
        if task.cancelled:
            raise self.broken(f"{task.hex} is granted under {token}; it was cancelled")
        for one in task.depends:
            if one.cancelled:
                raise self.broken(f"{task.hex} is granted, although {one.hex}, on which it depends, was cancelled")
            if not one.may_be_over:
                raise self.broken(f"{task.hex} is granted before {one.hex}, on which it depends")
        for one in self.dependents.get(task.id, ()):
            if one.grants and not task.reopened:
                raise self.broken(f"{task.hex} is granted after {one.hex}, which depends on it")
        if task.key:
            self._in_order(task, replica)
        for other in self.rivals.get(task.unique, ()) if task.unique else ():
            if other is not task and other.grants and self._held(other, replica):
                raise self.broken(f"{task.hex} of unique key {task.unique} is granted while {other.hex} is held")
        task.grants.append(token)

    def _in_order(self, task: Task, replica: Replica) -> None:
        for other in self.keys[task.key]:
            if other is task:
                continue
            if self._held(other, replica):
                raise self.broken(f"{task.hex} of key {task.key} is granted while {other.hex} is held")
            if other.acked and other.acked < task.number and not other.reopened and not other.may_be_over:
                raise self.broken(f"{task.hex} of key {task.key} is granted before {other.hex}, which comes first")
            if task.acked and task.acked < other.number and other.grants and not task.reopened:
                raise self.broken(f"{task.hex} of key {task.key} is granted after {other.hex}, which comes later")

    @staticmethod
    def _held(task: Task, replica: Replica) -> bool:
        """Return whether a worker certainly holds a task, and no request to end it was sent."""
        claim = claim_of(replica, task.id)
        if claim is None or lapsed(claim[4], replica.log_time_ms) or task.completed:
            return False
        return not {claim[2], -1} & (task.ending | task.given_up)

    # --- answers

    def given(self, task: Task, token: int, payload: bytes) -> None:
        """A worker heard of a grant."""
        if token not in task.grants:
            raise self.broken(f"a worker was given {task.hex} under {token}, which the log never granted")
        if task.payload is None:
            task.payload = payload
        elif task.payload != payload:
            raise self.broken(f"{task.hex} was granted with {task.payload!r} first, and now with {payload!r}")

    def completed(self, task: Task, token: int, result: bytes) -> None:
        """A worker heard that its completion is stored."""
        if task.cancelled:
            raise self.broken(f"{task.hex} is completed under {token}; it was cancelled")
        if task.grants[-1] > token:
            raise self.broken(f"{task.hex} is completed under {token}; it was granted under {task.grants[-1]}")
        if task.completed not in (None, (token, result)):
            raise self.broken(f"{task.hex} is completed under {token} after {task.completed}")
        task.completed = token, result

    def cancelled(self, task: Task) -> None:
        """A client heard that a task is cancelled."""
        if task.completed is not None:
            raise self.broken(f"{task.hex} is cancelled; it was completed under {task.completed[0]}")
        task.cancelled = True

    def stale(self, task: Task, token: int, replica: Replica, *, completing: bool) -> None:
        """A worker heard that its claim is not valid; ``completing``: when it asked to complete the task."""
        claim, ended = claim_of(replica, task.id), task.ending - {token} if completing else task.ending
        valid = claim is not None and claim[2] == token and not lapsed(claim[4], replica.log_time_ms)
        if valid and not (ended or task.given_up or task.completed):
            raise self.broken(f"{task.hex} is held under {token}, and its worker was told otherwise")

    # --- at the end

    def left(self, stores: dict[int, Store]) -> list[Task]:
        """Return the tasks that are stored and not finished, by the stores of the leaders."""
        out = []
        for task in self.tasks.values():
            store = stores[partition_of(task.id)]
            bit = mask_of(task.id, 1)
            if not store.known_bits(stretch_of(task.id)) & bit:
                if task.acked:
                    raise self.broken(f"{task.hex} was acknowledged and is lost")
            elif not store.finished_bits(stretch_of(task.id)) & bit and (task.acked or self._stands(task, store)):
                out.append(task)
        return out

    @staticmethod
    def _stands(task: Task, store: Store) -> bool:
        """Return whether a task that was not acknowledged is the task of its unique key, if it has one."""
        return not task.unique or store.unique(partition_of(task.id), QUEUE, task.unique) == task.id

    def finish(self, stores: dict[int, Store]) -> None:
        """Compare the ends of tasks with the answers to clients."""
        for task in self.tasks.values():
            done = completions_of(stores[partition_of(task.id)], Run(task.id, 1))
            if not done:
                continue
            said = done[0][1]
            if task.completed is not None:
                result = said.results[0] if said.results else None
                if (said.outcome, said.token, result) != (facts.COMPLETED, *task.completed):
                    raise self.broken(f"{task.hex} was completed with {task.completed}, and is {said}")
            elif task.cancelled and said.outcome != facts.CANCELLED:
                raise self.broken(f"{task.hex} was cancelled, and is {said}")

    def lost(self, what: str) -> Broken:
        """Return what broke if something never ends."""
        return Broken(f"liveness: {what}")
