"""The application of the worker in compose.yaml."""

from __future__ import annotations

import time

from onyxq import App

app = App()


@app.task(queue="hello")
def greet(name: str) -> str:
    """Greet someone."""
    return f"hello {name}"


@app.task(queue="hello")
def count(to: int) -> str:
    """Take a second for each number."""
    for _ in range(to):
        time.sleep(1)
    return f"counted to {to}"
