"""The shops of ``examples/web``, each as its README starts it: web server, relay and worker are processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from onyxq.system.parent_death import killed_with_parent
from tests.interfaces.live_world import running
from tests.outbox.postgres import free_port
from tests.processes.cluster import surroundings

pytestmark = pytest.mark.long

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "web"
START_S_MAX = 60.0
LOOK_EVERY_S = 0.1


class Shop:
    """The processes of one shop in an environment that names its cluster and its database."""

    def __init__(self, root: Path, address: str, database: str) -> None:
        self._root = root
        self._stack = ExitStack()
        self._address = address
        self.port = free_port()
        place = urlsplit(database)
        self._environment = surroundings() | {
            "PGHOST": place.hostname or "",
            "PGPORT": str(place.port),
            "PGUSER": place.username or "",
            "PGDATABASE": place.path[1:],
            "ONYXQ_CONNECT": address,
            "PYTHONPATH": os.pathsep.join(["", str(EXAMPLES), *filter(None, sys.path)]),
        }

    def run(self, *arguments: str) -> None:
        """Run a Python program to its end."""
        command = [sys.executable, *arguments]
        subprocess.run(command, cwd=EXAMPLES, env=self._environment, check=True, timeout=START_S_MAX)

    def start(self, *arguments: str) -> None:
        """Start a Python program that ends with the shop."""
        with open(self._root / "said.txt", "ab") as said:
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=EXAMPLES,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
                start_new_session=True,
                preexec_fn=killed_with_parent(),  # noqa: PLW1509  # two system calls, their library loaded before
            )
        self._stack.callback(process.wait)
        self._stack.callback(os.killpg, process.pid, signal.SIGKILL)  # hypercorn serves in a process of its own

    def ordered(self, path: str) -> str:
        """Order, as soon as the web server serves; return the id of the task."""
        until = time.monotonic() + START_S_MAX
        while time.monotonic() < until:
            with contextlib.suppress(httpx.ConnectError):
                answer = httpx.post(f"http://127.0.0.1:{self.port}{path}", timeout=30, trust_env=False)
                assert answer.status_code == 202, answer.text
                return str(answer.json()["task"])
            time.sleep(LOOK_EVERY_S)
        pytest.fail((self._root / "said.txt").read_text())

    def followed(self, task: str) -> list[dict[str, Any]]:
        """Return every view of a task that its page sends until the task is finished."""
        url = f"http://127.0.0.1:{self.port}/tasks/{task}/events"
        with httpx.stream("GET", url, timeout=60, trust_env=False) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            lines = list(answer.iter_lines())
        assert "event: end" in lines
        return [json.loads(line[6:]) for line in lines if line.startswith('data: {"')]

    def get(self, path: str) -> httpx.Response:
        """Return an answer of the web server."""
        return httpx.get(f"http://127.0.0.1:{self.port}{path}", timeout=30, trust_env=False)

    def end(self) -> None:
        """End all processes."""
        self._stack.close()


@contextmanager
def shop(root: Path, database: str) -> Iterator[Shop]:
    """Start a cluster and a worker for a shop."""
    with running() as cluster:
        found = Shop(root, cluster.addresses[0], database)
        try:
            found.start("-m", "onyxq", "worker", "start", "shop_tasks:app")
            yield found
        finally:
            found.end()


def check(found: Shop, task: str, result: str) -> None:
    """Follow a task to its result, and look at the answers for wrong ids."""
    views = found.followed(task)
    last = views[-1]
    assert (last["state"], last["result"]) == ("completed", result), views
    assert (last["progress"]["done"], last["progress"]["note"]) == (3, "parcel 3 is packed")
    assert found.get(f"/tasks/{task}").json() == last
    wrong = found.get("/tasks/seven")
    assert (wrong.status_code, wrong.json()["code"]) == (400, "bad_request")
    assert found.get(f"/tasks/{'00' * 20}").status_code == 404


def test_the_shop_with_flask(tmp_path: Path, database: str) -> None:
    """It enqueues without an outbox."""
    with shop(tmp_path, database) as found:
        found.start("-m", "flask", "--app", "flask_shop", "run", "--port", str(found.port))
        check(found, found.ordered("/orders?number=7"), "order 7 is on its way")


def test_the_shop_with_fastapi_and_sqlalchemy(tmp_path: Path, database: str) -> None:
    """Its task is relayed from the table that SQLAlchemy created, and can be followed before that."""
    with shop(tmp_path, database) as found:
        found.start("-m", "onyxq", "outbox", "relay", "--create")
        found.start("-m", "hypercorn", "--bind", f"127.0.0.1:{found.port}", "fastapi_shop:api")
        check(found, found.ordered("/orders?item=tea"), "order 1 is on its way")


def test_the_shop_with_django(tmp_path: Path, database: str) -> None:
    """Its migrations create the outbox."""
    with shop(tmp_path, database) as found:
        found.run("django_shop/manage.py", "migrate", "-v", "0")
        found.start("-m", "onyxq", "outbox", "relay")
        found.start("django_shop/manage.py", "runserver", "--noreload", str(found.port))
        check(found, found.ordered("/orders?item=tea"), "order 1 is on its way")
