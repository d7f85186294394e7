"""A process that runs tasks for a worker: the other end of `onyxq.worker.processes`.

It ends together with its worker, even in the middle of a task. It ignores signals for the worker that reach the
whole process group: the worker decides and sends a message.
"""

from __future__ import annotations

import contextvars
import functools
import importlib
import itertools
import json
import os
import queue
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from onyxq.client import BlockingTransaction, Claim, Committed
from onyxq.client.claims import ClaimedRun
from onyxq.core.errors import BadRequest, from_map
from onyxq.system.tracing import within
from onyxq.worker.arguments import Arguments
from onyxq.worker.attempts import Attempt, TaskCancelled, current_attempt, current_claim, describe, pack, traceback_of
from onyxq.worker.contexts import BlockingContext, current_blocking
from onyxq.worker.logs import contextual_logs
from onyxq.worker.resources import OpenedBlocking
from onyxq.worker.retries import Ending, asked, kinds_of

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""Signals for the worker, even if all processes of its group get them."""

_Outcome = tuple[bytes | None, str | None, str, Ending, list[str]]
"""Result, error, and of the error its traceback, the ending that it asks for, and the names of its classes."""


class Work(NamedTuple):
    """One task as its process gets it."""

    module: str
    qualname: str
    name: str
    id: bytes
    token: int
    attempts: int
    queue: str
    depends: tuple[bytes, ...]
    args: list[Any]
    kwargs: dict[str, Any]
    trace: str | None
    """W3C ``traceparent`` of the attempt's span in the worker."""


class _Line:
    """The pipe to the worker."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._work: queue.SimpleQueue[Work | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[str, int, Any]] = queue.SimpleQueue()
        self._asking = threading.Lock()
        self._state = threading.Lock()
        self._asked = 0
        self._serial: int | None = None
        self._running = False
        self._sending = False
        self.cancelled = threading.Event()

    def listen(self) -> None:
        """Receive messages until the worker ends; runs in its own thread."""
        while True:
            try:
                kind, *said = self._connection.recv()
            except (EOFError, OSError):
                os._exit(1)
            if kind == "run":
                self._serial = said[0]
                self._work.put(said[1])
            elif kind == "cancel":
                self._cancel(said[0])
            elif kind == "stop":
                self._work.put(None)
            else:
                self._answers.put((kind, said[0], said[1]))

    def _cancel(self, serial: int) -> None:
        with self._state:
            if serial == self._serial:  # otherwise the task has ended already
                self.cancelled.set()
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def terminated(self, *_: object) -> None:
        """Raise `TaskCancelled` in the function, but never in the middle of a message; the signal handler."""
        if self.cancelled.is_set() and self._running and not self._sending:
            raise TaskCancelled("the attempt is to end")

    def next(self) -> Work | None:
        """Return the next task; None if there will be none."""
        return self._work.get()

    def run(self, function: Callable[[], _Outcome]) -> _Outcome:
        """Call the function of a task; a `TaskCancelled` raised in it is an outcome."""
        try:
            try:
                self._running = True
                if self.cancelled.is_set():
                    raise TaskCancelled
                return function()
            finally:
                self._running = False
        except TaskCancelled:
            return None, "TaskCancelled: the attempt was over", "", Ending(), []

    def ask(self, method: str, *args: Any) -> Any:
        """Ask the worker to do something and return its answer; raise its error if it refuses."""
        with self._asking:
            self._asked += 1
            self._say("ask", self._asked, method, args)
            number = 0
            while number != self._asked:  # an answer to a cancelled question may come first
                kind, number, answer = self._answers.get()
        if kind == "refused":
            raise from_map(answer)
        return answer

    def done(self, outcome: _Outcome) -> None:
        """Report the outcome of the task."""
        with self._state:
            self._serial = None
            self.cancelled.clear()
        self._say("done", *outcome)

    def _say(self, *message: Any) -> None:
        self._sending = True
        try:
            self._connection.send(message)
        finally:
            self._sending = False
        if self.cancelled.is_set() and self._running:
            raise TaskCancelled


class _Transaction(BlockingTransaction):
    """A transaction gathered here, so that mistakes show at once, and repeated in the worker, which commits it."""

    def __init__(self, line: _Line, number: int, name: str | None) -> None:
        self._calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
        super().__init__(
            lambda _: line.ask("commit", number, name, self._calls), name=name, random_name=lambda: "chosen later"
        )

    def commit(self) -> Committed:
        self.committed = super().commit()
        return self.committed

    def complete(self, claims: Any, result: bytes | None = None, *, results: Any = None) -> None:
        super().complete(claims, result, results=results)
        self._note("complete", claims, result, results=results)

    def update(self, claim: Claim, data: bytes) -> None:
        super().update(claim, data)
        self._note("update", claim, data)

    def require(self, claims: Any) -> None:
        super().require(claims)
        self._note("require", claims)

    def enqueue_many(self, queue: str, payloads: Iterable[bytes], **options: Any) -> None:
        payloads = list(payloads)
        super().enqueue_many(queue, payloads, **options)
        self._note("enqueue_many", queue, payloads, **options)

    def _note(self, method: str, about: Any, *args: Any, **kwargs: Any) -> None:
        """Note a call for the worker; ``about``: its first argument, in which None means the task's own claim."""
        self._calls.append((method, (None if about is current_claim.get() else about, *args), kwargs))


