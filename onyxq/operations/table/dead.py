"""Operations that decide about dead letters: tasks that failed for good."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from msgspec import Meta

from onyxq.core.errors import BadRequest
from onyxq.core.limits import ITEMS_MAX, TaskIdBytes
from onyxq.operations.table.access import Access, Need, on_all_of_queue
from onyxq.operations.table.operation import Args, Http, Items, Operation, Place, Result, Verb
from onyxq.operations.table.task import (
    CHANGED_MAX,
    After,
    Limit,
    NewestFirst,
    OfQueue,
    TaskPage,
    TaskResult,
    Where,
    on_ids,
)


class DeadResults(Result, omit_defaults=True):
    """The number of changed dead letters, and with ids the result of each."""

    count: int
    results: list[TaskResult] | None = None
    more: Annotated[bool, Meta(description="Whether dead letters may be left, because the limit was reached.")] = False


class ListDead(Args):
    """Return dead letters in the order of their ids.

    A dead letter is a task that failed for good.
    """

    queue: OfQueue = None
    where: Where | None = None
    after: After = None
    limit: Limit = 100
    newest_first: NewestFirst = False


class DeadLetters(Args):
    """Base of the arguments that name dead letters by ids, or by queue and error."""

    ids: Annotated[
        Annotated[list[TaskIdBytes], Meta(min_length=1, max_length=ITEMS_MAX)] | None,
        Meta(description="Ids of dead letters. Without ids: all that match queue and where."),
    ] = None
    queue: OfQueue = None
    where: Where | None = None
    all: Annotated[bool, Meta(description="All of them.")] = False
    limit: Annotated[int, Meta(ge=1, le=CHANGED_MAX, description="Most dead letters to change.")] = CHANGED_MAX

    def __post_init__(self) -> None:
        found = self.queue is not None or self.where is not None or self.all
        if self.ids is None and not found:
            raise BadRequest("name ids, queue, where, or all", field="ids", hint="With all set to true, all are meant.")
        if self.ids is not None and found:
            raise BadRequest("ids, or queue and where: not both", field="ids")


class RequeueDead(DeadLetters):
    """Requeue dead letters.

    They are due at once, with all their retries. With ids, the answer has a result for each.
    """


class DiscardDead(DeadLetters):
    """Discard dead letters.

    They are cancelled, and an ordering key that they stopped continues. With ids, the answer has a result for each.
    """


def _on_dead(*roles: str) -> Access:
    """Return the access to dead letters that are named by ids, or by queue."""
    by_ids, by_queue = on_ids(*roles), on_all_of_queue(*roles)

    def find(args: DeadLetters) -> Sequence[Need]:
        return (by_queue if args.ids is None else by_ids).find(args)

    return Access(roles, find)


LIST_DEAD = Operation(
    name="dead",
    args=ListDead,
    result=TaskPage,
    access=on_all_of_queue("read"),
    place=Place.ALL_LEADERS,
    reads=True,
    http=Http(verb="GET", path="/v1/dead", id="list_dead", tag="dead letters", pages="tasks"),
    verbs=(
        Verb(
            name="dead list",
            about="list dead letters, the newest first",
            example="--queue mail --where 'no such host'",
            columns=("id", "queue", "attempt", "created", "finished", "error", "data"),
            terminal=("id", "function", "queue", "finished", "attempt", "last_error"),
            empty="no dead letters",
            pages=True,
        ),
    ),
    python="dead",
    example={"queue": "mail", "where": "no such host"},
)
_ALL_AT_ONCE = {"limit": CHANGED_MAX}
REQUEUE_DEAD = Operation(
    name="dead.requeue",
    args=RequeueDead,
    result=DeadResults,
    access=_on_dead("operate"),
    place=Place.LEADER,
    items=Items(argument="ids"),
    bounded=True,
    large=True,
    http=Http(verb="POST", path="/v1/dead/requeue", id="requeue_dead", tag="dead letters", fixed=_ALL_AT_ONCE),
    python="requeue_dead",
    python_left_out=("all", "limit"),
    example={"queue": "mail", "where": "no such host"},
)
DISCARD_DEAD = Operation(
    name="dead.discard",
    args=DiscardDead,
    result=DeadResults,
    access=_on_dead("operate"),
    place=Place.LEADER,
    items=Items(argument="ids"),
    large=True,
    http=Http(verb="POST", path="/v1/dead/discard", id="discard_dead", tag="dead letters", fixed=_ALL_AT_ONCE),
    python="discard_dead",
    python_left_out=("all", "limit"),
    example={"queue": "mail", "where": "no such user"},
)
DEAD = (LIST_DEAD, REQUEUE_DEAD, DISCARD_DEAD)
