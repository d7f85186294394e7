"""What clients asked and heard about tasks, compared with the grants of the log (design: simulation).

The model knows requests and answers alone. It sees each record as it lands, and each answer as a client hears it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from attrs import define, field, frozen

from onyxq.core import facts
from onyxq.core.claims import lapsed
from onyxq.core.ids import Run, TaskId, mask_of, ms_of, partition_of, stretch_of
from onyxq.core.replica import Replica, claim_of
from onyxq.core.step import Step
from onyxq.leader.completion_rows import completions_of
from onyxq.store.store import Store
from simulation.checkers import Broken, LogChecker, granted_in

QUEUE = "q"
CHANGES = ("replaced", "extended")
OUTCOMES = {
    "keep": ("new", "exists"),
    "replace": ("new", "replaced", "exists"),
    "extend": ("new", "extended", "exists"),
    "refuse": ("new", "refused"),
}
"""What an enqueue with a unique key may be answered, by its choice."""


@frozen
class UniqueKey:
    """What a request says of its unique key."""

    key: str
    until: str = "finished"
    choice: str = "replace"
    """What is to happen to another task of the key."""
    period_ms: int = 0
    """Length of its periods; 0: it has none."""

    def header(self) -> dict[str, Any]:
        """Return the fields of the task's header."""
        said = {"unique_key": self.key, "unique_until": self.until, "on_conflict": self.choice}
        return {**said, "unique_period_ms": self.period_ms} if self.period_ms else said


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
    unique: UniqueKey | None = None
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
    open: int = 0
    """Requests to enqueue it without an answer; some of them may be on their way."""
    answered: int = 0
    """Number of the event of the last answer to such a request."""
    outcome: str = ""
    """Outcome for its unique key, as the last answer says."""
    holder: Task | None = None
    """The task that the last answer named."""
    granted: int = 0
    """Number of the event of its first grant."""
    heard: int = 0
    """Number of the event at which a worker first heard of a grant."""
    expected: bytes | None = None
    """The data that its first grant must have; None: not known."""
    over: int = 0
    """Number of the event at which its end was first acknowledged."""

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
    def held(self) -> tuple[str, int]:
        """Unique key and number of the period: one task at a time holds them."""
        assert self.unique is not None
        return self.unique.key, ms_of(self.id) // self.unique.period_ms if self.unique.period_ms else 0

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
    rivals: dict[tuple[str, int], list[Task]] = field(factory=dict)
    """Tasks that were sent for a unique key, by its name."""
    wall_ms: Callable[[], int] = lambda: 0
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
            self.rivals.setdefault(task.held, []).append(task)
        for one in task.depends:
            self.dependents.setdefault(one.id, []).append(task)

    def acked(self, task: Task) -> None:
        """Note that a task is stored."""
        task.acked = task.acked or self.count()

    # --- unique keys

    def told(self, task: Task, holder_id: TaskId, outcome: str) -> None:
        """Note the answer to an enqueue with a unique key: the task that holds the key, and the outcome."""
        assert task.unique is not None
        holder = self.tasks[holder_id]
        task.open, task.answered, task.holder = task.open - 1, self.count(), holder
        if holder.unique is None or holder.held != task.held:
            raise self.broken(f"{task.hex} of {task.held} was answered with {holder.hex} of another key")
        if outcome not in OUTCOMES[task.unique.choice]:
            raise self.broken(f"{task.hex} with {task.unique.choice} was answered with {outcome}")
        if (holder is task) != (outcome == "new"):
            raise self.broken(f"{task.hex} was answered with {holder.hex} as {outcome}")
        task.outcome = outcome
        if outcome == "new":
            self._new(task)
        else:
            self._held_when_sent(task, holder)
        if outcome != "refused":
            self.acked(holder)

    def _new(self, task: Task) -> None:
        """Judge that a task is new: no other task held its key since before it was first sent."""
        assert task.unique is not None
        for other in self.rivals[task.held]:
            if other is not task and not task.acked and 0 < other.acked < task.number and self._surely_holds(other):
                raise self.broken(f"{task.hex} is new, although {other.hex} holds the unique key {task.held}")

    def _held_when_sent(self, task: Task, holder: Task) -> None:
        """Judge that a task was folded into another one, which must have held the key after it was sent."""
        assert holder.unique is not None
        since = {"started": holder.heard or holder.over, "finished": holder.over}.get(holder.unique.until, 0)
        if 0 < since < task.number and not holder.reopened:
            raise self.broken(f"{task.hex} was answered with {holder.hex}, whose unique key was free before")
        if task.outcome in CHANGES and 0 < holder.heard < task.number:
            raise self.broken(f"{holder.hex} was {task.outcome} by {task.hex}, although it had started before")

    @staticmethod
    def _surely_holds(task: Task) -> bool:
        """Return whether a task that was acknowledged has certainly not released its unique key."""
        assert task.unique is not None
        if task.unique.until == "purged":
            return True
        if task.reopened or task.may_be_over:
            return False
        return task.unique.until == "finished" or not task.grants

    def _started(self, task: Task) -> None:
        """Judge the first grant of a task with a unique key."""
        assert task.unique is not None
        rivals = [one for one in self.rivals[task.held] if one is not task]
        if not task.acked and not task.open and task.outcome not in ("", "new"):
            raise self.broken(f"{task.hex} is granted; it was answered as {task.outcome} by another task")
        for other in rivals:
            if other.grants and task.unique.until == "purged":
                raise self.broken(f"{task.hex} and {other.hex} of unique key {task.held} are both granted")
        changing = [one for one in rivals if one.unique and one.unique.choice in ("replace", "extend")]
        moved = [one for one in changing if one.holder is task and one.outcome in CHANGES]
        last = max(moved, key=lambda one: one.number, default=None)
        if last is not None and all(one is last or (not one.open and one.answered < last.number) for one in changing):
            self._changed(task, last)

    def _changed(self, task: Task, last: Task) -> None:
        """Judge that a task has what the last request gave it, which no other request overlapped."""
        if last.at_ms is not None and self.wall_ms() < last.at_ms:
            raise self.broken(f"{task.hex} is granted before {last.at_ms}, to which {last.hex} moved it")
        if last.outcome == "replaced":
            task.expected = b"%d" % last.number

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
        for other in self.rivals[task.held] if task.unique and task.unique.until != "started" else ():
            requeued = task.reopened or other.reopened
            if other is not task and other.grants and self._held(other, replica) and not requeued:
                raise self.broken(f"{task.hex} of unique key {task.held} is granted while {other.hex} is held")
        task.granted = task.granted or self.count()
        if task.unique and not task.grants:
            self._started(task)
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
        task.heard = task.heard or self.count()
        if task.payload is None:
            task.payload = payload
            if task.expected not in (None, payload):
                raise self.broken(f"{task.hex} was granted with {payload!r}; {task.expected!r} had replaced that")
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
        task.over = task.over or self.count()

    def cancelled(self, task: Task) -> None:
        """A client heard that a task is cancelled."""
        if task.completed is not None:
            raise self.broken(f"{task.hex} is cancelled; it was completed under {task.completed[0]}")
        task.cancelled = True
        task.over = task.over or self.count()

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
            stretch, bit = stretch_of(task.id), mask_of(task.id, 1)
            if not store.known_bits(stretch) & bit:
                if task.acked:
                    raise self.broken(f"{task.hex} was acknowledged and is lost")
            elif not store.finished_bits(stretch) & bit and (task.acked or self._stands(task, store)):
                out.append(task)
        return out

    @staticmethod
    def _stands(task: Task, store: Store) -> bool:
        """Return whether a task that was not acknowledged has its unique key, or has had it; or has none."""
        return store.superseded_by(task.id) is None

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
