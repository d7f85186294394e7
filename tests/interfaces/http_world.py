"""A small service in memory under the HTTP interface, and ways to call it in tests.

It stores task rows like real services (packed runs), so the code of a node decodes what the HTTP
interface stores.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
import msgspec
from attrs import define, field
from msgspec import inspect

from onyxq.access.grants import Access, Token
from onyxq.core.facts import pack_task, unpack_task
from onyxq.core.ids import IdMaker, ids_of, ms_of, partition_of
from onyxq.core.limits import members
from onyxq.core.queue_settings import DEFAULTS, Queue
from onyxq.errors import (
    AlreadyFinished,
    BadRequest,
    Conflict,
    NotFound,
    OnyxqError,
    SequenceGap,
    StaleToken,
)
from onyxq.interfaces.http.app import App, create_app
from onyxq.operations.table.enqueue import Enqueue
from onyxq.operations.table.operation import A, Args, Operation, R, converted, plain
from onyxq.operations.table.queue import SET_QUEUE, changes, shown_settings
from onyxq.operations.table.task import TaskView, task_result
from onyxq.system.metrics import Metrics
from tests.interfaces.http_fake_jobs import NOW_MS, FakeJobs
from tests.own_arguments import AsyncTest, own_arguments, seen_by_pytest

PARTITIONS = 64
JOB = {
    "id": "j",
    "workflow": [["in", "out"]],
    "catalog": [{"type": "input", "name": "in", "queue": "a"}, {"type": "output", "name": "out", "queue": "b"}],
}
"""A job as a request has it."""


@define
class FakeTask:
    """One task and all that is known of it."""

    header: dict[str, Any]
    data: bytes
    state: str = "ready"
    token: int = 0
    attempts: int = 0
    updates: list[dict[str, Any]] = field(factory=list)
    result: bytes | None = None
    error: str | None = None


def sent(args: Args) -> dict[str, Any]:
    """Arguments as a client would send them, without what need not be sent."""
    found: dict[str, Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(args))
    if isinstance(args, Enqueue):
        found["runs"] = [run if run[2] is not None else run[:2] for run in found["runs"]]
    return found


class FakeService(FakeJobs):
    """The methods of a node, on dictionaries. ``broken`` maps methods to errors they raise."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = NOW_MS
        self.tasks: dict[bytes, FakeTask] = {}
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.broken: dict[str, Exception] = {}
        self.refused_partitions: dict[int, OnyxqError] = {}
        self.settings: dict[str, dict[str, Any]] = {}
        self.periodic: dict[str, dict[str, Any]] = {}
        self.timers: dict[str, dict[str, Any]] = {}
        self.flows: dict[bytes, dict[str, Any]] = {}
        self.requests: dict[bytes, dict[str, Any]] = {}
        self.led = list(range(PARTITIONS))
        self.metrics = Metrics(version="test")
        self.claiming = anyio.Event()
        """Set once a client waits for a task."""
        self._arrived = anyio.Event()
        self._token = 100
        self._maker = IdMaker(lambda: self.now_ms, lambda: 7)

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        """As a node's service; the guard before it decodes the arguments of some methods."""
        args = sent(args) if isinstance(args, Args) else args
        self.calls.append((method, args))
        await anyio.lowlevel.checkpoint()
        if method in self.broken:
            raise self.broken[method]
        if method in ("complete", "fail", "renew", "release", "postpone", "give_up"):
            return {"results": [self._finish(method, item) for item in args["items"]]}
        answer = getattr(self, f"_{method.replace('.', '_')}")(args)
        return await answer if isinstance(answer, Awaitable) else answer

    async def do(self, operation: Operation[A, R], args: A) -> R:
        """As a node's service."""
        return converted(operation.result, filled(operation.result, await self.call(operation.name, sent(args))))

    def asked(self, method: str) -> list[dict[str, Any]]:
        """The arguments of every call of a method so far."""
        return [args for name, args in self.calls if name == method]

    # --- tasks

    def _enqueue(self, args: dict[str, Any]) -> dict[str, Any]:
        acks: list[Any] = []
        for first, body, *_ in args["runs"]:
            error = self.refused_partitions.get(partition_of(first))
            if error is not None:
                acks.append(error.to_map())
                continue
            run = unpack_task(body)
            for task_id, data in zip(ids_of(first, run.count), run.all_payloads(), strict=True):
                self.tasks.setdefault(task_id, FakeTask(run.header, data))
            acks.append(args.get("w") or 2)
        self._arrived.set()
        self._arrived = anyio.Event()
        return {"acks": acks}

    def _request_remember(self, args: dict[str, Any]) -> dict[str, Any]:
        if args.get("request") is not None:
            self.requests.setdefault(args["key"], args["request"])
        return {"first": self.requests.get(args["key"])}

    def _view(self, task_id: bytes, task: FakeTask) -> dict[str, Any]:
        state = "scheduled" if task.state == "ready" and ms_of(task_id) > self.now_ms else task.state
        claim = {"token": task.token, "worker": "w", "start_ms": 1, "end_ms": None, "outcome": None, "attempt": 1}
        claim |= {"given_up": False, **dict.fromkeys(("duration_ms", "retry_ms", "error", "traceback"))}
        return {
            "id": task_id,
            "queue": task.header["queue"],
            "data": task.data,
            "format": task.header.get("format", "bytes"),
            "priority": task.header.get("priority", 0),
            "state": state,
            "at_ms": ms_of(task_id),
            "depends": task.header.get("depends", []),
            "ordering_key": task.header.get("ordering_key"),
            "unique_key": task.header.get("unique_key"),
            "attempts": task.attempts,
            "attempts_max": None,
            "created_ms": ms_of(task_id),
            **dict.fromkeys(("started_ms", "finished_ms", "duration_ms")),
            "claims": [claim] if task.token else [],
            "claims_left_out": 0,
            "updates": len(task.updates),
            "result": task.result,
            "error": task.error,
        }

    def _known(self, task_id: bytes) -> FakeTask:
        if task_id not in self.tasks:
            raise NotFound("there is no such task", field="id")
        return self.tasks[task_id]

    def _get(self, args: dict[str, Any]) -> dict[str, Any]:
        return self._view(args["id"], self._known(args["id"]))

    def _task_log(self, args: dict[str, Any]) -> dict[str, Any]:
        return {"updates": self._known(args["id"]).updates}

    def _list(self, args: dict[str, Any]) -> dict[str, Any]:
        down = args.get("newest_first") or False
        views = [self._view(task_id, self.tasks[task_id]) for task_id in sorted(self.tasks, reverse=down)]
        wanted = [
            view
            for view in views
            if args.get("queue") in (None, view["queue"])
            and args.get("state") in (None, view["state"])
            and (args.get("after") is None or (view["id"] < args["after"] if down else view["id"] > args["after"]))
            and (args.get("where") is None or args["where"] in f"{view['error']} {view['data'].decode()}")
        ]
        page = wanted[: args.get("limit", 100)]
        return {"tasks": page, "after": page[-1]["id"] if len(wanted) > len(page) else None}

    def _list_next(self, args: dict[str, Any]) -> dict[str, Any]:
        return {"ready": self._list({**args, "state": "ready"})["tasks"], "later": [], "after_ms": None, "after": None}

    def _cancel(self, args: dict[str, Any]) -> dict[str, Any]:
        results: list[Any] = []
        for task_id in args["ids"]:
            task = self.tasks.get(task_id)
            if task is None:
                results.append(NotFound("there is no such task").to_map())
            elif task.state not in ("ready", "cancelled"):
                results.append(Conflict(f"the task is {task.state}").to_map())
            else:
                task.state = "cancelled"
                results.append(None)
        return {"results": results}

    def _ids(self, args: dict[str, Any]) -> dict[str, Any]:
        return {"ids": [task_id for _ in range(args.get("count", 1)) for task_id in ids_of(*self._maker.run(3, 1))]}

    def _routes(self, args: dict[str, Any]) -> dict[str, Any]:
        return {"partitions": PARTITIONS, "leaders": dict.fromkeys(self.led, "127.0.0.1:1"), "peers": [], "position": 1}

    # --- claims

    async def _claim(self, args: dict[str, Any]) -> dict[str, Any]:
        with anyio.move_on_after(args.get("wait_ms", 0) / 1000):
            while not (ready := self._ready(args["queues"])):
                arrived = self._arrived
                self.claiming.set()
                await arrived.wait()
            return {"claims": [self._grant(task_id, args) for task_id in ready[: args.get("max", 1)]]}
        return {"claims": []}

    def _ready(self, queues: list[str]) -> list[bytes]:
        views = [self._view(task_id, task) for task_id, task in self.tasks.items()]
        wanted = [view for view in views if view["state"] == "ready" and view["queue"] in queues]
        return [view["id"] for view in sorted(wanted, key=lambda view: (-view["priority"], view["id"]))]

    def _grant(self, task_id: bytes, args: dict[str, Any]) -> list[Any]:
        self._token += 1
        task = self.tasks[task_id]
        task.state, task.token = "claimed", self._token
        expires_ms = self.now_ms + (args.get("lease_ms") or 30_000)
        return [task.token, expires_ms, task.attempts, task_id, pack_task(task.header, [task.data])]

    def _finish(self, method: str, item: list[Any]) -> list[Any]:
        first, count, token, *rest = item
        refused = []
        for index, task_id in enumerate(ids_of(first, count)):
            task = self.tasks.get(task_id)
            error: OnyxqError | None = None
            if task is None:
                error = NotFound("there is no such task")
            elif task.state == "completed":
                error = AlreadyFinished("the task is completed")
            elif task.state != "claimed" or task.token != token:
                error = StaleToken("the claim no longer stands")
            else:
                self._apply(method, task, rest, index)
            if error is not None:
                refused.append([task_id, 1, error.to_map()])
        return refused

    def _apply(self, method: str, task: FakeTask, rest: list[Any], index: int) -> None:
        if method == "complete":
            task.state, task.result = "completed", rest[1][index] if rest[1] else None
        elif method == "fail":
            task.state, task.attempts, task.error = "ready", task.attempts + 1, rest[0]
        elif method == "give_up":
            task.state, task.attempts, task.error = "failed", task.attempts + 1, rest[0]
        elif method in ("release", "postpone"):
            task.state = "ready"

    def _update(self, args: dict[str, Any]) -> dict[str, Any]:
        task_id, token, seq, data = args["items"][0]
        task = self._known(task_id)
        if task.token != token:
            return {"results": [StaleToken("the claim no longer stands").to_map()]}
        if seq != len(task.updates):
            return {"results": [SequenceGap(f"{len(task.updates)} is the next").to_map()]}
        task.updates.append({"token": token, "seq": seq, "data": data, "at_ms": self.now_ms})
        return {"results": [None]}

    # --- the cluster

    def _queues(self, args: dict[str, Any]) -> dict[str, Any]:
        names = sorted({task.header["queue"] for task in self.tasks.values()})
        return {"queues": [self._queue(name) for name in sorted({*names, *self.settings})]}

    def _queue(self, name: str) -> dict[str, Any]:
        settings = {**plain(shown_settings(Queue())), **self.settings.get(name, {})}
        depth = self._depth(name)
        oldest_ready_ms = 60_000 if depth["ready"] else None
        return {"queue": name, "depth": depth, "oldest_ready_ms": oldest_ready_ms, "settings": settings}

    def _queues_page(self, args: dict[str, Any]) -> dict[str, Any]:
        found = [{**one, "unfinished": 0, "paused": False} for one in self._queues({})["queues"]]
        return {"counted_ms_ago": 0, "queues": found, "found": len(found), "all": len(found), "sums": self._depth("")}

    def _workers(self, args: dict[str, Any]) -> dict[str, Any]:
        return {"position": 9, "all": 0, "workers": [], "silent": []}

    def _rates(self, args: dict[str, Any]) -> dict[str, Any]:
        return {"events": {}, "waited": [], "ran": [], "bounds_s": [], "nodes": ["n1"], "silent": []}

    def _rates_history(self, args: dict[str, Any]) -> dict[str, Any]:
        return {"minutes": [], "silent": []}

    def _queue_get(self, args: dict[str, Any]) -> dict[str, Any]:
        found = self._queue(args["queue"])
        if args.get("known") and not found["depth"]["total"] and args["queue"] not in self.settings:
            raise NotFound("there is no such queue", field="queue")
        return {**found, "running": 0, "position": 9}

    def _queue_purge(self, args: dict[str, Any]) -> dict[str, Any]:
        found = [one for one in self.tasks.values() if one.header["queue"] == args["queue"] and one.state == "ready"]
        for task in found:
            task.state = "cancelled"
        return {"count": len(found), "more": False}

    def _queue_set(self, args: dict[str, Any]) -> dict[str, Any]:
        changes(SET_QUEUE.decode(args))
        given = {name: value for name, value in args.items() if name not in ("queue", "by", "why")}
        said = {"paused_by": args.get("by", ""), "paused_why": args.get("why", "")} if args.get("paused") else {}
        shown = {name: getattr(DEFAULTS, name) if value is None else value for name, value in given.items()}
        self.settings.setdefault(args["queue"], {}).update({**shown, **said})
        return {}

    def _dead(self, args: dict[str, Any]) -> dict[str, Any]:
        found = self._dead_ids(args.get("queue"), args.get("where"))
        found = [task_id for task_id in found if task_id > (args.get("after") or b"")]
        page = found[: args.get("limit", 100)]
        more = page[-1] if len(found) > len(page) else None
        return {"tasks": [self._view(task_id, self.tasks[task_id]) for task_id in page], "after": more}

    def _dead_ids(self, queue: str | None, where: str | None) -> list[bytes]:
        return [
            task_id
            for task_id, task in sorted(self.tasks.items())
            if task.state == "failed"
            and queue in (None, task.header["queue"])
            and (where is None or where in (task.error or ""))
        ]

    def _dead_requeue(self, args: dict[str, Any]) -> dict[str, Any]:
        return self._revive(args, "ready")

    def _dead_discard(self, args: dict[str, Any]) -> dict[str, Any]:
        return self._revive(args, "cancelled")

    def _revive(self, args: dict[str, Any], state: str) -> dict[str, Any]:
        dead = self._dead_ids(args.get("queue"), args.get("where"))
        wanted = args.get("ids", dead)
        for task_id in set(wanted) & set(dead):
            self.tasks[task_id].state = state
        if "ids" not in args:
            return {"count": len(dead)}
        no = Conflict("it is not a dead letter", field="ids").to_map()
        results = [task_result(task_id, None if task_id in dead else no) for task_id in wanted]
        return {"count": sum(one.ok for one in results), "results": [plain(one) for one in results]}

    def _periodic_set(self, args: dict[str, Any]) -> dict[str, Any]:
        if args.keys() == {"name", "paused"}:
            self._periodic_get(args)["paused"] = args["paused"]
            return self.periodic[args["name"]]
        for needed in ("queue", "schedule"):
            if needed not in args:
                raise BadRequest(f"{needed} is missing", field=needed)
        defaults = {"zone": "UTC", "priority": 0, "missed": "once", "paused": False, "next_ms": 1, "fired": 0}
        self.periodic[args["name"]] = {**defaults, "data": b"", "format": "bytes", **args}
        return self.periodic[args["name"]]

    def _periodic_get(self, args: dict[str, Any]) -> dict[str, Any]:
        if args["name"] not in self.periodic:
            raise NotFound("there is no such periodic task", field="name")
        return self.periodic[args["name"]]

    def _periodic_list(self, args: dict[str, Any]) -> dict[str, Any]:
        return {"periodic": [self.periodic[name] for name in sorted(self.periodic)]}

    def _periodic_remove(self, args: dict[str, Any]) -> dict[str, Any]:
        self._periodic_get(args)
        del self.periodic[args["name"]]
        return {}

    def _flow_make(self, args: dict[str, Any]) -> dict[str, Any]:
        made = args.get("id") or b"\1" * 20
        last = None if args.get("on_done") is None else b"\2" * 20
        self.flows[made] = {
            "id": made,
            "name": args.get("name"),
            "state": "waiting",
            "counts": {"ready": len(args["tasks"])},
            "on_done": last,
            "created_ms": NOW_MS,
            "finished_ms": None,
        }
        return {"id": made, "ids": [b"\3" * 20] * len(args["tasks"]), "on_done": last}

    def _flow_wait(self, args: dict[str, Any]) -> dict[str, Any]:
        if args["id"] not in self.flows:
            raise NotFound("there is no such flow", field="id")
        return self.flows[args["id"]]

    def _flow_get(self, args: dict[str, Any]) -> dict[str, Any]:
        return {**self._flow_wait(args), "tasks": []}

    def _flow_list(self, args: dict[str, Any]) -> dict[str, Any]:
        return {"flows": [self.flows[one] for one in sorted(self.flows)], "after": None}

    def _flow_cancel(self, args: dict[str, Any]) -> dict[str, Any]:
        self._flow_wait(args)["state"] = "cancelled"
        return self._flow_wait(args)

    def _flow_requeue(self, args: dict[str, Any]) -> dict[str, Any]:
        return self._flow_wait(args)

    def _timer_set(self, args: dict[str, Any]) -> dict[str, Any]:
        said = {name: args.get(name) for name in ("id", "timeout", "data", "callback")}
        at_ms = NOW_MS + said["timeout"]
        more = {"state": "scheduled", "at_ms": at_ms, "attempts": 0, "error": None, "task": bytes(20)}
        self.timers[args["id"]] = said | more
        return {"id": args["id"], "task": bytes(20)}

    def _timer_get(self, args: dict[str, Any]) -> dict[str, Any]:
        if args["id"] not in self.timers:
            raise NotFound("there is no such timer", field="id")
        return self.timers[args["id"]]

    def _timer_list(self, args: dict[str, Any]) -> dict[str, Any]:
        return {"timers": [self.timers[name] for name in sorted(self.timers)], "after": None}

    def _timer_cancel(self, args: dict[str, Any]) -> dict[str, Any]:
        self._timer_get(args)["state"] = "cancelled"
        return {"id": args["id"], "task": bytes(20)}

    def _depth(self, queue: str) -> dict[str, int]:
        states = ("total", "completed", "failed", "cancelled", "scheduled", "waiting", "claimed", "ready")
        views = [self._view(task_id, task) for task_id, task in self.tasks.items()]
        mine = [view["state"] for view in views if view["queue"] == queue]
        return {state: len(mine) if state == "total" else mine.count(state) for state in states}

    def _cluster(self, args: dict[str, Any]) -> dict[str, Any]:
        return {
            "name": "main",
            "id": "c0ffee",
            "position": 9,
            "settings": {"partitions": PARTITIONS},
            "members": ["p1"],
            "peers": 1,
            "under_replicated": 0,
            "not_ready": 0,
        }

    def _ring(self, args: dict[str, Any]) -> dict[str, Any]:
        member = {"peer": "p1", "node": "n1", "watches": [], "state": "member"}
        return {"position": 9, "members": [member], "queue": [], "closed": True}

    def _partitions(self, args: dict[str, Any]) -> dict[str, Any]:
        return {"position": 9, "partitions": [{"partition": 0, "members": ["n1"], "leader": "p1", "epoch": 1}]}

    def _peers(self, args: dict[str, Any]) -> dict[str, Any]:
        return {"position": 9, "peers": [{"peer": "p1", "node": "<n1>", "address": "127.0.0.1:7400"}], "nodes": []}

    def _log(self, args: dict[str, Any]) -> dict[str, Any]:
        entry = {"entry": "grant_claims", "args": {"runs": ((b"\x01" * 20, 3),)}, "verdict": "applied"}
        return {
            "position": 9,
            "records": [{"position": args.get("from") or 0, "at_ms": 1, "peer": "p1", "entries": [entry]}],
        }

    def _log_raw(self, args: dict[str, Any]) -> dict[str, Any]:
        return {"position": 9, "records": [[args.get("from", 0), 1, b"record"]], "next": args.get("from", 0) + 1}

    def _origin(self, args: dict[str, Any]) -> dict[str, Any]:
        return {"position": 4, "part": args.get("part", 0), "parts": 1, "bytes": 6, "data": b"origin"}

    def _submit(self, args: dict[str, Any]) -> dict[str, Any]:
        return {"position": 12, "verdict": "applied"}

    def _extension(self, args: dict[str, Any]) -> dict[str, Any]:
        return {"position": max(12, args.get("seen", 0)), "state": {"db": ["one", 7, b"\xff"]}}

    def _taskstore_groups(self, args: dict[str, Any]) -> dict[str, Any]:
        return {"groups": ["map"]}

    def _taskstore_group(self, args: dict[str, Any]) -> dict[str, Any]:
        return {"tasks": [[7, args["group"], NOW_MS, 1, "data"]]}

    def _taskstore_tasks(self, args: dict[str, Any]) -> dict[str, Any]:
        return {"tasks": [[7, "map", NOW_MS, 1, "data"] if number == 7 else None for number in args["ids"]]}

    def _replica(self, args: dict[str, Any]) -> dict[str, Any]:
        return {"position": 9, "digest": "0" * 32, "log_time_ms": 1}

    def _task_history(self, args: dict[str, Any]) -> dict[str, Any]:
        self._known(args["id"])
        task = filled(TaskView, self._get(args))
        return {"task": task, "history": [{"position": 3, "event": 0, "token": 3}], "completion": None, "updates": []}

    def _gc(self, args: dict[str, Any]) -> dict[str, Any]:
        return {"position": 9, "trimmed": 4, "origin_bytes": 100}

    def _leave(self, args: dict[str, Any]) -> dict[str, Any]:
        if args["peer"] != "p1":
            raise NotFound("there is no such peer", field="peer")
        return {}

    def _health(self, args: dict[str, Any]) -> dict[str, Any]:
        return {
            "live": True,
            "ready": True,
            "reasons": [],
            "log_connected": True,
            "log_went_back": False,
            "log_lag": 0,
            "position": 9,
        }

    def _metrics(self, args: dict[str, Any]) -> dict[str, Any]:
        return {"text": self.metrics.text()}


