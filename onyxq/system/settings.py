"""Settings of the command line: from the flag, else ``ONYXQ_<NAME>``, else ``onyxq.toml``, else the default.

Only processes have these settings.  A cluster's own settings (partitions, replicas, timeouts) are
fixed by its ``create_cluster`` entry and live in the replica.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from attrs import evolve, frozen

from onyxq.access.credential_files import check_private
from onyxq.core.cluster_settings import DEFAULTS
from onyxq.core.errors import BadRequest

Kind: TypeAlias = type[str] | type[int] | type[bool]

FILE_NAME = "onyxq.toml"
SECRET = ("token", "tokens", "peer_secret", "zookeeper_auth")
"""Settings whose values are never shown."""
PRIVATE = ("tokens", "peer_secret", "zookeeper_auth")
"""Those of the secret settings that must not be in a file that all users may read."""
HIDDEN = "(hidden)"
"""Shown instead of a secret."""
_PASSWORD = re.compile(r"(?<=://)[^/@\s]+(?=@)")
"""User and password in a URI."""
_ON, _OFF = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@frozen
class Known:
    """A setting that exists: its default, its purpose, and its type if the default does not show it."""

    default: str | int | None
    about: str
    of: Kind | None = None

    @property
    def kind(self) -> Kind:
        """Type of the setting's values."""
        return self.of or (int if isinstance(self.default, int) else str)


SETTINGS: Mapping[str, Known] = {
    "connect": Known("127.0.0.1:7400", "HOST:PORT of any peer"),
    "token": Known(None, "credential sent to the peer"),
    "request_timeout_ms": Known(30_000, "longest wait for the answer to a request, in ms"),
    "connect_timeout_ms": Known(
        None, "time until a request fails if no peer can be reached, in ms (default: 1000 in an App, else none)", int
    ),
    "access": Known(None, "file of the tokens that clients must present, and of the secret of the peers"),
    "tokens": Known(None, "the same tokens in one line, separated by spaces: TOKEN=ROLE+ROLE:PREFIX ..."),
    "peer_secret": Known(None, "secret that peers show each other; required if there are tokens"),
    "allow_anyone": Known(None, "listen on addresses that other machines reach, without asking for credentials", bool),
    "tls_ca": Known(None, "file of the CA certificates to check the other side with; turns TLS on"),
    "tls_cert": Known(None, "file of this process's own certificate; a peer needs one for TLS"),
    "tls_key": Known(None, "file of the private key of the certificate in tls_cert"),
    "allow_pickled": Known(None, "accept jobs with pickled functions even if credentials are asked for", bool),
    "allow_local_code": Known(
        None, "host Spark without tokens; every user of this machine can then run code as you", bool
    ),
    "job_modules": Known(
        "", "comma-separated modules whose functions jobs may name if there are tokens, or `any` (default: none)"
    ),
    "cluster": Known("main", "name of the cluster"),
    "zookeeper": Known(None, "HOST:PORT,... of ZooKeeper; without it, the log is embedded"),
    "zookeeper_auth": Known(None, "digest:USER:PASSWORD or sasl:USER:PASSWORD; only this user can then use the znodes"),
    "zookeeper_ca": Known(None, "file of the CA certificates to check ZooKeeper with; turns TLS on"),
    "zookeeper_cert": Known(None, "file of the certificate to show to ZooKeeper"),
    "zookeeper_key": Known(None, "file of the private key of the certificate in zookeeper_cert"),
    "data": Known("onyxq-data", "data directory of the node"),
    "archive": Known(None, "directory for log records that are trimmed; without it, they are deleted"),
    "record_archive": Known(None, "directory for log records that are trimmed, as Parquet files by day"),
    "listen": Known("127.0.0.1:7400", "HOST:PORT for clients and other peers"),
    "http": Known("127.0.0.1:7480", "HOST:PORT for HTTP, or `off`"),
    "http_hosts": Known(
        "",
        "comma-separated host names that HTTP answers to without credentials, besides localhost and IP addresses, "
        "or `any`",
    ),
    "taskstore": Known(None, "HOST:PORT of a second port, whose root is the task store API"),
    "taskstore_unit": Known("ms", "unit of times at the task store port: `ms` or `ns`"),
    "zone": Known("", "failure zone of the node"),
    "tags": Known("", "comma-separated tags of the peer, which jobs can require"),
    "spark": Known(None, "host Spark and run jobs", bool),
    "slots": Known(None, "number of job slots if the peer hosts Spark (default: one per core)", int),
    "spark_master": Known("local", "Spark's master: local, spark://HOST:PORT, yarn or k8s://..."),
    "spark_conf": Known(None, "file of settings of Spark itself, a NAME VALUE per line as in spark-defaults.conf"),
    "spark_warm": Known(None, "keep a Spark session open, so that jobs start faster", bool),
    "spark_quick_start": Known(None, "start Spark sooner, with simple compilation: for tests and short jobs", bool),
    "checkpoints": Known(None, "path or URI, reachable from all peers, for the state of jobs (windows, joins, frames)"),
    "session_timeout_ms": Known(
        DEFAULTS.session_timeout_ms, "time until ZooKeeper ends the session of a silent peer, in ms"
    ),
    "absent_after_ms": Known(
        DEFAULTS.absent_after_ms,
        "time until copies of an absent node are made elsewhere, in ms; fixed when the cluster is created",
    ),
    "yield_after_ms": Known(
        DEFAULTS.yield_after_ms,
        "time until a leader that cannot serve gives way to another, in ms; fixed when the cluster is created",
    ),
    "gc_records": Known(
        DEFAULTS.gc_records, "trim the log after this number of records; fixed when the cluster is created"
    ),
    "gc_bytes": Known(DEFAULTS.gc_bytes, "trim the log after this number of bytes; fixed when the cluster is created"),
    "purge_bucket_ms": Known(3_600_000, "span of task id times that is purged together, in ms"),
    "purge_margin_ms": Known(600_000, "age below which no task is purged and no new task id is refused, in ms"),
    "task_archive": Known(None, "directory for purged tasks, as Parquet files; for queues with archive=true"),
    "timer_targets": Known(
        "",
        "comma-separated targets that callbacks may reach: public, loopback, any, addresses, networks "
        "(default: public; also loopback, if the peer serves on loopback only and asks for no credentials)",
    ),
    "timer_timeout_ms": Known(10_000, "longest time for a receiver to answer a callback, in ms"),
    "log_format": Known("text", "form of the server log: `text` or `json`"),
    "log_level": Known("warning", "lowest level in the server log: `debug`, `info`, `warning` or `error`"),
    "sync_bytes_per_s": Known(64 << 20, "most bytes per second that are sent, and that are received, to make copies"),
}
"""Every setting. ``--data`` of ``onyxq dev`` has no default: it uses a directory that is deleted at the end."""


