"""A process that is a worker: finding the application, signals (design: interfaces)."""

from __future__ import annotations

import importlib
import signal
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio

from onyxq.client import AsyncClient
from onyxq.errors import BadRequest
from onyxq.worker.logs import contextual_logs
from onyxq.worker.loop import Worker

if TYPE_CHECKING:
    from onyxq.app import App


def load_app(target: str) -> App:
    """The `App` that ``module:name`` means (looked for in the working directory, too); raises `BadRequest`."""
    from onyxq.app import App

    module_name, colon, name = target.partition(":")
    if not colon or not module_name or not name:
        raise BadRequest(f"{target!r} is not MODULE:APP", field="app")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module_name), name, None)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise BadRequest(f"there is no module {module_name!r}", field="app") from None
    if not isinstance(found, App):
        raise BadRequest(f"{target} is not an onyxq.App", field="app")
    return found


def run_worker(
    worker: Worker, address: str | Sequence[str], *, token: str | None = None, backend: str = "asyncio"
) -> None:
    """Run a worker until SIGTERM or SIGINT; it finishes what runs. A second signal stops it at once.

    Records of the log tell from then on which task they are about.
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
