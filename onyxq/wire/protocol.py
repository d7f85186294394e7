"""Framing of the wire protocol, without any input or output (design: one picture, wire).

A frame is a 32-bit little-endian length and that many bytes of msgpack.  Messages are
short lists::

    ["onyxq", version, {...}]   hello, first in both directions
    [id > 0, method, args]      request
    [id, 0, result]             its answer
    [id, 1, error map]          its failure; id 0: about the connection, which closes
    [0, method, args]           one-way message; "$cancel" {"id": n} withdraws a request

`Decoder` turns bytes, however they were cut, into messages; `encode` does the reverse.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import msgpack
import msgspec
from attrs import field, frozen

from onyxq.core.errors import BadRequest, ClusterMismatch, OnyxqError, ProtocolError, TooLarge, from_map

FRAME_BYTES_MAX = 20 * 1024 * 1024
"""Bytes of msgpack in one frame to a server."""
ANSWER_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of msgpack in one frame from a server: a task may include its payload, its result and its updates."""
HELLO_BYTES_MAX = 64 * 1024
"""Bytes of msgpack in one frame until the hello was understood."""
ARRAY_ITEMS_MAX = 1 << 18
"""Items of one list from a peer or a server: a few bytes must not make the decoder reserve gigabytes.

`onyxq.wire.weight` bounds a client's.
"""

NAME = "onyxq"
VERSION = 1
CANCEL = "$cancel"
PING = "$ping"

CLIENT_PORT = "Clients use the port of --listen, 7400 by default. `onyxq dev` shows it beside `clients`."
"""Hint for a client that reached an HTTP port."""

_LENGTH = struct.Struct("<I")
_REQUEST = msgspec.msgpack.Decoder(tuple[Annotated[int, msgspec.Meta(ge=0)], str, msgspec.Raw])
_FIELDS = ("cluster", "cluster_id", "credential", "role", "node", "peer")


@frozen(kw_only=True)
class Hello:
    """First message of each side, about itself."""

    cluster: str | None = None
    """Name of the expected cluster; None: any cluster of the other side."""
    cluster_id: str | None = None
    credential: str | None = field(default=None, repr=False)
    role: str = "client"
    """``client`` or ``peer``."""
    node: str = ""
    peer: str = ""

    def to_message(self) -> list[Any]:
        """Return the hello as a message."""
        return [NAME, VERSION, {name: getattr(self, name) for name in _FIELDS}]

    @staticmethod
    def from_message(message: Any) -> Hello:
        """Return the hello in a message; raises `ProtocolError`."""
        match message:
            case ["onyxq", int() as version, dict() as said]:
                if version != VERSION:
                    raise ProtocolError(f"the other side speaks version {version} of the protocol, this is {VERSION}")
            case _:
                raise ProtocolError("the first message is not a hello")
        known = {name: said[name] for name in _FIELDS if said.get(name) is not None}
        if not all(isinstance(value, str) for value in known.values()):
            raise ProtocolError("a field of the hello is not text")
        return Hello(**known)

    @staticmethod
    def from_server(message: Any) -> Hello:
        """Return the hello of a server; raises the error that it sent instead, or `ProtocolError`."""
        match message:
            case [0, 1, dict() as error]:
                raise from_map(error)
        return Hello.from_message(message)


def check_cluster(mine: Hello, theirs: Hello) -> None:
    """Raise `ClusterMismatch` if both sides name a cluster and the names differ."""
    for own, other in ((mine.cluster_id, theirs.cluster_id), (mine.cluster, theirs.cluster)):
        if own is not None and other is not None and own != other:
            raise ClusterMismatch(f"this is cluster {own!r}, the other side means {other!r}")


def _as_base(value: Any) -> Any:
    """Return text, bytes or a number of a derived type as the type that msgpack knows."""
    for kind in _BASES:
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"values of type {type(value).__name__} have no form in msgpack")


_BASES: tuple[type[Any], ...] = (str, bytes, int, float)
_ENCODER = msgspec.msgpack.Encoder(enc_hook=_as_base)
_HELLO_PREFIX = _ENCODER.encode([NAME, 0, 0])[:-2]


def encode(message: list[Any], *, most: int = FRAME_BYTES_MAX) -> bytes:
    """Return the frame of a message of at most ``most`` bytes. Structs in it become maps.

    Raises `TooLarge`, and `BadRequest` for values that msgpack cannot hold.
    """
    try:
        body = _ENCODER.encode(message)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise BadRequest(f"cannot be sent: {error}") from None
    if len(body) > most:
        raise TooLarge(f"a message of {len(body)} bytes; at most {most}")
    return _LENGTH.pack(len(body)) + body


