"""Every operation and every route of a real node, with too small a credential: no data is shown or changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from attrs import evolve

from onyxq import HostSettings
from onyxq.access.grants import Access, Token
from onyxq.core.facts import pack_task
from onyxq.interfaces.dashboard.session import COOKIE
from onyxq.interfaces.http.app import ENDPOINTS as ALL
from onyxq.interfaces.http.endpoint import Endpoint
from onyxq.interfaces.http.routes import taskstore
from onyxq.interfaces.local_cluster import LocalCluster
from onyxq.jobs.encoding import encode
from onyxq.jobs.model import Function, Input, Job, Output
from onyxq.jobs.predicates import Pickled
from onyxq.operations.table.everything import BY_NAME
from tests.interfaces.http_world import JOB
from tests.interfaces.live_world import ANSWER_S_MAX, PATIENCE_MS, Wire, claim_of, fresh_id, running

ENDPOINTS = tuple(one for one in ALL if not one.page)
"""Those for programs."""
PAGES = tuple(one for one in ALL if one.page)
"""Those for people."""
OPEN_PAGES = {"login_page", "log_in", "log_out", "file"}
"""Names of pages that ask for no token."""
SECRET = "what the peers share"
ROLES = ("read", "produce", "consume", "operate", "admin")
OURS, THEIRS = "ours.q", "theirs.q"
PREFIXED = "a token for ours only"
PACED = "a token for a few requests a second"
PAYLOAD = b"their secret"
TASK, HELD, NEW = fresh_id(), fresh_id(), fresh_id()
STORED: list[int] = []
"""Id of their task in the task store."""

LOOKS, ANY = "read operate", "read produce consume operate"

TIMER = {"timeout": 3_600_000, "callback": {"transport": "http", "method": "post", "uri": "http://127.0.0.1:9/"}}

KEPT_SAVEPOINT = {
    "name": "no-such", "position": 1, "version": 1, "batch": 0, "offsets": b"x", "place": "/x", "size_bytes": 1,
}  # fmt: skip

# operation: roles that may do it (admin may do everything), and arguments that mean the queue of others
OPERATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "backup.hold": ("", {"name": "a", "for_ms": -1}),
    "backup.rows": ("", {"partition": -1, "position": 0}),
    "cancel": ("produce operate", {"ids": [TASK]}),
    "claim": ("consume", claim_of(THEIRS)),
    "cluster": (ANY, {}),
    "complete": ("consume", {"items": [[HELD, 1, 1, None, []]]}),
    "count": (LOOKS, {"queue": THEIRS}),
    "dead": (LOOKS, {"queue": THEIRS}),
    "dead.discard": ("operate", {"ids": [TASK]}),
    "dead.requeue": ("operate", {"queue": THEIRS}),
    "enqueue": ("produce", {"runs": [[NEW, pack_task({"queue": THEIRS}, [b"x"])]]}),
    "extension": (LOOKS, {"name": "no-such"}),
    "fail": ("consume", {"items": [[HELD, 1, 1, "", None]]}),
    "flow.cancel": ("produce operate", {"id": TASK}),
    "flow.get": ("read produce operate", {"id": TASK}),
    "flow.list": ("read produce operate", {}),
    "flow.make": ("produce", {"tasks": [{"queue": THEIRS, "after": [0]}]}),
    "flow.requeue": ("operate", {"id": TASK}),
    "flow.wait": ("read produce operate", {"id": TASK}),
    "gc": ("operate", {"no": 1}),
    "get": ("read consume operate", {"id": TASK}),
    "give_up": ("consume", {"items": [[HELD, 1, 1, ""]]}),
    "health": (ANY, {}),
    "ids": ("produce", {"count": 1}),
    "job.get": (LOOKS, {"id": "no-such"}),
    "job.host": ("", {"id": "no-such", "host": "a"}),
    "job.kill": ("operate", {"id": "no-such"}),
    "job.letters": (LOOKS, {"id": "no-such"}),
    "job.list": (LOOKS, {}),
    "job.replay": ("", {"id": "no-such", "from_start": True}),
    "job.savepoint": ("operate", {"id": "no-such", "name": "s"}),
    "job.savepoint_delete": ("operate", {"name": "no-such"}),
    "job.savepoints": (LOOKS, {}),
    "job.requeue": ("", {"id": "no-such"}),
    "job.seal": ("operate", {"id": "no-such", "input": "in"}),
    "job.submit": ("", {"body": b""}),
    "job.wait": (LOOKS, {"id": "no-such"}),
    "jobs.commit": ("", {"name": "a", "prepared": []}),
    "jobs.drop_savepoint": ("", {"name": "no-such", "position": 1, "version": 1, "why": ""}),
    "jobs.keep_savepoint": ("", KEPT_SAVEPOINT),
    "jobs.prepare": ("", {"name": "a", "enqueue": [[NEW, pack_task({"queue": THEIRS}, [b"x"])]]}),
    "jobs.savepoints": ("", {}),
    "leave": ("", {"peer": "no-such"}),
    "list": (LOOKS, {"queue": THEIRS}),
    "list.next": (LOOKS, {"queue": THEIRS}),
    "log": (LOOKS, {"from": None, "limit": 1}),
    "log.raw": (LOOKS, {"from": 0, "limit": 1}),
    "metrics": (LOOKS, {}),
    "origin": (LOOKS, {}),
    "partition": (ANY, {"partition": 1}),
    "partition.force": ("", {"partition": -1}),
    "partitions": (ANY, {}),
    "peers": (ANY, {}),
    "periodic.get": (LOOKS, {"name": "theirs"}),
    "periodic.list": (LOOKS, {}),
    "periodic.remove": ("operate", {"name": "theirs"}),
    "periodic.set": ("operate", {"name": "theirs", "queue": OURS, "schedule": "never"}),
    "postpone": ("consume", {"items": [[HELD, 1, 1, "", 0]]}),
    "queue.get": (ANY, {"queue": THEIRS}),
    "queue.purge": ("operate", {"queue": THEIRS}),
    "queue.set": ("operate", {"queue": THEIRS}),
    "queues": (LOOKS, {}),
    "queues.page": (LOOKS, {}),
    "rates": (LOOKS, {}),
    "rates.history": (LOOKS, {}),
    "release": ("consume", {"items": [[HELD, 1, 1]]}),
    "renew": ("consume", {"items": [[HELD, 1, 1, 30_000]]}),
    "replica": (LOOKS, {}),
    "replica.part": (LOOKS, {}),
    "ring": (ANY, {}),
    "routes": (ANY, {}),
    "request.remember": ("produce", {"key": bytes(16)}),
    "submit": ("produce", {"entry": "no-such", "args": {}}),
    "task_history": (LOOKS, {"id": TASK}),
    "task_log": ("read consume operate", {"id": TASK}),
    "taskstore.claim": ("consume", {"client": 1, "group": THEIRS, "depends": [1]}),
    "taskstore.group": ("read consume operate", {"group": THEIRS}),
    "taskstore.groups": (LOOKS, {}),
    "taskstore.set_limits": ("operate", {"task_bytes_max": 0}),
    "taskstore.tasks": ("read consume operate", {"ids": STORED}),
    "taskstore.update": ("produce", {"client": 1, "adds": [[THEIRS, "x", 0]]}),
    "timer.cancel": ("produce operate", {"id": "no-such"}),
    "timer.get": ("read produce operate", {"id": "no-such"}),
    "timer.list": (LOOKS, {}),
    "timer.set": ("produce", {"id": "theirs", **TIMER}),
    "tasks.bodies": ("read consume operate", {"runs": [[TASK, 1]]}),
    "transact": ("consume", {"name": "a", "complete": [[HELD, 1, 1, []]]}),
    "update": ("consume", {"items": [[HELD, 1, 0, b"x"]]}),
    "workers": (LOOKS, {}),
}
KEPT = ("cancel", "enqueue", "claim", "periodic.remove", "queue.purge")
"""What would take from the walk what it needs later."""
TELL_NO_QUEUE = {"cluster", "health", "ids", "partition", "partitions", "peers", "request.remember", "ring", "routes"}
"""What a token for some queues may do too: it is about none."""

OPEN_ROUTES = {"livez", "readyz", "ping", "openapi", "docs"}
"""Names of endpoints that ask for no token."""
TELL_NO_QUEUE_OVER_HTTP = {"get_ids", "get_cluster", "get_ring", "get_partitions", "get_peers"}

ROOT = taskstore.endpoints("")
"""What the task store's own port serves."""

