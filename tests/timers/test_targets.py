"""Addresses to which callbacks may go."""

from __future__ import annotations

import pytest

from onyxq.errors import BadRequest
from onyxq.interfaces.callbacks.targets import Targets, targets

HERE = ("127.0.0.1:7400", "[::1]:7480")
INSIDE = (
    "10.1.2.3",
    "172.16.0.9",
    "192.168.1.1",
    "169.254.169.254",
    "100.64.0.1",
    "fc00::7",
    "fe80::1%eth0",
    "fec0::1",
)
LOOPBACK = ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1")
NOWHERE = ("0.0.0.0", "::", "224.0.0.1", "255.255.255.255", "240.0.0.1", "ff02::1")
HIDDEN = (
    "64:ff9b::a01:203",
    "64:ff9b::7f00:1",
    "64:ff9b:1::a01:203",
    "2002:a01:203::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "::ffff:10.1.2.3",
)
OUTSIDE = ("93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946", "::ffff:93.184.216.34")


def allows(allowed: Targets, address: str) -> bool:
    """Whether an address is allowed."""
    try:
        allowed.check(address)
    except BadRequest as error:
        assert (error.field, "timer_targets" in error.advice) == ("callback.uri", True)
        return False
    return True


@pytest.mark.parametrize("address", [*INSIDE, *LOOPBACK, *NOWHERE, *HIDDEN])
def test_what_is_not_public_is_refused(address: str) -> None:
    """An address that embeds a private one is refused too, by a peer that is reachable from elsewhere."""
    assert not allows(targets("", listens=("10.1.1.1:7400",), asks=False), address)
    assert not allows(targets("public", listens=HERE, asks=False), address)


@pytest.mark.parametrize("address", OUTSIDE)
def test_public_addresses_are_allowed(address: str) -> None:
    """They are allowed unless a setting excludes them."""
    assert allows(targets("", listens=("0.0.0.0:7400",), asks=False), address)
    assert not allows(targets("10.0.0.0/8", listens=HERE, asks=False), address)


@pytest.mark.parametrize("address", LOOPBACK)
def test_loopback_is_allowed_where_the_peer_listens_on_loopback_alone(address: str) -> None:
    """Every client is on the machine already."""
    assert allows(targets("", listens=HERE, asks=False), address)
    assert allows(targets("", listens=("localhost:0",), asks=False), address)
    assert not allows(targets("", listens=("127.0.0.1:7400", "0.0.0.0:7480"), asks=False), address)
    assert not allows(targets("", listens=("127.0.0.1:7400", "example.org:7480"), asks=False), address)
    assert allows(targets("loopback", listens=("0.0.0.0:7400",), asks=False), address)


@pytest.mark.parametrize("address", LOOPBACK)
def test_loopback_is_refused_where_credentials_are_asked_for(address: str) -> None:
    """A caller with a token may come through a proxy on the machine; the setting allows it."""
    assert not allows(targets("", listens=HERE, asks=True), address)
    assert not allows(targets("public", listens=HERE, asks=False), address)
    assert allows(targets("public, loopback", listens=HERE, asks=True), address)


def test_networks_and_addresses_are_named() -> None:
    """Comma-separated."""
    allowed = targets("public, 10.1.0.0/16,192.168.1.7, fc00::/7", listens=HERE, asks=False)
    assert [allows(allowed, one) for one in ("10.1.255.1", "192.168.1.7", "fc00::7", "93.184.216.34")] == [True] * 4
    assert [allows(allowed, one) for one in ("10.2.0.1", "192.168.1.8", "127.0.0.1", "fe80::1")] == [False] * 4
    assert allows(targets("any", listens=(), asks=False), "169.254.169.254")


@pytest.mark.parametrize("word", ["private", "10.1.0.1/8", "http://10.1.0.1", "*.example.org"])
def test_what_is_no_network_is_refused(word: str) -> None:
    """Naming the setting."""
    with pytest.raises(BadRequest) as caught:
        targets(f"public,{word}", listens=(), asks=False)
    assert caught.value.field == "timer_targets"
