"""Connections to the receivers of callbacks: an address is checked after the name was resolved."""

from __future__ import annotations

import trio

from onyxq.core.errors import BadRequest
from onyxq.interfaces.callbacks.targets import Resolver

CONNECT_S = 5.0
"""Longest time to connect to one address of a name, in seconds."""


class Failed(Exception):
    """An attempt did not reach its receiver, or the receiver refused it; the message says why."""


async def connect(resolver: Resolver, host: str, port: int) -> trio.SocketStream:
    """Connect to the first address that accepts; raises `Failed`."""
    try:
        addresses = await resolver.addresses(host, port)
    except BadRequest as error:
        raise Failed(f"{error.message}: {error.advice}") from None
    except OSError as error:
        raise Failed(f"the name {host} cannot be resolved: {error}") from None
    problem = "the name has no address"
    for address in addresses:
        family = trio.socket.AF_INET6 if ":" in address else trio.socket.AF_INET
        socket = trio.socket.socket(family, trio.socket.SOCK_STREAM)
        try:
            with trio.fail_after(CONNECT_S):
                await socket.connect((address, port))
            return trio.SocketStream(socket)
        except trio.TooSlowError:
            problem = f"{address} did not answer within {CONNECT_S:.0f} s"
            socket.close()
        except OSError as error:
            problem = str(error)
            socket.close()
        except BaseException:
            socket.close()
            raise
    raise Failed(f"{host}:{port} cannot be reached: {problem}")