BODIES: dict[str, dict[str, Any]] = {
    "enqueue": {"tasks": [{"queue": THEIRS, "data": 1}]},
    "make_flow": {"tasks": [{"queue": THEIRS, "after": [0]}]},
    "claim": {"queues": [THEIRS]},
    "update_claim": {"id": HELD.hex(), "token": 1, "seq": 0, "data": 1},
    "transact": {"complete": [{"id": HELD.hex(), "token": 1}]},
    "set_queue": {"paused": True},
    "set_periodic": {"queue": THEIRS, "schedule": "@daily"},
    "requeue_dead": {"queue": THEIRS},
    "discard_dead": {"ids": [TASK.hex()]},
    "cancel_tasks": {"ids": [TASK.hex()]},
    "seal_input": {"input": "in"},
    "submit_job": JOB,
    "replay_job": {"from_start": True},
    "make_savepoint": {"name": "s"},
    "taskstore_update": {"clientid": 1, "adds": [{"group": THEIRS, "data": "x"}]},
    "taskstore_claim": {"clientid": 1, "group": THEIRS},
    "renew_claims": {"claims": [{"id": HELD.hex(), "token": 1, "lease_ms": 5_000}]},
    "postpone_claims": {"claims": [{"id": HELD.hex(), "token": 1, "retry_in_ms": 1}]},
    "set_timer": TIMER,
    "replace_timer": TIMER,
    "fail_claims": {"claims": [{"id": HELD.hex(), "token": 1, "error": "e"}]},
}
HELD_CLAIM = {"claims": [{"id": HELD.hex(), "token": 1}]}


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """One node that asks for credentials, with a queue of ours and one of theirs."""
    tokens = [Token.of(f"token to {role}", role, [role]) for role in ROLES]
    tokens.append(Token.of(PACED, "paced", ["read"], rate=2))
    tokens.append(Token.of(PREFIXED, "ours", ["admin:ours."]))
    first = {"taskstore": "127.0.0.1:0"}
    with running(http=True, access=Access(tuple(tokens), SECRET), first=first) as cluster:
        with greeted(cluster, "token to admin") as wire:
            for first, queue in ((TASK, THEIRS), (HELD, THEIRS), (fresh_id(), OURS)):
                wire.call("enqueue", {"runs": [[first, pack_task({"queue": queue}, [PAYLOAD])]]})
            for name, queue in (("theirs", THEIRS), ("ours", OURS)):
                wire.call("periodic.set", {"name": name, "queue": queue, "schedule": "0 0 1 1 *"})
            lasting = claim_of(THEIRS, wait_ms=PATIENCE_MS, lease_ms=3_600_000)  # none runs out during the walk
            assert len(wire.call("claim", lasting)["claims"]) == 1
            added = wire.call("taskstore.update", {"client": 1, "adds": [[THEIRS, PAYLOAD.decode(), 0]]})
            STORED[:] = [added["tasks"][0][0]]
        yield cluster


