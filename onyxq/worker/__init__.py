"""Workers: the loop that runs tasks, the context that running code sees, and the process around them."""

from __future__ import annotations

from onyxq.worker.app import import_module, load_app
from onyxq.worker.attempts import LogEntry, Progress, TaskCancelled, current_claim, current_client
from onyxq.worker.contexts import BlockingContext, Context, blocking_context, context, current_bridge
from onyxq.worker.logs import contextual_logs
from onyxq.worker.loop import Body, Worker
from onyxq.worker.process import run_worker
from onyxq.worker.retries import GiveUp, Retry, Snooze

__all__ = [
    "BlockingContext",
    "Body",
    "Context",
    "GiveUp",
    "LogEntry",
    "Progress",
    "Retry",
    "Snooze",
    "TaskCancelled",
    "Worker",
    "blocking_context",
    "context",
    "contextual_logs",
    "current_bridge",
    "current_claim",
    "current_client",
    "import_module",
    "load_app",
    "run_worker",
]
