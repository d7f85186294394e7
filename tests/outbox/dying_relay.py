"""A relay that kills itself, like ``kill -9``, at one step of a round.

Run as ``python -m tests.outbox.dying_relay STEP DATABASE_URL HOST:PORT``.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

import anyio

from onyxq.client import AsyncClient
from onyxq.outbox import OutboxDatabase, Relay

ENQUEUES = 3
"""Enqueues that are answered before a relay dies amid them."""

STEPS = ("before the mark", "after the mark", "amid the enqueues", "before the delete", "after the delete")


def die(*_: Any) -> None:
    """End this process at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def dying(method: Callable[..., Any], *, before: bool) -> Callable[..., Any]:
    """Return a method that dies before its work, or after it."""

    def call(*args: Any) -> None:
        if not before:
            method(*args)
        die()

    return call


def plan(step: str) -> None:
    """Let this process die at a step."""
    when, _, name = step.partition(" the ")
    if name == "enqueues":
        enqueue, answered = AsyncClient.enqueue, []

        async def counted(*args: Any, **options: Any) -> None:
            answered.append(await enqueue(*args, **options))
            if len(answered) == ENQUEUES:
                die()

        AsyncClient.enqueue = counted  # type: ignore[assignment]
        return
    method = {"mark": "mark_sent", "delete": "delete"}[name]
    setattr(OutboxDatabase, method, dying(getattr(OutboxDatabase, method), before=when == "before"))


async def main(step: str, database: str, address: str) -> None:
    """Relay until it dies."""
    plan(step)
    async with AsyncClient(address) as client:
        await Relay(database).run(client)


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
