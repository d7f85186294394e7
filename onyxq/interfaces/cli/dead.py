"""``onyxq dead``: dead letters, which are shown, requeued or discarded."""

from __future__ import annotations

from onyxq.core.errors import BadRequest, Conflict, from_map
from onyxq.core.texts import counted
from onyxq.interfaces.cli.context import Context, found_id
from onyxq.interfaces.cli.tasks import print_task


def dead_show(context: Context) -> None:
    """Print one dead letter; raises `Conflict` if the task is not one."""
    task = context.call("get", {"id": context.task(), "seen_token": None, "seen_seq": None})
    if task["state"] != "failed":
        raise Conflict(f"task {context.args.id} is {task['state']}: it is not a dead letter", field="id")
    print_task(context, task)


def dead_requeue(context: Context) -> None:
    """Requeue dead letters: run them again, with all their retries."""
    _change(context, "dead.requeue", "requeued")


def dead_discard(context: Context) -> None:
    """Cancel dead letters for good."""
    _change(context, "dead.discard", "discarded")


def _change(context: Context, method: str, done: str) -> None:
    args = context.args
    filters = {"queue": args.queue, "where": args.where}
    found = args.all or any(value is not None for value in filters.values())
    if not args.id and not found:
        raise BadRequest("no dead letters are named", field="id", hint="Give ids, --queue, --where, or --all.")
    if args.id and found:
        raise BadRequest("ids cannot be combined with --queue, --where or --all", field="id")
    if args.id:
        _change_named(context, method, done)
        return
    answer = context.call(method, {**filters, "all": bool(args.all)})
    people = f"{done} {counted(answer['count'], 'dead letter')}"
    context.out.result(answer, f"{done}: {answer['count']}", people=people)
    if answer.get("more"):
        context.out.note("there may be more: one request changes a limited number, so repeat the command")


def task_retry(context: Context) -> None:
    """Requeue the dead letters that ids name."""
    _change_named(context, "dead.requeue", "requeued")


def _change_named(context: Context, method: str, done: str) -> None:
    """Change the dead letters that ids name, and print each refusal."""
    with context.client() as client:
        answer = client.call(method, {"ids": [found_id(client, one) for one in context.args.id]})
    results = [{**one, "id": one["id"].hex()} for one in answer.get("results", ())]
    refused = [{**one, "message": one["detail"]} for one in results if not one["ok"]]
    if refused and len(results) == 1:
        raise from_map(refused[0])
    people = f"{done} {counted(answer['count'], 'task')}" if len(results) > 1 else f"{done} task {results[0]['id']}"
    said = {"count": answer["count"], "results": results}
    context.out.result(said, f"{done}: {answer['count']}", people=people)
    for one in refused:
        context.out.note(f"{one['id']}: {one['detail']}")
    if refused:
        raise from_map({**refused[0], "message": f"{len(refused)} of {len(results)} dead letters were not {done}"})
