"""Transports of installed extensions."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest
import trio

from onyxq.core.timer_model import Callback, Delivery
from onyxq.errors import BadExtension, BadRequest
from onyxq.interfaces.callbacks.targets import Targets
from onyxq.interfaces.callbacks.transports import Transports, loaded
from onyxq.operations.task_view import shown_error, shown_uri

GROUP = "onyxq.transports"
HERE = "tests.timers.test_transports"
DELIVERY = Delivery("t", "key", 1, "anything", "any", {"a": 1})
delivered: list[Delivery] = []


async def deliver(delivery: Delivery) -> int:
    """A transport that an extension may bring."""
    delivered.append(delivery)
    return 7


def not_async(delivery: Delivery) -> None:
    """A transport that is refused."""


def points(**named: str) -> list[EntryPoint]:
    """Entry points of a distribution."""
    return [EntryPoint(name, value, GROUP) for name, value in named.items()]


def test_a_transport_of_an_entry_point_is_used() -> None:
    """It is used in addition to the built-in ones."""
    transports = Transports(Targets(), loaded(points(mine=f"{HERE}:deliver")))
    callback = Callback("mine", "anything", "any")

    async def main() -> None:
        await transports.check(callback)
        assert await transports["mine"].deliver(DELIVERY) == 7

    trio.run(main)
    assert [one.data for one in delivered] == [{"a": 1}]
    assert transports.lane(callback) == "mine"
    with pytest.raises(BadRequest, match="http, mine, tcp"):
        transports["other"]


@pytest.mark.parametrize(
    ("named", "what"),
    [
        ({"http": f"{HERE}:deliver"}, "another transport of this name"),
        ({"mine": f"{HERE}:not_async"}, "async"),
        ({"mine": f"{HERE}:nothing"}, "cannot be loaded"),
        ({"mine": "no.such.module:deliver"}, "cannot be loaded"),
    ],
)
def test_a_transport_that_cannot_be_is_refused_at_the_start(named: dict[str, str], what: str) -> None:
    """Naming the entry point."""
    with pytest.raises(BadExtension, match=what) as caught:
        loaded(points(**named))
    assert next(iter(named)) in caught.value.message


def test_callbacks_to_one_place_share_a_lane() -> None:
    """Whatever their paths."""
    transports = Transports(Targets())
    lanes = [
        transports.lane(Callback("http", uri, "POST"))
        for uri in ("http://a.example/x", "http://a.example:80/y", "http://b.example/x", "https://a.example")
    ]
    assert lanes == ["a.example:80", "a.example:80", "b.example:80", "a.example:443"]
    assert transports.lane(Callback("tcp", "tcp://a.example:80", "-")) == "a.example:80"


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("https://shop.example/ended/7", "https://shop.example/ended/7"),
        ("https://shop.example/ended?key=hunter2#hunter2", "https://shop.example/ended?…"),
        ("nats://ann:hunter2@[::1]:4222/orders", "nats://…@[::1]:4222/orders"),
        ("nats://hunter2@b@a.example", "nats://…@a.example"),
        ("nats:ann:hunter2@a.example", "nats:…@a.example"),
        ("nats://[hunter2", "…"),
        ("anything", "anything"),
    ],
)
def test_an_address_is_shown_without_its_secrets(uri: str, shown: str) -> None:
    """A transport of an extension may use any address, and repeat parts of it in its errors."""
    assert shown_uri(uri) == shown
    assert shown_error(f"{uri} does not answer", uri) == f"{shown} does not answer"


@pytest.mark.long
def test_an_error_is_shown_without_the_secrets_of_the_address() -> None:
    """A transport may name the password or the query alone."""
    error = "hunter2 was refused for ann:hunter2, key=abc"
    assert shown_error(error, "nats://ann:hunter2@a.example/?key=abc") == "… was refused for …, …"
