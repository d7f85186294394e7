"""A process that is a worker: signals, logs, and what it says about its cluster (design: interfaces)."""

from __future__ import annotations

import logging
import os
import signal

import anyio

from onyxq.client import AsyncClient
from onyxq.client.connection_settings import ConnectionSettings
from onyxq.core.errors import OnyxqError, Overloaded, TimedOut, Unavailable
from onyxq.worker import console
from onyxq.worker.logs import contextual_logs
from onyxq.worker.loop import Worker

GREETING_TIMEOUT_MS = 2_000
GREETING_PAUSE_S = 0.5
"""Pause before the cluster is asked for its name again, in seconds: no peer answered, or one that starts."""
TEMPORARY = (Unavailable, Overloaded, TimedOut)
"""Errors after which the cluster may answer later."""

log = logging.getLogger(__name__)


def run_worker(worker: Worker, connection: ConnectionSettings, *, backend: str = "asyncio") -> None:
    """Run a worker until SIGTERM or SIGINT, then finish its running tasks.

    At a second signal it gives them back; a third one ends the process. Log records name the task they are about.
    """
    contextual_logs()
    anyio.run(_main, worker, connection, backend=backend)


async def _main(worker: Worker, connection: ConnectionSettings) -> None:
    failure: Exception | None = None
    address = connection.address if isinstance(connection.address, str) else ",".join(connection.address)
    async with connection.asynchronous_client() as client, anyio.create_task_group() as group:
        group.start_soon(_stop_on_signals, worker)
        group.start_soon(_watch, client, worker, address)
        try:
            await worker.serve(client)
        except Exception as error:
            failure = error  # raised outside of the group, which would wrap it
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure
    done, failed = console.counted(worker.finished), console.counted(worker.failed, "failed attempt")
    log.info("stopped: %s completed, %s", done, failed)


async def _stop_on_signals(worker: Worker) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        received = 0
        async for number in signals:
            received += 1
            running, reported = worker.under_way(), worker.reported
            if received == 1:
                level = logging.WARNING if running or reported else logging.INFO
                log.log(level, "%s", console.stopping(running, worker.drain_s, reported=reported))
            elif received == 2:
                log.warning("%s", console.stopping_now(len(running), reported))
            else:
                log.warning("ended at once%s", f": {console.left(worker.held)}" if worker.held else "")
                logging.shutdown()
                os._exit(128 + number)
            worker.stop()


async def _watch(client: AsyncClient, worker: Worker, address: str) -> None:
    """Log once that the worker has a cluster, once that it has lost it, and once that it has one again."""
    known = False
    while True:
        name = await _greet(client, worker, "the cluster is lost: " if known else "")
        try:
            closed = await client.disconnection()
        except TEMPORARY:
            continue
        except OnyxqError:
            return  # the worker ends with the same error
        if worker.cut_off or (name and not known):
            log.info("connected to %s%s", f"cluster {name} at " if name else "", address)
        known, worker.cut_off = True, False
        await closed.wait()


async def _greet(client: AsyncClient, worker: Worker, begin: str = "") -> str:
    """Return the name of the cluster once a peer knows it, or nothing if the worker may not know it.

    The first time that no peer answers is logged; ``begin``: what the line begins with.
    """
    while True:
        try:
            found = await client.call("cluster", {}, timeout_ms=GREETING_TIMEOUT_MS)
        except TEMPORARY as error:
            if not worker.cut_off:
                log.warning("%s%s; trying again. %s", begin, error.message, error.advice)
            worker.cut_off = True
        except OnyxqError as error:
            log.debug("the cluster does not say its name: %s", error.message)
            return ""
        else:
            if found["name"]:
                return str(found["name"])
        await anyio.sleep(GREETING_PAUSE_S)
