"""One task's state, read from the rows that cover its id and from its claim. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import SplitResult, urlsplit

from onyxq.core import facts
from onyxq.core.facts import Completion, History, Update
from onyxq.core.ids import TaskId, callback_of, ms_of, offset_of, partition_of
from onyxq.core.limits import TIMERS_QUEUE
from onyxq.core.replica import ClaimPiece, Replica
from onyxq.core.task_headers import CALLBACK, FLOW, UNIQUE_KEY, due_of, policy_of, unique_options
from onyxq.history.attempts import Ended, attempts_max, attempts_of, reports_of, shown
from onyxq.store.store import Store

HIDDEN = "…"
"""Shown in place of a secret."""
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
            found.append(((done.mark, done.token, first, done.count), done, _result(done, first, task_id)))
    return max(found, key=lambda one: one[0])[1:] if found else None


def task_view(
    task_id: TaskId, rows: Rows, claim: ClaimPiece | None, *, replica: Replica, now_ms: int
) -> dict[str, Any] | None:
    """Return the task as ``get`` answers it, without the effects of its keys; None without a task row in ``rows``."""
    found = [(first, body) for kind, first, body in rows if kind == facts.TASK]
    if not found:
        return None
    first, body = max(found, key=lambda one: facts.task_mark(facts.task_header(one[1])[0]))
    run = facts.unpack_task(facts.slice_task(body, offset_of(task_id) - offset_of(first), 1))
    header = run.header
    history = sorted({facts.unpack_history(body) for kind, _, body in rows if kind == facts.HISTORY})
    done = completion_of(rows, task_id)
    returned = [one for one in history if one.event in (facts.RETRIED, facts.EXPIRED, facts.REOPENED)]
    due_ms = _due_ms(due_of(header, task_id), returned)
    waits = "depends" in header and not any(kind == facts.RESOLUTION for kind, _, _ in rows)
    retries = policy_of(replica, header).retries
    reports = reports_of(facts.unpack_update(body) for kind, _, body in rows if kind == facts.UPDATE)
    held = (claim[2], claim[3]) if claim is not None else None
    attempts = attempts_of(history, _ended(rows, task_id), reports, held=held)
    return {
        "id": task_id,
        "queue": header["queue"],
        "data": run.payload(0),
        "format": header.get("format", "bytes"),
        "priority": header.get("priority", 0),
        "ordering_key": header.get("ordering_key"),
        "unique_key": header.get(UNIQUE_KEY),
        **unique_options(header),
        "state": _state(done, claim, waits=waits, late=due_ms <= now_ms),
        "at_ms": due_ms,
        "expires_ms": header.get("expires_ms"),
        "retries": retries,
        "depends": header.get("depends", []),
        "created_ms": ms_of(task_id),
        "attempts": max([0, *(one.attempts for one in returned)]),
        "attempts_max": attempts_max(history, retries),
        **shown(attempts, done[0].at_ms if done else None),
        "updates": len(updates_of(rows)),
        "result": done[1] if done and done[0].outcome == facts.COMPLETED else None,
        "error": _error(done, returned),
        "callback": header.get(CALLBACK),
        "flow": header.get(FLOW),
    }


def with_delivery(view: dict[str, Any], callback: dict[str, Any] | None) -> dict[str, Any]:
    """Return the view of a task that has a callback with the delivery, from the view of the callback's task.

    The callback's task is purged earlier if its queue has a shorter retention.
    """
    said, there = view["callback"], callback is not None and callback["queue"] == TIMERS_QUEUE
    shown = {**said, "uri": shown_uri(said["uri"]), "task": callback_of(view["id"]), "state": "purged"}
    if callback is not None and there:
        state, due = callback["state"], callback["state"] in ("scheduled", "ready")
        errors = (one["error"] for one in reversed(callback["claims"]) if one["error"])
        error = callback["error"] or next(errors, None)
        shown |= {
            "state": "delivered" if state == "completed" else state,
            "attempts": callback["attempts"],
            "at_ms": callback["at_ms"] if due else None,
            "delivered_ms": callback["finished_ms"] if state == "completed" else None,
            "error": error and shown_error(error, said["uri"]),
        }
    return view | {"callback": shown}


def shown_uri(uri: str) -> str:
    """Return a URI without user, password, query and fragment, which may be secrets."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        return HIDDEN  # only an installed transport accepts it
    netloc, path = _after_user(parts.netloc), parts.path if parts.netloc else _after_user(parts.path)
    return SplitResult(parts.scheme, netloc, path, HIDDEN if parts.query else "", "").geturl()


def shown_error(error: str, uri: str) -> str:
    """Return the error of a callback without the secrets of its URI."""
    error = error.replace(uri, shown_uri(uri))
    try:
        parts = urlsplit(uri)
    except ValueError:
        return error
    for secret in filter(None, (parts.netloc.rpartition("@")[0], parts.password, parts.query, parts.fragment)):
        error = error.replace(secret, HIDDEN)
    return error


def _after_user(place: str) -> str:
    user, _, rest = place.rpartition("@")
    return f"{HIDDEN}@{rest}" if user else rest


def of_list(view: dict[str, Any]) -> dict[str, Any]:
    """Return a task's view with the last of its tracebacks only: a list has many tasks."""
    last = max((one["token"] for one in view["claims"] if one["traceback"]), default=None)
    claims = [one if one["token"] == last else one | {"traceback": None} for one in view["claims"]]
    return view | {"claims": claims}


def placed_by_keys(view: dict[str, Any], store: Store) -> dict[str, Any] | None:
    """Return a task's view with the effects of its keys, from its partition's store.

    A task after another of its ordering key waits. A task that another one of its unique key replaces does not exist:
    its producer got the id of the other one.
    """
    task_id, queue = view["id"], view["queue"]
    if view["unique_key"] is not None and store.superseded_by(task_id) is not None:
        return None
    if view["ordering_key"] is not None and view["state"] == "ready":
        head = store.key_head(partition_of(task_id), facts.key_digest(queue, view["ordering_key"]))
        if head not in (None, task_id):
            return view | {"state": "waiting"}
    return view


def _due_ms(due_ms: int, returned: Sequence[History]) -> int:
    """Return when a task is due: from its last retry or reopening, else ``due_ms``."""
    said = [one.retry_ms for one in returned if one.event in (facts.RETRIED, facts.REOPENED)]
    return said[-1] if said else due_ms


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


def _ended(rows: Rows, task_id: TaskId) -> dict[int, Ended]:
    """Return the completions by token; a reopened task has several."""
    found: list[Ended] = []
    for kind, first, body in rows:
        if kind == facts.COMPLETION:
            done = facts.unpack_completion(body)
            found.append((done, _result(done, first, task_id)))
    return {one[0].token: one for one in sorted(found, key=lambda one: one[0].mark)}


def _result(done: Completion, first: bytes, task_id: TaskId) -> bytes | None:
    return done.results[offset_of(task_id) - offset_of(first)] if done.results else None