def greeted(cluster: LocalCluster, token: str | None, **hello: Any) -> Wire:
    """A connection with a credential."""
    return Wire(cluster.addresses[0], hello={"role": "client", "credential": token} | hello)


def forbidden(answered: tuple[Any, dict[str, Any] | None]) -> bool:
    """Whether a call was refused for want of a role."""
    return answered[1] is not None and answered[1]["code"] == "forbidden"


def state(cluster: LocalCluster) -> Any:
    """Everything that is theirs."""
    with greeted(cluster, "token to admin") as wire:
        return [
            wire.call("list", {"queue": THEIRS}),
            wire.call("count", {"queue": None}),
            wire.call("queue.get", {"queue": THEIRS})["settings"],
            wire.call("periodic.list", {}),
            wire.call("taskstore.group", {"group": THEIRS, "owned": True}),
            len(wire.call("peers", {})["peers"]),
        ]


def test_the_walk_knows_every_operation(cluster: LocalCluster) -> None:
    """A new one must be given its roles, in the table and in this test."""
    service = cluster.nodes[0].service
    assert service is not None
    there = {*service._methods, "claim"}
    assert there == set(BY_NAME) == set(OPERATIONS)


@pytest.mark.parametrize("credential", [None, "", "wrong", "token to reach", SECRET])
@pytest.mark.parametrize("role", ["client", "peer", "admin"])
def test_without_a_known_credential_nobody_gets_past_the_hello(
    cluster: LocalCluster, credential: str | None, role: str
) -> None:
    """This holds for any claimed identity; the peers' secret is not a token, nor a token the peers' secret."""
    if (credential, role) == (SECRET, "peer"):
        credential = "token to admin"
    with greeted(cluster, credential, role=role, cluster_id="c", node="n") as wire:
        assert wire.greeting[:2] == [0, 1] and wire.greeting[2]["code"] == "unauthorized"
        wire.send([1, "cluster", {}])
        assert wire.goodbye() == []


