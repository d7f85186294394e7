"""Pages of tasks in FastAPI, Flask and Django on a real cluster: what they show, and what they keep to themselves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import django
import httpx
import pytest
from django.conf import settings
from django.http import HttpRequest, HttpResponse, HttpResponseForbidden
from django.test import AsyncClient as DjangoAsyncClient
from django.test import Client as DjangoClient
from django.urls import include, path
from fastapi import Depends, FastAPI, HTTPException
from flask import Flask

from onyxq import App, Client
from onyxq.core.ids import make_id
from onyxq.errors import ClusterMismatch, NotFound, Overloaded
from onyxq.integrations import django as with_django
from onyxq.integrations import fastapi as with_fastapi
from onyxq.integrations import flask as with_flask
from onyxq.integrations.task_views import problem
from onyxq.outbox.rows import RowMaker
from tests.interfaces.live_world import running

WAIT_MS = 10_000

app = App()
Get = Callable[[str], tuple[int, Any]]
"""A request to a web application: path -> status and JSON."""


@app.task(queue="shop")
def ship(order: int) -> str:
    """Never run here: the tests claim its tasks."""
    return f"order {order}"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A client of a cluster of one node, which is also the application's."""
    with running() as cluster:
        app.address = cluster.addresses[0]
        with Client(cluster.addresses[0]) as found:
            yield found
        app.close()


urlpatterns = [
    path("tasks/", include(with_django.task_urls(app, outbox=True))),
    path("closed/", include(with_django.task_urls(app, access=lambda _: lambda *_, **__: HttpResponseForbidden()))),
]


def failing(request: HttpRequest) -> HttpResponse:
    """Raise an error of OnyxQ in a view."""
    raise NotFound("there is no such shop")


urlpatterns.append(path("failing", failing))


@pytest.fixture(scope="module")
def in_django() -> None:
    """Django, set up for this module."""
    if not settings.configured:
        middleware = ["onyxq.integrations.django.ErrorMiddleware"]
        settings.configure(ROOT_URLCONF=__name__, MIDDLEWARE=middleware, ALLOWED_HOSTS=["testserver"])
        django.setup()


def fastapi_app(**options: Any) -> FastAPI:
    """Return an application of FastAPI with the pages."""
    queue = with_fastapi.OnyxQ(app, **options)
    api = FastAPI(lifespan=queue.lifespan)
    queue.install(api)
    return api


def flask_app(**options: Any) -> Flask:
    """Return an application of Flask with the pages."""
    web = Flask(__name__)
    with_flask.OnyxQ(app, **options).init_app(web)
    return web


class FastApiClient:
    """Requests to an application of FastAPI, each in an event loop of its own."""

    def __init__(self, api: FastAPI) -> None:
        self._transport = httpx.ASGITransport(app=api)

    def get(self, path: str) -> httpx.Response:
        """Return the whole answer."""

        async def main() -> httpx.Response:
            async with httpx.AsyncClient(transport=self._transport, base_url="http://shop") as http:
                return await http.get(path)

        return anyio.run(main)


def getter(framework: str) -> Get:
    """Return a way to ask a framework's pages, with an outbox."""
    if framework == "fastapi":
        http: Any = FastApiClient(fastapi_app(outbox=True))
    elif framework == "flask":
        http = flask_app(outbox=True).test_client()
    else:
        http = DjangoClient()

    def get(path: str) -> tuple[int, Any]:
        answer = http.get(path)
        return answer.status_code, json.loads(answer.text if framework != "django" else answer.content)

    return get


FRAMEWORKS = pytest.mark.parametrize("framework", ["fastapi", "flask", "django"])
SYSTEM = pytest.mark.usefixtures("in_django")


@SYSTEM
@FRAMEWORKS
def test_a_page_shows_state_progress_and_result(client: Client, framework: str) -> None:
    """It shows neither the arguments nor the worker."""
    get = getter(framework)
    task_id = ship.enqueue(7)
    url = f"/tasks/{task_id.hex()}"
    ready = {"id": task_id.hex(), "state": "ready", "progress": None, "result": None}
    assert get(url) == (200, ready)
    (claim,) = client.claim("shop", wait_ms=WAIT_MS)
    client.update(claim, b'{"progress":{"done":1,"total":3,"note":"packed"}}')
    status, view = get(url)
    assert (status, view["state"]) == (200, "claimed")
    assert {**view["progress"], "at_ms": 0} == {"done": 1, "total": 3, "note": "packed", "at_ms": 0}
    client.complete(claim, b'"on its way"')
    assert get(url)[1] == {**view, "state": "completed", "result": "on its way"}


@SYSTEM
@FRAMEWORKS
def test_a_page_shows_only_tasks_of_the_application(client: Client, framework: str) -> None:
    """Other queues may hold secrets of others. A malformed id is the caller's mistake."""
    get = getter(framework)
    other = client.enqueue("payroll", b"1")
    missing = make_id(1_700_000_000_000, 1, 1, 0)
    found = [get(f"/tasks/{one.hex()}") for one in (other, missing)]
    assert [(status, body["code"]) for status, body in found] == [(404, "not_found")] * 2
    assert [body["detail"] for _, body in found] == [
        f"id: this application has no task {one.hex()}" for one in (other, missing)
    ]
    status, body = get("/tasks/nonsense")
    assert (status, body["code"], body["status"]) == (400, "bad_request", 400)


