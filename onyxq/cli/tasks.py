"""``onyxq task``: the life of a task by hand."""

from __future__ import annotations

import base64
import json
import os
import socket
import sys
from pathlib import Path
from typing import Any

from onyxq.cli.context import Context, clock, milliseconds, moment, task_id
from onyxq.errors import BadRequest, from_map
from onyxq.facts import pack_task, unpack_task
from onyxq.ids import TaskId, counter_of, make_id, ms_of, partition_of, with_counter

PAGE_TASKS = 500


def task_enqueue(context: Context) -> None:
    """Add one task under a fresh id of the peer's making."""
    args = context.args
    data, form = _data(context)
    header: dict[str, Any] = {"queue": args.queue}
    if form != "bytes":
        header["format"] = form
    if args.priority:
        header["priority"] = args.priority
    if args.retries is not None:
        header["retries"] = args.retries
    with context.client() as client:
        fresh = client.call("ids", {"count": 1})["ids"][0]
        first = _due_at(fresh, _due_ms(context, ms_of(fresh)))
        runs = [[first, pack_task(dict(sorted(header.items())), [data])]]
        answer = client.call("enqueue", {"runs": runs, "w": None})["acks"][0]
    if isinstance(answer, dict):
        raise from_map(answer)
    context.out.result({"id": first.hex(), "acks": answer}, first.hex())


def task_get(context: Context) -> None:
    """Print one task."""
    task = context.call("get", {"id": task_id(context.args.id), "seen_token": None, "seen_seq": None})
    shown = presented(task)
    if context.out.as_json:
        context.out.document(shown)
        return
    claims = shown.pop("claims")
    told = {name: _brief(shown, name, 200) for name in ("data", "result")}
    rest = {name: value for name, value in shown.items() if not name.startswith(("data", "result", "at_ms"))}
    context.out.fields({**rest, "at": clock(shown["at_ms"]), **told})
    if claims:
        rows = [{**one, "start": clock(one["start_ms"]), "end": clock(one["end_ms"])} for one in claims]
        print()
        context.out.table(None, rows, ("token", "worker", "start", "end", "outcome"))


def task_log(context: Context) -> None:
    """Print the updates of one task."""
    updates = context.call("task_log", {"id": task_id(context.args.id)})["updates"]
    shown = [{"token": u["token"], "seq": u["seq"], **member("data", u["data"]), "at_ms": u["at_ms"]} for u in updates]
    rows = [{**one, "at": clock(one["at_ms"]), "data": _brief(one)} for one in shown]
    context.out.table({"updates": shown}, rows, ("token", "seq", "at", "data"), empty="no updates")


def task_list(context: Context) -> None:
    """Print tasks in id order, page after page up to the limit."""
    args = context.args
    after = task_id(args.after) if args.after else None
    found: list[dict[str, Any]] = []
    with context.client() as client:
        while len(found) < args.limit:
            wanted = min(PAGE_TASKS, args.limit - len(found))
            page = client.call("list", {"queue": args.queue, "state": args.state, "after": after, "limit": wanted})
            found += page["tasks"]
            after = page["after"]
            if after is None:
                break
    shown = [presented(task) for task in found]
    rows = [{**task, "at": clock(task["at_ms"]), "data": _brief(task)} for task in shown]
    more = after.hex() if after else None
    columns = ("id", "queue", "state", "priority", "at", "attempts", "data")
    context.out.table({"tasks": shown, "after": more}, rows, columns, empty="no tasks")


def task_count(context: Context) -> None:
    """Print how many tasks there are by queue and state."""
    counts = context.call("count", {"queue": context.args.queue})["counts"]
    rows = [{"queue": queue, **of_queue} for queue, of_queue in sorted(counts.items())]
    columns = ("queue", "total", "ready", "claimed", "scheduled", "completed", "failed", "cancelled")
    context.out.table({"counts": counts}, rows, columns, empty="no tasks")


def task_claim(context: Context) -> None:
    """Claim tasks and print them with their tokens."""
    args = context.args
    answer = context.call(
        "claim",
        {
            "queues": args.queue,
            "max": args.max,
            "lease_ms": milliseconds(args.lease, field="lease"),
            "wait_ms": milliseconds(args.wait, field="wait"),
            "worker": args.worker or f"{socket.gethostname()}-{os.getpid()}",
        },
    )
    claims = [one for granted in answer["claims"] for one in _claimed(granted)]
    rows = [{**one, **one["task"], "expires": clock(one["expires_ms"]), "data": _brief(one["task"])} for one in claims]
    columns = ("id", "queue", "token", "expires", "attempts", "data")
    context.out.table({"claims": claims}, rows, columns, empty="nothing to claim")


