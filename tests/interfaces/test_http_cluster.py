"""The rest of the HTTP interface: views, health, tokens, methods, the OpenAPI document."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import product
from typing import Any
from urllib.parse import quote

import pytest

from onyxq.access.grants import Token
from onyxq.core.ids import make_id
from onyxq.errors import BadRequest, LogUnavailable
from onyxq.interfaces.http import pages
from onyxq.interfaces.http.app import ENDPOINTS, create_app
from onyxq.interfaces.http.endpoint import Endpoint
from onyxq.interfaces.http.routes import cluster
from tests.interfaces.http_world import JOB, NOW_MS, FakeService, access_of, check_problem, client_of, on_trio, world

SAME_SITE = {"origin": "http://peer"}
TOKENS = {"r-token": "read", "w-token": "write", "a-token": "admin"}
ID = make_id(NOW_MS, 1, 2, 3).hex()
FLOW = make_id(NOW_MS, 1, 2, 4).hex()


def url_of(endpoint: Endpoint) -> str:
    """A path of the endpoint with its parameters filled in."""
    return endpoint.path.replace("{id}", ID).replace("{queue}", "a").replace("{peer}", "p1")


@on_trio
async def test_views_answer_with_what_the_replica_says() -> None:
    """Each names the position it speaks of."""
    async with world() as (_, client):
        for name in ("cluster", "ring", "partitions", "peers", "log"):
            answer = await client.get(f"/v1/{name}")
            assert (answer.status_code, answer.json()["position"]) == (200, 9), name


@on_trio
async def test_the_log_shows_bytes_as_hex() -> None:
    """Arguments of entries hold ids."""
    async with world() as (_, client):
        record = (await client.get("/v1/log?from=5&limit=1")).json()["records"][0]
        assert record["position"] == 5
        assert record["entries"][0]["args"]["runs"] == [["01" * 20, 3]]


@on_trio
async def test_queues_have_their_depth() -> None:
    """A name with a slash is one path segment when escaped."""
    async with world() as (_, client):
        await client.post("/v1/tasks", json={"tasks": [{"queue": "a/b ü"}, {"queue": "c"}]})
        assert [queue["queue"] for queue in (await client.get("/v1/queues")).json()["queues"]] == ["a/b ü", "c"]
        answer = await client.get(f"/v1/queues/{quote('a/b ü', safe='')}")
        assert answer.json()["depth"]["ready"] == 1
        check_problem(await client.get("/v1/queues/none"), 404, code="not_found", field="queue")


@on_trio
async def test_gc_and_leave_need_no_body() -> None:
    """An empty object is as good; anything unknown in it is refused."""
    async with world() as (service, client):
        assert (await client.post("/v1/gc")).json() == {"position": 9, "trimmed": 4, "origin_bytes": 100}
        assert (await client.post("/v1/gc", json={})).status_code == 200
        check_problem(await client.post("/v1/gc", json={"now": True}), 400, code="bad_request", field="now")
        assert (await client.post("/v1/peers/p1/leave", json={"permanent": True})).json() == {}
        assert (await client.post("/v1/peers/p1/leave")).status_code == 200
        assert [args.get("permanent", False) for args in service.asked("leave")] == [True, False]
        check_problem(await client.post("/v1/peers/p2/leave"), 404, code="not_found", field="peer")


@on_trio
async def test_livez_asks_nobody() -> None:
    """It answers whatever the node's state."""
    async with world() as (service, client):
        service.broken["health"] = LogUnavailable("no log")
        assert (await client.get("/livez")).json() == {"live": True}
        assert service.calls == []


@on_trio
async def test_a_partition_is_named_by_its_number() -> None:
    """By digits as programs write them."""
    async with world() as (service, client):
        for name in ("²", "１", "-1", "+1", "1.0", "x", "65536", "9" * 200):
            answer = await client.post(f"/v1/partitions/{quote(name)}/force", json={})
            check_problem(answer, 400, code="bad_request", field="partition")
        assert service.calls == []


