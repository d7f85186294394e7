"""One task's state, read from the rows that cover its id and from its claim. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onyxq import facts
from onyxq.facts import Completion, History, Update
from onyxq.ids import TaskId, ms_of, offset_of
from onyxq.replica import ClaimPiece

Rows = Sequence[tuple[bytes, bytes, bytes]]
"""(kind, first id, body) of rows that cover the task."""


def updates_of(rows: Rows) -> list[Update]:
    """The task's updates, contiguous per token, in order of token and sequence number."""
    stored = [facts.unpack_update(body) for kind, _, body in rows if kind == facts.UPDATE]
    # Nodes that are not equal yet may hold one with another mark each: the last counts.
    found = {(one.token, one.seq): one for one in sorted(stored, key=lambda one: one.mark)}
    out: list[Update] = []
    expected: dict[int, int] = {}
    for _, one in sorted(found.items()):
        if one.seq == expected.get(one.token, 0):
            out.append(one)
            expected[one.token] = one.seq + 1
    return out


def completion_of(rows: Rows, task_id: TaskId) -> tuple[Completion, bytes | None] | None:
    """The completion that counts, that of the highest mark, and the task's own result."""
    found = []
    for kind, first, body in rows:
        if kind == facts.COMPLETION:
            done = facts.unpack_completion(body)
            result = done.results[offset_of(task_id) - offset_of(first)] if done.results else None
            found.append(((done.mark, done.token, first, done.count), done, result))
    return max(found, key=lambda one: one[0])[1:] if found else None


def task_view(task_id: TaskId, rows: Rows, claim: ClaimPiece | None, *, now_ms: int) -> dict[str, Any] | None:
    """The task as ``get`` answers it; None if no task row is among ``rows``."""
    found = [(first, body) for kind, first, body in rows if kind == facts.TASK]
    if not found:
        return None
    first, body = found[-1]
    run = facts.unpack_task(facts.slice_task(body, offset_of(task_id) - offset_of(first), 1))
    history = sorted({facts.unpack_history(body) for kind, _, body in rows if kind == facts.HISTORY})
    done = completion_of(rows, task_id)
    returned = [one for one in history if one.event in (facts.RETRIED, facts.EXPIRED)]
    due_ms = max([ms_of(task_id), *(one.retry_ms for one in returned)])
    return {
        "id": task_id,
        "queue": run.header["queue"],
        "data": run.payload(0),
        "format": run.header.get("format", "bytes"),
        "priority": run.header.get("priority", 0),
        "state": _state(done, claim, due_ms, now_ms),
        "at_ms": due_ms,
        "depends": [],
        "attempts": max([0, *(one.attempts for one in returned)]),
        "claims": _claims(history, done, claim),
        "updates": len(updates_of(rows)),
        "result": done[1] if done and done[0].outcome == facts.COMPLETED else None,
        "error": _error(done, returned),
    }


def history_of(task_id: TaskId, rows: Rows) -> dict[str, Any]:
    """The task's history rows in the order of the log, and the completion that counts, as plain maps."""
    history = sorted({facts.unpack_history(body) for kind, _, body in rows if kind == facts.HISTORY})
    done = completion_of(rows, task_id)
    completion = None
    if done is not None:
        failed = done[0].outcome == facts.FAILED
        completion = {
            "outcome": facts.OUTCOMES[done[0].outcome],
            "token": done[0].token if done[0].outcome != facts.CANCELLED else None,
            "at_ms": done[0].at_ms,
            "error": (done[1] or b"").decode(errors="replace") if failed else None,
        }
    return {"history": [one._asdict() for one in history], "completion": completion}


def _state(done: tuple[Completion, bytes | None] | None, claim: ClaimPiece | None, due_ms: int, now_ms: int) -> str:
    if done is not None:
        return facts.OUTCOMES[done[0].outcome]
    if claim is not None:
        return "claimed"
    return "scheduled" if due_ms > now_ms else "ready"


def _error(done: tuple[Completion, bytes | None] | None, returned: Sequence[History]) -> str | None:
    if done is not None and done[0].outcome == facts.FAILED:
        return (done[1] or b"").decode(errors="replace")
    if done is None and returned:
        return returned[-1].note or None
    return None


_ENDS = {facts.RELEASED: "released", facts.RETRIED: "failed", facts.EXPIRED: "expired"}


def _claims(
    history: Sequence[History], done: tuple[Completion, bytes | None] | None, claim: ClaimPiece | None
) -> list[dict[str, Any]]:
    claims: dict[int, dict[str, Any]] = {}
    for one in history:
        if one.event == facts.GRANTED:
            claims[one.token] = {
                "token": one.token,
                "worker": one.worker,
                "start_ms": one.at_ms,
                "end_ms": None,
                "outcome": None,
            }
    if claim is not None and claim[2] not in claims:
        claims[claim[2]] = {
            "token": claim[2],
            "worker": claim[3],
            "start_ms": None,
            "end_ms": None,
            "outcome": None,
        }
    for one in history:
        if one.event in _ENDS and one.token in claims:
            claims[one.token] |= {"end_ms": one.at_ms, "outcome": _ENDS[one.event]}
    if done is not None and done[0].token in claims:
        claims[done[0].token] |= {"end_ms": done[0].at_ms, "outcome": facts.OUTCOMES[done[0].outcome]}
    return [claims[token] for token in sorted(claims)]
