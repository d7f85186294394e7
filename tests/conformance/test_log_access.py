"""Access to the znodes of a cluster: with a credential only its own sessions have it, over TLS and SASL too."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trustme
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from kazoo.exceptions import NoAuthError, NotEmptyError
from kazoo.security import OPEN_ACL_UNSAFE

from onyxq.access.credentials import ANONYMOUS, ZookeeperCredentials
from onyxq.core.log.interface import AppendUnknown, Record
from onyxq.errors import BadRequest, Forbidden, LogUnavailable
from onyxq.log.zookeeper import ZookeeperBackend, ZookeeperSession
from onyxq.log.zookeeper_pulses import addresses
from onyxq.log.zookeeper_server import ZookeeperServer, free_port
from tests.conformance.log_world import SESSION_TIMEOUT_MS, bounded, intruder, killed

pytestmark = pytest.mark.anyio

DIGEST = ZookeeperCredentials(auth="digest:onyxq:a password: with colons")
SEGMENT_RECORDS = 5
JAAS = 'Server { org.apache.zookeeper.server.auth.DigestLoginModule required user_onyxq="sasl password"; };'
BURST, BURST_BYTES = 100, 30_000


@asynccontextmanager
async def session_of(
    hosts: str, cluster: str, credentials: ZookeeperCredentials, *, open_timeout_s: float = 60.0
) -> AsyncIterator[ZookeeperSession]:
    """Open a session with a credential, with segments of a few records."""
    backend = ZookeeperBackend(
        hosts,
        cluster,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        open_timeout_s=open_timeout_s,
        segment_records=SEGMENT_RECORDS,
        credentials=credentials,
    )
    session = await backend.session()
    try:
        yield session
    finally:
        with trio.CancelScope(shield=True):
            await session.aclose()


async def all_kinds(session: ZookeeperSession) -> None:
    """Make a znode of every kind: records, another segment, origins with their pointer, a pulse."""
    for number in range(SEGMENT_RECORDS):
        await session.append(b"%d" % number)
    assert await session.rotate()
    position = await session.append(b"in the next segment")
    assert await session.store_origin(3, b"an origin", expected_version=-1)
    await session.set_pulse("peer", b"127.0.0.1:1")
    record = await session.read(position)
    assert isinstance(record, Record) and record.data == b"in the next segment"


async def tree(session: ZookeeperSession, root: str) -> list[str]:
    """Return every znode below a root."""
    found = [root]
    for path in found:
        children = await session._link.call(lambda client, path=path: client.get_children_async(path))
        found += [f"{path}/{child}" for child in children]
    return found


def check_refused(client: Any, paths: list[str]) -> None:
    """Check that this client can neither read nor write there."""
    for path in paths:
        for attempt in (
            lambda path=path: client.get(path),
            lambda path=path: client.get_children(path),
            lambda path=path: client.set(path, b"x"),
            lambda path=path: client.create(f"{path}/x", b"x"),
            lambda path=path: client.set_acls(path, OPEN_ACL_UNSAFE),
        ):
            with pytest.raises(NoAuthError):
                attempt()
        with pytest.raises((NoAuthError, NotEmptyError)):
            client.delete(path)


async def refused_to(hosts: str, paths: list[str]) -> None:
    """Check that no client without the credential, or with another, can read or write."""

    def check() -> None:
        with intruder(hosts) as client:
            check_refused(client, paths)
            client.add_auth("digest", "onyxq:another password")
            check_refused(client, paths)

    await trio.to_thread.run_sync(check)


@pytest.mark.long
@bounded
async def test_nobody_else_reads_or_writes_any_znode(zookeeper: ZookeeperServer) -> None:
    """This holds for every kind of znode below the root; the records are all readable afterwards."""
    async with session_of(zookeeper.hosts, "digested", DIGEST) as session:
        await all_kinds(session)
        paths = await tree(session, "/onyxq/digested")
        kinds = {path.split("/")[3] for path in paths if path.count("/") > 3}
        assert kinds == {"log", "pulse", "origin"} and len(paths) > 12
        await refused_to(zookeeper.hosts, paths)
        assert await tree(session, "/onyxq/digested") == paths
        found = await trio.to_thread.run_sync(addresses, zookeeper.hosts, "digested", DIGEST)
        assert found == ["127.0.0.1:1"]
        for other in (ANONYMOUS, ZookeeperCredentials(auth="digest:onyxq:wrong")):
            with pytest.raises(Forbidden):
                await trio.to_thread.run_sync(addresses, zookeeper.hosts, "digested", other)


@bounded
@pytest.mark.parametrize("credentials", [ANONYMOUS, ZookeeperCredentials(auth="digest:onyxq:wrong")])
async def test_a_session_with_another_credential_is_told_so(
    zookeeper: ZookeeperServer, credentials: ZookeeperCredentials
) -> None:
    """It fails at its start with the name of the setting, without the password."""
    async with session_of(zookeeper.hosts, "ours", DIGEST):
        with pytest.raises(BadRequest) as raised:
            async with session_of(zookeeper.hosts, "ours", credentials):
                pytest.fail("it was let in")
    assert raised.value.field == "zookeeper_auth" and "wrong" not in raised.value.message


@bounded
async def test_clusters_of_several_credentials_live_side_by_side(zookeeper: ZookeeperServer) -> None:
    """Each has its own znodes; a cluster without a credential is open to all, as before."""
    async with (
        session_of(zookeeper.hosts, "first", DIGEST) as first,
        session_of(zookeeper.hosts, "second", ZookeeperCredentials(auth="digest:b:c")) as second,
        session_of(zookeeper.hosts, "third", ANONYMOUS) as third,
    ):
        for session in (first, second, third):
            assert await session.append(b"x") == 0


@pytest.mark.long
@bounded
async def test_the_credential_is_shown_again_behind_a_broken_connection(zookeeper: ZookeeperServer) -> None:
    """No request is sent before it: no record is refused meanwhile."""
    async with session_of(zookeeper.hosts, "again", DIGEST) as session, trio.open_nursery() as nursery:
        with killed(zookeeper):
            nursery.start_soon(appended, session, 8)
    async with session_of(zookeeper.hosts, "again", DIGEST) as session:
        assert (await session.tail()) >= 7


async def appended(session: ZookeeperSession, count: int) -> None:
    """Append until that many records are known to be in the log."""
    while count:
        try:
            await session.append(b"x")
        except AppendUnknown:
            continue
        count -= 1


@bounded
async def test_a_cluster_that_was_everybodys_is_protected(zookeeper: ZookeeperServer) -> None:
    """It cannot be used with a credential until it is protected; then all its znodes belong to the credential."""
    async with session_of(zookeeper.hosts, "open", ANONYMOUS) as session:
        await all_kinds(session)
        paths = await tree(session, "/onyxq/open")
    with pytest.raises(BadRequest, match="belong"):
        async with session_of(zookeeper.hosts, "open", DIGEST):
            pytest.fail("half of it would be everybody's")
    assert await ZookeeperBackend(zookeeper.hosts, "open", credentials=DIGEST).protect() >= len(paths) - 1
    async with session_of(zookeeper.hosts, "open", DIGEST) as session:
        record = await session.read(0)
        assert isinstance(record, Record) and record.data == b"0"
        await refused_to(zookeeper.hosts, await tree(session, "/onyxq/open"))


@pytest.mark.parametrize("auth", ["onyxq", "digest:onyxq", "digest::secret", "plain:onyxq:secret", "sasl:onyxq:"])
def test_what_is_no_credential_is_refused(auth: str) -> None:
    """The error does not repeat it."""
    with pytest.raises(BadRequest) as raised:
        ZookeeperBackend("127.0.0.1:1", "main", credentials=ZookeeperCredentials(auth=auth))
    assert raised.value.field == "zookeeper_auth" and auth not in raised.value.message
    assert "password" not in repr(DIGEST)


# --- TLS and SASL


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Path]]:
    """Run a server with TLS and SASL; return its secure and plain address, and certificates."""
    home = tmp_path_factory.mktemp("secured")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(home / "ca.pem"))
    for name, identity in (("server", "127.0.0.1"), ("client", "peer.example")):
        issued = authority.issue_cert(identity)
        key = load_pem_private_key(issued.private_key_pem.bytes(), None)
        pkcs8 = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())  # the form that Java can read
        chain = b"".join(part.bytes() for part in issued.cert_chain_pems)
        (home / f"{name}.pem").write_bytes(pkcs8 + chain)
    (home / "jaas.conf").write_text(JAAS)
    port = free_port()
    settings = [
        f"secureClientPort={port}",
        "secureClientPortAddress=127.0.0.1",
        "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
        "authProvider.1=org.apache.zookeeper.server.auth.SASLAuthenticationProvider",
        f"ssl.keyStore.location={home / 'server.pem'}",
        "ssl.keyStore.type=PEM",
        f"ssl.trustStore.location={home / 'ca.pem'}",
        "ssl.trustStore.type=PEM",
        "ssl.clientAuth=need",
    ]
    java = [f"-Djava.security.auth.login.config={home / 'jaas.conf'}"]
    with ZookeeperServer(home / "data", java=java, settings=settings) as server:
        yield f"127.0.0.1:{port}", server.hosts, home


def over_tls(home: Path, auth: str = "") -> ZookeeperCredentials:
    """Return credentials with a certificate that the server knows."""
    pair = str(home / "client.pem")
    return ZookeeperCredentials(auth=auth, ca=str(home / "ca.pem"), cert=pair, key=pair)


@bounded
@pytest.mark.parametrize("auth", ["sasl:onyxq:sasl password", "digest:onyxq:a password", ""])
async def test_a_cluster_lives_on_tls(secured: tuple[str, str, Path], auth: str) -> None:
    """Records are read as written, many at a time; other clients are refused."""
    hosts, plain, home = secured
    cluster = f"tls-{auth.partition(':')[0]}"
    async with session_of(hosts, cluster, over_tls(home, auth)) as session:
        await all_kinds(session)
        sent: dict[int, bytes] = {}

        async def append(number: int) -> None:
            data = bytes([number]) * BURST_BYTES
            sent[await session.append(data)] = data

        async with trio.open_nursery() as nursery:
            for number in range(BURST):
                nursery.start_soon(append, number)
        for position, data in sent.items():
            record = await session.read(position)
            assert isinstance(record, Record) and record.data == data
        if auth:
            await refused_to(plain, await tree(session, f"/onyxq/{cluster}"))


@pytest.mark.long
@bounded
async def test_a_server_that_is_not_known_is_not_talked_to(secured: tuple[str, str, Path], tmp_path: Path) -> None:
    """Its certificate has another authority: the client sends it nothing."""
    hosts, _, home = secured
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    pair = str(home / "client.pem")
    stranger = ZookeeperCredentials(ca=str(other), cert=pair, key=pair)
    with pytest.raises(LogUnavailable):
        async with session_of(hosts, "stranger", stranger, open_timeout_s=2.0):
            pytest.fail("it was trusted")


@pytest.mark.long
@bounded
async def test_a_wrong_sasl_password_gets_nothing(secured: tuple[str, str, Path]) -> None:
    """The server refuses before any request."""
    hosts, _, home = secured
    with pytest.raises((LogUnavailable, BadRequest)):
        async with session_of(hosts, "wrong", over_tls(home, "sasl:onyxq:no"), open_timeout_s=2.0):
            pytest.fail("it was let in")