@on_trio
async def test_readyz_gives_reasons() -> None:
    """200 with the lag, or 503 with why not."""
    async with world() as (service, client):
        assert (await client.get("/readyz")).json()["log_lag"] == 0
        state = {"live": True, "ready": False, "reasons": ["log lags", "joining"], "log_connected": True, "log_lag": 9}
        service._health = lambda args: state  # type: ignore[method-assign]
        problem = check_problem(await client.get("/readyz"), 503, code="unavailable")
        assert (problem["reasons"], problem["log_lag"]) == (["log lags", "joining"], 9)


@on_trio
async def test_metrics_are_prometheus_text() -> None:
    """With the content type that scrapers expect."""
    async with world() as (service, client):
        service.metrics.tasks.add("mail", "enqueued", n=5)
        answer = await client.get("/metrics")
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert 'onyxq_tasks_total{queue="mail",event="enqueued"} 5' in answer.text


# --- methods and paths ----------------------------------------------------------


@on_trio
async def test_a_wrong_method_names_the_right_ones() -> None:
    """405 with Allow; OPTIONS tells the same."""
    async with world() as (_, client):
        answer = await client.put("/v1/tasks", json={})
        check_problem(answer, 405, code="method_not_allowed")
        assert answer.headers["allow"] == "GET, HEAD, OPTIONS, POST"
        options = await client.options("/v1/claims")
        assert (options.status_code, options.headers["allow"]) == (204, "OPTIONS, POST")


@on_trio
async def test_an_unknown_path_is_not_found() -> None:
    """Also with a slash too many."""
    async with world() as (_, client):
        for path in ("/v2/tasks", "/v1/tasks/", "//v1/tasks", f"/v1/tasks/{ID}/log/x", "/v1"):
            check_problem(await client.get(f"http://peer{path}"), 404, code="not_found")


@pytest.mark.parametrize("path", [one.path for one in ENDPOINTS if one.method == "GET" and one.head and not one.page])
def test_head_is_answered_where_get_is(path: str) -> None:
    """The same headers and no body."""

    @on_trio
    async def asked() -> None:
        async with world() as (service, client):
            await client.post("/v1/tasks", json={"tasks": [{"id": ID, "queue": "a"}]})
            await client.put("/v1/periodic/p", json={"queue": "a", "schedule": "every 60s"})
            await client.post("/v1/jobs", json=JOB)
            await client.post("/v1/flows", json={"id": FLOW, "tasks": [{"queue": "a"}]})
            callback = {"transport": "http", "uri": "http://a.example", "method": "post"}
            await client.post("/timer", json={"timeout": 1, "callback": callback}, headers={"x-timer-id": ID})
            named: dict[str, Any] = {"queue": "a", "extension": "lock", "name": "p"}
            named |= {"group": "map", "number": 7, "numbers": "7,8"}
            named["id"] = next((one for noun, one in (("jobs", "j"), ("flows", FLOW)) if f"/{noun}/" in path), ID)
            url = path.format(**named)
            got, head = await client.get(url), await client.head(url)
            assert (head.status_code, head.content) == (got.status_code, b"") == (200, b"")
            if not path.endswith("ids"):
                assert head.headers["content-length"] == got.headers["content-length"]
            assert service.calls

    asked()


@on_trio
async def test_a_head_of_the_stream_reads_one_page() -> None:
    """No body is sent after that page."""
    async with world() as (service, client):
        await client.post("/v1/tasks", json={"tasks": [{"queue": "a"}] * 1_500})
        answer = await client.head("/v1/tasks", headers={"accept": "application/x-ndjson"})
        assert answer.headers["content-type"].startswith("application/x-ndjson")
        assert len(service.asked("list")) == 1


# --- tokens ---------------------------------------------------------------------


