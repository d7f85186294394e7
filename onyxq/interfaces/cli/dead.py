"""``onyxq dead``: dead letters, which are shown, requeued or discarded."""

from __future__ import annotations

from typing import Any

from onyxq.core.errors import BadRequest, Conflict, from_map
from onyxq.interfaces.cli.context import Context, task_id
from onyxq.interfaces.cli.tasks import print_task


def dead_show(context: Context) -> None:
    """Print one dead letter; raises `Conflict` if the task is not one."""
    task = context.call("get", {"id": task_id(context.args.id), "seen_token": None, "seen_seq": None})
    if task["state"] != "failed":
        raise Conflict(f"task {context.args.id} is {task['state']}: it is not a dead letter", field="id")
    print_task(context, task)


def dead_requeue(context: Context) -> None:
    """Run dead letters again, with all their retries."""
    _change(context, "dead.requeue", "requeued")


def dead_discard(context: Context) -> None:
    """Cancel dead letters for good."""
    _change(context, "dead.discard", "discarded")


def _change(context: Context, method: str, done: str) -> None:
    args = context.args
    filters = {"queue": args.queue, "where": args.where}
    by_filter = any(value is not None for value in filters.values())
    if not args.id:
        if not by_filter and not args.all:
            raise BadRequest("no dead letters are named", field="id", hint="Give ids, --queue, --where, or --all.")
        count = context.call(method, filters)["count"]
        context.out.result({"count": count}, f"{done}: {count}")
        return
    if by_filter or args.all:
        raise BadRequest("ids cannot be combined with --queue, --where or --all", field="id")
    results = context.call(method, {"ids": [task_id(one) for one in args.id]})["results"]
    shown: list[dict[str, Any]] = []
    for one, why in zip(args.id, results, strict=True):
        failed = {} if why is None else {"code": why["code"], "detail": why["message"]}
        shown.append({"id": one, "ok": why is None, **failed})
    count = sum(one["ok"] for one in shown)
    refused = next((why for why in results if why is not None), None)
    if refused is not None and len(results) == 1:
        raise from_map(refused)
    context.out.result({"count": count, "results": shown}, f"{done}: {count}")
    for one in shown:
        if not one["ok"]:
            context.out.note(f"{one['id']}: {one['detail']}")
    if refused is not None:
        raise from_map({**refused, "message": f"{len(results) - count} of {len(results)} dead letters were not {done}"})
