"""``onyxq task``: the life of a task by hand."""

from __future__ import annotations

import base64
import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onyxq.core.errors import BadRequest, NotFound, OnyxqError, Unknown, from_map
from onyxq.core.facts import pack_task, partition_of_keys, unpack_task
from onyxq.core.ids import TaskId, counter_of, make_id, ms_of, partition_of, with_counter
from onyxq.core.texts import whole
from onyxq.interfaces.cli.context import Context, clock, is_duration, milliseconds, moment, task_id

if TYPE_CHECKING:
    from onyxq.history.parquet.reader import ArchivedTask


def task_enqueue(context: Context) -> None:
    """Add one task under a fresh id of the peer's making."""
    args = context.args
    header, data = _header(context)
    with context.client() as client:
        fresh = client.call("ids", {"count": 1})["ids"][0]
        now_ms = ms_of(fresh)
        if args.expires:
            header["expires_ms"] = _expires_ms(args.expires, now_ms)
        partition = partition_of(fresh)
        if args.ordering_key is not None or args.unique_key is not None:
            key = args.unique_key if args.ordering_key is None else args.ordering_key
            partition = partition_of_keys(args.queue, key, client.call("routes", {})["partitions"])
        first = _placed(fresh, partition, _due_ms(context, now_ms))
        run: list[Any] = [first, pack_task(dict(sorted(header.items())), [data])]
        if args.at:
            run.append(moment(args.at, field="at"))
        try:
            answer = client.call("enqueue", {"runs": [run], "w": args.copies})
        except OnyxqError as error:
            raise _told(error) from None
    ack = answer["acks"][0]
    if isinstance(ack, dict):
        refusal = _told(from_map(ack))
        if isinstance(refusal, Unknown):
            refusal.message = f"task {first.hex()}: {refusal.message}"
        raise refusal
    _enqueued(context, first, ack, answer.get("guarantee", ""))


def _told(error: OnyxqError) -> OnyxqError:
    """The error with its field as the options are named."""
    field = (error.field or "").removeprefix("runs[0].")
    error.field = {"depends": "after", "at_ms": "at", "backoff_ms": "backoff", "w": "copies"}.get(field, field) or None
    return error


def _enqueued(context: Context, first: TaskId, ack: Any, guarantee: str) -> None:
    told: dict[str, Any] = {"id": first.hex(), "acks": ack}
    if isinstance(ack, list):
        told = {"id": ack[1].hex(), "acks": ack[0], "unique": ack[2]}
        if ack[2] != "new":
            done = "its data is replaced" if ack[2] == "replaced" else "nothing is changed"
            context.out.note(f"there is a task of this unique key already; {done}")
    if guarantee:
        told["guarantee"] = guarantee
        context.out.note(f"guarantee: {guarantee}")
    context.out.result(told, told["id"])


def _header(context: Context) -> tuple[dict[str, Any], bytes]:
    """What the options say of the task itself, and its payload; raises `BadRequest`."""
    args = context.args
    data, form = payload_given(context)
    said = {
        "queue": args.queue,
        "format": form if form != "bytes" else None,
        "priority": args.priority or None,
        "ordering_key": args.ordering_key,
        "unique_key": args.unique_key,
        "depends": [task_id(one, field="after") for text in args.after or () for one in text.split(",")] or None,
        "on_dependency_failed": args.on_dependency_failed,
        "backoff_ms": milliseconds(args.backoff, field="backoff") if args.backoff else None,
    }
    header = {name: value for name, value in said.items() if value is not None}
    if args.retries is not None:
        header["retries"] = _retries(args.retries)
    return header, data


def _retries(text: str) -> int | None:
    if text in ("none", "forever"):
        return None
    number = whole(text)
    if number is None:
        raise BadRequest(f"retries is a number, or none for no limit, not {text!r}", field="retries")
    return number


def _expires_ms(text: str, now_ms: int) -> int:
    """A time, or so much from now."""
    if is_duration(text) and whole(text) is None:
        return now_ms + milliseconds(text, field="expires")
    return moment(text, field="expires")


def _archived(context: Context) -> ArchivedTask:
    """The task in the archives that are named; raises `NotFound`."""
    from onyxq.history.parquet.reader import find

    wanted = TaskId(task_id(context.args.id))
    found = find([Path(one) for one in context.args.archive], wanted)
    if found is None:
        raise NotFound(
            f"there is no task {wanted.hex()} in the archive",
            field="id",
            hint="Check the id; a task that is not purged yet is in the cluster: ask without --archive.",
        )
    return found


