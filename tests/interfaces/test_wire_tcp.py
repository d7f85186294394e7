"""The real network: connections that cannot be accepted, and addresses that name nothing."""

from __future__ import annotations

import errno
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from onyxq.errors import BadRequest
from onyxq.interfaces.http import server
from onyxq.wire import tcp
from onyxq.wire.tcp import TcpNetwork
from simulation.world.network import SimulatedNetwork
from tests.interfaces.fake_service import FakeCluster, play


@pytest.mark.parametrize(
    "number",
    [
        *(errno.EMFILE, errno.ECONNABORTED, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EPERM),
        *(errno.ESOCKTNOSUPPORT, errno.EPROTONOSUPPORT),
    ],
)
def test_a_connection_that_cannot_be_accepted_does_not_end_the_server(number: int) -> None:
    """Linux reports what happened to a waiting connection, and what its firewall refused, when it is accepted."""
    tries: list[float] = []

    class Listener:
        async def accept(self) -> Any:
            tries.append(anyio.current_time())
            if len(tries) > 2:
                await anyio.sleep_forever()
            await anyio.lowlevel.checkpoint()
            raise anyio.BrokenResourceError from OSError(number, "as the system calls it")

    async def scenario(_: FakeCluster, __: SimulatedNetwork) -> None:
        listener: Any = Listener()
        with anyio.move_on_after(1):
            await tcp._accept(listener, anyio.sleep)

    play(scenario)
    assert len(tries) == 3


@pytest.mark.parametrize("address", ["", "localhost", "a:", ":1", "a:99999", "a:-1", "a:x"])
def test_a_malformed_address_is_a_bad_request(address: str) -> None:
    """Before anything is tried."""

    async def scenario(_: FakeCluster, __: SimulatedNetwork) -> None:
        with pytest.raises(BadRequest):
            await TcpNetwork().connect(address, timeout_ms=100)

    play(scenario)


@pytest.mark.parametrize("port", ["listen", "http"])
def test_a_listener_at_a_host_that_no_name_can_be_is_a_bad_request(port: str) -> None:
    """The error names the setting and the host."""
    address = "m\u00fcller..example:0"

    async def scenario(_: FakeCluster, __: SimulatedNetwork) -> None:
        with pytest.raises(BadRequest, match="'m\u00fcller..example' is not a host name") as found:
            await (server.listen(address) if port == "http" else TcpNetwork().serve(address, anyio.sleep))
        assert found.value.field == port

    play(scenario)