@on_trio
async def test_without_tokens_nothing_is_asked() -> None:
    """A token that is sent anyway does no harm."""
    async with client_of(FakeService(), token="whatever") as client:
        assert (await client.post("/v1/gc")).status_code == 200


@on_trio
async def test_a_missing_or_unknown_token_is_unauthorized() -> None:
    """401 says which scheme is meant."""
    async with client_of(FakeService(), tokens=TOKENS) as client:
        for header in ("", "Basic abc", "Bearer", "Bearer  ", "Bearer nope", "Bearer r-token x"):
            answer = await client.get("/v1/cluster", headers={"authorization": header} if header else {})
            hint = check_problem(answer, 401, code="unauthorized", field="Authorization")["hint"]
            assert "--token-file FILE, ONYXQ_TOKEN, or token in onyxq.toml" in hint
            assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("token", TOKENS)
def test_roles_include_the_lesser_ones(token: str) -> None:
    """read looks, write works too, admin does everything; 403 otherwise, before anything is done."""
    given = {"read": {"read"}, "write": {"read", "produce", "consume"}}

    @on_trio
    async def asked() -> None:
        service = FakeService()
        async with client_of(service, tokens=TOKENS, token=token) as client:
            for endpoint in ENDPOINTS:
                if not endpoint.roles:
                    continue
                service.calls.clear()
                answer = await client.request(endpoint.method, url_of(endpoint), content=b"", headers=SAME_SITE)
                may = TOKENS[token] == "admin" or bool(given[TOKENS[token]] & set(endpoint.roles))
                assert (answer.status_code != 403) == may, endpoint.name
                if not may and endpoint.path.startswith("/v1/"):
                    said = f"{endpoint.method} {endpoint.path} needs the role {' or '.join(endpoint.roles)}"
                    assert check_problem(answer, 403, code="forbidden", field="Authorization")["detail"] == said
                assert may or service.calls == []

    asked()


@on_trio
async def test_probes_and_documents_need_no_token() -> None:
    """An orchestrator's probe has none."""
    async with client_of(FakeService(), tokens=TOKENS) as client:
        for path in ("/livez", "/readyz", "/openapi.json", "/docs"):
            assert (await client.get(path)).status_code == 200, path
        assert (await client.get("/metrics")).status_code == 401


