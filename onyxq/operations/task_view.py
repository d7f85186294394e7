"""One task's state, read from the rows that cover its id and from its claim. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onyxq.core import facts
from onyxq.core.facts import Completion, History, Update
from onyxq.core.ids import TaskId, ms_of, offset_of, partition_of
from onyxq.core.replica import ClaimPiece, Replica
from onyxq.core.task_headers import policy_of
from onyxq.store.store import Store

Rows = Sequence[tuple[bytes, bytes, bytes]]
"""(kind, first id, body) of rows that cover the task."""


def updates_of(rows: Rows) -> list[Update]:
    """Return the task's updates, contiguous per token, in order of token and sequence number."""
    stored = [facts.unpack_update(body) for kind, _, body in rows if kind == facts.UPDATE]
    # Nodes that are not equal yet may each hold one with another mark: the last one counts.
    found = {(one.token, one.seq): one for one in sorted(stored, key=lambda one: one.mark)}
    out: list[Update] = []
    expected: dict[int, int] = {}
    for _, one in sorted(found.items()):
        if one.seq == expected.get(one.token, 0):
            out.append(one)
            expected[one.token] = one.seq + 1
    return out


def completion_of(rows: Rows, task_id: TaskId) -> tuple[Completion, bytes | None] | None:
    """Return the valid completion with the highest mark, and the task's result in it."""
    found = []
    history = [facts.unpack_history(body) for kind, _, body in rows if kind == facts.HISTORY]
    since = max(
        (one.position if one.event == facts.REOPENED else one.token for one in history if one.event != facts.GRANTED),
        default=-1,
    )
    for kind, first, body in rows:
        if kind == facts.COMPLETION:
            done = facts.unpack_completion(body)
            if done.token < since:
                continue
            result = done.results[offset_of(task_id) - offset_of(first)] if done.results else None
            found.append(((done.mark, done.token, first, done.count), done, result))
    return max(found, key=lambda one: one[0])[1:] if found else None


def task_view(
    task_id: TaskId, rows: Rows, claim: ClaimPiece | None, *, replica: Replica, now_ms: int
) -> dict[str, Any] | None:
    """Return the task as ``get`` answers it, without the effects of its keys; None without a task row in ``rows``."""
    found = [(first, body) for kind, first, body in rows if kind == facts.TASK]
    if not found:
        return None
    first, body = max(found, key=lambda one: (facts.task_header(one[1])[0].get("order") or [0, 0, 0])[1:])
    run = facts.unpack_task(facts.slice_task(body, offset_of(task_id) - offset_of(first), 1))
    header = run.header
    history = sorted({facts.unpack_history(body) for kind, _, body in rows if kind == facts.HISTORY})
    done = completion_of(rows, task_id)
    returned = [one for one in history if one.event in (facts.RETRIED, facts.EXPIRED, facts.REOPENED)]
    due_ms = _due_ms(task_id, returned)
    waits = "depends" in header and not any(kind == facts.RESOLUTION for kind, _, _ in rows)
    return {
        "id": task_id,
        "queue": header["queue"],
        "data": run.payload(0) if (data := _data(rows)) is None else data,
        "format": header.get("format", "bytes"),
        "priority": header.get("priority", 0),
        "ordering_key": header.get("ordering_key"),
        "unique_key": header.get("unique_key"),
        "state": _state(done, claim, waits=waits, late=due_ms <= now_ms),
        "at_ms": due_ms,
        "expires_ms": header.get("expires_ms"),
        "retries": policy_of(replica, header).retries,
        "depends": header.get("depends", []),
        "attempts": max([0, *(one.attempts for one in returned)]),
        "claims": _claims(history, _ended(rows), claim),
        "updates": len(updates_of(rows)),
        "result": done[1] if done and done[0].outcome == facts.COMPLETED else None,
        "error": _error(done, returned),
    }


