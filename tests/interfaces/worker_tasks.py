"""An application whose functions run in processes, which import it by name."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from onyxq import App, GiveUp, Retry, Snooze, blocking_context
from onyxq.worker import TaskCancelled

app = App("nowhere:1")
tenant: ContextVar[int] = ContextVar("tenant", default=0)


@app.task(name="pid", queue="p", runs="process")
def pid(number: int) -> tuple[int, int]:
    """Return the process id."""
    return os.getpid(), number


@app.task(name="fail", queue="p", runs="process")
def fail() -> None:
    """Fail."""
    raise ValueError("boom")


@app.task(name="die", queue="p", runs="process")
def die() -> None:
    """End the process."""
    os._exit(7)


@app.task(name="say", queue="p", runs="process")
def say() -> list[Any]:
    """Use everything of a context."""
    ctx = blocking_context()
    ctx.progress(1, 2, "half")
    ctx.log({"page": 1})
    with ctx.transaction(complete=False) as tx:
        tx.update(ctx._attempt.claim, b"raw")
        pid.enqueue_in(tx, 5)
    return [ctx.id.hex(), ctx.name, ctx.queue, ctx.attempt, ctx.token, ctx.cancelled, tx.committed is not None]


@app.task(name="finish", queue="p", runs="process")
def finish() -> str:
    """Complete the task in a transaction, without a result."""
    with blocking_context().transaction() as tx:
        pid.enqueue_in(tx, 5)
    return "not stored"


@app.task(name="wait", queue="p", runs="process")
def wait(path: str) -> None:
    """Wait until cancelled."""
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(str(os.getpid()))
        while True:
            signal.pause()
    except TaskCancelled:
        with open(path, "w", encoding="utf-8") as file:
            file.write("cancelled")
        raise


@app.task(name="stuck", queue="p", runs="process")
def stuck(path: str) -> None:
    """Run on after any signal."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(str(os.getpid()))
    while True:
        try:
            signal.pause()
        except TaskCancelled:
            pass


@app.task(name="snooze", queue="p", runs="process")
def snooze() -> None:
    """Ask for a pause that does not count."""
    raise Snooze("too early", after=90)


@app.task(name="again", queue="p", runs="process")
def again() -> None:
    """Ask for a pause that counts."""
    raise Retry("busy", after=45)


@app.resource
def notes() -> Iterator[list[str]]:
    """Share a list; write to the file that it names at the end."""
    found = [str(os.getpid())]
    yield found
    for path in found[1:2]:
        with open(path, "w", encoding="utf-8") as file:
            file.write("closed")


@app.task(name="shared", queue="p", runs="process")
def shared(path: str, notes: list[str] = notes) -> str:
    """Use the list."""
    notes.append(path)
    return notes[0]


@app.task(name="no_user", queue="p", runs="process")
def no_user() -> None:
    """Give the task up."""
    raise GiveUp("no such user")


@app.task(name="missing", queue="p", runs="process", give_up_on=OSError)
def missing() -> None:
    """Fail in a way that is given up."""
    raise FileNotFoundError("nothing")


@app.task(name="serve", queue="p", runs="process")
def serve(number: int) -> int:
    """Set the tenant and return the one before."""
    before = tenant.get()
    tenant.set(number)
    return before
