"""Functions as tasks (design: interfaces).

An `App` holds functions under names. To enqueue a function stores its name and arguments as JSON; a worker of the
same application calls it::

    app = App()

    @app.task(queue="mail", retries=5)
    async def send(to: str, body: str) -> None: ...

    send.enqueue(to="a@example.org", body="hello")
"""

from __future__ import annotations

import atexit
import importlib
import inspect
import os
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from types import ModuleType
from typing import Any, ParamSpec, TypeVar, Unpack, cast, get_args, overload

from anyio.from_thread import start_blocking_portal
from attrs import evolve

from onyxq.access.certificates import Certificates
from onyxq.client import Client
from onyxq.client.asynchronous import with_port
from onyxq.client.connection_settings import ConnectionSettings
from onyxq.client.flows import Part, chained, grouped
from onyxq.client.management import SCHEDULE, ScheduleOptions
from onyxq.client.options import known, refuse_unknown, takes
from onyxq.client.values import queue_names
from onyxq.core import cron
from onyxq.core.errors import BadRequest, Conflict
from onyxq.core.limits import Missed
from onyxq.system import settings
from onyxq.system.durations import Timeout, as_milliseconds
from onyxq.wire.network import Network
from onyxq.worker.application import AppWorker
from onyxq.worker.flows import AppFlow, AppFlowHandle
from onyxq.worker.functions import (
    AsyncTaskFunction,
    BlockingTaskFunction,
    TaskDecorator,
    TaskFunction,
    task_function,
)
from onyxq.worker.handles import Application, Reach, TaskHandle
from onyxq.worker.options import DEFAULTS, WORKER_DEFAULTS, FunctionOptions, Options, WorkerOptions
from onyxq.worker.periodic import Periodic
from onyxq.worker.resources import Middleware, Resource, middleware_of

__all__ = ["App", "AppWorker", "TaskFunction", "TaskHandle", "load_app"]

CONNECT_TIMEOUT_MS = 1_000
"""Time in which an `App` must reach a peer: a request of a web server waits for it."""

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=TaskFunction[..., Any])
T = TypeVar("T")
M = TypeVar("M", bound=Middleware)

_TESTED: list[list[App]] = []
"""The applications in use, for each open test cluster."""

NO_APP = "An application is an object: app = onyxq.App()"
NO_TASKS = "Write @app.task above a function, and import its module before the worker is made."