@pytest.mark.parametrize("operation", OPERATIONS)
def test_each_role_does_its_own_and_nothing_else(cluster: LocalCluster, operation: str) -> None:
    """What is refused is refused before anything is done."""
    allowed, args = OPERATIONS[operation]
    for role in ROLES:
        if role in (*allowed.split(), "admin"):
            continue
        with greeted(cluster, f"token to {role}") as wire:
            assert forbidden(wire.answer(operation, args)), f"{role} may {operation}"


def test_each_role_may_do_its_own(cluster: LocalCluster) -> None:
    """The arguments are such that little happens."""
    for role in ROLES:
        with greeted(cluster, f"token to {role}") as wire:
            for operation, (allowed, args) in OPERATIONS.items():
                if role in (*allowed.split(), "admin") and operation not in KEPT:
                    assert not forbidden(wire.answer(operation, args)), f"{role} may not {operation}"


@pytest.mark.parametrize("operation", sorted(set(OPERATIONS) - TELL_NO_QUEUE))
def test_a_token_for_some_queues_does_nothing_to_others(cluster: LocalCluster, operation: str) -> None:
    """Though it has every role on its own."""
    before = state(cluster)
    with greeted(cluster, PREFIXED) as wire:
        assert forbidden(wire.answer(operation, OPERATIONS[operation][1]))
        assert forbidden(wire.answer(operation, {})) or operation not in ("list", "count", "dead")
    assert state(cluster) == before


def test_a_token_for_some_queues_serves_its_own(cluster: LocalCluster) -> None:
    """A task's whole life, a periodic task, and a transaction that takes from the queue and gives to it."""
    first, second = fresh_id(), fresh_id()
    with greeted(cluster, PREFIXED) as wire:
        for operation in TELL_NO_QUEUE:
            assert not forbidden(wire.answer(operation, OPERATIONS[operation][1])), operation
        wire.call("enqueue", {"runs": [[first, pack_task({"queue": "ours.life"}, [b"x"])]]})
        ((token, *_),) = wire.call("claim", claim_of("ours.life", wait_ms=PATIENCE_MS))["claims"]
        wire.call("update", {"items": [[first, token, 0, b"half"]]})
        wire.call(
            "transact",
            {
                "name": "life",
                "complete": [[first, 1, token, []]],
                "enqueue": [[second, pack_task({"queue": "ours.more"}, [b"y"])]],
            },
        )
        assert wire.call("get", {"id": first})["state"] == "completed"
        assert wire.call("periodic.get", {"name": "ours"})["queue"] == OURS
        wire.call("periodic.set", {"name": "ours", "paused": True})
        added = wire.call("taskstore.update", {"client": 2, "adds": [["ours.store", "x", 0]]})["tasks"]
        (claimed,) = wire.call("taskstore.claim", {"client": 2, "group": "ours.store", "duration_ms": 60_000})["tasks"]
        assert added[0][1] == claimed[1] == "ours.store"
        assert forbidden(wire.answer("taskstore.update", {"client": 2, "deletes": STORED}))
        assert forbidden(wire.answer("taskstore.update", {"client": 2, "adds": [], "changes": [[STORED[0], "", 0]]}))
        assert forbidden(wire.answer("taskstore.claim", {"client": 2, "group": "ours.store", "depends": STORED}))
        assert wire.error("taskstore.update", {"client": 2, "deletes": [7]})["code"] == "not_found"
        wire.call("taskstore.update", {"client": 2, "deletes": [claimed[0]]})
        theirs = [[NEW, pack_task({"queue": THEIRS}, [b"x"])]]
        assert forbidden(wire.answer("transact", {"name": "b", "complete": [], "enqueue": theirs}))
        assert forbidden(wire.answer("claim", claim_of("ours.life", THEIRS)))


