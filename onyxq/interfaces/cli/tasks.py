"""``onyxq task``: enqueue, claim, finish and show tasks by hand."""

from __future__ import annotations

import base64
import json
import math
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from onyxq.core.errors import BadRequest, NotFound, OnyxqError, Unknown, from_map
from onyxq.core.facts import pack_task, partition_of_keys, unpack_task
from onyxq.core.ids import TaskId, counter_of, make_id, ms_of, partition_of, with_counter
from onyxq.core.texts import visible, whole
from onyxq.history import words
from onyxq.history.attempts import attempt_ms
from onyxq.interfaces.cli.context import Context, clock, found_id, moment, task_id
from onyxq.operations.table.calls import call_of
from onyxq.system.durations import is_duration, milliseconds

if TYPE_CHECKING:
    from onyxq.client import Client
    from onyxq.history.parquet.reader import ArchivedTask

NESTED_MAX = 200
"""Most levels of lists and objects in data that is printed as JSON. Deeper data is printed as base64."""


def task_enqueue(context: Context) -> None:
    """Enqueue one task under an id from the peer."""
    args = context.args
    payload = payload_given(context)
    with context.client() as client:
        header, data = _header(context, client, payload)
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
            raise _as_option(error) from None
    ack = answer["acks"][0]
    if isinstance(ack, dict):
        refusal = _as_option(from_map(ack))
        if isinstance(refusal, Unknown):
            refusal.message = f"task {first.hex()}: {refusal.message}"
        raise refusal
    _enqueued(context, first, ack, answer.get("guarantee", ""))


_OPTIONS = {
    "depends": "after",
    "at_ms": "at",
    "backoff_ms": "backoff",
    "callback.uri": "callback",
    "unique_period_ms": "unique_period",
    "w": "copies",
}
"""Fields of an enqueue that have another name as an option."""


def _as_option(error: OnyxqError) -> OnyxqError:
    """Return the error with the name of the option in place of the field."""
    field = (error.field or "").removeprefix("runs[0].")
    error.field = _OPTIONS.get(field, field) or None
    return error


def _enqueued(context: Context, first: TaskId, ack: Any, guarantee: str) -> None:
    shown: dict[str, Any] = {"id": first.hex(), "acks": ack}
    if isinstance(ack, list):
        shown = {"id": ack[1].hex(), "acks": ack[0], "unique": ack[2]}
        if ack[2] != "new":
            done = {"replaced": "it was replaced", "extended": "its due time was moved"}
            said = done.get(ack[2], "it was not changed")
            context.out.note(f"a task of the queue holds this unique key already; {said}")
    if guarantee:
        shown["guarantee"] = guarantee
        context.out.note(f"guarantee: {guarantee}")
    context.out.result(shown, shown["id"])


