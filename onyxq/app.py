"""Functions as tasks: `App` and the classes that its methods return, importable from here."""

from __future__ import annotations

from onyxq.worker.app import App, AppWorker, TaskFunction, TaskHandle

__all__ = ["App", "AppWorker", "TaskFunction", "TaskHandle"]
