"""A real PostgreSQL server for tests, from the programs of the Debian package, which can be killed.

The server refuses to run as root. Under root it runs as the user ``postgres``, whom the package creates.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from onyxq.system.parent_death import killed_with_parent

USER = "postgres"
START_S_MAX = 60.0
LOOK_EVERY_S = 0.05


class Missing(Exception):
    """PostgreSQL is not installed."""


def programs() -> Path:
    """Return the directory of the server's programs; raise `Missing`."""
    found = [*sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)]
    if on_path := shutil.which("initdb"):
        found.append(Path(on_path).resolve().parent)
    if not found:
        raise Missing("PostgreSQL is not installed (Debian package postgresql)")
    return found[0]


def free_port() -> int:
    """Return a port that was free a moment ago. The server needs the same one after a kill."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Postgres:
    """A server with an empty database cluster; `start`, `kill`, `stop`, and in the end `remove`."""

    def __init__(self) -> None:
        self._programs = programs()
        self._user = USER if os.geteuid() == 0 else None
        self._root = Path(tempfile.mkdtemp(prefix="onyxq-postgres-"))
        if self._user is not None:
            account = pwd.getpwnam(self._user)
            os.chown(self._root, account.pw_uid, account.pw_gid)
        self._data = self._root / "data"
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        options = ["-D", str(self._data), "-U", USER, "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        command = [self._programs / "initdb", *options]
        subprocess.run(command, check=True, capture_output=True, cwd=self._root, timeout=120, **self._as_user())

    def _as_user(self) -> dict[str, str]:
        return {} if self._user is None else {"user": self._user, "group": self._user}

    @property
    def url(self) -> str:
        """The URL of its database."""
        return f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    def spawn(self) -> None:
        """Start the server, without waiting until it serves. It ends with the thread that calls this."""
        settings = {"listen_addresses": "127.0.0.1", "unix_socket_directories": self._root, "shared_buffers": "16MB"}
        options = [f"-c{name}={value}" for name, value in settings.items()]
        with open(self._root / "postgres.log", "ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", self._data, "-p", str(self.port), *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._root,
                start_new_session=True,
                preexec_fn=killed_with_parent(),  # noqa: PLW1509  # two system calls, their library loaded before
                **self._as_user(),
            )

    def serves(self) -> bool:
        """Whether it accepts connections."""
        assert self._process is not None and self._process.poll() is None, self.said()
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(self.url, connect_timeout=5).close()
            return True
        return False

    def start(self) -> None:
        """Start the server and wait until it serves."""
        self.spawn()
        self.wait()

    def wait(self) -> None:
        """Wait until the server serves."""
        until = time.monotonic() + START_S_MAX
        while not self.serves():
            assert time.monotonic() < until, self.said()
            time.sleep(LOOK_EVERY_S)

    def kill(self) -> None:
        """Send SIGKILL to the server and all its processes; return when they are gone."""
        assert self._process is not None
        pid = self._process.pid
        children = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        self._process.kill()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        self._process.wait()
        while any(Path(f"/proc/{child}").exists() for child in children):
            time.sleep(LOOK_EVERY_S)

    def stop(self) -> None:
        """Stop the server at once, with its connections."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait()

    def remove(self) -> None:
        """Stop the server and delete its files."""
        self.stop()
        shutil.rmtree(self._root)

    def said(self) -> str:
        """Return the end of its log."""
        return (self._root / "postgres.log").read_text(errors="replace")[-4_000:]


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One server; skips without PostgreSQL, except under ``CI``, where it fails."""
    try:
        server = Postgres()
    except Missing as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))
    try:
        server.start()
        yield server
    finally:
        server.remove()


@pytest.fixture
def database(postgres: Postgres) -> str:
    """The URL of an empty database."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return postgres.url.rpartition("/")[0] + f"/{name}"
