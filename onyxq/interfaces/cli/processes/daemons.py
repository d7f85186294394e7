"""Commands that run until a signal stops them: ``peer start``, ``zookeeper start``; the base of ``dev``.

The first SIGTERM or SIGINT stops the command in good order, the second one at once.  At SIGHUP, a peer reads
its tokens and certificates again.
"""

from __future__ import annotations

import gc
import os
import re
import secrets
import signal
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve

from onyxq.access.credential_files import check_private, load_access
from onyxq.access.grants import Access
from onyxq.access.renewal import Renewal
from onyxq.core.errors import BadRequest, first_cause
from onyxq.interfaces.cli import logs
from onyxq.interfaces.cli.context import Context
from onyxq.interfaces.cli.processes.supervisor import READY, STOPPING, Supervisor
from onyxq.wire.tcp import split_address

if TYPE_CHECKING:
    import trio

    from onyxq.interfaces.daemon import PeerAddresses

OFF = "off"
PEERS_MAX = 16
"""Most peers in one process."""
COLLECT_AFTER_OBJECTS = 5_000
"""Number of new objects after which the cyclic collector looks at them."""
SECRET_SETTING = re.compile(r"(?i)secret|password|token|access[.]?key")
"""Names of Spark settings that hold secrets; the same that Spark hides (``spark.redaction.regex``)."""
SPARK_SETTING = re.compile(r"(spark\.[^\s=]+)[\s=]+(.+)")


def peer_start(context: Context) -> None:
    """Run one peer."""
    from onyxq.interfaces.daemon import run_peer
    from onyxq.interfaces.peer_config import PeerConfig

    config = PeerConfig(
        cluster=context.text("cluster"),
        zookeeper=context.text("zookeeper") or None,
        zookeeper_credentials=context.zookeeper_credentials(),
        data=context.text("data"),
        listen=address_of(context, "listen"),
        http=http_of(context),
        zone=context.text("zone"),
        **taskstore_of(context),
        **spark_of(context),
        session_timeout_ms=context.number("session_timeout_ms"),
        absent_after_ms=context.number("absent_after_ms"),
        yield_after_ms=context.number("yield_after_ms"),
        gc_records=context.number("gc_records"),
        gc_bytes=context.number("gc_bytes"),
        sync_bytes_per_s=context.number("sync_bytes_per_s"),
        purge_bucket_ms=context.number("purge_bucket_ms"),
        purge_margin_ms=context.number("purge_margin_ms"),
        **archives_of(context),
        access=access_of(context, alone=not context.text("zookeeper")),
        allow_anyone=context.switched_on("allow_anyone"),
        http_hosts=context.text("http_hosts"),
        certificates=context.certificates(),
        **timers_of(context),
        given=context.settings(),
    )
    if config.zookeeper is None:
        config = evolve(config, replicas=1)  # no other peer can join the embedded log

    check_spark(context)

    def ready(peer: PeerAddresses) -> None:
        context.out.line(shown(peer), f"ready {words(peer)}")
        supervisor.tell(READY, f"STATUS={words(peer)}")

    supervisor = Supervisor.of(os.environ)
    renewal = Renewal(lambda: _load_access(context))
    run_until_stopped(
        context, lambda stop: run_peer(config, ready=ready, stop=stop, renewal=renewal), renew=renewal.now
    )


def access_of(context: Context, *, alone: bool) -> Access:
    """Return the credentials to ask for; ``alone``: the cluster has only this process. Raises `BadRequest`."""
    if context.switched_on("spark"):
        os.environ |= context.certificates().to_environment()
    access = _load_access(context)
    if access and context.switched_on("spark"):
        if not context.text("token"):
            raise BadRequest(
                "jobs need a token to read and write queues",
                field="token",
                hint="Set ONYXQ_TOKEN to a token with the roles produce, consume and read on every queue.",
            )
        os.environ["ONYXQ_TOKEN"] = context.text("token")  # for the Spark host, which is another process
    if not access or access.peer_secret:
        return access
    if not alone:
        raise BadRequest(
            "there are tokens but no peer_secret: any client could pose as a peer",
            field="peer_secret",
            hint="Give all peers the same secret, in their access files or as ONYXQ_PEER_SECRET.",
        )
    return evolve(access, peer_secret=secrets.token_hex(32))


