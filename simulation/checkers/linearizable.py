"""The answers to clients about each task are answers that one simple task, used by one client at a time, could give.

The model of a task is a few values: the last token granted, whether that claim is held,
until when its lease surely runs, and who finished the task.  For every task there must be
an order of the calls made about it, true to the times at which they were made and
answered, in which the model allows each answer.  Calls without an answer may have taken
effect at any later time, or never.  Neither the log nor any replica is asked.

Beside the order: a claim that is certainly valid is never refused as stale.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, NamedTuple

from attrs import define

from onyxq.core.ids import TaskId
from simulation.checkers import Checker
from simulation.checkers.leases_last import least_ms
from simulation.world.history import (
    CANCEL,
    CLAIM,
    COMPLETE,
    DISCARD,
    FAIL,
    GIVING_UP,
    OK,
    REFUSED,
    RELEASE,
    RENEW,
    REQUEUE,
    STOP,
    UPDATE,
    Operation,
)

NOBODY = -2
"""Of `Model.finished`: the task is open."""
SEARCH_MAX = 100_000
"""Situations looked at per task before the search gives up, which is an error; none has come near."""


class GaveUp(Exception):
    """Too many situations: it is not known whether the answers about a task are possible."""


def _sure_until_s(call: Operation) -> float:
    """Return until when a claim or renewal is valid for sure, by the simulation's clock."""
    return call.invoked_s + least_ms(call.lease_ms) / 1000


class Model(NamedTuple):
    """One task as it should be."""

    token: int = -1
    """Last token granted."""
    held: bool = False
    sure_until_s: float = 0.0
    """The claim cannot expire earlier."""
    finished: int = NOBODY
    """Token of the completion that counts; -1: it was cancelled."""
    requeued: bool = False
    """It was a dead letter, and a client requeued it."""

    def after(self, call: Operation) -> Model | None:
        """The task after a call that took effect; None if it cannot take effect now."""
        if self.finished != NOBODY or (call.kind == REQUEUE and self.requeued):
            return self if self._repeats(call) else None
        if call.kind in (CLAIM, CANCEL, STOP, DISCARD, REQUEUE):
            return self._taken(call) if self._free(call) else None
        if call.token != self.token:
            return None
        if call.kind == COMPLETE:
            return self._replace(finished=call.token)
        if call.kind == UPDATE:
            return self
        return self._changed(call) if self.held else None

    def _repeats(self, call: Operation) -> bool:
        """Whether it asks for what is so already."""
        if call.kind == REQUEUE:
            return self.requeued and self.finished == NOBODY
        ended = self.finished != NOBODY and self.finished == call.token
        return ended and call.kind in (COMPLETE, *GIVING_UP)

    def _free(self, call: Operation) -> bool:
        """Whether the task may be unclaimed when the call takes effect."""
        return call.kind == STOP or not self.held or call.answered_s >= self.sure_until_s

    def _taken(self, call: Operation) -> Model | None:
        if call.kind == REQUEUE:
            return self._replace(requeued=True)  # it failed for good, as it also might fail for now
        if call.kind in (CANCEL, STOP, DISCARD):
            return self._replace(finished=-1)
        sure_until_s = _sure_until_s(call)
        if call.token <= self.token:
            return None
        return self._replace(token=call.token, held=True, sure_until_s=sure_until_s)

    def _changed(self, call: Operation) -> Model:
        if call.kind == RENEW:
            return self._replace(sure_until_s=_sure_until_s(call))
        assert call.kind in (FAIL, RELEASE), call.kind
        return self._replace(held=False)


@define(eq=False)
class Linearizable(Checker):
    """See the module's first paragraph."""

    name: ClassVar[str] = "linearizable"

    def finish(self) -> None:
        """Judge every task that calls were made about."""
        for task_id, calls in sorted(self.history.operations.items()):
            self._refusals(task_id, calls)
            if not self._explained(task_id, calls):
                raise self.broken(f"no order explains what was said of {task_id.hex()}: {_told(calls)}")

    def _explained(self, task_id: TaskId, calls: Sequence[Operation]) -> bool:
        try:
            return explains(calls)
        except GaveUp:
            raise self.broken(f"the search gave up on {task_id.hex()}: {_told(calls)}") from None

    def _refusals(self, task_id: TaskId, calls: Sequence[Operation]) -> None:
        for call in calls:
            if call.outcome == REFUSED and call.code == "stale_token" and _surely_valid(call, calls):
                raise self.broken(f"{call} although the claim was valid, on {task_id.hex()}: {_told(calls)}")


def _told(calls: Iterable[Operation]) -> str:
    return "; ".join(map(str, calls))


def _surely_valid(refused: Operation, calls: Sequence[Operation]) -> bool:
    """Return whether no other call can have ended the claim under which a call was refused.

    Giving a claim up ends it at the first attempt; only an automatic repeat of the client is refused.
    """
    if refused.kind in (FAIL, RELEASE):
        return False
    until_s = -1.0
    for call in calls:
        if call is refused or call.invoked_s > refused.answered_s:
            continue
        if call.kind == STOP:
            return False
        if call.token != refused.token:
            if call.kind in (CLAIM, CANCEL, DISCARD) and call.token > refused.token:
                return False
            continue
        if call.kind in (FAIL, RELEASE, COMPLETE):
            return False
        if call.kind in (CLAIM, RENEW) and call.outcome == OK and call.answered_s <= refused.invoked_s:
            until_s = _sure_until_s(call)  # a renewal may also have made it shorter
        elif call.kind == RENEW:
            until_s = min(until_s, _sure_until_s(call))
    return refused.answered_s < until_s


def explains(calls: Sequence[Operation]) -> bool:
    """Whether some order of the calls fits the model: a depth-first search that meets no situation twice.

    Raises `GaveUp`.
    """
    wanted = sum(1 << place for place, call in enumerate(calls) if call.outcome == OK)
    before = [
        sum(
            1 << place for place, other in enumerate(calls) if other.outcome == OK and other.answered_s < call.invoked_s
        )
        for call in calls
    ]
    stack = [(0, Model())]
    seen = set(stack)
    while stack:
        done, model = stack.pop()
        if done & wanted == wanted:
            return True
        for place, call in enumerate(calls):
            if done >> place & 1 or before[place] & ~done:
                continue
            after = model.after(call)
            if after is None or (after == model and call.outcome != OK):
                continue  # a call that need not have happened, and changes nothing, explains nothing
            if (situation := (done | 1 << place, after)) not in seen:
                seen.add(situation)
                stack.append(situation)
        if len(seen) > SEARCH_MAX:
            raise GaveUp
    return False
