"""The argument of each command's body: options, settings, output, and connections to a peer."""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import frozen

from onyxq.access.credential_files import check_private
from onyxq.access.credentials import ZookeeperCredentials
from onyxq.core.errors import BadRequest, Conflict, NotFound
from onyxq.core.texts import whole
from onyxq.interfaces.cli.output import Output, Timed
from onyxq.interfaces.cli.parser import LIMIT_SETTINGS, TLS_SETTINGS
from onyxq.system.durations import ago, span
from onyxq.system.settings import SETTINGS, Config, Setting

if TYPE_CHECKING:
    from onyxq.access.certificates import Certificates
    from onyxq.client import AsyncClient, Client
    from onyxq.client.connection_settings import ConnectionSettings

ID_DIGITS = 40
NAMED_MAX = 5
"""Most tasks that an error names."""


@frozen
class Context:
    """Options, settings and output of one command."""

    args: argparse.Namespace
    config: Config
    out: Output

    def text(self, name: str) -> str:
        """Return a setting that is text; empty if it is not set."""
        value = self.config.setting(name, getattr(self.args, name, None)).value
        return "" if value is None else str(value)

    def number(self, name: str) -> int:
        """Return a setting that is a number; 0 if it is not set."""
        return int(self.config.setting(name, getattr(self.args, name, None)).value or 0)

    def switched_on(self, name: str) -> bool:
        """Return whether a setting is on."""
        return bool(self.config.setting(name, getattr(self.args, name, None)).value)

    def given(self, name: str) -> str | None:
        """Return a setting that the user made, or None if only the default is left."""
        value = self.config.given(name, getattr(self.args, name, None))
        return None if value is None else str(value)

    def settings(self) -> tuple[Setting, ...]:
        """Return every setting with its source, without secrets."""
        return tuple(self.config.setting(name, getattr(self.args, name, None)).shown for name in SETTINGS)

    def zookeeper_credentials(self) -> ZookeeperCredentials:
        """Return the credentials for ZooKeeper."""
        return ZookeeperCredentials(
            auth=self.text("zookeeper_auth"),
            ca=self.text("zookeeper_ca"),
            cert=self.text("zookeeper_cert"),
            key=self.text("zookeeper_key"),
        )

    def let_application_read(self) -> None:
        """Put the settings of TLS and the time limits into the environment, where an application reads them."""
        for name in (*TLS_SETTINGS, *LIMIT_SETTINGS):
            if (value := self.given(name)) is not None:
                os.environ[f"ONYXQ_{name.upper()}"] = value

    def certificates(self) -> Certificates:
        """Return the certificates for TLS."""
        from onyxq.access.certificates import Certificates

        return Certificates(self.text("tls_ca"), self.text("tls_cert"), self.text("tls_key"))

    @contextmanager
    def client(self) -> Iterator[Client]:
        """Connect to the peer that the settings name; raises `Unavailable`."""
        with self._connection().client() as client:
            yield client

    def asynchronous_client(self) -> AsyncClient:
        """Return the client of a command that runs an event loop; enter it there."""
        return self._connection().asynchronous_client()

    def _connection(self) -> ConnectionSettings:
        from onyxq.client.connection_settings import ConnectionSettings

        return ConnectionSettings.of(lambda name: self.config.setting(name, getattr(self.args, name, None)).value)

    def limit(self) -> int | None:
        """Return the option ``--limit``, or None if there is none; raises `BadRequest` if it allows nothing."""
        found: int | None = self.args.limit
        if found is not None and found < 1:
            raise BadRequest(f"limit must be at least 1, not {found}", field="limit")
        return found

    def task(self, *, field: str = "id") -> bytes:
        """Return the id of the task that the command is about; see `found_id`."""
        text = self.args.id
        if len(text) == ID_DIGITS:
            return task_id(text, field=field)
        with self.client() as client:
            return found_id(client, text, field=field)

    def call(self, method: str, arguments: dict[str, Any] | None = None) -> Any:
        """Call one method on a new connection."""
        with self.client() as client:
            return client.call(method, arguments or {})


def take_token(args: argparse.Namespace, out: Output) -> None:
    """Read the credential from the file that ``--token-file`` names; raises `BadRequest`.

    A credential in ``--token`` works too, but with a warning, because every user of the machine can see it.
    """
    path = getattr(args, "token_file", None)
    if not path:
        if getattr(args, "token", None):
            out.note("other users of this machine can see the value of --token: use --token-file or ONYXQ_TOKEN")
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
        raise BadRequest(f"{path} must hold exactly one token", field="token_file")
    args.token = text


def task_id(text: str, *, field: str = "id") -> bytes:
    """Return the id that a text of 40 hex digits writes; raises `BadRequest`."""
    if not re.fullmatch(rf"[0-9a-fA-F]{{{ID_DIGITS}}}", text):
        raise BadRequest(f"an id is {ID_DIGITS} hex digits, not {text!r}", field=field)
    return bytes.fromhex(text)


def found_id(client: Client, text: str, *, field: str = "id") -> bytes:
    """Return a task's id from its 40 hex digits, or from its first digits if no other task's id begins with them.

    Raises `BadRequest`, `NotFound` if no task matches, and `Conflict` that names the tasks if several do.
    """
    if len(text) == ID_DIGITS:
        return task_id(text, field=field)
    if not re.fullmatch(rf"[0-9a-fA-F]{{1,{ID_DIGITS}}}", text):
        problem = f"an id is {ID_DIGITS} hex digits, or its first digits, not {text!r}"
        raise BadRequest(problem, field=field, hint="`onyxq task list` shows ids.")
    first, last = (bytes.fromhex(text.ljust(ID_DIGITS, digit)) for digit in "0f")
    number = int.from_bytes(first, "big")
    after = (number - 1).to_bytes(len(first), "big") if number else None
    matches: list[bytes] = []
    while len(matches) <= NAMED_MAX:
        page = client.call("list", {"after": after, "limit": NAMED_MAX + 1})
        matches += [one["id"] for one in page["tasks"] if one["id"] <= last]
        after = page["after"]
        if after is None or after >= last:
            break
    if not matches:
        raise NotFound(f"no task has an id that begins with {text}", field=field)
    if len(matches) > 1:
        named = ", ".join(one.hex() for one in matches[:NAMED_MAX])
        more = " and more" if len(matches) > NAMED_MAX else ""
        hint = "Give more digits. Ids begin with a time, and often have the same first digits."
        raise Conflict(f"several tasks have ids that begin with {text}: {named}{more}", field=field, hint=hint)
    return matches[0]


def moment(text: str, *, field: str, hint: str | None = None) -> int:
    """Return milliseconds since the epoch, from such a number or an ISO 8601 time, which is local without a zone."""
    number = whole(text)
    if number is not None:
        return number
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        raise BadRequest(f"a time looks like 2031-05-01T12:00:00, not {text!r}", field=field, hint=hint) from None


def clock(ms: int | None) -> str:
    """Return a local time to the second, with its offset from UTC; empty for None, and ms from the year 10000 on."""
    if ms is None:
        return ""
    try:
        local = datetime.fromtimestamp(ms / 1000).astimezone().isoformat(sep=" ", timespec="seconds")
    except (OverflowError, ValueError, OSError):
        local = f"{ms} ms"
    return Timed(local, ago(ms, round(time.time() * 1000)))


def age(ms: int | None) -> str:
    """Return a span of time in seconds; empty for None."""
    return "" if ms is None else Timed(f"{ms / 1000:.0f}s", span(ms))