def _load_access(context: Context) -> Access:
    return load_access(context.text("access"), tokens=context.text("tokens"), peer_secret=context.text("peer_secret"))


def http_of(context: Context) -> str | None:
    """Return the address for HTTP, or None if it is off; raises `BadRequest`."""
    return None if context.text("http") in ("", OFF) else address_of(context, "http")


def archives_of(context: Context) -> dict[str, Any]:
    """Return the settings of `PeerConfig` about archives."""
    return {name: context.text(name) or None for name in ("archive", "record_archive", "task_archive")}


def taskstore_of(context: Context) -> dict[str, Any]:
    """Return the settings of `PeerConfig` about the port of the task store."""
    given = context.text("taskstore")
    return {
        "taskstore": address_of(context, "taskstore") if given not in ("", OFF) else None,
        "taskstore_unit": context.text("taskstore_unit"),
    }


def timers_of(context: Context) -> dict[str, Any]:
    """Return the settings of `PeerConfig` about callbacks."""
    names = ("timer_targets", "timer_timeout_ms")
    return {names[0]: context.text(names[0]), names[1]: context.number(names[1])}


def spark_of(context: Context) -> dict[str, Any]:
    """Return the settings of `PeerConfig` about jobs."""
    spark = context.switched_on("spark")
    given = context.given("slots")
    return {
        "spark": spark,
        "slots": int(given) if given is not None else (cores() if spark else 0),
        "tags": _names(context.text("tags")),
        "spark_master": context.text("spark_master"),
        "spark_conf": (site_settings() if spark else {}) | spark_conf(context.text("spark_conf")),
        "spark_warm": context.switched_on("spark_warm"),
        "spark_quick_start": context.switched_on("spark_quick_start"),
        "checkpoints": context.text("checkpoints") or None,
        "allow_pickled": context.switched_on("allow_pickled"),
        "job_modules": _names(context.text("job_modules")),
    }


def _names(said: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in said.split(",") if word.strip())


def spark_defaults(environment: Mapping[str, str] = os.environ) -> str:
    """Return the path of the file of defaults where Spark's own programs look for it; empty if there is none."""
    home = environment.get("SPARK_HOME")
    folder = environment.get("SPARK_CONF_DIR") or (home and os.path.join(home, "conf"))
    path = Path(folder or os.devnull) / "spark-defaults.conf"
    return str(path) if path.is_file() else ""


def site_settings() -> dict[str, str]:
    """Return the settings in the site's file of defaults, without those on which OnyxQ depends.

    As in Spark, lines that are no settings of Spark have no effect.
    """
    from onyxq.spark.session import is_ours

    path = spark_defaults()
    found = [setting for _, setting in _lines(path) if setting is not None] if path else []
    return {setting[1]: setting[2] for setting in found if not is_ours(setting[1])}


def spark_conf(path: str) -> dict[str, str]:
    """Return the settings of Spark in a file; raises `BadRequest` if it cannot be read."""
    found = {}
    for number, setting in _lines(path) if path else ():
        if setting is None:
            raise BadRequest(
                f"{path}, line {number} is not a setting of Spark",
                field="spark_conf",
                hint="Write a name that begins with spark., a space, and a value: spark.driver.memory 2g",
            )
        found[setting[1]] = setting[2]
    if any(SECRET_SETTING.search(name) for name in found):
        check_private(path, field="spark_conf")
    return found


def _lines(path: str) -> Iterator[tuple[int, re.Match[str] | None]]:
    """Yield the number of each line that is neither empty nor a comment, and the setting in it."""
    try:
        lines = Path(path).read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"{path}: {getattr(error, 'strerror', None) or error}", field="spark_conf") from None
    for number, line in enumerate(map(str.strip, lines), start=1):
        if line and not line.startswith("#"):
            yield number, SPARK_SETTING.fullmatch(line)