def test_the_id_of_a_task_of_others_gives_no_hold_on_it(cluster: LocalCluster) -> None:
    """Enqueued under it into a queue of one's own, the task stays what and whose it was."""
    before = state(cluster)
    ours = pack_task({"queue": "ours.stolen"}, [b"mine now"])
    with greeted(cluster, PREFIXED) as wire:
        for first in (TASK, HELD):
            wire.answer("enqueue", {"runs": [[first, ours]]})
            assert forbidden(wire.answer("get", {"id": first}))
            assert forbidden(wire.answer("cancel", {"ids": [first]}))
        assert wire.call("claim", claim_of("ours.stolen"))["claims"] == []
    found = state(cluster)
    assert found[0] == before[0] and found[2:] == before[2:]


def test_tasks_that_are_not_there_are_not_found(cluster: LocalCluster) -> None:
    """A token for some queues learns that an id does not exist, like any token."""
    with greeted(cluster, PREFIXED) as wire:
        assert wire.error("get", {"id": fresh_id()})["code"] == "not_found"
        assert wire.error("complete", {"items": [[HELD, 0, 1, None, []]]})["code"] == "bad_request"


def test_what_only_peers_may_call_needs_their_secret(cluster: LocalCluster) -> None:
    """No token is enough; the secret is."""
    service = cluster.nodes[0].service
    assert service is not None
    with greeted(cluster, "token to admin") as wire:
        for method in service.peer_methods:
            assert forbidden(wire.answer(method, {})), method
        cluster_id = wire.call("routes", {})["cluster_id"]
        assert SECRET not in repr(wire.greeting)
    with greeted(cluster, SECRET, role="peer", cluster_id=cluster_id, node="n") as wire:
        assert wire.call("cohort.hours", {"partition": 1}) is not None


def test_functions_are_not_brought_as_bytes_where_credentials_are_asked_for(cluster: LocalCluster) -> None:
    """Not even an admin may do so: functions come by name, or the peer has a setting for it."""
    work = Function("work", Pickled("f", b"cos\nsystem\n."))
    catalog = [Input("in", queue="a"), work, Output("out", queue="b")]
    job = Job(id="pickled", workflow=[("in", "work"), ("work", "out")], catalog=catalog)
    with greeted(cluster, "token to admin") as wire:
        error = wire.error("job.submit", {"body": encode(job)})
        assert error["code"] == "forbidden" and error["field"].endswith("fn.pickled")
        assert wire.call("job.list", {})["jobs"] == []


@pytest.mark.parametrize("name", ["os:system", "shutil:rmtree", "onyxq.spark.functions:resolve"])
def test_a_job_names_no_function_that_the_operator_did_not_allow(cluster: LocalCluster, name: str) -> None:
    """A stolen token of an admin would otherwise be a shell at once."""
    catalog = [Input("in", queue="a"), Function("work", name), Output("out", queue="b")]
    job = Job(id="named", workflow=[("in", "work"), ("work", "out")], catalog=catalog)
    with greeted(cluster, "token to admin") as wire:
        error = wire.error("job.submit", {"body": encode(job)})
        assert (error["code"], error["field"]) == ("forbidden", "catalog[1].fn") and "job_modules" in error["hint"]
        assert wire.call("job.list", {})["jobs"] == []


