"""States of a task at its leader, and the transitions between them.

A task may be in several states at once: a worker may renew a claim while its completion is being
written. A task in no state is *free*. The log and the store say everything else about it: claimed,
finished, due.
"""

from __future__ import annotations

from enum import IntEnum


class State(IntEnum):
    """What happens to a task at its leader. The log and the store do not know it yet."""

    GRANTING = 0
    """A grant of the task is on its way to the log. It ends when the log has decided."""
    UNDECIDED = 1
    """The log was lost while a grant was on its way. Only the next leader learns whether the task was granted."""
    RETURNING = 2
    """The log has ended the claim, and the store does not have that event yet."""
    CHANGING = 3
    """The data of a unique task that was never granted is being written."""
    FINISHING = 4
    """A completion is being written, or something that may complete the task later. Several may be written at once."""
    UNSETTLED = 5
    """A completion is stored, or may be, and it is unknown whether a majority has it. It is written again later."""
    REOPENING = 6
    """A dead letter is being requeued. It ends when the store has the log's decision."""
    RENEWING = 7
    """The claim is being renewed, so it does not expire meanwhile. Several renewals may be on their way at once."""
    UNCONFIRMED = 8
    """The row of a task with a key is new, and it is unknown whether a majority has it. It is written again later."""
    HOLDING_KEY = 9
    """The task holds its ordering key: later tasks of the key wait while it is claimed or in a `BUSY` state."""


BLOCKED = (State.GRANTING, State.UNDECIDED, State.RETURNING, State.CHANGING)
"""The log or the store is about to change the task. Meanwhile no token is valid for it."""
UNGRANTABLE = (*BLOCKED, State.FINISHING, State.UNCONFIRMED)
"""The task is not granted. The token of an expired claim may complete an unclaimed task, so `FINISHING` counts."""
UNSURE = (State.FINISHING, State.UNSETTLED)
"""It is unknown whether the task is finished."""
BUSY = (*BLOCKED, *UNSURE)
"""Other tasks of the task's ordering key wait."""

NEVER_DURING: dict[State, tuple[State, ...]] = {
    State.GRANTING: UNGRANTABLE,
    State.UNDECIDED: (),
    State.RETURNING: BLOCKED,
    State.CHANGING: (*BLOCKED, State.FINISHING),
    State.FINISHING: (State.GRANTING, State.UNDECIDED),
    State.UNSETTLED: (),
    State.REOPENING: (State.GRANTING, State.UNDECIDED, State.FINISHING, State.REOPENING),
    State.RENEWING: (State.GRANTING, State.FINISHING),
    State.UNCONFIRMED: (),
    State.HOLDING_KEY: (),
}
"""State -> states in which it must not begin."""

FOLLOWS: dict[State, tuple[State, ...]] = {State.GRANTING: (State.UNDECIDED,), State.FINISHING: (State.UNSETTLED,)}
"""State -> states that may take its place. `State.UNDECIDED` begins in no other way."""

UNKNOWN = (State.UNSETTLED, State.UNCONFIRMED)
"""States that end by `LeaderState.settle`, which may come late or twice."""

SHARED = (State.FINISHING, State.RENEWING)
"""States that may begin again before they have ended. They end as often as they began."""

ENDS_WITH_LEADERSHIP = (State.UNDECIDED, State.REOPENING, State.UNCONFIRMED, State.HOLDING_KEY)
"""States that the next leader finds in the log and the store. The others end once their write is decided."""