def _header(context: Context, client: Client, payload: tuple[bytes, str]) -> tuple[dict[str, Any], bytes]:
    """Return header and payload of the task from the options; raises `BadRequest`."""
    args = context.args
    data, form = payload
    depends = [found_id(client, one, field="after") for text in args.after or () for one in text.split(",")]
    said = {
        "queue": args.queue,
        "format": form if form != "bytes" else None,
        "priority": args.priority or None,
        "ordering_key": args.ordering_key,
        "unique_key": args.unique_key,
        "unique_until": args.unique_until,
        "unique_period_ms": milliseconds(args.unique_period, field="unique_period") if args.unique_period else None,
        "on_conflict": args.on_conflict,
        "callback": {"transport": "http", "uri": args.callback, "method": "POST"}
        if args.callback is not None
        else None,
        "depends": depends or None,
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
        problem = f"retries must be a whole number from 0, or none for no limit, not {text!r}"
        raise BadRequest(problem, field="retries")
    return number


def _expires_ms(text: str, now_ms: int) -> int:
    """Return a time that is given as a time or as a duration from now."""
    if is_duration(text) and whole(text) is None:
        return now_ms + milliseconds(text, field="expires")
    return moment(text, field="expires")


def _archived(context: Context) -> ArchivedTask:
    """Return the task from the archives in the options; raises `NotFound`."""
    from onyxq.history.parquet.reader import find

    wanted = TaskId(task_id(context.args.id))
    found = find([Path(one) for one in context.args.archive], wanted)
    if found is None:
        raise NotFound(
            f"the archive has no task {wanted.hex()}",
            field="id",
            hint="Check the id. If the task is not purged yet, repeat the command without --archive.",
        )
    return found


def task_get(context: Context) -> None:
    """Print one task from the cluster or an archive."""
    if context.args.archive:
        task = _archived(context).task
    else:
        task = context.call("get", {"id": context.task(), "seen_token": None, "seen_seq": None})
    print_task(context, task)
    if task["state"] == "failed" and not context.args.archive and not context.out.as_json:
        context.out.note(f"to run it again: onyxq task retry {task['id'].hex()}")


def print_task(context: Context, task: dict[str, Any]) -> None:
    """Print one task and its attempts."""
    shown = presented(task)
    if context.out.as_json:
        context.out.document(shown)
        return
    claims = shown.pop("claims")
    payloads = {name: brief(shown, name, 200) for name in ("data", "result")}
    said = {"attempt": words.attempt(task), "duration": _whole_duration(task), **_function(task)}
    if shown.pop("callback") is not None:
        said["callback"] = words.callback(task["callback"])
    rest = {name: value for name, value in shown.items() if not name.startswith(("data", "result", *_IN_OTHER_WORDS))}
    times = {name: clock(rest.pop(f"{name}_ms", None)) for name in ("created", "started", "finished", "at", "expires")}
    if task["finished_ms"] is None:
        times["due"] = times["at"]
    del times["at"]
    if task["result"] is None and task["state"] != "completed":
        del payloads["result"]
    fields = {**rest, **said, **times, **payloads}
    context.out.fields({name: value for name, value in fields.items() if value or value is False})
    if claims:
        _print_attempts(context, claims, task["claims_left_out"])


def _function(task: dict[str, Any]) -> dict[str, Any]:
    """Return the function of a task that is a call of one, as a field."""
    call = call_of(task["data"])
    return {} if call is None else {"function": call.function}


_IN_OTHER_WORDS = ("retries", "attempts", "claims_left_out", "duration_ms")
"""Members of a task that its fields show as `attempt` and `duration`."""


def _print_attempts(context: Context, claims: Sequence[dict[str, Any]], left_out: int) -> None:
    """Print a line for each attempt, then the tracebacks. An equal one is not repeated."""
    rows = [
        {
            **one,
            "start": clock(one["start_ms"]),
            "end": clock(one["end_ms"]),
            "duration": _duration(one["duration_ms"]),
            "outcome": words.ending(one),
            "error": words.brief(" ".join((one["error"] or "").split()), 60),
        }
        for one in claims
    ]
    context.out.text("")
    context.out.table(None, rows, ("attempt", "token", "worker", "start", "end", "duration", "outcome", "error"))
    if left_out:
        context.out.note(f"{left_out} attempts between the first and the last ones are not shown")
    before = ""
    for one in claims:
        trace = (one["traceback"] or "").rstrip()
        if trace:
            again = " is the same" if trace == before else f":\n{visible(trace, keep=chr(10))}"
            context.out.text(f"\ntraceback of attempt {one['attempt']}{again}")
            before = trace


def _whole_duration(task: dict[str, Any]) -> str:
    """Return how long a task took, and how long its last attempt if it had several: the rest are mostly pauses."""
    whole, last = _duration(task["duration_ms"]), _duration(attempt_ms(task))
    if not whole or len(task["claims"]) < 2:
        return whole
    return f"{whole} from the first start to the end, {last} in the last attempt"


def _duration(ms: int | None) -> str:
    return "" if ms is None else words.duration(ms)


def task_log(context: Context) -> None:
    """Print the updates of one task."""
    if context.args.archive:
        updates: Sequence[dict[str, Any]] = _archived(context).updates
    else:
        updates = context.call("task_log", {"id": context.task()})["updates"]
    shown = [{"token": u["token"], "seq": u["seq"], **member("data", u["data"]), "at_ms": u["at_ms"]} for u in updates]
    rows = [{**one, "at": clock(one["at_ms"]), "data": brief(one)} for one in shown]
    context.out.table({"updates": shown}, rows, ("token", "seq", "at", "data"), empty="no updates")


def task_count(context: Context) -> None:
    """Print the number of tasks by queue and state."""
    counts = context.call("count", {"queue": context.args.queue})["counts"]
    rows = [{"queue": queue, **of_queue} for queue, of_queue in sorted(counts.items())]
    columns = ("queue", "total", "ready", "claimed", "scheduled", "waiting", "completed", "failed", "cancelled")
    context.out.table({"counts": counts}, rows, columns, empty="no tasks")


def task_claim(context: Context) -> None:
    """Claim tasks and print them with their fencing tokens."""
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
    context.out.table({"claims": claims}, rows, columns, empty="no ready tasks")


def task_complete(context: Context) -> None:
    """Complete a claimed task."""
    result = context.args.result
    results = None if result is None else [_json_bytes(result, field="result")]
    _settle(context, "complete", [context.args.claim_token, None, results])


def task_fail(context: Context) -> None:
    """Report that a claimed task failed."""
    args = context.args
    retry_in_ms = milliseconds(args.retry_in, field="retry_in") if args.retry_in else None
    _settle(context, "fail", [args.claim_token, args.error, retry_in_ms])


def task_renew(context: Context) -> None:
    """Renew a claim."""
    lease = context.args.lease
    lease_ms = None if lease is None else milliseconds(lease, field="lease")
    _settle(context, "renew", [context.args.claim_token, lease_ms])


def task_cancel(context: Context) -> None:
    """Cancel a task."""
    wanted = context.task()
    asked: dict[str, Any] = {"ids": [wanted]}
    if context.args.claimed:
        asked["claimed"] = True
    refused = context.call("cancel", asked)["results"][0]
    _answered(context, wanted, refused, "cancelled task")


def presented(task: dict[str, Any]) -> dict[str, Any]:
    """Return a task that ``get`` returned, in types that JSON has."""
    plain = {name: value for name, value in task.items() if name not in ("data", "format", "result")}
    ids: dict[str, Any] = {"id": task["id"].hex(), "depends": [one.hex() for one in task["depends"]]}
    if plain["callback"] is not None:
        ids["callback"] = {**plain["callback"], "task": plain["callback"]["task"].hex()}
    return {**plain, **ids, **member("data", task["data"], task["format"]), **member("result", task["result"])}


def member(name: str, data: bytes | None, form: str = "") -> dict[str, Any]:
    """Return ``{name: value}`` for JSON, else ``{name_base64: text}``. Only data has a format, results have none."""
    if data is None:
        return {name: None}
    if form != "bytes":
        try:
            return {name: _decoded(data)}
        except (ValueError, RecursionError):
            pass  # A task's data may be no JSON in spite of its format, and results and updates may be any bytes.
    return {f"{name}_base64": base64.b64encode(data).decode()}


def is_printable(data: bytes) -> bool:
    """Return whether data is printed as JSON."""
    try:
        _decoded(data)
    except (ValueError, RecursionError):
        return False
    return True


def _decoded(data: bytes) -> Any:
    """Return the value of JSON; raises `ValueError` for what is not JSON, or cannot be printed as JSON again."""
    value = json_in(data.decode())  # of bytes, `json` would accept UTF-16 too
    level = [value]
    for _ in range(NESTED_MAX + 1):
        inner = (one.values() if isinstance(one, dict) else one for one in level if isinstance(one, (dict, list)))
        level = [item for items in inner for item in items]
        if not level:
            return value
    raise ValueError("it is nested too deeply")


def json_in(text: str) -> Any:
    """Return the value of a JSON text; raises `ValueError`, also for NaN and infinity, and `RecursionError`."""
    text.encode()  # An argument that is not UTF-8 has halves of surrogate pairs in place of some bytes.
    return json.loads(text, parse_constant=_refuse, parse_float=_finite)


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"JSON has no {name}")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is beyond the range of a double")
    return number


