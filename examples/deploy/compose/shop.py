"""The application of the worker in compose.yaml."""

from __future__ import annotations

from onyxq import App

app = App()


@app.task(queue="hello")
def greet(name: str) -> str:
    """Greet someone."""
    return f"hello {name}"