class App:
    """The functions of an application, and how to reach its cluster; `onyxq.App` explains the arguments."""

    def __init__(
        self,
        address: str | Sequence[str] | None = None,
        *,
        token: str | None = None,
        tls: Certificates | None = None,
        timeout_ms: Timeout = None,
        connect_timeout_ms: Timeout = None,
        network: Network | None = None,
    ) -> None:
        limits = {"timeout_ms": timeout_ms, "connect_timeout_ms": connect_timeout_ms}
        given: dict[str, Any] = {"address": address, "token": token, "tls": tls}
        given |= {name: one if one is None else as_milliseconds(one, name) for name, one in limits.items()}
        self._given = {name: one for name, one in given.items() if one is not None}
        """The settings that the program made."""
        self._programmed: str | Sequence[str] = () if address is None else address
        """The address that the program made, also after a command has set another one."""
        self.tasks: dict[str, TaskFunction[..., Any]] = {}
        """The functions by name."""
        self.periodics: list[Periodic] = []
        """Calls that the cluster makes on a schedule."""
        self.resources: list[Resource[Any]] = []
        """Opened by each worker when it starts, in this order."""
        self.middlewares: list[Callable[[], AbstractAsyncContextManager[None]]] = []
        """Entered around each attempt, the first one outermost."""
        self._network = network
        self._client: Client | None = None
        self._lock = threading.Lock()

    @staticmethod
    def _config() -> settings.Config:
        return settings.load(os.environ)

    def _settings(self) -> ConnectionSettings:
        """Return the settings of calls: so that a request to a web server does not hang, a peer must answer soon."""
        found = self._worker_settings()
        return found if found.connect_timeout_ms is not None else evolve(found, connect_timeout_ms=CONNECT_TIMEOUT_MS)

    def _worker_settings(self) -> ConnectionSettings:
        config = self._config()
        return evolve(ConnectionSettings.of(lambda name: config.setting(name).value), **self._given)

    @property
    def address(self) -> str | Sequence[str]:
        """``HOST:PORT`` of the cluster, or several; may be set until the first use."""
        return self._settings().address

    @address.setter
    def address(self, address: str | Sequence[str]) -> None:
        self._given["address"] = address

    @property
    def token(self) -> str | None:
        """The credential; may be set until the first use."""
        return self._settings().token

    @token.setter
    def token(self, token: str | None) -> None:
        self._given["token"] = token

    @overload
    def task(  # type: ignore[overload-overlap]  # a coroutine is also a value
        self, function: Callable[P, Coroutine[Any, Any, R]], /
    ) -> AsyncTaskFunction[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> BlockingTaskFunction[P, R]: ...
    @overload
    def task(self, *, name: str | None = None, **options: Unpack[FunctionOptions]) -> TaskDecorator: ...
    @takes(FunctionOptions, DEFAULTS)
    def task(self, function: Callable[..., Any] | None = None, *, name: str | None = None, **options: Any) -> Any:
        """Turn a function, async or not, into a task.

        Tasks store its name; default: the function's. Raises `BadRequest` for a name that is taken or a wrong option.
        """
        made = Options.of(options)

        def register(function: Callable[..., Any]) -> TaskFunction[..., Any]:
            made.check(function)
            known_as = name or function.__qualname__
            if known_as in self.tasks:
                code = getattr(inspect.unwrap(self.tasks[known_as].function), "__code__", None)  # none of a builtin
                place = f"; the first is at {code.co_filename}:{code.co_firstlineno}" if code is not None else ""
                problem = f"there are two tasks named {known_as!r}{place}"
                raise BadRequest(problem, field="name", hint="Give one of them another name: @app.task(name=...)")
            task = self.tasks[known_as] = task_function(self, function, known_as, made)
            return task

        return register if function is None else register(function)

    @takes(ScheduleOptions, SCHEDULE)
    def periodic(
        self, schedule: str, *, name: str | None = None, **options: Unpack[ScheduleOptions]
    ) -> Callable[[F], F]:
        """Call a task that needs no arguments on a schedule; write it above ``@app.task(...)``.

        ``schedule``: five cron fields, or ``"every 90s"``. Workers of the application register the schedule when they
        start, under ``name`` (default: the task's). Raises `BadRequest` naming the wrong argument.
        """
        said = known(options, self.periodic, SCHEDULE)
        zone, missed = said["zone"], said["missed"]
        cron.parse(schedule)
        cron.zone_of(zone)
        if missed not in get_args(Missed):
            raise BadRequest(f"missed is one of {', '.join(get_args(Missed))}, not {missed!r}", field="missed")

        def register(task: F) -> F:
            if not isinstance(task, TaskFunction):
                raise BadRequest("a periodic task is a task: put @app.periodic above @app.task", field="function")
            task.arguments.bind((), {})
            for option in task._options.of_enqueues:
                raise BadRequest(
                    f"{option} would not hold for periodic calls of {task.name}",
                    field=option,
                    hint=f"Leave {option} out, or let the periodic function enqueue a function that has it.",
                )
            known_as = name or task.name
            if any(one.name == known_as for one in self.periodics):
                raise BadRequest(
                    f"there are two periodic tasks named {known_as!r}",
                    field="name",
                    hint="Give one of them another name: @app.periodic(..., name=...).",
                )
            self.periodics.append(Periodic(task, known_as, schedule, zone, missed))
            return task

        return register

    def resource(self, make: Callable[[], AsyncIterator[T] | Iterator[T]]) -> T:
        """Declare what functions share, such as a pool of connections: a generator function, async or not.

        Each worker runs it up to its ``yield`` before it claims, and the rest when it ends. A parameter whose default
        is the resource gets what it yielded: ``async def send(to: str, db: Pool = pool)``.
        """
        made: Resource[T] = Resource(make)
        self.resources.append(made)
        return cast(T, made)  # as the default of a parameter it stands in for the value

    def middleware(self, function: M) -> M:
        """Run a generator function, async or not, around each attempt: up to its ``yield`` before, and the rest after.

        The attempt's exception is raised at the ``yield``. `context` gives access to the task. The function runs in the
        worker's event loop, so without async it must not wait.
        """
        self.middlewares.append(middleware_of(function))
        return function

    def chain(self, *parts: Part) -> AppFlow:
        """Return a flow of calls that run one after the other; see `Client.chain`.

        Enqueue it: ``app.chain(fetch.s(url), index.s(url)).enqueue()``, or ``await ....enqueue_async()``. With
        ``.make("nightly")``, or ``await ....make_async("nightly")``, the flow has an id, a state and a page.
        """
        return AppFlow(Reach(self), chained(parts))

    def group(self, *parts: Part) -> AppFlow:
        """Return a flow of calls that run side by side; see `Client.group`.

        ``.then(...)`` adds parts that start once all of them are done.
        """
        return AppFlow(Reach(self), grouped(parts))

    def flow_handle(self, id: bytes | str) -> AppFlowHandle:
        """Return the handle of a flow that was made elsewhere."""
        return AppFlowHandle(Reach(self), id)

    @property
    def client(self) -> Client:
        """The client of this process, opened at its first use.

        Raises `Conflict` if a test cluster is open and this application does not use it.
        """
        with self._lock:
            opened = self.opened
            if opened is None:
                self._refuse_tested()
                opened = self._client = self._settings().client(self._network).open()
                self._close_at_exit()
            return opened

    @staticmethod
    def _refuse_tested() -> None:
        """Raise `Conflict` while a test cluster is open: a test must not change a real cluster."""
        if _TESTED:
            raise Conflict(
                "a test cluster is open, and this call would reach another one",
                hint="Call onyxq_cluster.use(app) first. For a worker call onyxq_cluster.start_worker(app).",
            )

    def is_elsewhere(self, running: Application, address: str | Sequence[str]) -> bool:
        """Return whether the program gave this application no address of the cluster at ``address``.

        A worker of another application, ``running``, then cannot enqueue this one's tasks with its own connection. If
        the program gave none, both are taken to be of one cluster.
        """
        given = self._given.get("address")
        if given is None:
            return False
        # A command may have set another address in the running application, but not in this one.
        known = _peers(address) | (_peers(running._programmed) if isinstance(running, App) else set())
        return known.isdisjoint(_peers(given))

    def _close_at_exit(self) -> None:
        atexit.unregister(self.close)
        atexit.register(self.close)

    @property
    def opened(self) -> Client | None:
        """The client of this process if it is open; None otherwise."""
        return None if _TESTED and not any(self in apps for apps in _TESTED) else self._client

    def close(self) -> None:
        """Close the client; the next use opens a new one."""
        with self._lock:
            client, self._client = self._client, None
        atexit.unregister(self.close)
        if client is not None:
            client.close()

    @takes(WorkerOptions, WORKER_DEFAULTS)
    def worker(
        self, queues: str | Sequence[str] | None = None, concurrency: int = 10, **options: Unpack[WorkerOptions]
    ) -> AppWorker:
        """Return a worker for tasks in ``queues``; default: all queues of this application's tasks. See `Worker`."""
        refuse_unknown(options, self.worker, WORKER_DEFAULTS)
        names = sorted({task.queue for task in self.tasks.values()}) if queues is None else queue_names(queues)
        if not names:
            raise BadRequest("the application has no tasks", field="queues", hint=NO_TASKS)
        found = self._worker_settings()
        os.environ |= found.tls.to_environment()  # the worker's client and its processes read it there
        return AppWorker(self, connection=found, queues=names, concurrency=concurrency, **options)

    @contextmanager
    def background_worker(
        self, queues: str | Sequence[str] | None = None, concurrency: int = 10, **options: Unpack[WorkerOptions]
    ) -> Iterator[AppWorker]:
        """Run a worker in another thread during a ``with`` block; it finishes its running tasks at the end.

        The arguments are those of `worker`. Raises `Conflict` if a test cluster is open.
        """
        self._refuse_tested()
        worker = self.worker(queues, concurrency, **options)

        async def work() -> None:
            async with self._settings().asynchronous_client() as client:
                await worker.serve(client)

        with start_blocking_portal() as portal:
            working = portal.start_task_soon(work)
            try:
                yield worker
            finally:
                portal.call(worker.stop)
                working.result()


def _peers(address: str | Sequence[str]) -> set[str]:
    named = address.split(",") if isinstance(address, str) else address
    return {with_port(one.strip()) for one in named}


@contextmanager
def only_tested(apps: list[App]) -> Iterator[None]:
    """Let no application but these have a client during a ``with`` block: a test must not change a real cluster."""
    _TESTED.append(apps)
    try:
        yield
    finally:
        _TESTED[:] = [one for one in _TESTED if one is not apps]


def load_app(target: str) -> App:
    """Return the `App` that ``module:name`` names, or the only one of ``module``; raise `BadRequest` if there is none.

    The module is also looked for in the working directory.
    """
    module_name, _, name = target.partition(":")
    module = import_module(module_name, rest=f":{name or 'app'}")
    known = sorted(one for one, value in vars(module).items() if isinstance(value, App))
    if not name and len(known) == 1:
        name = known[0]
    found = getattr(module, name, None) if name else None
    if isinstance(found, App):
        return found
    hint = f"Write one of {', '.join(f'{module_name}:{one}' for one in known)}." if known else NO_APP
    if not name:
        problem = f"{target!r} names no App, and {module_name} has {len(known) or 'none'}"
        raise BadRequest(problem, field="app", hint=hint)
    raise BadRequest(f"{target} is not an onyxq.App{settings.did_you_mean(name, known)}", field="app", hint=hint)


def import_module(name: str, *, field: str = "app", rest: str = "") -> ModuleType:
    """Import a module, also one of the working directory; raise `BadRequest` if there is none.

    ``field`` and ``rest``: the argument that names it, and what follows its name there, for the error.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        raise _no_module(name, field, rest)
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        return importlib.import_module(name)
    except BadRequest as error:
        raise BadRequest(f"{_place(error)}: {error.named()}", field=field, hint=error.advice) from error
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise _no_module(name, field, rest) from None


def _place(error: BadRequest) -> str:
    """Return ``FILE:LINE`` of the line outside of OnyxQ that caused an error."""
    own = os.path.join(os.path.dirname(os.path.dirname(__file__)), "")
    frames = [one for one in traceback.extract_tb(error.__traceback__) if not one.filename.startswith((own, "<"))]
    return f"{os.path.relpath(frames[-1].filename)}:{frames[-1].lineno}" if frames else "?"


def _no_module(name: str, field: str, rest: str) -> BadRequest:
    path = name.removeprefix("./").removesuffix(".py")
    meant = path.replace("/", ".").strip(".")
    guess = f"; did you mean {meant}{rest}?" if meant != name and os.path.isfile(f"{path}.py") else ""
    hint = "The working directory is searched, too. Write shop.tasks for the file shop/tasks.py."
    return BadRequest(f"there is no module {name!r}{guess}", field=field, hint=hint)
