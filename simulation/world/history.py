"""The calls of the clients of a simulated cluster, and their answers.

Filled in by `simulation.world.clients`, judged by `simulation.checkers` together with the log.
Times are seconds of the simulation's clock, positions are the log's.
"""

from __future__ import annotations

from attrs import define, field, frozen

from onyxq.core.ids import TaskId


@frozen
class Said:
    """What a task was sent with beside its queue and payload."""

    ordering_key: str | None = None
    unique_key: str | None = None
    unique_until: str = "finished"
    depends: tuple[TaskId, ...] = ()
    on_dependency_failed: str = "fail"
    expires_ms: int | None = None
    callback: bool = False
    period_ms: int | None = None
    """Length of the periods of the unique key."""


PLAIN = Said()


@define
class Sent:
    """A payload as it was sent; whether its task is stored is not known before it was answered."""

    queue: str
    said: Said
    invoked_s: float
    answered_s: float = float("inf")
    """When it was acknowledged, and from when on all clients see the task."""
    task: TaskId | None = None
    """The task that the acknowledgement named."""


@frozen
class Enqueued:
    """A task whose enqueue was acknowledged."""

    queue: str
    data: bytes
    """As it was first acknowledged: of a unique key, others may have replaced it."""
    at_s: float
    said: Said = PLAIN


@define
class Heard:
    """A grant as its worker sees it."""

    worker: str
    heard_s: float
    valid_until_s: float
    """By the worker's own count: from when it sent the request, or its last renewal."""
    ended: bool = False
    """The worker has begun to give the task back or to finish it."""


@frozen
class Finished:
    """A task whose completion was acknowledged."""

    token: int
    result: bytes | None
    position: int
    """First position of the log that was free then: no later grant may hold."""


CLAIM, COMPLETE, UPDATE, RENEW, FAIL, RELEASE, CANCEL, STOP, REQUEUE, DISCARD = (
    "claim",
    "complete",
    "update",
    "renew",
    "fail",
    "release",
    "cancel",
    "cancel even if claimed",
    "requeue",
    "discard",
)
GIVING_UP = frozenset({CANCEL, STOP, DISCARD})
"""Calls after which a task is cancelled."""
OK, REFUSED, UNKNOWN = "ok", "refused", "unknown"


@define
class Operation:
    """A call about one task, as the client that made it saw it."""

    kind: str
    client: str
    token: int
    """Under which it was made; for claims: the one that was given."""
    invoked_s: float
    answered_s: float = float("inf")
    """Stays infinite where the outcome is unknown: it may still take effect."""
    outcome: str = UNKNOWN
    code: str = ""
    """Of the error, where it was refused."""
    lease_ms: int = 0
    """Of claims and renewals."""
    attempts: int = 0
    """Of claims: attempts that were counted before."""

    def __str__(self) -> str:
        answered = f"{self.answered_s:.3f}" if self.answered_s != float("inf") else "?"
        outcome = self.code or self.outcome
        return f"{self.kind}({self.token}) by {self.client} {self.invoked_s:.3f}..{answered}: {outcome}"


RUNNING, RETURNED, RAISED, STOPPED, KILLED = "running", "returned", "raised", "stopped", "killed"


@define
class Worked:
    """One run of a task's code in a worker."""

    worker: str
    token: int
    begun_s: float
    outcome: str = RUNNING


@define(eq=False)
class Transacted:
    """A transaction that a client asked for. All its payloads and results are of no other."""

    name: str
    completes: dict[TaskId, tuple[int, bytes | None]]
    """Task -> token and result."""
    payloads: tuple[bytes, ...]
    """Of the tasks that it enqueues."""
    outcome: str = UNKNOWN
    token: int = -1
    """The position of its commit, as the answer says."""


@define(eq=False)
class History:
    """All calls and answers of the clients."""

    operations: dict[TaskId, list[Operation]] = field(factory=dict)
    """Calls about each task, in the order in which they were made."""
    claims_lost: list[tuple[float, float]] = field(factory=list)
    """When claims were asked for (invoked, given up) whose answers never came: something may have been granted."""
    payloads: dict[bytes, int] = field(factory=dict)
    """Every payload that was ever sent (all are different), and how many tasks were to be made of it."""

    sent: dict[bytes, Sent] = field(factory=dict)
    """The same payloads, with what was said of their tasks."""
    enqueued: dict[TaskId, Enqueued] = field(factory=dict)
    dependents: dict[TaskId, list[TaskId]] = field(factory=dict)
    """Task -> acknowledged ones that depend on it."""
    given: dict[TaskId, bytes] = field(factory=dict)
    """The payload of each task that some worker was given, as it was first."""
    heard: dict[TaskId, dict[int, Heard]] = field(factory=dict)
    """Grants of each task by token."""
    completed: dict[TaskId, Finished] = field(factory=dict)
    updates: dict[TaskId, dict[tuple[int, int], bytes]] = field(factory=dict)
    """Acknowledged updates of each task by token and sequence number."""
    cancelled: dict[TaskId, int] = field(factory=dict)
    """Tasks that were cancelled, with the first position of the log that was free then."""
    discarded: dict[TaskId, int] = field(factory=dict)
    """Dead letters that were given up, with the first position of the log that was free then."""
    transactions: dict[str, Transacted] = field(factory=dict)
    """By name."""
    unsettled: dict[TaskId, str] = field(factory=dict)
    """Tasks that a transaction was said to have finished or made, but not yet to have shown -> its name."""
    transaction_of: dict[bytes, Transacted] = field(factory=dict)
    """Payload -> the transaction that enqueues it."""
    worked: dict[TaskId, list[Worked]] = field(factory=dict)
    """Runs of each task's code in workers."""
    troubled: set[str] = field(factory=set)
    """Workers whose leases may run out: they were killed, or cut off, or what they ask for was."""
    errors: dict[str, int] = field(factory=dict)
    """How often clients met each error code."""

    def holders(self, task_id: TaskId, now_s: float) -> list[tuple[int, Heard]]:
        """Who believes to hold a task now: (token, grant)."""
        return [
            (token, grant)
            for token, grant in self.heard.get(task_id, {}).items()
            if not grant.ended and grant.valid_until_s > now_s
        ]

    def begin(self, operation: Operation, task_id: TaskId) -> Operation:
        """A client makes a call about a task; the caller fills in what comes of it."""
        self.operations.setdefault(task_id, []).append(operation)
        return operation

    def error(self, code: str) -> None:
        """A client met an error."""
        self.errors[code] = self.errors.get(code, 0) + 1
