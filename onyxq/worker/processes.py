"""Processes for functions that keep the interpreter busy, or that must be stoppable (design: claims).

A child process starts when it is needed, stays for further tasks, and runs one at a time. Calls of the function to
its context go through a pipe to the worker. When a function is cancelled, its context shows this and
`TaskCancelled` is raised in it. If it does not end, its process is killed.
"""

from __future__ import annotations

import logging
import multiprocessing
import signal
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import anyio

from onyxq.client import AsyncClient, AsyncTransaction
from onyxq.core.errors import Conflict, OnyxqError
from onyxq.worker.attempts import Attempt
from onyxq.worker.child import SIGNALS, Work, main
from onyxq.worker.retries import FailedThere
from onyxq.worker.threads import Threads

KILL_S = 5.0
"""How long a cancelled function may take to end before its process is killed, in seconds."""
END_S = 2.0
"""How long an idle process may take to end, in seconds."""

log = logging.getLogger(__name__)

Message = tuple[Any, ...]

_starting = threading.Lock()


class ProcessEnded(Exception):
    """The process of a task ended before the task did: killed, out of memory, or by ``os._exit``."""


class _Child:
    """A child process, and the thread that receives its messages."""

    def __init__(self, threads: Threads, address: str | Sequence[str], token: str | None) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._connection, theirs = spawn.Pipe()
        self.process: BaseProcess = spawn.Process(target=main, args=(theirs, address, token), daemon=True)
        self._threads = threads
        self._serial = 0
        self.tasks = 0
        """Number of tasks that it has run."""
        # It starts with the signals blocked, and unblocks them once its handlers are set.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            with _starting:
                self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        theirs.close()

    def listen(self) -> None:
        """Start to receive the child's messages; called in the event loop."""
        self._send, self._messages = anyio.create_memory_object_stream[Message | None](float("inf"))
        threading.Thread(target=self._hear, args=(self._connection,), name="onyxq child", daemon=True).start()

    def _hear(self, connection: Connection) -> None:
        """Receive messages until the child ends; runs in its own thread."""
        try:
            while True:
                self._threads.soon(self._send.send_nowait, connection.recv())
        except (EOFError, OSError):
            log.debug("process %s has ended", self.process.pid)
        except Exception:
            # A message that only the child can unpickle.
            log.exception("process %s said what is not understood: it is killed", self.process.pid)
            self.process.kill()
        finally:
            self._threads.soon(self._send.send_nowait, None)
            connection.close()

    async def receive(self) -> Message | None:
        """Return the next message; None once the process has ended."""
        return await self._messages.receive()

    def send(self, *message: Any) -> None:
        """Send the child a message, unless it has ended."""
        try:
            self._connection.send(message)
        except OSError:
            log.debug("process %s has ended", self.process.pid)

    def run(self, work: Work) -> None:
        """Start a task."""
        self._serial += 1
        self.send("run", self._serial, work)

    def cancel(self) -> None:
        """Cancel the running task."""
        self.send("cancel", self._serial)

    def join(self) -> None:
        """Wait until the process has ended; called in a thread."""
        with _starting:
            self.process.join()

    def close(self) -> None:
        """Close the stream of messages."""
        self._send.close()
        self._messages.close()


class Processes:
    """The processes that run the functions of one worker's tasks."""

    def __init__(
        self, threads: Threads, *, address: str | Sequence[str], token: str | None, tasks_max: int | None = None
    ) -> None:
        self._threads = threads
        self._tasks_max = tasks_max
        """Number of tasks after which a process is replaced."""
        self._address = address
        self._token = token
        self._idle: list[_Child] = []

    async def run(self, work: Work, attempt: Attempt, client: AsyncClient) -> bytes | None:
        """Run one task in a process and return its stored result; raise `FailedThere` or `ProcessEnded`."""
        child = self._idle.pop() if self._idle else await self._start()
        try:
            child.run(work)
            answer = await self._to_its_end(child, attempt, client)
        except BaseException:
            attempt.cancelled.set()
            with anyio.CancelScope(shield=True):
                await self._end(child, cancel=True)
            raise
        if answer is None:
            with anyio.CancelScope(shield=True):
                await self._threads.run(child.join)
                child.close()
            raise ProcessEnded(f"the task's process ended with exit code {child.process.exitcode}")
        child.tasks += 1
        if child.tasks == self._tasks_max:
            with anyio.CancelScope(shield=True):
                await self._end(child)
        else:
            self._idle.append(child)
        _, result, text, trace, ending, kinds = answer
        if text is not None:
            raise FailedThere(text, trace, ending, kinds)
        return None if result is None else bytes(result)

    async def keep(self, idle: int) -> None:
        """End idle processes until at most ``idle`` are left."""
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as group:
                while len(self._idle) > max(idle, 0):
                    group.start_soon(self._end, self._idle.pop(0))

    async def close(self) -> None:
        """End the processes, which must be idle by now."""
        await self.keep(0)

    async def _start(self) -> _Child:
        child = await self._threads.run(lambda: _Child(self._threads, self._address, self._token))
        child.listen()
        return child

    async def _to_its_end(self, child: _Child, attempt: Attempt, client: AsyncClient) -> Message | None:
        transactions: dict[int, AsyncTransaction] = {}
        while True:
            message = await child.receive()
            if message is None or message[0] == "done":
                return message
            _, number, method, args = message
            try:
                if method == "commit":
                    answer = await _commit(attempt, client, transactions, *args)
                else:
                    answer = await getattr(attempt, method)(client, *args)
            except OnyxqError as error:
                child.send("refused", number, error.to_map())
            else:
                child.send("answer", number, answer)

    async def _end(self, child: _Child, *, cancel: bool = False) -> None:
        """End a process; one that works on a cancelled task is kept if it ends the task in time."""
        child.cancel() if cancel else child.send("stop")
        ended = False
        with anyio.move_on_after(KILL_S if cancel else END_S):
            while (message := await child.receive()) is not None:
                if message[0] == "done":
                    self._idle.append(child)
                    return
                child.send("refused", message[1], Conflict("the attempt is over").to_map())
            ended = True
        if not ended:
            log.warning("process %s does not end: it is killed", child.process.pid)
            child.process.kill()
        await self._threads.run(child.join)
        child.close()


async def _commit(
    attempt: Attempt,
    client: AsyncClient,
    transactions: dict[int, AsyncTransaction],
    number: int,
    name: str | None,
    calls: list[tuple[str, tuple[Any, ...], dict[str, Any]]],
) -> Any:
    """Commit the operations that a child gathered; a repeat commits the same transaction."""
    made = transactions.get(number)
    if made is None:

        async def commit(gathered: Any) -> Any:
            return await attempt.commit(client, gathered)

        made = AsyncTransaction(commit, name=name, random_name=attempt.random_name)
        for method, (about, *args), kwargs in calls:
            getattr(made, method)(attempt.claim if about is None else about, *args, **kwargs)
        transactions[number] = made
    return await made.commit()