@frozen
class Setting:
    """A setting's value and its source."""

    name: str
    value: str | int | None
    source: str
    """``--flag``, ``ONYXQ_NAME``, the file's path, or ``default``."""

    @property
    def shown(self) -> Setting:
        """The setting without secrets."""
        if self.name in SECRET and self.value:
            return evolve(self, value=HIDDEN)
        return evolve(self, value=_PASSWORD.sub(HIDDEN, self.value)) if isinstance(self.value, str) else self


@frozen
class Config:
    """All sources of settings except the flags."""

    environment: Mapping[str, str]
    file: Mapping[str, Any]
    path: str
    """Path of the file that was read, or empty."""

    def setting(self, name: str, flag: str | int | None = None) -> Setting:
        """Return the setting from the first source that has it; raises `BadRequest`."""
        if flag is not None:
            return Setting(name, flag, "--" + name.replace("_", "-"))
        variable = f"ONYXQ_{name.upper()}"
        if self.environment.get(variable):
            return Setting(name, _typed(name, self.environment[variable], variable), variable)
        if name in self.file:
            return Setting(name, _typed(name, self.file[name], self.path), self.path)
        return Setting(name, SETTINGS[name].default, "default")

    def given(self, name: str, flag: str | int | None = None) -> str | int | None:
        """Return the setting's value, or None if only the default is left."""
        found = self.setting(name, flag)
        return None if found.source == "default" else found.value


def load(environment: Mapping[str, str], file: str | None = None) -> Config:
    """Read ``file``, else ``ONYXQ_CONFIG``, else ``onyxq.toml`` here if it exists.

    Raises `BadRequest` for a named file that is missing, TOML that is malformed, and
    settings that do not exist.
    """
    named = file or environment.get("ONYXQ_CONFIG")
    path = Path(named or FILE_NAME)
    if not named and not path.is_file():
        return Config(environment, {}, "")
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadRequest(f"{path}: {getattr(error, 'strerror', None) or error}", field="config") from None
    if any(name in content for name in PRIVATE):
        check_private(str(path), field="config")
    for name, value in content.items():
        if isinstance(value, dict):
            problem = f"{path}: [{name}] is a table, and settings are not in tables"
            raise BadRequest(problem, field=name, hint=f"Write the settings at the top of the file, without [{name}].")
        if name not in SETTINGS:
            raise BadRequest(f"{path}: there is no setting {name!r}{did_you_mean(name, SETTINGS)}", field=name)
    return Config(environment, content, str(path))


def misspelt(environment: Mapping[str, str]) -> list[str]:
    """Return a warning for each variable whose name is close to that of a setting; its value is not used."""
    start = "ONYXQ_"
    known = [name.upper() for name in (*SETTINGS, "config")]
    words = [name.removeprefix(start) for name in sorted(environment) if name.startswith(start)]
    meant = {word: did_you_mean(word, known, start) for word in words if word not in known}
    return [f"{start}{word} is not a setting{said}" for word, said in meant.items() if said]


def did_you_mean(word: str, known: Mapping[str, Any] | list[str], start: str = "") -> str:
    """Return ``; did you mean ...?`` if something known is close to ``word``, else an empty text.

    ``start``: what all known names begin with, which ``word`` and ``known`` lack.
    """
    import difflib  # only needed for an error message

    close = difflib.get_close_matches(word, list(known), n=2, cutoff=0.65)
    return f"; did you mean {' or '.join(start + one for one in close)}?" if close else ""


def _typed(name: str, value: Any, source: str) -> str | int:
    kind = SETTINGS[name].kind
    if kind is bool:
        return _switch(name, value, source)
    if kind is int and isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            raise BadRequest(f"{source}: {name} must be a number, not {value!r}", field=name) from None
    if type(value) is not kind:
        shown = "" if name in SECRET else f", not {value!r}"
        raise BadRequest(f"{source}: {name} must be a {'number' if kind is int else 'string'}{shown}", field=name)
    return int(value) if kind is int else str(value)


def _switch(name: str, value: Any, source: str) -> bool:
    if isinstance(value, bool):
        return value
    word = str(value).strip().lower()
    if not isinstance(value, str) or word not in (*_ON, *_OFF):
        raise BadRequest(f"{source}: {name} must be true or false, not {value!r}", field=name)
    return word in _ON
