"""Workers: the loop that runs tasks, and how a process runs it."""

from __future__ import annotations

from onyxq.worker.loop import Body, Worker, current_claim, current_client
from onyxq.worker.process import load_app, run_worker

__all__ = ["Body", "Worker", "current_claim", "current_client", "load_app", "run_worker"]
