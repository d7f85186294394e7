"""``onyxq outbox``: relay tasks from a database, create their table, and decide about refused rows."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import anyio

from onyxq.core.errors import OnyxqError, Unavailable
from onyxq.interfaces.cli import logs
from onyxq.interfaces.cli.context import Context

if TYPE_CHECKING:
    from onyxq.outbox import OutboxDatabase, Relay

T = TypeVar("T")


def relay(context: Context) -> None:
    """Relay tasks until SIGTERM or SIGINT."""
    from onyxq.outbox import Relay

    logs.set_up(context)
    made = Relay(context.args.database, table=context.args.table, create=context.args.create)
    context.out.note(f"relaying {context.args.table}; SIGTERM stops after the present round")
    anyio.run(_relay, context, made)
    context.out.note(f"relayed {made.relayed} tasks, refused {made.refused}")


async def _relay(context: Context, made: Relay) -> None:
    async def stop_on_signals() -> None:
        with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            async for _ in signals:
                made.stop()

    failure: OnyxqError | None = None
    async with context.asynchronous_client() as client, anyio.create_task_group() as group:
        group.start_soon(stop_on_signals)
        try:
            await made.run(client)
        except OnyxqError as error:
            failure = error
        group.cancel_scope.cancel()
    if failure is not None:
        raise failure


def create(context: Context) -> None:
    """Create the table of the outbox unless it exists."""
    _with_database(context, lambda database: database.create())


def show(context: Context) -> None:
    """Print the rows that the cluster refused."""
    limit = context.limit()
    assert limit is not None, "the option has a default"
    found = _with_database(context, lambda database: database.refused(limit))
    rows = [
        {
            "row": one.seq,
            "task": one.task_id.hex(),
            "queue": one.queue,
            "created": str(one.created_at),
            "error": one.error,
        }
        for one in found
    ]
    context.out.table({"refused": rows}, rows, ("row", "task", "queue", "created", "error"), empty="no row was refused")


def retry(context: Context) -> None:
    """Let the relay send a refused row again."""
    args, now_ms = context.args, time.time_ns() // 1_000_000
    found = _with_database(context, lambda database: database.retry(args.row, fresh_ms=now_ms if args.new_id else None))
    context.out.result({"task": found.hex()}, f"the relay sends row {args.row} again, as task {found.hex()}")


def discard(context: Context) -> None:
    """Delete a refused row."""
    row = context.args.row
    found = _with_database(context, lambda database: database.discard(row))
    context.out.result({"task": found.hex()}, f"row {row}, task {found.hex()}, is discarded")


def _with_database(context: Context, use: Callable[[OutboxDatabase], T]) -> T:
    from onyxq.outbox import OutboxDatabase

    try:
        with OutboxDatabase(context.args.database, table=context.args.table) as database:
            return use(database)
    except OnyxqError:
        raise
    except Exception as error:
        # psycopg is loaded only if it is installed, so its errors are recognised by their module.
        if not type(error).__module__.startswith("psycopg"):
            raise
        raise Unavailable(
            f"the database: {' '.join(str(error).split())}",
            hint="Give --database URL, or PGHOST, PGDATABASE and PGUSER. `onyxq outbox create` creates the table.",
        ) from None