def test_a_job_brings_no_packages_where_credentials_are_asked_for(cluster: LocalCluster) -> None:
    """They are code as pickled functions are; sizes of memory are not."""
    catalog = [Input("in", queue="a"), Output("out", queue="b")]
    host = HostSettings(executor_memory="2g", py_files=["/tmp/shop.py"])
    job = Job(id="bringing", workflow=[("in", "out")], catalog=catalog, own_host=True, host=host)
    with greeted(cluster, "token to admin") as wire:
        error = wire.error("job.submit", {"body": encode(job)})
        assert (error["code"], error["field"]) == ("forbidden", "host.py_files[0]") and "allow-pickled" in error["hint"]
        sized = evolve(job, id="sized", host=HostSettings(executor_memory="2g"))
        assert wire.call("job.submit", {"body": encode(sized)})["id"] == "sized"
        wire.call("job.kill", {"id": "sized"})


def test_a_token_that_is_used_too_often_is_told_so(cluster: LocalCluster) -> None:
    """Both ports count together; other clients continue."""
    with greeted(cluster, PACED) as wire, greeted(cluster, "token to read") as other:
        codes = [(wire.answer("cluster", {})[1] or {}).get("code") for _ in range(100)]
        assert codes[:2] == [None] * 2 and codes.count("overloaded") > 20
        headers = {"authorization": f"Bearer {PACED}"}
        with httpx.Client(timeout=ANSWER_S_MAX, trust_env=False, verify=False) as client:
            url = f"http://{cluster.http_addresses[0]}/v1/cluster"
            answers = [client.get(url, headers=headers) for _ in range(100)]
        refused = [answer for answer in answers if answer.status_code == 429]
        assert len(refused) > 5 and refused[0].headers["retry-after"]
        assert other.answer("cluster", {})[1] is None


# --- HTTP


def requested(cluster: LocalCluster, endpoint: Endpoint, token: str | None, *, valid: bool = True) -> httpx.Response:
    """The answer of a route to a request that means the queue of others."""
    parts = {
        "{id}": TASK.hex(),
        "{queue}": THEIRS,
        "{peer}": "no-such",
        "{partition}": "1",
        "{name}": "theirs",
        "{entry}": "no-such",
        "{extension}": "no-such",
        "{number}": str(STORED[0]),
        "{numbers}": str(STORED[0]),
        "{group}": THEIRS,
        "{timer}": "no-such",
    }
    parts["{id}"] = "no-such" if endpoint.path.startswith("/v1/jobs/") else parts["{id}"]
    path = "/".join(parts.get(part, part) for part in endpoint.path.split("/"))
    if endpoint.name in ("list_tasks", "list_dead"):
        path += f"?queue={THEIRS}"
    given: dict[str, Any] = BODIES.get(endpoint.name, HELD_CLAIM if "/claims/" in path else {})
    headers = {"authorization": f"Bearer {token}"} if token is not None else {}
    addresses = cluster.nodes[0].addresses
    assert addresses is not None
    url = f"http://{addresses.taskstore if endpoint in ROOT else addresses.http}{path}"
    body = {"json": given} if endpoint.has_body else {}
    with httpx.Client(timeout=ANSWER_S_MAX, trust_env=False, verify=False) as client:  # there is no TLS to check
        return client.request(endpoint.method, url, headers=headers, **body)