def starts_hello(data: bytes) -> bool:
    """Return whether received bytes begin with the hello of a client."""
    return data[_LENGTH.size :].startswith(_HELLO_PREFIX)


def refusal(error: OnyxqError) -> bytes:
    """Return the frame that answers a hello with an error."""
    return encode([0, 1, error.to_map()])


@frozen
class Refused:
    """A request that is answered with an error and never decoded."""

    number: int
    error: OnyxqError


Screen = Callable[[int, str, memoryview], int | Refused]
"""Takes id, method and frame of a request; returns the bytes it counts for, or a `Refused` to replace it."""


class Decoder:
    """Splits a stream of bytes into messages.

    After a `ProtocolError` the stream has no meaning any more: every later call raises
    the same error.
    """

    def __init__(self, *, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        self._buffer = bytearray()
        self._start = 0
        self._error: ProtocolError | None = None

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        if self._start:
            del self._buffer[: self._start]
            self._start = 0
        self._buffer += data

    @property
    def waiting(self) -> int:
        """Bytes received that no message has used yet."""
        return len(self._buffer) - self._start

    def messages(self, screen: Screen | None = None) -> Iterator[tuple[Any, int]]:
        """Yield every complete message and the bytes that it counts for; raises `ProtocolError` at a malformed one.

        ``screen`` checks each frame, which is a request. Its arguments are left as they are: a `msgspec.Raw`.
        """
        while True:
            if self._error is not None:
                raise self._error
            start, end = self._start + 4, len(self._buffer)
            if start > end:
                return
            (size,) = _LENGTH.unpack_from(self._buffer, self._start)
            if size > self.frame_bytes_max:
                begins = bytes(self._buffer[self._start : start])
                if begins == b"HTTP":
                    self._error = ProtocolError("the other side speaks HTTP, not OnyxQ's protocol", hint=CLIENT_PORT)
                else:
                    self._error = ProtocolError(f"a frame of {size} bytes; at most {self.frame_bytes_max}")
                continue
            if start + size > end:
                return
            message, counted = self._unpack(start, start + size, screen)
            if self._error is None:
                self._start = start + size
                yield message, counted

    def _unpack(self, start: int, end: int, screen: Screen | None) -> tuple[Any, int]:
        # The buffer cannot grow while a view of it is open.
        with memoryview(self._buffer) as whole, whole[start:end] as body:
            try:
                if screen is None:
                    return msgpack.unpackb(body, strict_map_key=False, max_array_len=ARRAY_ITEMS_MAX), end - start
                return _screened(body, screen)
            except ProtocolError as error:
                self._error = error
            except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException) as error:
                self._error = ProtocolError(f"a frame is not msgpack: {error}")
        return None, 0


def _screened(frame: memoryview, screen: Screen) -> tuple[Any, int]:
    """Return what takes the place of a request, and the bytes that it counts for; raises `ProtocolError`.

    The arguments of a request that is not refused are a copy of what the frame has.
    """
    try:
        number, method, args = _REQUEST.decode(frame)
    except (ValueError, RecursionError):
        raise ProtocolError("the message is not a request: expected [id, method, args]") from None
    try:
        counted = screen(number, method, frame)
        return (counted, 0) if isinstance(counted, Refused) else ((number, method, args.copy()), counted)
    finally:
        del args  # An error keeps the names of this call, and the buffer cannot grow while a view of it is open.


def parse_request(message: Any) -> tuple[int, str, Any]:
    """Return id (0: one-way), method and args (a map, decoded or not) of a message to a server.

    Raises `ProtocolError`.
    """
    match message:
        case [int() as number, str() as method, dict() as args] if number >= 0 and number is not False:
            return number, method, args
        case [number, method, msgspec.Raw() as args] if _is_map(memoryview(args)[0]):
            return number, method, args
    raise ProtocolError("the message is not a request: expected [id, method, args]")


def _is_map(kind: int) -> bool:
    """Return whether a msgpack value with this first byte is a map."""
    return 0x80 <= kind < 0x90 or kind in (0xDE, 0xDF)


def parse_answer(message: Any) -> tuple[int, Any, OnyxqError | None]:
    """Return id, result and error of a message to a client; raises `ProtocolError`."""
    match message:
        case [int() as number, 0, result] if number >= 0:
            return number, result, None
        case [int() as number, 1, dict() as error] if number >= 0:
            return number, None, from_map(error)
    raise ProtocolError("the message is not an answer: expected [id, 0, result] or [id, 1, error]")
