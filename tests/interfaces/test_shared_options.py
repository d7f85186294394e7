"""Options that several calls share: they are in every signature, and unknown ones are refused by name."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import trio

from onyxq import App, AsyncClient, Client
from onyxq.client.management import PERIODIC
from onyxq.client.policy import ENQUEUE_DEFAULTS
from onyxq.worker import Worker
from onyxq.worker.options import WORKER_DEFAULTS

SHARED: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (AsyncClient.enqueue, dict(ENQUEUE_DEFAULTS)),
    (AsyncClient.enqueue_many, dict(ENQUEUE_DEFAULTS)),
    (Client.enqueue, dict(ENQUEUE_DEFAULTS)),
    (Client.enqueue_many, dict(ENQUEUE_DEFAULTS)),
    (AsyncClient.prepare_batch, {"job": "", "version": -1}),
    (AsyncClient.commit_batch, {"job": "", "version": -1}),
    (AsyncClient.set_periodic, dict(PERIODIC)),
    (App.periodic, {"zone": "UTC", "missed": "once"}),
    (App.worker, dict(WORKER_DEFAULTS)),
    (Worker, dict(WORKER_DEFAULTS)),
]


@pytest.mark.parametrize(("call", "options"), SHARED, ids=lambda one: getattr(one, "__qualname__", ""))
def test_a_signature_shows_every_option_with_its_default(call: Callable[..., Any], options: dict[str, Any]) -> None:
    """`help`, the reference pages and editors read the signature."""
    parameters = inspect.signature(call).parameters
    assert {name: parameters[name].default for name in options} == options
    assert all(parameters[name].kind is inspect.Parameter.KEYWORD_ONLY for name in options)
    assert not any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters.values())


@pytest.mark.parametrize("call", [AsyncClient.enqueue, Client.enqueue_many], ids=lambda call: call.__qualname__)
def test_the_text_of_a_call_explains_every_option(call: Callable[..., Any]) -> None:
    """The explanation is written once and added to each call."""
    text = inspect.getdoc(call) or ""
    assert [name for name in ENQUEUE_DEFAULTS if f"``{name}``" not in text] == []


def unknown(call: Callable[..., Any]) -> str:
    """The text of the `TypeError` of a call with the option ``colour``."""

    async def run() -> None:
        await call(colour="red")

    with pytest.raises(TypeError) as found:
        trio.run(run)
    return str(found.value)


def test_an_unknown_option_is_a_type_error_that_names_it() -> None:
    """As for any Python function, this comes before anything is sent."""
    client, app = AsyncClient("127.0.0.1:1"), App("127.0.0.1:1")
    expected = "{}() got an unexpected keyword argument 'colour'"
    calls: dict[str, Callable[..., Any]] = {
        "AsyncClient.enqueue": lambda **more: client.enqueue("q", b"", **more),
        "AsyncClient.enqueue_many": lambda **more: client.enqueue_many("q", [b""], **more),
        "AsyncClient.set_periodic": lambda **more: client.set_periodic("n", "q", "every 90s", **more),
        "AsyncClient.prepare_batch": lambda **more: client.prepare_batch(name="n", **more),
        "AsyncClient.commit_batch": lambda **more: client.commit_batch(name="n", **more),
        "App.worker": lambda **more: app.worker(["q"], **more),
        "App.periodic": lambda **more: app.periodic("every 90s", **more),
        "Worker": lambda **more: Worker(lambda claim: trio.sleep_forever(), queues=["q"], **more),
    }
    assert {name: unknown(call) for name, call in calls.items()} == {name: expected.format(name) for name in calls}


def test_a_misspelt_option_is_answered_with_the_one_that_is_meant() -> None:
    """`Client` names its own calls, and leaves out the frames of its other thread."""
    app: Any = App("127.0.0.1:1")
    with pytest.raises(TypeError, match="'concurency'; did you mean concurrency") as found:
        app.worker(["q"], concurency=3)
    assert found.value.__notes__[0].startswith("Hint: It takes queues, concurrency, concurrency_max, ahead, ")
    client: Any
    with Client("127.0.0.1:1") as client:
        calls: dict[str, Callable[[], Any]] = {
            "enqueue() got an unexpected keyword argument 'dealy'; did you mean delay?": lambda: client.enqueue(
                "q", b"", dealy=5
            ),
            "claim() got an unexpected keyword argument 'lease'; did you mean lease_ms?": lambda: client.claim(
                "q", lease="10s"
            ),
            "enqueue() missing a required argument: 'payload'": lambda: client.enqueue("q"),
        }
        for text, call in calls.items():
            with pytest.raises(TypeError) as found:
                call()
            assert str(found.value) == f"Client.{text}"
            assert len(traceback.extract_tb(found.value.__traceback__)) <= 4


def test_an_async_call_answers_a_wrong_argument_in_the_same_way() -> None:
    """Also one that names all its arguments, and one that the client inherits."""
    client: Any = AsyncClient("127.0.0.1:1")
    calls: dict[str, Callable[[], Any]] = {
        "claim() got an unexpected keyword argument 'lease'; did you mean lease_ms?": lambda: client.claim(
            "q", lease="10s"
        ),
        "pause() got an unexpected keyword argument 'wy'; did you mean why?": lambda: client.pause("q", wy="x"),
        "get() missing a required argument: 'id'": client.get,
    }
    for text, call in calls.items():
        with pytest.raises(TypeError) as found:
            trio.run(call)
        assert str(found.value) == f"AsyncClient.{text}"


def test_a_type_error_within_a_call_is_not_one_of_the_subclass() -> None:
    """A subclass may take other arguments than the call that it makes."""

    class Shop(Client):
        """Sends orders."""

        def enqueue(self, order: bytes) -> Any:  # type: ignore[override]
            """Enqueue an order."""
            return super().enqueue("orders", order)

        def _opened(self) -> Any:
            return None

        def _run(self, call: Callable[[], Any]) -> Any:
            raise TypeError("within the call")

    with pytest.raises(TypeError, match="^within the call$"):
        Shop("127.0.0.1:1").enqueue(b"1")