def cores() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_spark(context: Context) -> None:
    """Raise `Incomplete` if Spark cannot be hosted, and `BadRequest` if hosting it would be unsafe."""
    if context.switched_on("spark"):
        if not _load_access(context) and not context.switched_on("allow_local_code"):
            raise BadRequest(
                "without tokens, every user of this machine could run code as you in a job",
                field="spark",
                hint="Configure tokens with --access FILE, or allow it with --allow-local-code.",
            )
        from onyxq.node.jobs.host_process import check_installed

        check_installed()
    elif context.given("slots") not in (None, "0"):
        context.out.note("slots has no effect without --spark: this peer runs no jobs")


def zookeeper_start(context: Context) -> None:
    """Run one ZooKeeper server, or an ensemble."""
    import tempfile
    from contextlib import ExitStack

    from onyxq.log.zookeeper_server import ZookeeperServer

    args = context.args
    with ExitStack() as stack:
        data = args.data or stack.enter_context(tempfile.TemporaryDirectory(prefix="onyxq-zookeeper-"))

        async def serve(stop: trio.Event) -> None:
            async with ZookeeperServer(data, servers=args.servers, port=args.port) as server:
                context.out.line({"ready": True, "zookeeper": server.hosts}, f"ready {server.hosts}")
                await stop.wait()

        run_until_stopped(context, serve)


def run_until_stopped(
    context: Context,
    serve: Callable[[trio.Event], Awaitable[Any]],
    *,
    renew: Callable[[], None] | None = None,
    at_once: Callable[[], None] | None = None,
) -> None:
    """Run ``serve`` until it returns.

    The first signal sets its event, and SIGHUP calls ``renew``. The second one calls ``at_once`` and ends the process.
    """
    import trio

    async def stop_at_signal(stop: trio.Event) -> None:
        hangup = () if renew is None else (signal.SIGHUP,)
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, *hangup) as signals:
            async for number in signals:
                if renew is not None and number == signal.SIGHUP:
                    renew()
                    continue
                if stop.is_set():
                    if at_once is not None:
                        at_once()
                    os._exit(128 + number)
                context.out.note("stopping; a second signal stops at once")
                supervisor.tell(STOPPING)
                stop.set()

    async def both() -> None:
        stop = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(stop_at_signal, stop)
            nursery.start_soon(supervisor.keep_telling)
            await serve(stop)
            nursery.cancel_scope.cancel()

    supervisor = Supervisor.of(os.environ)
    logs.set_up(context)
    spare_collections()
    run_in_trio(both)


def spare_collections() -> None:
    """Let the cyclic collector look rarely at old objects, and never at those of the start.

    Requests allocate much but leave almost no cycles.  With the defaults, a loaded daemon spends a tenth
    of its time on the same live objects.  It still looks often at new objects, because the process stops
    for each look, and longer if there are more of them.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER_OBJECTS, 5, 1_000)


def run_in_trio(body: Callable[[], Awaitable[None]]) -> None:
    """Run a function in trio; raise the first cause if several tasks failed."""
    import trio

    try:
        trio.run(body)
    except BaseExceptionGroup as group:
        raise first_cause(group) from group


def address_of(context: Context, name: str) -> str:
    """Return a ``HOST:PORT`` setting; raises `BadRequest`."""
    value = context.text(name)
    split_address(value, field=name)
    return value


def shown(peer: PeerAddresses) -> dict[str, Any]:
    """Return the ready document of a peer."""
    shown = {"ready": True, "peer": peer.peer, "node": peer.node, "listen": peer.address, "http": peer.http}
    return {**shown, "taskstore": peer.taskstore} if peer.taskstore else shown


def words(peer: PeerAddresses) -> str:
    """Return the ready line of a peer, without its first word."""
    words = f"peer={peer.peer} node={peer.node} listen={peer.address} http={peer.http or OFF}"
    return f"{words} taskstore={peer.taskstore}" if peer.taskstore else words
