"""The replica as bytes: what the origin holds and new readers start from (design: garbage collection).

Canonical: equal replicas give equal bytes in every process, as maps are packed sorted by
key; so comparing bytes compares replicas.  Extensions may hold msgpack's types, tuples
and persistent maps.

A replica may hold hundreds of thousands of claims, so packing and building also come in
slices of a millisecond or so (`packing`, `unpacking`), between which an event loop can do
other things.

Origins outlive programs.  Classes are packed as lists of their fields, so a new field goes
to the end and has a default: an origin without it is read with the default, and a program
that does not know it leaves it out, which loses nothing as long as nothing newer is enabled.
"""

from __future__ import annotations

import hashlib
import struct
import types
import typing
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import cache, partial
from heapq import merge
from typing import Any

import attrs
import msgpack
from pyrsistent import PMap, pmap

from onyxq.core.entry import INT_MAX, INT_MIN
from onyxq.core.errors import Corrupt
from onyxq.core.replica import Replica

MAGIC = b"OXQ1"
COMPRESSION_LEVEL = 3
DIGEST_BYTES = 16
SLICE_BYTES = 8 << 10
"""Packed bytes of a slice, a millisecond or so; the value of one key of a map is never divided."""
SLICE_KEYS = 1_024
"""Keys of a map that are looked at in a slice."""
SLICE_ITEMS = 256
"""A longer tuple is packed and built item by item."""
KEYS_FORESEEN_MAX = 1 << 20
"""Room for so many keys is made before they are there; a damaged number of keys is not believed."""
ITEMS_FEW = 32
"""What has more takes long enough to be looked at one by one."""
UNPACKED_BYTES_MAX, UNPACKED_FACTOR_MAX = 64 << 20, 100
"""A snapshot that unpacks to more bytes than this, and to more than so many times its size, is refused."""
_CRC = struct.Struct("<I")


def pack(replica: Replica) -> bytes:
    """``magic (4) | CRC-32 of the rest (4) | zlib of msgpack`` of the replica."""
    return sealed(b"".join(packing(replica)))


def unpack(data: bytes) -> Replica:
    """The replica that `pack` packed; raises `Corrupt` if the bytes were damaged."""
    building = unpacking(data)
    while True:
        try:
            next(building)
        except StopIteration as done:
            replica: Replica = done.value
            return replica


def packing(replica: Replica) -> Iterator[bytes]:
    """What goes into `sealed`, slice by slice (some are empty)."""
    compress = zlib.compressobj(COMPRESSION_LEVEL)
    for part in canonical(replica):
        yield compress.compress(part)
    yield compress.flush()


def sealed(body: bytes) -> bytes:
    """The snapshot whose compressed bytes `packing` gave."""
    return MAGIC + _CRC.pack(zlib.crc32(body)) + body


def digest(replica: Replica) -> str:
    """Hexadecimal BLAKE2b-128 of the canonical bytes: equal for equal replicas, in every process."""
    found = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in canonical(replica):
        found.update(part)
    return found.hexdigest()


def canonical(replica: Replica) -> Iterator[bytes]:
    """msgpack of the replica, slice by slice (some are empty): equal replicas give equal bytes."""
    packer = msgpack.Packer(autoreset=False, default=_plain)
    packer.pack_array_header(len(_fields(Replica)))
    for name, _ in _fields(Replica):
        yield from _pack_map(packer, getattr(replica, name))
    yield packer.bytes()


