"""``onyxq worker start``: a worker that runs the tasks of an application until a signal stops it."""

from __future__ import annotations

import logging
import time
from datetime import datetime
from typing import TYPE_CHECKING

from onyxq import __version__
from onyxq.core import cron
from onyxq.core.errors import BadRequest, ClusterMismatch
from onyxq.core.limits import LEASE_MS_MAX, LEASE_MS_MIN
from onyxq.interfaces.cli import logs
from onyxq.interfaces.cli.context import Context
from onyxq.interfaces.cli.processes import reload
from onyxq.system.durations import milliseconds
from onyxq.system.settings import did_you_mean

if TYPE_CHECKING:
    from onyxq.worker.app import App, AppWorker
    from onyxq.worker.options import WorkerOptions

log = logging.getLogger("onyxq.worker")


def start(context: Context) -> int | None:
    """Import the application and run its tasks; raises `BadRequest` if it does not exist.

    The setting ``connect`` takes precedence over the address in the application.
    """
    args = context.args
    if args.reload:
        return reload.keep_running(context.out, reload.command_without("--reload"))
    least, most = bounds(args.concurrency)
    lease_ms = milliseconds(args.lease, field="lease")
    if not LEASE_MS_MIN <= lease_ms <= LEASE_MS_MAX:
        raise BadRequest(f"lease must be 1s to 24h, not {args.lease}", field="lease")
    options: WorkerOptions = {
        "concurrency_max": most,
        "lease_ms": lease_ms,
        "tasks_per_process": args.tasks_per_process,
        "name": args.name,
    }
    if args.drain is not None:
        options["drain_ms"] = milliseconds(args.drain, field="drain")
    queues = names(args.queues) or None

    from onyxq.worker import contextual_logs, import_module, load_app
    from onyxq.worker.logs import FORMAT

    contextual_logs()
    logs.set_up(context, FORMAT, console=True)
    if not args.quiet and context.given("log_level") is None:
        logging.getLogger("onyxq.worker").setLevel(logging.INFO)
    context.let_application_read()
    app = load_app(args.app)
    app.address, app.token = context.given("connect") or app.address, context.text("token") or app.token
    for name in names(args.imports):
        import_module(name, field="import")
    if not app.tasks and queues is None:
        hint = "Write @app.task above a function, or import the modules that have the functions: --import MODULE,..."
        raise BadRequest(f"{args.app} has no tasks", field="app", hint=hint)
    worker = app.worker(queues, least, **options)
    if not args.quiet:
        for line in banner(args.app, app, worker, slots=args.concurrency):
            log.info("%s", line) if context.text("log_format") == "json" else context.out.note(line)
    try:
        worker.run()
    except ClusterMismatch:
        if reload.is_watched():
            return reload.AGAIN
        raise
    return None


def names(text: str | None) -> list[str]:
    """Return the names in a comma-separated text."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def banner(target: str, app: App, worker: AppWorker, *, slots: str) -> list[str]:
    """Return the lines that say what a worker is about to do, and what it will not do."""
    from onyxq.worker.console import duration

    address = app.address if isinstance(app.address, str) else ",".join(app.address)
    lines = [
        f"OnyxQ {__version__} worker {worker.name}",
        f"  application  {target}",
        f"  functions    {', '.join(sorted(app.tasks)) or 'none'}",
        f"  queues       {', '.join(worker.queues)}",
        f"  slots        {slots}",
        f"  cluster      {address}",
        *schedules(app, time.time_ns() // 1_000_000),
    ]
    used = sorted({task.queue for task in app.tasks.values()})
    for queue in worker.queues:
        if queue not in used:
            lines.append(f"no function of {target} uses the queue {queue}{did_you_mean(queue, used)}")
    for queue in used:
        if queue not in worker.queues:
            lines.append(f"tasks in the queue {queue} are left to other workers (--queues)")
    return [*lines, f"Ctrl-C stops after the running tasks, which may take {duration(worker.drain_s)}"]


def schedules(app: App, now_ms: int) -> list[str]:
    """Return a line for each schedule of an application, with the next time at which it is due."""
    lines: list[str] = []
    for one in app.periodics:
        due = cron.next_ms(cron.parse(one.schedule), one.zone, now_ms)
        moment = datetime.fromtimestamp(due / 1000, cron.zone_of(one.zone)) if due < cron.NEVER_MS else None
        when = f"{moment:%Y-%m-%d %H:%M:%S} {one.zone}" if moment else "never"
        lines.append(f"  {'' if lines else 'schedules':<11}  {one.name}: {one.schedule}, next {when}")
    return lines


def bounds(text: str) -> tuple[int, int]:
    """Return the smallest and largest number of parallel tasks from ``8`` or ``2-16``; raises `BadRequest`."""
    least, dash, most = text.partition("-")
    try:
        found = int(least), int(most if dash else least)
    except ValueError:
        found = (0, 0)
    if found[0] > found[1] >= 1:
        problem = f"concurrency must begin with the smaller number: {found[1]}-{found[0]}, not {text!r}"
        raise BadRequest(problem, field="concurrency")
    if not 1 <= found[0] <= found[1]:
        problem = f"concurrency must be a number like 8 or a range like 2-16, from 1 on, not {text!r}"
        raise BadRequest(problem, field="concurrency")
    return found
