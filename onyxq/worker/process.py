"""A process that is a worker: signals and logs (design: interfaces)."""

from __future__ import annotations

import signal
from collections.abc import Sequence

import anyio

from onyxq.client import AsyncClient
from onyxq.worker.logs import contextual_logs
from onyxq.worker.loop import Worker


def run_worker(
    worker: Worker, address: str | Sequence[str], *, token: str | None = None, backend: str = "asyncio"
) -> None:
    """Run a worker until SIGTERM or SIGINT, then finish its running tasks; a second signal stops it at once.

    Log records name the task that they are about.
    """
    contextual_logs()
    anyio.run(_main, worker, address, token, backend=backend)


async def _main(worker: Worker, address: str | Sequence[str], token: str | None) -> None:
    async with AsyncClient(address, token=token) as client, anyio.create_task_group() as group:
        group.start_soon(_stop_on_signals, worker)
        await worker.serve(client)
        group.cancel_scope.cancel()


async def _stop_on_signals(worker: Worker) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            worker.stop()
