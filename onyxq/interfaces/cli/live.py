"""Views that stay on the screen: ``--watch`` of any command, ``onyxq top``, and ``onyxq task wait``."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from attrs import define

from onyxq.core.errors import BadRequest
from onyxq.interfaces.cli.context import Context, age, found_id
from onyxq.interfaces.cli.tasks import brief, presented
from onyxq.interfaces.cli.views import worker_table
from onyxq.system.durations import milliseconds

if TYPE_CHECKING:
    from onyxq.client import Client

Body = Callable[[Context], int | None]

EVERY_MIN_S = 0.1
PAUSE_MIN_S, PAUSE_MAX_S = 0.1, 1.0
"""Pause between two looks at a task, in seconds: first and longest."""
FINISHED = ("completed", "failed", "cancelled")
EXIT_FAILED = 1
QUEUES_SHOWN, WORKERS_SHOWN = 20, 20
EVENTS = ("enqueued", "completed", "retried", "failed")
"""Events whose rates are shown, in this order."""


def watched(body: Body, context: Context) -> int:
    """Run a command again and again until Ctrl-C, on a clear screen or one below the other."""
    if getattr(context.args, "all", False):
        raise BadRequest("--watch shows one page again and again: leave out --all", field="watch")
    every_s = milliseconds(context.args.every, field="every") / 1000
    if every_s < EVERY_MIN_S:
        raise BadRequest(f"every must be at least {EVERY_MIN_S:g}s, not {context.args.every}", field="every")
    context.out.watching = True
    try:
        while True:
            body(context)
            time.sleep(every_s)
            context.out.again()
    except KeyboardInterrupt:
        context.out.last()
        return 0


# --- top


def top(context: Context) -> int | None:
    """Show queues, rates and workers: again and again on a terminal, elsewhere once."""
    before: dict[str, Any] = {}

    def look(context: Context) -> None:
        with context.client() as client:
            found = _seen(client)
        _print(context, found, _rates(before, found))
        before.update(found)

    if context.out.on_terminal and not context.out.as_json:
        context.out.again()
        return watched(look, context)
    look(context)
    return None


def _seen(client: Client) -> dict[str, Any]:
    queues = client.call("queues.page", {"order": "unfinished", "limit": QUEUES_SHOWN})
    workers, sums = client.call("workers", {}), client.call("rates", {})
    cluster = client.call("cluster", {})
    return {
        "cluster": cluster["name"],
        "queues": queues["queues"],
        "queues_in_all": queues["all"],
        "workers": workers["workers"][:WORKERS_SHOWN],
        "workers_in_all": workers["all"],
        "events": sums["events"],
        "at_s": time.monotonic(),
    }


def _rates(before: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, float]:
    """Return how often each event happened in a second since the last look; empty at the first one."""
    if not before:
        return {}
    passed_s = max(found["at_s"] - before["at_s"], EVERY_MIN_S)
    was = before["events"]
    return {name: max(0, found["events"].get(name, 0) - was.get(name, 0)) / passed_s for name in EVENTS}


def _print(context: Context, found: dict[str, Any], rates: Mapping[str, float]) -> None:
    out = context.out
    if out.as_json:
        out.document({name: value for name, value in found.items() if name != "at_s"})
        return
    speed = ", ".join(f"{name} {rate:.1f}/s" for name, rate in rates.items())
    ends = "; Ctrl-C ends" if out.watching else ""
    out.text(f"cluster {found['cluster']}, {time.strftime('%H:%M:%S')}{': ' + speed if speed else ''}{ends}\n")
    rows = [{**one, **one["depth"], "oldest_ready": age(one["oldest_ready_ms"])} for one in found["queues"]]
    columns = ("queue", "paused", "ready", "claimed", "scheduled", "waiting", "failed", "completed", "oldest_ready")
    out.table(None, rows, columns, empty="no queues")
    _print_rest(context, found, "queues")
    out.text("")
    worker_table(context, None, found["workers"], ("worker", "claimed", "waits", "waits_for"))
    _print_rest(context, found, "workers")


def _print_rest(context: Context, found: dict[str, Any], name: str) -> None:
    if rest := found[f"{name}_in_all"] - len(found[name]):
        context.out.text(f"and {rest} more {name}")


# --- task wait


def task_wait(context: Context) -> int | None:
    """Wait until tasks are finished, and print the outcome of each."""
    args = context.args
    until = time.monotonic() + milliseconds(args.timeout, field="timeout") / 1000 if args.timeout else None
    with context.client() as client:
        ids = [found_id(client, one) for one in args.id]
        states = [ended(context, client, one, until)["state"] for one in ids]
    return None if set(states) == {"completed"} else EXIT_FAILED


def ended(context: Context, client: Client, task_id: bytes, until: float | None) -> dict[str, Any]:
    """Return a task once it is finished, and print its outcome; show its progress until then. Raises `TimedOut`.

    Once it has seen the task, it waits for peers that are gone, as `AsyncClient.wait` does.
    """
    from onyxq.client.pool import RETRYABLE
    from onyxq.client.values import Task

    pause_s, shown, is_seen = PAUSE_MIN_S, _Shown(), False
    while True:
        left_s = math.inf if until is None else until - time.monotonic()
        try:
            task: dict[str, Any] = client.call("get", {"id": task_id, "seen_token": None, "seen_seq": None})
            is_seen = True
            if task["state"] not in FINISHED and left_s > 0:
                _show(context, client, task, shown)
        except RETRYABLE:
            if not is_seen or (until is not None and time.monotonic() >= until):
                raise
            context.out.progress(f"{task_id.hex()}: no answer; trying again")
        else:
            if task["state"] in FINISHED:
                _print_outcome(context, task)
                return task
            if left_s <= 0:
                raise client.late(Task.of(task), milliseconds(context.args.timeout, field="timeout"), field="timeout")
        time.sleep(min(pause_s, left_s))
        pause_s = min(2 * pause_s, PAUSE_MAX_S)


@define
class _Shown:
    """What was shown of a task."""

    attempts: int = 0
    updates: int = 0
    progress: str = ""


def _show(context: Context, client: Client, task: dict[str, Any], shown: _Shown) -> None:
    """Print a line for a failed attempt, and show state and progress."""
    from onyxq.client.unfinished import last_failure, next_retry
    from onyxq.client.values import Task

    if task["attempts"] > shown.attempts:
        seen = Task.of(task)
        then = next_retry(seen, client.now_ms())
        context.out.note(f"attempt {seen.attempts} failed: {last_failure(seen)}{then and f'; {then}'}")
        shown.attempts = seen.attempts  # only now: the call above may fail, and is then made again
    done = total = None
    if task["updates"] > shown.updates:
        shown.progress, done, total = _progress(client, task["id"])
        shown.updates = task["updates"]
    context.out.progress(f"{task['id'].hex()} {task['state']}{shown.progress}", done, total)


def _progress(client: Client, task_id: bytes) -> tuple[str, float | None, float | None]:
    from onyxq.worker.attempts import latest_progress

    updates = client.call("task_log", {"id": task_id})["updates"]
    found = latest_progress((one["data"], one["at_ms"]) for one in updates)
    if found is None:
        return "", None, None
    count = f"{found.done} of {found.total}" if found.total else str(found.done)
    return f", progress {count} {found.note}".rstrip(), found.done, found.total


def _print_outcome(context: Context, task: dict[str, Any]) -> None:
    found = presented(task)
    shown = {name: found[name] for name in found if name in ("id", "queue", "state", "error") or "result" in name}
    words = found["error"] if found["error"] else brief(found, "result", 1_000) if task["result"] is not None else ""
    context.out.line(shown, f"{found['id']} {found['state']}{': ' + words if words else ''}")