def task_complete(context: Context) -> None:
    """Report a claimed task as done."""
    result = context.args.result
    results = None if result is None else [_json_bytes(result, field="result")]
    _settle(context, "complete", [context.args.claim_token, None, results])


def task_fail(context: Context) -> None:
    """Report a claimed task as failed."""
    args = context.args
    retry_in_ms = milliseconds(args.retry_in, field="retry_in") if args.retry_in else None
    _settle(context, "fail", [args.claim_token, args.error, retry_in_ms])


def task_renew(context: Context) -> None:
    """Prolong a claim."""
    _settle(context, "renew", [context.args.claim_token, milliseconds(context.args.lease, field="lease")])


def task_cancel(context: Context) -> None:
    """Cancel a task that nobody holds."""
    refused = context.call("cancel", {"ids": [task_id(context.args.id)]})["results"][0]
    _answered(context, refused)


def presented(task: dict[str, Any]) -> dict[str, Any]:
    """A task as ``get`` and ``list`` return it, in types that JSON has."""
    plain = {name: value for name, value in task.items() if name not in ("data", "format", "result")}
    ids = {"id": task["id"].hex(), "depends": [one.hex() for one in task["depends"]]}
    return {**plain, **ids, **member("data", task["data"], task["format"]), **member("result", task["result"])}


def member(name: str, data: bytes | None, form: str = "") -> dict[str, Any]:
    """``{name: value}`` of JSON, else ``{name_base64: text}``; a format is kept with data, not with results."""
    if data is None:
        return {name: None}
    try:
        if form != "bytes":
            return {name: json.loads(data)}
    except ValueError:
        pass  # a result or an update may be anything
    return {f"{name}_base64": base64.b64encode(data).decode()}


def _settle(context: Context, method: str, details: Any) -> None:
    first = task_id(context.args.id)
    refused = context.call(method, {"items": [[first, 1, *details]]})["results"][0]
    _answered(context, refused[0][2] if refused else None)


def _answered(context: Context, refused: dict[str, Any] | None) -> None:
    if refused:
        raise from_map(refused)
    context.out.result({"id": context.args.id, "ok": True}, "done")


def _claimed(granted: Any) -> list[dict[str, Any]]:
    token, expires_ms, attempts, first, body = granted
    run = unpack_task(body)
    form = run.header.get("format", "bytes")
    return [
        {
            "token": token,
            "expires_ms": expires_ms,
            "task": {
                "id": with_counter(first, counter_of(first) + index).hex(),
                "queue": run.header["queue"],
                "priority": run.header.get("priority", 0),
                "attempts": attempts,
                **member("data", payload, form),
            },
        }
        for index, payload in enumerate(run.all_payloads())
    ]


def _data(context: Context) -> tuple[bytes, str]:
    args = context.args
    if args.data is not None and args.file is not None:
        raise BadRequest("give either --data or --file", field="data")
    if args.file == "-":
        return sys.stdin.buffer.read(), "bytes"
    if args.file is not None:
        try:
            return Path(args.file).read_bytes(), "bytes"
        except OSError as error:
            raise BadRequest(str(error), field="file") from None
    return _json_bytes("null" if args.data is None else args.data, field="data"), "json"


def _json_bytes(text: str, *, field: str) -> bytes:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise BadRequest(f"not JSON: {error}", field=field, hint=f"Quote it for the shell: '\"{text}\"'.") from None
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _due_ms(context: Context, now_ms: int) -> int:
    args = context.args
    if args.delay and args.at:
        raise BadRequest("give either --delay or --at", field="delay")
    if args.delay:
        return now_ms + milliseconds(args.delay, field="delay")
    return moment(args.at, field="at") if args.at else 0


def _due_at(fresh: bytes, due_ms: int) -> TaskId:
    """The fresh id moved to a due time that lies behind its own."""
    maker = int.from_bytes(fresh[8:16], "big")
    return make_id(max(due_ms, ms_of(fresh)), partition_of(fresh), maker, counter_of(fresh))


def _brief(shown: dict[str, Any], name: str = "data", limit: int = 48) -> str:
    """A member, cut short for a table; bytes as base64."""
    encoded = shown.get(f"{name}_base64")
    text = json.dumps(shown[name], ensure_ascii=False) if encoded is None else f"base64:{encoded}"
    return text if len(text) <= limit else text[: limit - 1] + "…"
