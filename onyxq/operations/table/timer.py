"""Operations on timers: callbacks that are made once their time has come."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from msgspec import Meta

from onyxq.core.limits import (
    MOMENT,
    NAME_CHARACTERS_MAX,
    TIME_MS_MAX,
    TIMERS_QUEUE,
    Name,
    TaskIdBytes,
)
from onyxq.operations.table.access import Access, Need
from onyxq.operations.table.enqueue import TimerCallback
from onyxq.operations.table.operation import Args, Operation, Place, Result, Verb
from onyxq.operations.table.task import After, Limit

TimerState: TypeAlias = Literal["scheduled", "ready", "claimed", "fired", "failed", "cancelled"]
TimerId: TypeAlias = Annotated[Name, Meta(description="Id of the timer.")]


class TimerView(Result):
    """A timer."""

    id: str | None
    timeout: int | None
    data: str | dict[str, Any] | None
    callback: dict[str, str] | None
    state: str
    at_ms: Annotated[int, Meta(description="When it is due.", extra=MOMENT)]
    attempts: int
    error: Annotated[str | None, Meta(description="Error of the last attempt that failed.")]
    task: TaskIdBytes


class TimerPage(Result):
    """A page of timers by due time."""

    timers: list[TimerView]
    after: Annotated[TaskIdBytes | None, Meta(description="Where the next page begins; null: this is the last one.")]


class TimerNamed(Result):
    """The id of a timer that was set or cancelled."""

    id: str


class NewTimer(Args):
    """Set a timer."""

    timeout: Annotated[int, Meta(ge=1, le=TIME_MS_MAX, description="Milliseconds from now.")]
    callback: Annotated[TimerCallback, Meta(description="Where the callback goes.")]
    data: Annotated[
        str | dict[str, Any] | None,
        Meta(description="Sent with the callback: a map as JSON, a text as form data."),
    ] = None


class SetTimer(NewTimer, kw_only=True):
    """Set a timer, or replace one that has not fired."""

    id: TimerId
    replace: Annotated[bool, Meta(description="Replace a timer that exists.")] = False
    request: Annotated[
        str,
        Meta(
            max_length=NAME_CHARACTERS_MAX,
            description="Name of the request: a repeat under the same name has no other effect.",
        ),
    ] = ""


class GetTimer(Args):
    """Return one timer, until it is purged even if it has fired."""

    id: TimerId


class CancelTimer(Args):
    """Cancel a timer that has not fired."""

    id: TimerId


class ListTimers(Args):
    """Return timers in the order of their due times."""

    state: Annotated[TimerState | None, Meta(description="Only in this state.")] = None
    after: After = None
    limit: Limit = 100


def _on_timers(*roles: str) -> Access:
    need = (Need(roles, queues=(TIMERS_QUEUE,)),)
    return Access(roles, lambda args: need, by_arguments=False)


_COLUMNS = ("id", "state", "at", "attempts", "callback", "error")

SET_TIMER = Operation(
    name="timer.set",
    args=SetTimer,
    result=TimerNamed,
    access=_on_timers("produce"),
    place=Place.LEADER,
    bounded=True,
    large=True,
    example={
        "id": "order-7",
        "timeout": 600_000,
        "callback": {"transport": "http", "uri": "https://shop.example/remind", "method": "POST"},
    },
)
GET_TIMER = Operation(
    name="timer.get",
    args=GetTimer,
    result=TimerView,
    access=_on_timers("read", "produce"),
    place=Place.LEADER,
    reads=True,
    verbs=(
        Verb(
            name="timer show",
            about="show one timer and its outcome",
            example="order-7",
            columns=(*_COLUMNS, "data", "task"),
        ),
    ),
    python="timer",
    python_names={"id": "timer"},
    example={"id": "order-7"},
)
LIST_TIMERS = Operation(
    name="timer.list",
    args=ListTimers,
    result=TimerPage,
    access=_on_timers("read"),
    place=Place.ALL_LEADERS,
    reads=True,
    verbs=(
        Verb(
            name="timer list",
            about="list timers in the order in which they are due",
            example="--state scheduled",
            columns=_COLUMNS,
            empty="no timers",
            pages=True,
        ),
    ),
    python="timers",
    example={"state": "scheduled"},
)
CANCEL_TIMER = Operation(
    name="timer.cancel",
    args=CancelTimer,
    result=TimerNamed,
    access=_on_timers("produce", "operate"),
    place=Place.LEADER,
    bounded=True,
    verbs=(Verb(name="timer cancel", about="cancel a timer that has not fired", example="order-7", done="cancelled"),),
    python="cancel_timer",
    python_names={"id": "timer"},
    example={"id": "order-7"},
)
TIMERS = (SET_TIMER, GET_TIMER, LIST_TIMERS, CANCEL_TIMER)
