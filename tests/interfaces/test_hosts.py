"""The host names at which HTTP answers: pages of rebound names get nothing, programs are not affected."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest

from onyxq.access.host_names import EVERY, Hosts, hosts
from onyxq.errors import BadRequest, Misdirected
from onyxq.interfaces.cli.main import run
from onyxq.interfaces.http.app import create_app
from onyxq.interfaces.local_cluster import LocalCluster
from tests.interfaces.http_world import FakeService, access_of, check_problem, on_trio
from tests.interfaces.live_world import ANSWER_S_MAX, running

LISTENS = ("127.0.0.1:7400", "node.intranet:7480", "[::1]:7481")
EVIL = "rebound.example:7480"


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1:7480",
        "127.0.0.1",
        "10.1.2.3:7480",
        "[::1]:7480",
        "[fe80::1%25eth0]:7480",
        "localhost:80",
        "LOCALHOST.",
        "shop.localhost:7480",
        "node.intranet:1",
        "Peer-1:7480",
        None,
    ],
)
def test_own_names_and_addresses_are_answered(host: str | None) -> None:
    """This holds for any port, which a proxy may change; a client without a name is not a browser."""
    hosts("peer-1, other", listens=LISTENS, asks=False).check(host)


@pytest.mark.parametrize(
    "host",
    [
        EVIL,
        "127.0.0.1.rebound.example",
        "localhost.rebound.example:7480",
        "notlocalhost",
        "127.0.0.1@rebound.example",
        "127.0.0.1:80:rebound.example",
        "intranet",
        "sub.node.intranet",
        "[rebound.example]",
        "",
        "a" * 5_000,
    ],
)
def test_other_names_are_not(host: str) -> None:
    """This holds for any similarity; the message is as short as possible."""
    with pytest.raises(Misdirected) as raised:
        hosts("peer-1", listens=LISTENS, asks=False).check(host)
    assert raised.value.field == "Host" and len(raised.value.message) < 300


def test_with_credentials_names_matter_only_if_some_are_said() -> None:
    """A page has no credential, whatever its name."""
    assert hosts("", listens=LISTENS, asks=True) == EVERY
    assert hosts("peer-1", listens=LISTENS, asks=True) == hosts("peer-1", listens=LISTENS, asks=False)
    hosts("peer-1,any", listens=LISTENS, asks=False).check(EVIL)


@pytest.mark.parametrize("said", ["peer-1:7480", "http://peer-1", "*", "a b", "a..b"])
def test_what_is_no_name_is_refused(said: str) -> None:
    """The error names the setting."""
    with pytest.raises(BadRequest) as raised:
        hosts(said, listens=LISTENS, asks=False)
    assert raised.value.field == "http_hosts"


def test_a_peer_with_a_wrong_name_does_not_start(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It exits with code 2 before it starts anything."""
    monkeypatch.setenv("ONYXQ_HTTP_HOSTS", "*.intranet")
    assert run(["dev", "--http", "127.0.0.1:0", "--listen", "127.0.0.1:0"]) == 2
    assert "http_hosts" in capsys.readouterr().err


@asynccontextmanager
async def asked(names: Hosts, tokens: dict[str, str] | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client that uses the name of another site."""
    app = create_app(FakeService(), access=access_of(tokens or {}), hosts=names)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=f"http://{EVIL}") as client:
        yield client


@on_trio
async def test_a_page_of_a_name_that_points_here_reads_and_changes_nothing() -> None:
    """Its origin is the requested host; probes reveal nothing and are answered."""
    async with asked(Hosts()) as client:
        own = {"origin": f"http://{EVIL}"}
        check_problem(await client.get("/v1/queues"), 421, code="misdirected", field="Host")
        body = {"tasks": [{"queue": "a"}]}
        check_problem(await client.post("/v1/tasks", json=body, headers=own), 421, code="misdirected", field="Host")
        page = await client.get("/ui/queues")
        assert (
            page.status_code == 421
            and "http_hosts" in page.text
            and page.headers["content-type"].startswith("text/html")
        )
        form = await client.post("/ui/do/gc", data={}, headers=own)
        assert form.status_code == 421
        assert (await client.get("/livez")).status_code == 200


@on_trio
async def test_a_name_that_was_said_is_answered() -> None:
    """It is answered as without the check."""
    async with asked(Hosts(frozenset({"rebound.example"}))) as client:
        assert (await client.get("/v1/queues")).status_code == 200


@on_trio
async def test_with_a_token_the_name_is_looked_at_if_some_are_said() -> None:
    """The name is checked before the token, because it is wrong for any client."""
    async with asked(EVERY, {"a-token": "admin"}) as client:
        check_problem(await client.get("/v1/queues"), 401, code="unauthorized", field="Authorization")
        answer = await client.get("/v1/queues", headers={"authorization": "Bearer a-token"})
        assert answer.status_code == 200
    async with asked(Hosts(), {"a-token": "admin"}) as client:
        answer = await client.get("/v1/queues", headers={"authorization": "Bearer a-token"})
        check_problem(answer, 421, code="misdirected", field="Host")


@pytest.fixture(scope="module")
def node() -> Iterator[LocalCluster]:
    """Run one peer without credentials, with the task store's port too."""
    with running(http=True, http_hosts="peer-1", first={"taskstore": "127.0.0.1:0"}) as cluster:
        yield cluster


def test_a_real_peer_answers_programs_and_no_rebound_name(node: LocalCluster) -> None:
    """This holds for both HTTP ports."""
    told = node.nodes[0].addresses
    assert told is not None
    with httpx.Client(timeout=ANSWER_S_MAX, trust_env=False) as client:
        for address, path in ((told.http, "/v1/queues"), (told.taskstore, "/groups")):
            port = address.rpartition(":")[2]
            for host in (address, f"localhost:{port}", f"peer-1:{port}", "192.0.2.7"):
                assert client.get(f"http://{address}{path}", headers={"host": host}).status_code == 200, host
            answer = client.get(f"http://{address}{path}", headers={"host": EVIL})
            check_problem(answer, 421, code="misdirected", field="Host")