EMPTY = {
    inspect.IntType: 0, inspect.StrType: "", inspect.BoolType: False, inspect.ListType: [], inspect.DictType: {},
    inspect.BytesType: b"",
}  # fmt: skip


def filled(kind: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    """An answer with what the small service leaves out."""
    out = dict(found)
    for name, member in members(kind).items():
        if name not in out and member.required:
            out[name] = None if member.nullable else EMPTY[type(member.node)]
        item = getattr(member.node, "item_type", None)
        if isinstance(item, inspect.StructType) and not item.array_like and out.get(name):
            out[name] = [filled(item.cls, one) for one in out[name]]
    return out


def on_trio(test: AsyncTest) -> Callable[..., None]:
    """Run an async test on trio; one that takes ``service`` or ``client`` gets those of a `world`."""
    own = own_arguments(test, ("service", "client"))

    async def play() -> None:
        if not own:
            await test()
            return
        async with world() as (service, client):
            made = {"service": service, "client": client}
            await test(**{name: made[name] for name in own})

    return seen_by_pytest(test, own, lambda: anyio.run(play, backend="trio"))


def access_of(tokens: Mapping[str, str]) -> Access:
    """Tokens with one role each."""
    return Access(tuple(Token.of(text, text, [role]) for text, role in tokens.items()))


def app_of(service: FakeService, tokens: Mapping[str, str] | None = None) -> App:
    """The application in front of a service, on the service's clock."""
    return create_app(service, access=access_of(tokens or {}), now_ms=lambda: service.now_ms, random_64=lambda: 42)


@asynccontextmanager
async def client_of(
    service: FakeService, *, tokens: Mapping[str, str] | None = None, token: str | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the application, without a network."""
    transport = httpx.ASGITransport(app_of(service, tokens), raise_app_exceptions=True)
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with httpx.AsyncClient(transport=transport, base_url="http://peer", headers=headers) as client:
        yield client


@asynccontextmanager
async def world() -> AsyncIterator[tuple[FakeService, httpx.AsyncClient]]:
    """A fresh service and a client of it."""
    service = FakeService()
    async with client_of(service) as client:
        yield service, client


def check_problem(answer: httpx.Response, status: int, *, code: str, field: str | None = None) -> dict[str, Any]:
    """The problem document of an answer, once it is certain to be a complete one."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert {"type", "title", "status", "detail", "code", "field", "hint"} <= set(problem)
    assert (problem["status"], problem["code"], problem["field"]) == (status, code, field), problem
    assert problem["detail"] and problem["hint"]
    return problem