def placed_by_keys(view: dict[str, Any], store: Store) -> dict[str, Any] | None:
    """Return a task's view with the effects of its keys, from its partition's store.

    A task after another of its ordering key waits. A task that another one of its unique key replaces does not exist:
    its producer got the id of the other one.
    """
    task_id, queue = view["id"], view["queue"]
    if view["unique_key"] is not None:
        standing = store.unique(partition_of(task_id), queue, view["unique_key"])
        if standing not in (None, task_id):
            return None
    if view["ordering_key"] is not None and view["state"] == "ready":
        head = store.key_head(partition_of(task_id), facts.key_digest(queue, view["ordering_key"]))
        if head not in (None, task_id):
            return view | {"state": "waiting"}
    return view


def _due_ms(task_id: TaskId, returned: Sequence[History]) -> int:
    """Return when a task is due: from its last retry or reopening, else from its id."""
    said = [one.retry_ms for one in returned if one.event in (facts.RETRIED, facts.REOPENED)]
    return said[-1] if said else ms_of(task_id)


def _data(rows: Rows) -> bytes | None:
    """Return the data that replaced the task's data."""
    found = [facts.unpack_data(body) for kind, _, body in rows if kind == facts.DATA]
    return max(found, key=lambda one: one.mark).payload if found else None


def history_of(task_id: TaskId, rows: Rows) -> dict[str, Any]:
    """Return the task's history rows in the order of the log, and its valid completion, as plain maps."""
    history = sorted({facts.unpack_history(body) for kind, _, body in rows if kind == facts.HISTORY})
    done = completion_of(rows, task_id)
    completion = None
    if done is not None:
        failed = done[0].outcome in (facts.FAILED, facts.STOPPED)
        completion = {
            "outcome": facts.OUTCOMES[done[0].outcome],
            "token": done[0].token if done[0].outcome != facts.CANCELLED else None,
            "at_ms": done[0].at_ms,
            "error": (done[1] or b"").decode(errors="replace") if failed else None,
        }
    return {"history": [one._asdict() for one in history], "completion": completion}


def _state(done: tuple[Completion, bytes | None] | None, claim: ClaimPiece | None, *, waits: bool, late: bool) -> str:
    if done is not None:
        return facts.OUTCOMES[done[0].outcome]
    if claim is not None:
        return "claimed"
    if waits:
        return "waiting"
    return "ready" if late else "scheduled"


def _error(done: tuple[Completion, bytes | None] | None, returned: Sequence[History]) -> str | None:
    if done is not None and done[0].outcome in (facts.FAILED, facts.STOPPED):
        return (done[1] or b"").decode(errors="replace")
    if done is None and returned:
        return returned[-1].note or None
    return None


_ENDS = {facts.RELEASED: "released", facts.RETRIED: "failed", facts.EXPIRED: "expired"}


def _ended(rows: Rows) -> dict[int, Completion]:
    """Return the completions by token; a reopened task has several."""
    found = [facts.unpack_completion(body) for kind, _, body in rows if kind == facts.COMPLETION]
    return {one.token: one for one in sorted(found, key=lambda one: one.mark)}


def _claims(history: Sequence[History], ended: dict[int, Completion], claim: ClaimPiece | None) -> list[dict[str, Any]]:
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
    attempts = 0
    for one in history:
        if one.event in _ENDS and one.token in claims:
            # A postponed claim is retried, but counts no attempt.
            event = facts.RELEASED if one.event == facts.RETRIED and one.attempts == attempts else one.event
            claims[one.token] |= {"end_ms": one.at_ms, "outcome": _ENDS[event]}
        attempts = max(attempts, one.attempts)
    for token in claims.keys() & ended.keys():
        done = ended[token]
        if done.outcome != facts.CANCELLED or facts.CLAIMED in done.results:
            claims[token] |= {"end_ms": done.at_ms, "outcome": facts.OUTCOMES[done.outcome]}
        elif claims[token]["outcome"] is None:
            # The claim had failed for good, and that was discarded.
            claims[token] |= {"end_ms": done.at_ms, "outcome": facts.OUTCOMES[facts.FAILED]}
    return [claims[token] for token in sorted(claims)]
