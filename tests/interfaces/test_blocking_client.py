"""The client for plain threads: what becomes of its background thread."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
INTERRUPTED = """
import os, signal, threading
import anyio.from_thread
from onyxq.client import Client

started = anyio.from_thread.run_eventloop

def interrupted(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGINT)
    heard.wait()  # the interrupt comes first
    return started(*args, **kwargs)

heard = threading.Event()
signal.signal(signal.SIGINT, lambda *_: (heard.set(), signal.default_int_handler(signal.SIGINT, None)))
anyio.from_thread.run_eventloop = interrupted
try:
    Client("127.0.0.1:1").open()
except KeyboardInterrupt:
    for thread in threading.enumerate():
        if thread is not threading.main_thread():
            thread.join(10)
    print([thread.name for thread in threading.enumerate()])
"""


def test_an_interrupt_while_a_client_is_opened_ends_it() -> None:
    """The background thread is about to begin: it is ended, and waited for no longer than that takes."""
    command = [sys.executable, "-c", INTERRUPTED]
    found = subprocess.run(command, capture_output=True, text=True, timeout=30, cwd=ROOT, check=False)
    assert (found.stdout.strip(), found.stderr) == ("['MainThread']", "")
