"""A host process for tests: it speaks the protocol, runs no Spark, and behaves as a job's id says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from typing import Any


def say(event: str, **details: Any) -> None:
    """Send one event."""
    print(json.dumps({"event": event, **details}), flush=True)


def main() -> None:
    """Serve until stdin ends."""
    plan = json.loads(sys.stdin.readline())
    # A child that holds stdout, and would outlive the host unless the peer kills it.
    child = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
    print("a library prints this on stdout")
    say("up", slots=plan["slots"], child=child.pid, alive_s=0.01)
    for line in sys.stdin:
        order = json.loads(line)
        job = order.get("job")
        if job == "die":
            print("out of luck", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        elif job == "freeze":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif job == "exit":
            sys.exit(3)
        elif job == "chatter":
            sys.stderr.write("x" * 999 + "\n")
            sys.stderr.flush()
        elif job == "litter":
            tempfile.mkdtemp()
        elif job == "stubborn":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        say("ready", job=job, version=order.get("version"))
    if plan["conf"].get("ends") != "no":
        sys.exit(0)
    signal.pause()


main()
