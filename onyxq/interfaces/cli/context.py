"""What a command's body gets: its arguments, the settings, a place to print, a way to a peer."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from onyxq.access.credential_files import check_private
from onyxq.access.credentials import ZookeeperCredentials
from onyxq.core.errors import BadRequest
from onyxq.core.texts import whole
from onyxq.interfaces.cli.output import Output
from onyxq.system.settings import Config

if TYPE_CHECKING:
    from onyxq.access.certificates import Certificates
    from onyxq.client import AsyncClient, Client

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?")


@frozen
class Context:
    """The surroundings of one command."""

    args: argparse.Namespace
    config: Config
    out: Output

    def text(self, name: str) -> str:
        """A setting that is text; empty where it is not set."""
        value = self.config.setting(name, getattr(self.args, name, None)).value
        return "" if value is None else str(value)

    def number(self, name: str) -> int:
        """A setting that is a number."""
        return int(self.config.setting(name, getattr(self.args, name, None)).value or 0)

    def switched_on(self, name: str) -> bool:
        """A setting that is on or off."""
        return bool(self.config.setting(name, getattr(self.args, name, None)).value)

    def given(self, name: str) -> str | None:
        """A setting that somebody made, None where only the default is left."""
        value = self.config.given(name, getattr(self.args, name, None))
        return None if value is None else str(value)

    def zookeeper_credentials(self) -> ZookeeperCredentials:
        """What ZooKeeper is shown."""
        return ZookeeperCredentials(
            auth=self.text("zookeeper_auth"),
            ca=self.text("zookeeper_ca"),
            cert=self.text("zookeeper_cert"),
            key=self.text("zookeeper_key"),
        )

    def certificates(self) -> Certificates:
        """For TLS."""
        from onyxq.access.certificates import Certificates

        return Certificates(self.text("tls_ca"), self.text("tls_cert"), self.text("tls_key"))

    @contextmanager
    def client(self) -> Iterator[Client]:
        """A connection with the peer that the settings name; raises `Unavailable`."""
        from onyxq.client import Client

        with Client(self.text("connect"), token=self.text("token") or None, tls=self.certificates()) as client:
            yield client

    def asynchronous_client(self) -> AsyncClient:
        """The same connection for commands that run in an event loop, to be entered there."""
        from onyxq.client import AsyncClient

        return AsyncClient(self.text("connect"), token=self.text("token") or None, tls=self.certificates())

    def call(self, method: str, arguments: dict[str, Any] | None = None) -> Any:
        """One call of a method of the API on a connection of its own."""
        with self.client() as client:
            return client.call(method, arguments or {})


def take_token(args: argparse.Namespace, out: Output) -> None:
    """Read the credential that ``--token-file`` names; raises `BadRequest`.

    One that is given as an argument is taken, with a warning: every user of the machine sees it.
    """
    path = getattr(args, "token_file", None)
    if not path:
        if getattr(args, "token", None):
            out.note("other users of this machine see --token among the arguments: use --token-file or ONYXQ_TOKEN")
        return
    if args.token:
        raise BadRequest("--token and --token-file were both given", field="token", hint="Give one of them.")
    try:
        if path != "-":
            check_private(path, field="token_file")
        text = (sys.stdin.readline() if path == "-" else Path(path).read_text("utf-8")).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"{path}: {getattr(error, 'strerror', None) or error}", field="token_file") from None
    if not text or len(text.split()) != 1:
        raise BadRequest(f"{path} does not hold one token", field="token_file")
    args.token = text


def task_id(text: str, *, field: str = "id") -> bytes:
    """The id that 40 hex digits name; raises `BadRequest`."""
    if not re.fullmatch(r"[0-9a-fA-F]{40}", text):
        raise BadRequest(f"an id is 40 hex digits, not {text!r}", field=field)
    return bytes.fromhex(text)


def is_duration(text: str) -> bool:
    """Whether `milliseconds` takes a text."""
    return _DURATION.fullmatch(text.strip()) is not None


def milliseconds(text: str, *, field: str) -> int:
    """``10s``, ``500ms``, ``5m``, ``2h``, ``1d`` or seconds as a bare number; raises `BadRequest`."""
    found = _DURATION.fullmatch(text.strip())
    if not found:
        raise BadRequest(f"a duration looks like 10s, 500ms, 5m, 2h or 1d, not {text!r}", field=field)
    return round(float(found[1]) * _UNITS_MS[found[2] or "s"])


def moment(text: str, *, field: str) -> int:
    """Milliseconds since the epoch of an ISO 8601 time (local unless it has a zone) or of such a number."""
    number = whole(text)
    if number is not None:
        return number
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise BadRequest(f"a time looks like 2031-05-01T12:00:00, not {text!r}", field=field) from None


def clock(ms: int | None) -> str:
    """A wall-clock time, local, to the second; empty for None."""
    return datetime.fromtimestamp(ms / 1000).isoformat(sep=" ", timespec="seconds") if ms is not None else ""