def test_documents_that_need_no_token_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller without a credential cannot keep a peer busy with requests for them."""
    made: list[str] = []

    def page(document: Mapping[str, Any]) -> str:
        made.append("page")
        return pages.docs_page(document)

    monkeypatch.setattr(cluster, "docs_page", page)

    @on_trio
    async def asked() -> None:
        async with client_of(FakeService(), tokens=TOKENS) as client:
            for path in ("/docs", "/openapi.json"):
                assert len({(await client.get(path)).content for _ in range(3)}) == 1

    asked()
    assert made == ["page"]


def test_an_unknown_role_is_refused_at_start() -> None:
    """A slip in the configuration must not become an open door."""
    with pytest.raises(BadRequest):
        Token.of("t", "t", ["root"])


FOREIGN = (
    "null",
    "",
    "http://evil.example",
    "http://peer.evil.example",
    "http://peer:81",
    "file://",
    "peer",
    "http://",
)
"""Origins of foreign pages. A browser sends ``null`` for sandboxed frames and local files."""
CHANGES = tuple(one for one in ENDPOINTS if not one.page and one.method != "GET")


def test_pages_of_other_sites_change_nothing() -> None:
    """Without credentials, no route may be called from a foreign page in a browser on the same machine."""

    @on_trio
    async def asked() -> None:
        async with world() as (service, client):
            for endpoint, origin in product(CHANGES, FOREIGN):
                path = re.sub(r"{\w+}", "1", endpoint.path)
                answer = await client.request(endpoint.method, path, json={}, headers={"origin": origin})
                check_problem(answer, 403, code="forbidden", field="Origin")
                assert service.calls == [], endpoint.name

    asked()


@on_trio
async def test_pages_of_the_peers_own_site_may_change_things() -> None:
    """Their origin is the host that the request names."""
    async with world() as (_, client):
        body = {"tasks": [{"queue": "a"}]}
        assert (await client.post("/v1/tasks", json=body, headers={"origin": "http://peer"})).status_code == 201


# --- documents ------------------------------------------------------------------


@on_trio
async def test_the_document_names_every_promised_path() -> None:
    """Paths and methods are promises."""
    promised = """
        get /v1/ids; post /v1/tasks; get /v1/tasks; get /v1/tasks/{id}; delete /v1/tasks/{id}; get /v1/tasks/{id}/log;
        post /v1/claims; post /v1/claims/renew; post /v1/claims/complete; post /v1/claims/fail;
        post /v1/claims/release;
        post /v1/claims/postpone; post /v1/claims/give_up;
        post /v1/claims/update; get /v1/queues; get /v1/queues/{queue}; get /v1/cluster;
        get /v1/ring; get /v1/partitions; get /v1/peers; post /v1/peers/{peer}/leave; get /v1/log; post /v1/gc;
        post /v1/jobs; get /v1/jobs; get /v1/jobs/{id}; delete /v1/jobs/{id}; post /v1/jobs/{id}/seal;
        get /livez; get /readyz; get /metrics; get /openapi.json; get /docs
    """
    async with world() as (_, client):
        document = (await client.get("/openapi.json")).json()
        found = {f"{method} {path}" for path, methods in document["paths"].items() for method in methods}
        assert {line.strip() for line in promised.split(";")} <= found


@pytest.mark.long
@pytest.mark.parametrize("tokens", [None, TOKENS])
def test_the_document_is_valid_openapi(tokens: dict[str, str] | None) -> None:
    """Checked by a validator where one is installed."""
    validator = pytest.importorskip("openapi_spec_validator")
    validator.validate(create_app(FakeService(), access=access_of(tokens or {})).document())


def test_references_and_operation_ids_are_sound() -> None:
    """Every reference resolves, every operation has its own id, path parameters are described."""
    document = create_app(FakeService()).document()
    for reference in _references(document):
        part: Any = document
        for name in reference.removeprefix("#/").split("/"):
            part = part[name]
    operations = [(path, op) for path, methods in document["paths"].items() for op in methods.values()]
    ids = [op["operationId"] for _, op in operations]
    assert len(set(ids)) == len(ids)
    for path, op in operations:
        described = {item["name"] for item in op.get("parameters", ()) if item["in"] == "path"}
        assert described == set(re.findall(r"{(\w+)}", path))


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if "$ref" in value else []
        return own + [found for item in value.values() for found in _references(item)]
    return [found for item in value for found in _references(item)] if isinstance(value, list) else []


@on_trio
async def test_the_documentation_fetches_nothing_from_elsewhere() -> None:
    """Scripts and styles are files of this peer, and nothing is inline."""
    async with world() as (_, client):
        answer = await client.get("/docs")
        assert answer.headers["content-type"].startswith("text/html")
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        places = re.findall(r'(?:src|href)="([^"#]*)', answer.text)
        assert {one for one in places if one} >= {"/", "/openapi.json"}
        assert all(one.startswith("/ui/static/") or one in ("", "/", "/openapi.json") for one in places)
        assert not re.search(r"<script>|<style|style=|https?://|@import", answer.text)


@on_trio
async def test_problem_types_lead_into_the_docs() -> None:
    """The type of a problem is a place on the page."""
    async with world() as (_, client):
        page = (await client.get("/docs")).text
        for path, method in (("/nowhere", "GET"), ("/livez", "PUT")):
            problem = (await client.request(method, path)).json()
            assert f'id="{problem["type"].partition("#")[2]}"' in page
