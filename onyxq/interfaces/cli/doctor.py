"""``onyxq doctor``: checks of this machine, of ZooKeeper, and of the cluster that the settings name.

A check changes nothing, does not wait long, and returns findings.  A finding is ``failed`` if a peer could not
work; then the exit code is 1.  It is ``warning`` if only some functions are affected, or trouble may come.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from attrs import asdict, frozen

from onyxq import __version__
from onyxq.client import Client
from onyxq.core.errors import BadRequest, Incomplete, OnyxqError
from onyxq.interfaces.cli.context import Context
from onyxq.wire.tcp import split_address

OK, WARNING, FAILED = "ok", "warning", "failed"
CONNECT_TIMEOUT_S = 2.0
ASK_TIMEOUT_MS = 5_000
JAVA_TIMEOUT_S = 20
JAVA_MIN = 17

ZOOKEEPER_MIN = (3, 6)
FREE_WARNING, FREE_FAILED = 0.15, 0.05
"""Free share of the disk below which the check warns or fails."""
SYNC_WARNING_MS = 100
SKEW_WARNING_MS, SKEW_FAILED_MS = 1_000, 5_000
"""Difference between two clocks above which the check warns or fails."""


@frozen
class Finding:
    """Result of one check: what was looked at, state, what was found, and what to do."""

    check: str
    state: str
    found: str
    hint: str = ""


Check: TypeAlias = Callable[[Context], Iterator[Finding]]


def doctor(context: Context) -> int:
    """Run all checks; return 1 if one failed."""
    findings = [finding for check in CHECKS for finding in check(context)]
    ok = not any(one.state == FAILED for one in findings)
    rows = [asdict(one) for one in findings]
    context.out.table({"ok": ok, "checks": rows}, rows, ("check", "state", "found", "hint"))
    return 0 if ok else 1


# --- this machine -------------------------------------------------------------


def versions(context: Context) -> Iterator[Finding]:
    """Report the versions of Python and OnyxQ. Older versions of Python could not run this."""
    yield Finding("versions", OK, f"OnyxQ {__version__}, Python {platform.python_version()}, {sys.platform}")


def java(context: Context) -> Iterator[Finding]:
    """Check the Java runtime, which ``onyxq zookeeper start`` and Spark need."""
    from onyxq.system.java import find_java

    needed = FAILED if context.switched_on("spark") else WARNING
    try:
        said = subprocess.run(
            [find_java(), "-version"], check=False, capture_output=True, text=True, timeout=JAVA_TIMEOUT_S
        )
    except (Incomplete, OSError, subprocess.TimeoutExpired) as error:
        yield Finding("java", needed, str(error), "Install Java if you use onyxq zookeeper start or Spark.")
        return
    found = re.search(r'version "(?:1\.)?(\d+)[^"]*"', said.stderr)
    if found is None:
        yield Finding("java", needed, f"java -version printed {said.stderr.strip()[:100]!r}", "Install a Java runtime.")
    elif int(found[1]) < JAVA_MIN:
        yield Finding("java", needed, f"version {found[1]}", f"Spark needs Java {JAVA_MIN} or newer.")
    else:
        yield Finding("java", OK, f"version {found[1]}")


def disk(context: Context) -> Iterator[Finding]:
    """Check the free space for the data directory, and how long the disk takes to sync."""
    data = Path(context.text("data")).absolute()
    there = next(place for place in (data, *data.parents) if place.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        yield Finding("disk", FAILED, f"{there} cannot be written", "Give --data a directory that this user can write.")
        return
    usage = shutil.disk_usage(there)
    free = usage.free / usage.total
    state = FAILED if free < FREE_FAILED else WARNING if free < FREE_WARNING else OK
    hint = "" if state == OK else "Free some space: a peer with a full disk gives up its partitions."
    yield Finding("disk", state, f"{usage.free >> 20} MiB free ({free:.0%}) at {there}", hint)
    took_ms = _sync_ms(there)
    slow = took_ms > SYNC_WARNING_MS
    hint = "Use a faster disk: every write waits for a sync." if slow else ""
    yield Finding("disk sync", WARNING if slow else OK, f"{took_ms:.1f} ms", hint)


def _sync_ms(directory: Path) -> float:
    """Return the shortest of three syncs of a small file, in milliseconds."""
    took = []
    with tempfile.TemporaryFile(dir=directory) as file:
        for _ in range(3):
            file.write(bytes(4_096))
            file.flush()
            begun = time.perf_counter()
            os.fsync(file.fileno())
            took.append((time.perf_counter() - begun) * 1_000)
    return min(took)


def ports(context: Context) -> Iterator[Finding]:
    """Check whether a peer could listen on the addresses in the settings."""
    for name in ("listen", "http"):
        address = context.text(name)
        if name == "http" and address in ("", "off"):
            continue
        split = _split(address)
        if split is None:
            yield Finding(name, FAILED, f"{address!r} is not HOST:PORT", f"Write --{name} as HOST:PORT.")
            continue
        try:
            with socket.create_server(split):
                yield Finding(name, OK, f"{address} is free")
        except OSError as error:
            if split[1] and _answers(split):
                yield Finding(name, WARNING, f"{address} is in use", "This is right if a peer runs on this machine.")
            else:
                yield Finding(
                    name, FAILED, f"{address}: {error.strerror}", "Choose an address of this machine and a free port."
                )


def credentials(context: Context) -> Iterator[Finding]:
    """Check whether a peer would start with these tokens on these addresses."""
    from onyxq.access.credential_files import load_access
    from onyxq.access.loopback import check_listening

    try:
        access = load_access(
            context.text("access"), tokens=context.text("tokens"), peer_secret=context.text("peer_secret")
        )
        for name in ("listen", "http"):
            if _split(context.text(name)) is not None:
                anyone = context.switched_on("allow_anyone")
                check_listening(context.text(name), field=name, asks=bool(access), allow_anyone=anyone)
    except OnyxqError as error:
        yield Finding("credentials", FAILED, error.message, error.advice)
        return
    if access and context.text("zookeeper") and not context.text("zookeeper_auth"):
        exposed = "every user who can write to ZooKeeper can get the secret of the peers"
        yield Finding("credentials", WARNING, exposed, "Set zookeeper_auth, then run: onyxq cluster protect NAME.")
    elif access:
        yield Finding("credentials", OK, f"{len(access.tokens)} tokens are configured")
    elif context.switched_on("allow_anyone"):
        yield Finding(
            "credentials",
            WARNING,
            "every client that reaches a port may do everything",
            "Configure tokens with --access FILE.",
        )
    else:
        yield Finding("credentials", OK, "none are asked for, on loopback only")


def _split(address: str) -> tuple[str, int] | None:
    try:
        return split_address(address)
    except BadRequest:
        return None


def _answers(address: tuple[str, int]) -> bool:
    with suppress(OSError, UnicodeError), socket.create_connection(address, CONNECT_TIMEOUT_S):
        return True
    return False


# --- ZooKeeper ----------------------------------------------------------------


def zookeeper(context: Context) -> Iterator[Finding]:
    """Check each ZooKeeper server in the setting: whether it answers, its version and its role."""
    hosts = context.text("zookeeper")
    if not hosts:
        yield Finding("zookeeper", OK, "not set: the log is embedded, for one process only")
        return
    roles = []
    for address in hosts.partition("/")[0].split(","):
        split = _split(address.strip())
        if split is None:
            yield Finding(
                "zookeeper", FAILED, f"{address!r} is not HOST:PORT", "Write --zookeeper as HOST:PORT,HOST:PORT."
            )
            continue
        finding, role = _server(context, address.strip(), split)
        roles.append(role)
        yield finding
    if len(roles) > 1 and roles.count("follower") + roles.count("leader") <= len(roles) // 2:
        yield Finding(
            "zookeeper quorum",
            FAILED,
            "most servers do not serve clients",
            "Start a majority of them: claims wait until then.",
        )


def _server(context: Context, address: str, split: tuple[str, int]) -> tuple[Finding, str]:
    """Return the finding and role of a server from ``srvr``, the only four-letter command enabled by default."""
    try:
        with _connected(context, split) as connection:
            connection.settimeout(CONNECT_TIMEOUT_S)
            connection.sendall(b"srvr")
            said = b"".join(iter(lambda: connection.recv(4_096), b"")).decode("utf-8", "replace")
    except OSError as error:
        return Finding(
            "zookeeper", FAILED, f"{address}: {error.strerror or error}", "Start the server, or correct its address."
        ), ""
    version, mode = re.search(r"version: (\d+)\.(\d+)", said), re.search(r"Mode: (\w+)", said)
    role = mode[1] if mode else ""
    if version is None:
        what = said.strip()[:80] or "the server answers without its version"
        return Finding(
            "zookeeper", WARNING, f"{address}: {what}", "Enable the command srvr, or read its server log."
        ), role
    found = f"{address}: version {version[1]}.{version[2]}, {role or 'not serving'}"
    if (int(version[1]), int(version[2])) < ZOOKEEPER_MIN:
        return Finding("zookeeper", FAILED, found, "Upgrade it: OnyxQ needs 3.6 or newer."), role
    return Finding("zookeeper", OK if role else FAILED, found), role


def _connected(context: Context, address: tuple[str, int]) -> socket.socket:
    """Connect to a server, with TLS if the settings say so; raises `OSError`."""
    plain = socket.create_connection(address, CONNECT_TIMEOUT_S)
    if not context.text("zookeeper_ca"):
        return plain
    try:
        tls = ssl.create_default_context(cafile=context.text("zookeeper_ca"))
        if context.text("zookeeper_cert"):
            tls.load_cert_chain(context.text("zookeeper_cert"), context.text("zookeeper_key") or None)
        return tls.wrap_socket(plain, server_hostname=address[0])
    except BaseException:
        plain.close()
        raise


# --- the cluster --------------------------------------------------------------


def cluster(context: Context) -> Iterator[Finding]:
    """Check the cluster that ``--connect`` names, and each peer: whether it serves, its version, its clock."""
    address = context.text("connect")
    if not any(_answers(split) for one in address.split(",") if (split := _split(one.strip()))):
        state = WARNING if context.given("connect") is None else FAILED
        yield Finding("cluster", state, f"no peer at {address}", "Start a peer, or name another one with --connect.")
        return
    try:
        with _client(context, address) as client:
            asked = time.time()
            now_ms = client.call("routes", {})["now_ms"]
            mine_ms = (asked + time.time()) * 500
            about, peers = client.call("cluster", {}), client.call("peers", {})["peers"]
    except OnyxqError as error:
        yield Finding("cluster", FAILED, f"{address}: {error.message}", error.advice)
        return
    yield _health(about)
    yield _clock("clock here", abs(now_ms - mine_ms))
    found = {__version__}
    for peer in peers:
        version, finding = _peer(context, peer)
        found |= {version} - {""}
        yield finding
        yield _clock(f"clock of {peer['peer']}", abs(peer["clock_skew_ms"] or 0))
    if len(found) > 1:
        said = f"peers run {', '.join(sorted(found))}"
        yield Finding(
            "versions of the cluster", WARNING, said, "Finish the upgrade, so that all peers have one version."
        )


def _client(context: Context, address: str) -> Client:
    token = context.text("token") or None
    return Client(address, token=token, timeout_ms=ASK_TIMEOUT_MS, tls=context.certificates())


def _health(about: dict[str, Any]) -> Finding:
    found = f"{about['name']}: {about['peers']} peers, {about['settings']['partitions']} partitions"
    for count, state, what in (
        (about["not_ready"], FAILED, "partitions are not served"),
        (about["under_replicated"], WARNING, "partitions have too few copies"),
    ):
        if count:
            return Finding("cluster", state, f"{found}; {count} {what}", "Find them with: onyxq partition list.")
    return Finding("cluster", OK, found)


def _clock(check: str, skew_ms: float) -> Finding:
    state = FAILED if skew_ms > SKEW_FAILED_MS else WARNING if skew_ms > SKEW_WARNING_MS else OK
    return Finding(check, state, f"{skew_ms:.0f} ms off", "" if state == OK else "Synchronize the clocks with NTP.")


def _peer(context: Context, peer: dict[str, Any]) -> tuple[str, Finding]:
    """Return the version of a peer, and whether it serves."""
    check, address = f"peer {peer['peer']}", peer["address"]
    split = _split(address)
    if split is None or not _answers(split):
        return "", Finding(
            check, FAILED, f"nothing answers at {address}", "Check that the peer runs, and the network to it."
        )
    try:
        with _client(context, address) as client:
            health, metrics = client.call("health", {}), client.call("metrics", {})["text"]
    except OnyxqError as error:
        return "", Finding(check, FAILED, f"{address}: {error.message}", error.advice)
    said = re.search(r'onyxq_build_info\{version="([^"]+)"\} 1', metrics)
    version = said[1] if said else ""
    if not health["ready"]:
        return version, Finding(
            check, FAILED, f"{address}: {'; '.join(health['reasons'])}", "Read the server log of this peer."
        )
    return version, Finding(check, OK, f"{address}: version {version}, {health['log_lag']} records behind the log")


CHECKS: tuple[Check, ...] = (versions, java, disk, ports, credentials, zookeeper, cluster)
