"""Functions as tasks, to be imported from here: `App` and what its methods return."""

from __future__ import annotations

from onyxq.worker.app import App, AppWorker, TaskFunction

__all__ = ["App", "AppWorker", "TaskFunction"]
