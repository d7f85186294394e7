"""The page about Docker Compose, walked without containers: its peers, worker, health checks and commands are real.

Names of services and their ports become free ports of loopback. Docker itself, the image and the restart of containers
are not tested.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from onyxq.log.zookeeper_server import ZookeeperServer
from tests.outbox.postgres import free_port

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "examples/deploy/compose"
PAGE = (ROOT / "docs/howto/compose.rst").read_text("utf-8")
ONYXQ = [sys.executable, "-m", "onyxq"]
PATIENCE_S = 90.0


class Services:
    """The services of the file, as processes of this machine."""

    def __init__(self, here: Path, zookeeper: str) -> None:
        self._here = here
        self.services: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text("utf-8"))["services"]
        self._ports = {name: (free_port(), free_port()) for name in self.services}
        (making,) = re.findall(r"for name in .*?> \.env", PAGE)
        subprocess.run(["bash", "-ec", making], cwd=here, check=True)
        self._secrets = dict(line.split("=", 1) for line in (here / ".env").read_text().splitlines())
        self._zookeeper = zookeeper
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def _here_for(self, name: str, text: str) -> str:
        """Return a value of the file with the secrets, and with addresses on this machine."""
        text = re.sub(r"\$\{(\w+):\?missing\}", lambda found: self._secrets[found[1]], text)
        text = re.sub(r"\b(?:127\.0\.0\.1|0\.0\.0\.0):7480\b", f"127.0.0.1:{self._ports[name][1]}", text)
        text = re.sub(r"\b(peer-\d):7400\b", lambda found: f"127.0.0.1:{self._ports[found[1]][0]}", text)
        return text.replace("zookeeper:2181", self._zookeeper)

    def _environment(self, name: str) -> dict[str, str]:
        given = self.services[name]["environment"]
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("ONYXQ_")}
        data = {"ONYXQ_DATA": str(self._here / name), "PYTHONPATH": str(ROOT)}
        return inherited | data | {key: self._here_for(name, value) for key, value in given.items()}

    def start(self, name: str) -> None:
        """Start a peer and wait until its health check passes, or start the worker."""
        command = self.services[name].get("command", ["peer", "start"])
        self._running[name] = subprocess.Popen([*ONYXQ, *command], env=self._environment(name), cwd=FOLDER)
        if "healthcheck" in self.services[name]:
            kind, _, *check = (self._here_for(name, part) for part in self.services[name]["healthcheck"]["test"])
            assert kind == "CMD"
            until(lambda: subprocess.run([sys.executable, *check], check=False, capture_output=True).returncode == 0)

    def kill(self, name: str) -> None:
        """Kill a service."""
        self._running[name].kill()
        self._running.pop(name).wait()

    def execute(self, name: str, command: list[str]) -> str:
        """Run a command as in the container of a service; return what it prints."""
        assert command.pop(0) == "onyxq"
        ended = subprocess.run(
            [*ONYXQ, *command],
            check=False,
            env=self._environment(name),
            cwd=FOLDER,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    def stop(self) -> set[str]:
        """Stop all services within their time, as Docker does; return their names."""
        stopped = set()
        for name, process in reversed(self._running.items()):
            process.terminate()
            assert process.wait(int(self.services[name]["stop_grace_period"].rstrip("s"))) == 0
            stopped.add(name)
        self._running.clear()
        return stopped

    def end(self) -> None:
        """End every process that still runs."""
        for name in list(self._running):
            self.kill(name)


def until(holds: Callable[[], object]) -> None:
    """Wait for an effect of other processes."""
    end = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.fixture
def services(tmp_path: Path, zookeeper: ZookeeperServer) -> Iterator[Services]:
    """The services, not started yet."""
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl")
    made = Services(tmp_path, zookeeper.hosts)
    yield made
    made.end()


def test_the_page_is_walked(services: Services) -> None:
    """Every ``docker compose`` of the page in its order, and the outcome of the three tasks."""
    tasks: list[str] = []

    def task(number: int) -> dict[str, Any]:
        shown = services.execute("worker", ["onyxq", "task", "get", tasks[number], "--json"])
        found: dict[str, Any] = json.loads(shown)
        return found

    for verb, *rest in (shlex.split(line)[2:] for line in re.findall(r"^ +(docker compose .*)", PAGE, re.MULTILINE)):
        if verb == "up":
            for name in [one for one in services.services if one != "zookeeper"]:
                services.start(name)
        elif verb == "exec":
            shown = services.execute(rest[0], rest[1:])
            if "call" in rest:
                tasks.append(shown.strip())
                until(lambda: task(-1)["state"] in ("claimed", "completed"))
        elif verb == "kill":
            services.kill(rest[0])
        elif verb == "start":
            if rest == ["peer-2"]:
                until(lambda: re.search("^peers +2$", services.execute("worker", ["onyxq", "cluster", "show"]), re.M))
            services.start(rest[0])
        else:
            assert verb == "down"
    until(lambda: task(-1)["state"] == "completed")
    assert [one["attempt"] for one in task(-1)["claims"]] == [1, 2]
    assert [task(number)["result"] for number in range(3)] == ["hello world", "hello everybody", "counted to 10"]
    assert services.stop() == {"worker", "peer-1", "peer-2", "peer-3"}
