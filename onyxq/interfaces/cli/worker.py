"""``onyxq worker start``: runs the tasks of an application until it is told to stop."""

from __future__ import annotations

import os

from onyxq.core.errors import BadRequest
from onyxq.interfaces.cli import logs
from onyxq.interfaces.cli.context import Context, milliseconds

LEASE_MS = (1_000, 86_400_000)


def start(context: Context) -> None:
    """Find the application and work; `BadRequest` if it is not there.

    ``--connect`` (or its setting) wins over the address that the application names.
    """
    args = context.args
    least, most = bounds(args.concurrency)
    lease_ms = milliseconds(args.lease, field="lease")
    if not LEASE_MS[0] <= lease_ms <= LEASE_MS[1]:
        raise BadRequest(f"a lease is 1s to 24h, not {args.lease}", field="lease")
    queues = [name.strip() for name in args.queues.split(",") if name.strip()] if args.queues else None

    from onyxq.worker import contextual_logs, load_app, run_worker
    from onyxq.worker.logs import FORMAT

    contextual_logs()
    logs.set_up(context, FORMAT)
    app = load_app(args.app)
    app.address, app.token = context.given("connect") or app.address, context.text("token") or app.token
    worker = app.worker(queues, least, concurrency_max=most, lease_ms=lease_ms)
    context.out.note(f"working for {args.app}; SIGTERM finishes what runs and ends")
    os.environ |= context.certificates().to_environment()  # for the processes that it starts
    run_worker(worker, app.address, token=app.token)


def bounds(text: str) -> tuple[int, int]:
    """``8`` or ``2-16``: the least and the most tasks at the same time; raises `BadRequest`."""
    least, dash, most = text.partition("-")
    try:
        found = int(least), int(most if dash else least)
    except ValueError:
        found = (0, 0)
    if not 1 <= found[0] <= found[1]:
        problem = f"concurrency is a number of at least 1, or two of them as in 2-16, not {text!r}"
        raise BadRequest(problem, field="concurrency")
    return found