@pytest.mark.parametrize("endpoint", [*ENDPOINTS, *ROOT], ids=lambda endpoint: endpoint.path)
def test_no_route_answers_without_the_right_token(cluster: LocalCluster, endpoint: Endpoint) -> None:
    """The answer is 401 without a known token, and 403 with the wrong role or for other queues."""
    before = state(cluster)
    if endpoint.name in OPEN_ROUTES:
        answer = requested(cluster, endpoint, None)
        assert answer.status_code in (200, 503) and THEIRS not in answer.text
        return
    for token in (None, "wrong", SECRET):
        answer = requested(cluster, endpoint, token)
        assert answer.status_code == 401 and answer.json()["code"] == "unauthorized"
        assert answer.headers["www-authenticate"].startswith("Bearer")
    for role in ROLES:
        implied = {"operate": {"operate", "read"}, "admin": set(ROLES)}.get(role, {role})
        if not implied & set(endpoint.roles):
            assert requested(cluster, endpoint, f"token to {role}").status_code == 403, role
    answer = requested(cluster, endpoint, PREFIXED)
    if endpoint.name in TELL_NO_QUEUE_OVER_HTTP:
        assert answer.status_code == 200 and THEIRS not in answer.text
    else:
        assert answer.status_code == 403, answer.text
    assert PAYLOAD.decode() not in answer.text and state(cluster) == before


def test_every_method_of_every_path_is_a_route_of_the_walk(cluster: LocalCluster) -> None:
    """Nothing is served beside the table of endpoints, except for what each path allows."""
    with httpx.Client(base_url=f"http://{cluster.http_addresses[0]}", timeout=ANSWER_S_MAX, trust_env=False) as client:
        for path in sorted({endpoint.path for endpoint in ENDPOINTS}):
            allowed = client.options(path).headers["allow"].split(", ")
            there = {endpoint.method for endpoint in ENDPOINTS if endpoint.path == path}
            assert set(allowed) - {"OPTIONS", "HEAD"} >= there
            for method in allowed:
                if method == "HEAD":
                    name = next(one.name for one in ENDPOINTS if one.path == path and one.method == "GET")
                    assert client.head(path).status_code == 401 or name in OPEN_ROUTES


# --- pages


def visited(cluster: LocalCluster, endpoint: Endpoint, token: str | None) -> httpx.Response:
    """What a browser that has signed in gets, which means the queue of others."""
    path = endpoint.path.replace("{id}", TASK.hex()).replace("{file}", "no-such")
    host = cluster.http_addresses[0]
    headers = {"origin": f"http://{host}"}
    form = {"queue": THEIRS, "id": TASK.hex(), "ids": TASK.hex(), "name": "theirs", "action": "cancel", "data": "1"}
    in_query = [name for name in endpoint.args.__struct_fields__ if f"{{{name}}}" not in endpoint.path]
    asked = {name: form[name] for name in form if name in in_query}
    with httpx.Client(timeout=ANSWER_S_MAX, trust_env=False, verify=False) as client:  # there is no TLS to check
        if token is not None:
            assert client.post(f"http://{host}/ui/login", data={"token": token}, headers=headers).cookies[COOKIE]
        if endpoint.method == "GET":
            return client.get(f"http://{host}{path}", params=asked, headers=headers)
        return client.post(f"http://{host}{path}", data=form, headers=headers)


@pytest.mark.parametrize("endpoint", PAGES, ids=lambda endpoint: endpoint.name)
def test_no_page_shows_or_does_anything_without_the_right_token(cluster: LocalCluster, endpoint: Endpoint) -> None:
    """Without a known token there is the login page; 403 with the wrong role; nothing of others' queues."""
    before = state(cluster)
    if endpoint.name in OPEN_PAGES:
        assert THEIRS not in visited(cluster, endpoint, None).text and not endpoint.roles
        return
    assert endpoint.roles
    for token in (None, "wrong", SECRET):
        answer = visited(cluster, endpoint, token)
        assert answer.status_code == 303 and answer.headers["location"].startswith("/ui/login")
        assert answer.text == ""
    for role in ROLES:
        implied = {"operate": {"operate", "read"}, "admin": set(ROLES)}.get(role, {role})
        if not implied & set(endpoint.roles):
            assert visited(cluster, endpoint, f"token to {role}").status_code == 403, role
    answer = visited(cluster, endpoint, PREFIXED)
    assert PAYLOAD.decode() not in answer.text and PAYLOAD.hex() not in answer.text
    assert THEIRS not in answer.text.replace(f"on queue &#39;{THEIRS}&#39;", "")  # which says only what was asked for
    assert state(cluster) == before