def _settle(context: Context, method: str, details: Any) -> None:
    done = {"complete": "completed task", "fail": "recorded the failure of task", "renew": "renewed the claim of task"}
    first = context.task()
    refused = context.call(method, {"items": [[first, 1, *details]]})["results"][0]
    _answered(context, first, refused[0][2] if refused else None, done[method])


def _answered(context: Context, wanted: bytes, refused: dict[str, Any] | None, done: str) -> None:
    if refused:
        raise from_map(refused)
    context.out.result({"id": wanted.hex(), "ok": True}, "done", people=f"{done} {wanted.hex()}")


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
    """Return the payload from ``--data`` or ``--file``, and its format; raises `BadRequest`."""
    args = context.args
    if args.data is not None and args.file is not None:
        raise BadRequest("--data and --file were both given", field="data")
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
        value = json_in(text)
        written = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError) as error:
        hint = 'Write names in double quotes, and all of it in single ones for the shell: \'{"to": "ann"}\'.'
        if text[:1] not in ("{", "["):
            hint = f"Quote a text twice for the shell: '\"{text}\"'."
        raise BadRequest(f"{field} is not JSON: {error}", field=field, hint=hint) from None
    try:
        return written.encode()
    except UnicodeEncodeError:
        return json.dumps(value, separators=(",", ":")).encode()  # half a surrogate pair is legal as an escape only


def _due_ms(context: Context, now_ms: int) -> int:
    args = context.args
    if args.delay and args.at:
        raise BadRequest("--delay and --at were both given", field="delay")
    if args.delay:
        return now_ms + milliseconds(args.delay, field="delay")
    return moment(args.at, field="at") if args.at else 0


def _placed(fresh: bytes, partition: int, due_ms: int) -> TaskId:
    """Return the fresh id with another partition, and with the due time if that is later."""
    maker = int.from_bytes(fresh[8:16], "big")
    return make_id(max(due_ms, ms_of(fresh)), partition, maker, counter_of(fresh))


def brief(shown: dict[str, Any], name: str = "data", limit: int = 48) -> str:
    """Return a member as text that is short enough for a table; bytes as base64."""
    encoded = shown.get(f"{name}_base64")
    if encoded == "":
        return ""
    text = json.dumps(shown[name], ensure_ascii=False) if encoded is None else f"base64:{encoded}"
    return text if len(text) <= limit else text[: limit - 1] + "…"