def task_get(context: Context) -> None:
    """Print one task, as the cluster or an archive has it."""
    if context.args.archive:
        task = _archived(context).task
    else:
        task = context.call("get", {"id": task_id(context.args.id), "seen_token": None, "seen_seq": None})
    print_task(context, task)


def print_task(context: Context, task: dict[str, Any]) -> None:
    """Print one task and its claims."""
    shown = presented(task)
    if context.out.as_json:
        context.out.document(shown)
        return
    claims = shown.pop("claims")
    told = {name: brief(shown, name, 200) for name in ("data", "result")}
    rest = {name: value for name, value in shown.items() if not name.startswith(("data", "result"))}
    if rest.get("retries", 0) is None:
        rest["retries"] = "no limit"
    times = {name: clock(rest.pop(f"{name}_ms", None)) for name in ("at", "expires")}
    context.out.fields({**rest, **times, **told})
    if claims:
        rows = [{**one, "start": clock(one["start_ms"]), "end": clock(one["end_ms"])} for one in claims]
        context.out.text("")
        context.out.table(None, rows, ("token", "worker", "start", "end", "outcome"))


def task_log(context: Context) -> None:
    """Print the updates of one task."""
    if context.args.archive:
        updates: Sequence[dict[str, Any]] = _archived(context).updates
    else:
        updates = context.call("task_log", {"id": task_id(context.args.id)})["updates"]
    shown = [{"token": u["token"], "seq": u["seq"], **member("data", u["data"]), "at_ms": u["at_ms"]} for u in updates]
    rows = [{**one, "at": clock(one["at_ms"]), "data": brief(one)} for one in shown]
    context.out.table({"updates": shown}, rows, ("token", "seq", "at", "data"), empty="no updates")


def task_count(context: Context) -> None:
    """Print how many tasks there are by queue and state."""
    counts = context.call("count", {"queue": context.args.queue})["counts"]
    rows = [{"queue": queue, **of_queue} for queue, of_queue in sorted(counts.items())]
    columns = ("queue", "total", "ready", "claimed", "scheduled", "waiting", "completed", "failed", "cancelled")
    context.out.table({"counts": counts}, rows, columns, empty="no tasks")


def task_claim(context: Context) -> None:
    """Claim tasks and print them with their tokens."""
    args = context.args
    answer = context.call(
        "claim",
        {
            "queues": args.queue,
            "max": args.max,
            "lease_ms": milliseconds(args.lease, field="lease") if args.lease else None,
            "wait_ms": milliseconds(args.wait, field="wait"),
            "worker": args.worker or f"{socket.gethostname()}-{os.getpid()}",
        },
    )
    claims = [one for granted in answer["claims"] for one in _claimed(granted)]
    rows = [{**one, **one["task"], "expires": clock(one["expires_ms"]), "data": brief(one["task"])} for one in claims]
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
    """Cancel a task."""
    asked: dict[str, Any] = {"ids": [task_id(context.args.id)]}
    if context.args.claimed:
        asked["claimed"] = True
    refused = context.call("cancel", asked)["results"][0]
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
                **{name: run.header[name] for name in ("ordering_key", "unique_key") if name in run.header},
                "depends": [one.hex() for one in run.header.get("depends", ())],
                "attempts": attempts,
                **member("data", payload, form),
            },
        }
        for index, payload in enumerate(run.all_payloads())
    ]


def payload_given(context: Context) -> tuple[bytes, str]:
    """The payload that ``--data`` or ``--file`` names, and its format; raises `BadRequest`."""
    args = context.args
    if args.data is not None and args.file is not None:
        raise BadRequest("give either --data or --file", field="data")
    if args.file == "-":
        return sys.stdin.buffer.read(), "bytes"
    if args.file is not None:
        try:
            return Path(args.file).read_bytes(), "bytes"
        except OSError as error:
            raise BadRequest(f"{args.file}: {error.strerror}", field="file") from None
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


def _placed(fresh: bytes, partition: int, due_ms: int) -> TaskId:
    """The fresh id moved to a partition, and to a due time that lies behind its own."""
    maker = int.from_bytes(fresh[8:16], "big")
    return make_id(max(due_ms, ms_of(fresh)), partition, maker, counter_of(fresh))


def brief(shown: dict[str, Any], name: str = "data", limit: int = 48) -> str:
    """A member, cut short for a table; bytes as base64."""
    encoded = shown.get(f"{name}_base64")
    text = json.dumps(shown[name], ensure_ascii=False) if encoded is None else f"base64:{encoded}"
    return text if len(text) <= limit else text[: limit - 1] + "…"
