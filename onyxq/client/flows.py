"""Flows: tasks that depend on each other, written as chains and groups (design: dependencies).

    client.chain(
        Step("fetch", b"page 7"),
        client.group(Step("words", b"7"), Step("links", b"7")),
        Step("publish", b"7", priority=5),
    ).enqueue()

Each step is a task that depends on the tasks it follows. ``enqueue`` stores only the tasks.
``client.make_flow(flow)`` stores the flow too: it has an id and a state, and can be cancelled as a whole.
A worker finds the ids in ``claim.depends`` and the results with ``client.results(claim.depends)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar, Unpack

from onyxq.client.policy import Policy, StepOptions, When
from onyxq.client.values import not_bytes
from onyxq.core.errors import BadRequest
from onyxq.core.ids import TaskId
from onyxq.core.limits import DEPENDS_MAX
from onyxq.system.tracing import carried

R = TypeVar("R")

STEPS_MAX = 10_000
OPTIONS = frozenset(StepOptions.__annotations__)


class Step:
    """A task of a flow: ``Step("mail", b"hello", priority=5)``.

    ``options`` are those of `AsyncClient.enqueue` that describe the task itself. Raises `BadRequest` for others.
    A step cannot have a unique key, because the id of such a task is known only after it is stored.
    """

    __slots__ = ("_policy", "payload", "queue", "when")

    def __init__(self, queue: str, payload: bytes = b"", **options: Unpack[StepOptions]) -> None:
        for name in options:
            if name not in OPTIONS:
                raise BadRequest(f"a step has no option {name!r}; there are {', '.join(sorted(OPTIONS))}", field=name)
        if type(payload) is not bytes:
            raise not_bytes(payload)
        self.queue = queue
        self.payload = payload
        self._policy, self.when = Policy.of(queue, {"trace": carried(), **options})
        """Earliest time at which the task is due."""
        self._policy.check()

    def policy(self, follows: Sequence[bytes]) -> Policy:
        """Return the policy of the step if it follows other tasks of the flow."""
        return self._policy._replace(depends=(*self._policy.depends, *follows))

    def alike(self, other: Step) -> bool:
        """Return whether both steps could be tasks of one run."""
        if self._policy.is_single:
            return False
        return (self._policy, self.when) == (other._policy, other.when)


class Planned(NamedTuple):
    """A step in its flow, and the indexes of the steps that it follows."""

    step: Step
    follows: tuple[int, ...]


class Enqueued(NamedTuple):
    """The tasks of a flow."""

    ids: tuple[TaskId, ...]
    """Ids of all steps, in the order in which the steps were written."""
    last: tuple[TaskId, ...]
    """Ids of the steps that no other step follows. The flow is complete once they are."""


Part: TypeAlias = "Step | tuple[str, bytes] | Flow[Any]"


class Plan(NamedTuple):
    """Steps, each after all steps that it follows.

    ``heads`` and ``tails`` are the indexes of the first and the last steps, to which other plans are joined.
    """

    steps: tuple[Planned, ...] = ()
    heads: tuple[int, ...] = ()
    tails: tuple[int, ...] = ()

    def then(self, other: Plan) -> Plan:
        """Return this plan followed by the other one, which starts after all tails of this one."""
        if not self.steps or not other.steps:
            return self if self.steps else other
        moved = other.moved(len(self.steps))
        heads = set(moved.heads)
        tied = (
            one._replace(follows=(*one.follows, *self.tails)) if place in heads else one
            for place, one in enumerate(moved.steps, len(self.steps))
        )
        return Plan((*self.steps, *tied), self.heads, moved.tails)

    def moved(self, by: int) -> Plan:
        """Return the same plan with ``by`` added to every index."""
        steps = (one._replace(follows=tuple(place + by for place in one.follows)) for one in self.steps)
        return Plan(tuple(steps), tuple(place + by for place in self.heads), tuple(place + by for place in self.tails))


class Flow(Generic[R]):
    """A chain or a group; made by ``client.chain`` and ``client.group``. ``R`` depends on the client."""

    def __init__(self, send: Callable[[Flow[R]], R], plan: Plan) -> None:
        self.plan = plan
        self.ids: tuple[TaskId, ...] = ()
        """Ids of the steps, made at the first enqueue. To enqueue the flow again creates no second tasks."""
        self.id: TaskId | None = None
        """Id of the whole flow, made at the first ``make_flow``."""
        self._send = send

    def then(self, *parts: Part) -> Flow[R]:
        """Return the flow with further parts, each after all of the part before."""
        return Flow(self._send, chained(parts, after=self.plan))

    def enqueue(self) -> R:
        """Store the tasks and return their ids as `Enqueued`. You may call it again after an error."""
        return self._send(self)

    def runs(self) -> Iterator[tuple[int, int, When]]:
        """Yield the start, end and due time of each stretch of steps that can be stored as one run."""
        steps, start = self.plan.steps, 0
        for place in range(1, len(steps) + 1):
            if place < len(steps) and _alike(steps[start], steps[place]):
                continue
            yield start, place, steps[start].step.when
            start = place

    def enqueued(self) -> Enqueued:
        """Return what `enqueue` returns."""
        return Enqueued(self.ids, tuple(self.ids[place] for place in self.plan.tails))


def chain(send: Callable[[Flow[R]], R], parts: Sequence[Part]) -> Flow[R]:
    """Return a flow of parts, one after the other."""
    return Flow(send, chained(parts))


def group(send: Callable[[Flow[R]], R], parts: Sequence[Part]) -> Flow[R]:
    """Return a flow of parts side by side."""
    return Flow(send, grouped(parts))


def grouped(parts: Sequence[Part]) -> Plan:
    """Return the plan of parts side by side."""
    steps: list[Planned] = []
    heads: list[int] = []
    tails: list[int] = []
    for part in parts:
        moved = _plan_of(part).moved(len(steps))
        steps += moved.steps
        heads += moved.heads
        tails += moved.tails
    return _checked(Plan(tuple(steps), tuple(heads), tuple(tails)))


def chained(parts: Sequence[Part], *, after: Plan | None = None) -> Plan:
    """Return the plan of parts one after the other, which follow the plan ``after``."""
    plan = after or Plan()
    for part in parts:
        plan = plan.then(_plan_of(part))
    return _checked(plan)


def _plan_of(part: Part) -> Plan:
    if isinstance(part, Flow):
        return part.plan
    if isinstance(part, tuple) and len(part) == 2:
        part = Step(*part)
    if not isinstance(part, Step):
        raise BadRequest("a part of a flow is a Step, (queue, payload), a chain or a group", field="parts")
    return Plan((Planned(part, ()),), (0,), (0,))


def _checked(plan: Plan) -> Plan:
    if len(plan.steps) > STEPS_MAX:
        raise BadRequest(f"a flow has at most {STEPS_MAX} steps", field="parts")
    for one in plan.steps:
        if len(one.follows) + len(one.step.policy(()).depends) > DEPENDS_MAX:
            raise BadRequest(
                f"a step for queue {one.step.queue!r} depends on {len(one.follows)} tasks; the limit is {DEPENDS_MAX}",
                field="depends",
                hint="Join in two levels: groups of at most 100 tasks with a step after each, then a step after those.",
            )
    return plan


def _alike(one: Planned, other: Planned) -> bool:
    return one.follows == other.follows and one.step.alike(other.step)