@SYSTEM
@FRAMEWORKS
def test_a_task_that_waits_in_the_outbox_is_shown_as_recorded(client: Client, framework: str) -> None:
    """Its id is new and does not exist yet."""
    (row,) = RowMaker().rows([ship.s(1)])
    assert getter(framework)(f"/tasks/{row.task_id.hex()}")[1]["state"] == "recorded"
    if framework != "django":
        make = {"fastapi": lambda: FastApiClient(fastapi_app()), "flask": lambda: flask_app().test_client()}
        http: Any = make[framework]()
        assert http.get(f"/tasks/{row.task_id.hex()}").status_code == 404


@SYSTEM
@FRAMEWORKS
def test_events_end_with_the_task(client: Client, framework: str) -> None:
    """A finished task is sent once; an unknown one is not found before the stream begins."""
    task_id = ship.enqueue(8)
    (claim,) = client.claim("shop", wait_ms=WAIT_MS)
    client.fail(claim, "the address 10.0.0.7 is secret", retry_in_ms=0)
    client.cancel(task_id)
    path = f"/tasks/{task_id.hex()}/events"
    if framework == "fastapi":
        answer: Any = FastApiClient(fastapi_app()).get(path)
        kind, text = answer.headers["content-type"], answer.text
    elif framework == "flask":
        answer = flask_app().test_client().get(path)
        kind, text = answer.headers["content-type"], answer.text
    else:
        answer = DjangoClient().get(path)
        kind, text = answer.headers["content-type"], b"".join(answer.streaming_content).decode()
    assert kind.startswith("text/event-stream")
    first, last = text.strip().split("\n\n")
    assert last == "event: end\ndata: {}"
    assert first.startswith("event: task\ndata: ")
    view = json.loads(first.partition("data: ")[2])
    assert (view["state"], "error" in view) == ("cancelled", False)
    assert "10.0.0.7" not in text
    assert getter(framework)(f"/tasks/{'00' * 20}/events")[0] == 404


@SYSTEM
def test_django_under_asgi_streams_without_a_thread_of_its_own(client: Client) -> None:
    """The body is an asynchronous iterator."""
    task_id = ship.enqueue(9)
    (claim,) = client.claim("shop", wait_ms=WAIT_MS)
    client.complete(claim, b'"done"')

    async def main() -> str:
        answer = await DjangoAsyncClient().get(f"/tasks/{task_id.hex()}/events")
        return b"".join([part async for part in answer.streaming_content]).decode()

    assert '"state":"completed"' in anyio.run(main)


@SYSTEM
def test_pages_can_be_closed_to_strangers(client: Client) -> None:
    """Each framework has its way: a dependency, a function before the request, a decorator."""
    task = ship.enqueue(1).hex()

    def refuse() -> None:
        raise HTTPException(403)

    api = FastAPI()
    with_fastapi.OnyxQ(app).install(api, dependencies=[Depends(refuse)])
    assert FastApiClient(api).get(f"/tasks/{task}").status_code == 403
    web, queue = Flask(__name__), with_flask.OnyxQ(app)
    queue.blueprint.before_request(lambda: ("closed", 403))
    queue.init_app(web)
    assert web.test_client().get(f"/tasks/{task}/events").status_code == 403
    assert DjangoClient().get(f"/closed/{task}").status_code == 403
    client.cancel(task)


@SYSTEM
def test_errors_that_a_view_raises_become_answers(client: Client) -> None:
    """The error handler of each framework answers for the views of the program too."""
    api, web = fastapi_app(), flask_app()

    @api.get("/failing")
    def fastapi_view() -> None:
        raise NotFound("there is no such shop")

    @web.get("/failing")
    def flask_view() -> str:
        raise NotFound("there is no such shop")

    for answer in (
        FastApiClient(api).get("/failing"),
        web.test_client().get("/failing"),
        DjangoClient().get("/failing"),
    ):
        assert (answer.status_code, answer.headers["content-type"]) == (404, "application/problem+json")
        assert "there is no such shop" in str(answer.content if hasattr(answer, "content") else answer.data)


def test_a_browser_learns_nothing_about_a_queue_that_is_away() -> None:
    """Neither address nor reason, only when to try again."""
    status, body, headers = problem(Overloaded("10.0.0.7 is full", retry_after_ms=2_500))
    assert (status, headers["Retry-After"]) == (503, "3")
    assert "10.0.0.7" not in json.dumps(body)


def test_a_new_cluster_is_no_mistake_of_the_browser(caplog: pytest.LogCaptureFixture) -> None:
    """The answer says to try again later, and the log says what to do."""
    status, body, _ = problem(ClusterMismatch("the server is another one", hint="Start this program again."))
    assert (status, body["code"]) == (503, "cluster_mismatch")
    assert "Start this program again." in caplog.text


def test_the_error_of_a_failed_task_is_shown_on_demand(client: Client) -> None:
    """It may contain what a stranger should not read, so it is off at first."""
    task_id = ship.options(retries=0).enqueue(1)
    (claim,) = client.claim("shop", wait_ms=WAIT_MS)
    client.fail(claim, "ValueError: no")
    path = f"/tasks/{task_id.hex()}"
    assert FastApiClient(fastapi_app(errors=True)).get(path).json()["error"] == "ValueError: no"
    assert "error" not in FastApiClient(fastapi_app()).get(path).json()


def test_the_lifespan_of_fastapi_closes_the_client(client: Client) -> None:
    """The next use opens it again."""
    queue = with_fastapi.OnyxQ(app)

    async def main() -> None:
        async with queue.lifespan(FastAPI()):
            assert app.opened is not None

    anyio.run(main)
    assert app.opened is None
