"""Set timers of OnyxQ and take their callbacks: ``python reminders.py HOST:PORT``; see README.rst.

HOST:PORT is the address of any peer.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar

from onyxq import Client


class Reminders(BaseHTTPRequestHandler):
    """Takes callbacks, and counts each once however often it comes."""

    seen: ClassVar[set[str]] = set()

    def do_POST(self) -> None:
        """Take one callback; an answer from 200 to 299 confirms it."""
        body = self.rfile.read(int(self.headers["content-length"]))
        key = self.headers["idempotency-key"]
        if key not in self.seen:
            self.seen.add(key)
            print(f"{self.headers['x-timer-id']}: {json.loads(body)['text']}", flush=True)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Print no log lines of the server."""


def main(address: str) -> None:
    """Set two timers, change one, cancel the other, and wait for the remaining one."""
    with HTTPServer(("127.0.0.1", 0), Reminders) as server, Client(address) as client:
        uri = f"http://127.0.0.1:{server.server_port}/"
        client.set_timer("tea", 3_600_000, uri, {"text": "the tea is bitter"})
        client.set_timer("cake", 3_600_000, uri, {"text": "the cake is burnt"})
        client.set_timer("tea", 500, uri, {"text": "the tea is ready"}, replace=True)
        client.cancel_timer("cake")
        server.handle_request()
        print("cake:", client.timer("cake")["state"])


if __name__ == "__main__":
    main(sys.argv[1])