class _Context(BlockingContext):
    def __init__(self, attempt: Attempt, line: _Line, numbers: Any) -> None:
        super().__init__(attempt)
        self._line = line
        self._numbers = numbers

    def _ask(self, method: str, *args: Any) -> Any:
        # Values of the user's own types stay here: the worker may be unable to unpickle them.
        plain = (pack(args[0]),) if method == "log" else json.loads(pack(list(args)))
        return self._line.ask(method, *plain)

    def transaction(self, result: Any = None, *, name: str | None = None, complete: bool = True) -> BlockingTransaction:
        made = _Transaction(self._line, next(self._numbers), name)
        if complete:
            made.complete(self._attempt.claim, None if result is None else pack(result))
        return made


def main(connection: Connection, address: str | Sequence[str], token: str | None) -> None:
    """Run tasks until the worker says stop."""
    line = _Line(connection)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, line.terminated)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    contextual_logs()
    resources = OpenedBlocking()
    threading.Thread(target=line.listen, name="onyxq worker", daemon=True).start()
    while (work := line.next()) is not None:
        _about(work, line)
        line.done(line.run(functools.partial(_run, work, address, token, resources)))
    resources.close()


def _about(work: Work, line: _Line) -> None:
    """Set up the context that the function can ask for."""
    header = {"queue": work.queue, "depends": list(work.depends)}
    claim = Claim(_Told(work, header), 0)
    attempt = Attempt(claim, random_name=str)
    attempt.name, attempt.cancelled = work.name, line.cancelled
    current_claim.set(claim)
    current_attempt.set(attempt)
    current_blocking.set(functools.partial(_Context, attempt, line, itertools.count()))


class _Told(ClaimedRun):
    """A claim made of the facts that the worker sent."""

    def __init__(self, work: Work, header: dict[str, Any]) -> None:
        super().__init__(token=work.token, first=work.id, attempts=work.attempts)
        self._header = header


def _run(work: Work, address: str | Sequence[str], token: str | None, resources: OpenedBlocking) -> _Outcome:
    try:
        function = _find(work, address, token)
        arguments = Arguments(function, work.name)
        args, kwargs = arguments.read(work.args, work.kwargs)
        kwargs |= resources.of(arguments.resources)
        with within(work.trace):
            # What the function sets in its context must not reach the next task. What a resource set is for all tasks.
            result = contextvars.copy_context().run(function, *args, **kwargs)
            return arguments.result(result), None, "", Ending(), []
    except (Exception, SystemExit) as error:
        return None, describe(error), traceback_of(error), asked(error), kinds_of(error)


def _find(work: Work, address: str | Sequence[str], token: str | None) -> Callable[..., Any]:
    """Return the function of a task; set the worker's address in its application."""
    from onyxq.worker.functions import TaskFunction

    found: Any = importlib.import_module(work.module)
    for part in work.qualname.split("."):
        found = getattr(found, part, None)
    if isinstance(found, TaskFunction):
        found.app.address, found.app.token = address, token
        found = found.function
    if not callable(found):
        raise BadRequest(f"there is no function {work.qualname} in {work.module}")
    function: Callable[..., Any] = found
    return function
