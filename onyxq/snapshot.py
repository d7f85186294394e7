"""The replica as bytes: what the origin holds and new readers start from (design: garbage collection).

Canonical: equal replicas give equal bytes in every process, as maps are packed sorted by
key; so comparing bytes compares replicas.  Extensions may hold msgpack's types, tuples
and persistent maps.
"""

from __future__ import annotations

import struct
import types
import typing
import zlib
from functools import cache
from typing import Any

import attrs
import msgpack
from pyrsistent import PMap, pmap

from onyxq.errors import Corrupt
from onyxq.replica import Replica

MAGIC = b"OXQ1"
COMPRESSION_LEVEL = 3
_CRC = struct.Struct("<I")


def pack(replica: Replica) -> bytes:
    """``magic (4) | CRC-32 of the rest (4) | zlib of msgpack`` of the replica."""
    body = zlib.compress(msgpack.packb(_plain(replica)), COMPRESSION_LEVEL)
    return MAGIC + _CRC.pack(zlib.crc32(body)) + body


def unpack(data: bytes) -> Replica:
    """The replica that `pack` packed; raises `Corrupt` if the bytes were damaged."""
    body = data[8:]
    if len(data) < 8 or data[:4] != MAGIC or _CRC.unpack(data[4:8])[0] != zlib.crc32(body):
        raise Corrupt("the snapshot of the replica does not match its checksum")
    try:
        plain = msgpack.unpackb(zlib.decompress(body), strict_map_key=False)
        replica = _build(Replica, plain)
    except (ValueError, TypeError, KeyError, zlib.error, msgpack.UnpackException) as error:
        raise Corrupt(f"the snapshot of the replica is malformed: {error}") from None
    assert isinstance(replica, Replica)
    return replica


def _plain(value: Any) -> Any:
    """``value`` as msgpack can hold it: attrs classes become lists of their fields, maps are sorted."""
    if isinstance(value, (PMap, dict)):
        return {key: _plain(value[key]) for key in sorted(value)}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in value]
    kind: Any = type(value)
    if attrs.has(kind):
        return [_plain(getattr(value, name)) for name, _ in _fields(kind)]
    return value


@cache
def _fields(kind: Any) -> tuple[tuple[str, Any], ...]:
    hints = typing.get_type_hints(kind)
    return tuple((item.name, hints[item.name]) for item in attrs.fields(kind))


def _build(kind: Any, plain: Any) -> Any:
    """The value of type ``kind`` that `_plain` turned into ``plain``."""
    if kind is Any:
        return _build_any(plain)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        return None if plain is None else _build(arguments[0], plain)
    if origin is PMap:
        return pmap({key: _build(arguments[1], item) for key, item in plain.items()})
    if origin is tuple:
        kinds = arguments[:1] * len(plain) if arguments[-1] is Ellipsis else arguments
        return tuple([_build(item_kind, item) for item_kind, item in zip(kinds, plain, strict=True)])
    if isinstance(kind, type) and attrs.has(kind):
        fields = _fields(kind)
        return kind(**{name: _build(field, item) for (name, field), item in zip(fields, plain, strict=True)})
    return plain


def _build_any(plain: Any) -> Any:
    if isinstance(plain, dict):
        return pmap({key: _build_any(item) for key, item in plain.items()})
    if isinstance(plain, list):
        return tuple([_build_any(item) for item in plain])
    return plain