def _pack_map(packer: msgpack.Packer, value: Any) -> Iterator[bytes]:
    """Pack a value; a map is packed key by key, a long tuple item by item, and full slices are given away."""
    if type(value) is tuple and len(value) > SLICE_ITEMS:
        packer.pack_array_header(len(value))
        for item in value:
            yield from _pack_map(packer, item)
            if len(packer.getbuffer()) >= SLICE_BYTES:
                yield packer.bytes()
                packer.reset()
        return
    if not isinstance(value, PMap):
        packer.pack(value)
        return
    runs: list[list[Any]] = [[]]
    for key in value:
        if len(runs[-1]) == SLICE_KEYS:
            yield b""
            runs[-1].sort()
            runs.append([])
        runs[-1].append(key)
    runs[-1].sort()
    packer.pack_map_header(len(value))
    for key in merge(*runs):
        packer.pack(key)
        yield from _pack_map(packer, value[key])
        if len(packer.getbuffer()) >= SLICE_BYTES:
            yield packer.bytes()
            packer.reset()


def unpacking(data: bytes) -> Generator[None, None, Replica]:
    """Build the replica slice by slice; the generator returns it. Raises `Corrupt`."""
    body = data[8:]
    if len(data) < 8 or data[:4] != MAGIC or _CRC.unpack(data[4:8])[0] != zlib.crc32(body):
        raise Corrupt("the snapshot of the replica does not match its checksum")
    unpacker = msgpack.Unpacker(strict_map_key=False, max_buffer_size=0)
    try:
        decompress, left = zlib.decompressobj(), max(UNPACKED_BYTES_MAX, UNPACKED_FACTOR_MAX * len(data))
        while body and not decompress.eof:
            part = decompress.decompress(body, 16 * SLICE_BYTES)
            left -= len(part)
            if left < 0:
                raise ValueError("it unpacks to far more bytes than it has")
            unpacker.feed(part)
            body = decompress.unconsumed_tail
            yield
        found = {}
        count = unpacker.read_array_header()
        for name, kind in _fields(Replica)[:count]:
            found[name] = yield from _build_map(kind, unpacker)
        replica = Replica(**found)
    except (ValueError, TypeError, zlib.error, msgpack.UnpackException) as error:
        raise Corrupt(f"the snapshot of the replica is malformed: {error}") from None
    return replica


def _build_map(kind: Any, unpacker: msgpack.Unpacker) -> Generator[None, None, Any]:
    """Build the next value; a map is built key by key. The generator returns it."""
    if kind is Any:
        return (yield from _build_any_in_slices(unpacker.unpack()))
    if typing.get_origin(kind) is not PMap:
        return _build(kind, unpacker.unpack())
    key_kind, item_kind = typing.get_args(kind)
    build_key = _builder(key_kind)
    count = unpacker.read_map_header()
    # Of its final size: growing would be a long slice.
    built: Any = pmap(pre_size=2 * min(count, KEYS_FORESEEN_MAX)).evolver()
    start = unpacker.tell()
    for _ in range(count):
        key = build_key(unpacker.unpack())
        built[key] = yield from _build_map(item_kind, unpacker)
        if unpacker.tell() - start >= SLICE_BYTES:
            start = unpacker.tell()
            yield
    return built.persistent()


def _build_any_in_slices(plain: Any) -> Generator[None, None, Any]:
    """As `_build_any`, a slice at a time; an extension's state may be large."""
    if isinstance(plain, dict):
        built: Any = pmap(pre_size=2 * len(plain)).evolver()
        for count, (key, item) in enumerate(plain.items(), start=1):
            built[key] = (yield from _build_any_in_slices(item)) if _is_long(item) else _build_any(item)
            if count % SLICE_KEYS == 0:
                yield
        yield
        return built.persistent()
    if isinstance(plain, list):
        items: list[Any] = []
        for item in plain:
            items.append((yield from _build_any_in_slices(item)) if _is_long(item) else _build_any(item))
            if len(items) % SLICE_ITEMS == 0 or (isinstance(item, list) and len(item) > ITEMS_FEW):
                yield
        return tuple(items)
    return plain


def _is_long(plain: Any) -> bool:
    """Whether building it may take more than a slice."""
    return isinstance(plain, dict) or (isinstance(plain, list) and len(plain) > SLICE_ITEMS)


