"""Connections of callbacks: only to addresses that were checked, and only if all addresses of the host are allowed."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import trio
import trio.testing

from onyxq.errors import BadRequest
from onyxq.interfaces.callbacks import targets as targets_module
from onyxq.interfaces.callbacks.addresses import Failed, connect
from onyxq.interfaces.callbacks.targets import Resolver, Targets, targets

HOST = "two.example"
ALLOWED, PRIVATE = "127.0.0.2", "127.0.0.1"
"""Both are loopback addresses, which tests can reach. Only the first is allowed."""
ONE = targets(ALLOWED, listens=(), asks=True)


@contextmanager
def listening(address: str) -> Iterator[tuple[socket.socket, int]]:
    """A server that accepts connections, and its port."""
    with socket.create_server((address, 0)) as server:
        server.setblocking(False)
        yield server, server.getsockname()[1]


def was_reached(server: socket.socket) -> bool:
    """Return whether a client connected."""
    try:
        server.accept()[0].close()
    except BlockingIOError:
        return False
    return True


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Set the host's addresses: one answer per look-up; the last answer is repeated."""

    def say(*answers: Sequence[str]) -> None:
        left = list(answers)

        def look_up(host: str, port: int, *args: Any, **options: Any) -> list[Any]:
            assert host == HOST
            found = left.pop(0) if len(left) > 1 else left[0]
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in found]

        monkeypatch.setattr(socket, "getaddrinfo", look_up)

    return say


def connected(allowed: Targets, port: int) -> bool:
    """Return whether a connection to the host could be opened."""

    async def main() -> bool:
        try:
            stream = await connect(Resolver(allowed), HOST, port)
        except Failed:
            return False
        await stream.aclose()
        return True

    return trio.run(main)


@pytest.mark.parametrize("addresses", [(ALLOWED, PRIVATE), (PRIVATE, ALLOWED), (ALLOWED, ALLOWED, PRIVATE)])
def test_a_host_is_not_reached_if_one_of_its_addresses_is_not_allowed(
    names: Callable[..., None], addresses: tuple[str, ...]
) -> None:
    """In any order: a peer tries the next address if the first refuses the connection."""
    names(addresses)
    with listening(PRIVATE) as (private, port):
        assert not connected(ONE, port)
        assert not was_reached(private)
    with pytest.raises(BadRequest) as caught:
        trio.run(Resolver(ONE).check, HOST, port)
    assert caught.value.field == "callback.uri" and PRIVATE in caught.value.message


def test_a_host_whose_addresses_are_all_allowed_is_reached(names: Callable[..., None]) -> None:
    """The first address refuses the connection, the second accepts it."""
    names((ALLOWED, PRIVATE))
    with listening(PRIVATE) as (server, port):
        assert connected(targets(f"{ALLOWED}, {PRIVATE}", listens=(), asks=True), port)
        assert was_reached(server)


def test_a_name_that_changes_after_the_check_reaches_only_the_checked_address(names: Callable[..., None]) -> None:
    """The first look-up gives an allowed address, every later one a private address."""
    names((ALLOWED,), (PRIVATE,))
    with listening(PRIVATE) as (private, port):
        assert not connected(ONE, port)
        assert not was_reached(private)


def test_names_that_are_slow_to_resolve_delay_checks_but_no_callback(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client may send any number of callbacks to names whose servers do not answer."""
    answered = threading.Event()

    def look_up(host: str, port: int, **_: Any) -> list[Any]:
        if host != HOST:
            answered.wait(30)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ALLOWED, port))]

    async def main() -> list[str]:
        resolver = Resolver(ONE)
        async with trio.open_nursery() as nursery:
            for number in range(4 * targets_module.RESOLVERS):
                nursery.start_soon(resolver.check, f"slow-{number}.example", 1)
            await trio.testing.wait_all_tasks_blocked()
            with trio.fail_after(20):
                found = await resolver.addresses(HOST, 1)
            answered.set()
            nursery.cancel_scope.cancel()
        return found

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(targets_module, "CHECK_S", 60.0)
    try:
        assert trio.run(main) == [ALLOWED]
    finally:
        answered.set()