def misfits(state: Any) -> str:
    """In words the first part of a state that a snapshot cannot hold; empty if it is fine."""
    if isinstance(state, PMap):
        kinds = sorted({type(key).__name__ for key in state})
        if len(kinds) > 1 or not set(kinds) <= {"int", "str", "bytes"}:
            return f"keys of a map are {', '.join(kinds)}: all int, all str or all bytes"
        return next(filter(None, map(misfits, state.values())), "")
    if isinstance(state, tuple):
        return next(filter(None, map(misfits, state)), "")
    if type(state) is int and not INT_MIN <= state <= INT_MAX:
        return f"the number {state} is out of range"
    return "" if state is None or type(state) in (int, str, bytes, bool) else f"a {type(state).__name__}"


def _plain(value: Any) -> Any:
    """What msgpack asks for in place of ``value``: a class's fields as a list, a map sorted. Raises `TypeError`."""
    if isinstance(value, PMap):
        return {key: value[key] for key in sorted(value)}
    kind: Any = type(value)
    if attrs.has(kind):
        return [getattr(value, name) for name, _ in _fields(kind)]
    raise TypeError(f"a snapshot cannot hold a {kind.__name__}")


@cache
def _fields(kind: Any) -> tuple[tuple[str, Any], ...]:
    hints = typing.get_type_hints(kind)
    return tuple((item.name, hints[item.name]) for item in attrs.fields(kind))


def _build(kind: Any, plain: Any) -> Any:
    """The value of type ``kind`` that `_plain` turned into ``plain``; raises `TypeError` and `ValueError`."""
    return _builder(kind)(plain)


@cache
def _builder(kind: Any) -> Callable[[Any], Any]:
    """What builds values of a type; a snapshot may come in a file that a stranger made, so types are checked."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (types.UnionType, typing.Union):
        (inner,) = (_builder(one) for one in arguments if one is not types.NoneType)
        return lambda plain: None if plain is None else inner(plain)
    if origin is PMap:
        return partial(_build_pmap, *map(_builder, arguments))
    if origin is tuple and arguments[-1] is Ellipsis:
        return partial(_build_items, _builder(arguments[0]))
    if origin is tuple:
        return partial(_build_tuple, tuple(map(_builder, arguments)))
    if attrs.has(kind):
        return partial(_build_class, kind, tuple((name, _builder(field)) for name, field in _fields(kind)))
    return {Any: _build_any, int: _build_int}.get(kind) or partial(_checked, kind)


def _build_pmap(of_key: Callable[[Any], Any], of_item: Callable[[Any], Any], plain: Any) -> Any:
    return pmap({of_key(key): of_item(item) for key, item in _checked(dict, plain).items()})


def _build_items(of_item: Callable[[Any], Any], plain: Any) -> Any:
    return tuple([of_item(item) for item in _checked(list, plain)])


def _build_tuple(builders: Sequence[Callable[[Any], Any]], plain: Any) -> Any:
    return tuple([build(item) for build, item in zip(builders, _checked(list, plain), strict=True)])


def _build_class(kind: Any, fields: Sequence[tuple[str, Callable[[Any], Any]]], plain: Any) -> Any:
    found = zip(fields, _checked(list, plain), strict=False)
    return kind(**{name: build(item) for (name, build), item in found})


def _build_int(plain: Any) -> int:
    if type(plain) is int and INT_MIN <= plain <= INT_MAX:
        return plain
    raise ValueError(f"{plain!r:.100} is no number that a replica may hold")


def _checked(kind: type, plain: Any) -> Any:
    if type(plain) is kind:
        return plain
    raise TypeError(f"{kind.__name__} is expected, not {type(plain).__name__}")


def _build_any(plain: Any) -> Any:
    if isinstance(plain, dict):
        return pmap({key: _build_any(item) for key, item in plain.items()})
    if isinstance(plain, list):
        return tuple([_build_any(item) for item in plain])
    return plain
