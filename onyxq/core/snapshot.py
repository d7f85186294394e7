"""The replica as bytes: the content of the origin, from which new readers start (design: log collection).

The bytes are canonical: maps are packed sorted by key, so equal replicas give equal bytes in every
process, and comparing bytes compares replicas.  Extensions may keep msgpack's types, tuples
and persistent maps.

A replica may have hundreds of thousands of claims.  So packing and building also work in
slices of about a millisecond (`packing`, `unpacking`), between which an event loop can do
other work.

Origins outlive programs.  Classes are packed as lists of their fields, so a new field goes
to the end and has a default.  If an origin lacks the field, the default is used.  A program
that does not know the field leaves it out, which loses nothing while nothing newer is enabled.
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

from onyxq.core.errors import Corrupt
from onyxq.core.limits import INT_MAX, INT_MIN
from onyxq.core.replica import Replica

MAGIC = b"OXQ1"
COMPRESSION_LEVEL = 3
DIGEST_BYTES = 16
SLICE_BYTES = 8 << 10
"""Packed bytes of a slice, about a millisecond of work; the value of one key of a map is never divided."""
SLICE_KEYS = 1_024
"""Keys of a map that one slice covers."""
SLICE_ITEMS = 256
"""Longest tuple that is packed and built in one piece; longer ones are processed item by item."""
KEYS_FORESEEN_MAX = 1 << 20
"""Most keys for which space is reserved in advance, because a damaged count of keys could be any number."""
ITEMS_FEW = 32
"""Longest inner list that is built without a pause after it."""
UNPACKED_BYTES_MAX, UNPACKED_FACTOR_MAX = 64 << 20, 100
"""A snapshot is refused above both limits.

It unpacks to more than `UNPACKED_BYTES_MAX` bytes and to more than `UNPACKED_FACTOR_MAX` times its size.
"""
_CRC = struct.Struct("<I")


def pack(replica: Replica) -> bytes:
    """Return ``magic (4) | CRC-32 of the rest (4) | zlib of msgpack`` of the replica."""
    return sealed(b"".join(packing(replica)))


def unpack(data: bytes) -> Replica:
    """Return the replica that `pack` packed; raises `Corrupt` if the bytes are damaged."""
    building = unpacking(data)
    while True:
        try:
            next(building)
        except StopIteration as done:
            replica: Replica = done.value
            return replica


def packing(replica: Replica) -> Iterator[bytes]:
    """Yield the bytes for `sealed`, slice by slice; some slices are empty."""
    compress = zlib.compressobj(COMPRESSION_LEVEL)
    for part in canonical(replica):
        yield compress.compress(part)
    yield compress.flush()


def sealed(body: bytes) -> bytes:
    """Return the snapshot whose compressed bytes `packing` yielded."""
    return MAGIC + _CRC.pack(zlib.crc32(body)) + body


def digest(replica: Replica) -> str:
    """Return the hexadecimal BLAKE2b-128 of the canonical bytes: equal for equal replicas, in every process."""
    found = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for part in canonical(replica):
        found.update(part)
    return found.hexdigest()


def canonical(replica: Replica) -> Iterator[bytes]:
    """Yield msgpack of the replica, slice by slice; some slices are empty. Equal replicas give equal bytes."""
    packer = msgpack.Packer(autoreset=False, default=_plain)
    packer.pack_array_header(len(_fields(Replica)))
    for name, _ in _fields(Replica):
        yield from _pack_map(packer, getattr(replica, name))
    yield packer.bytes()


def _pack_map(packer: msgpack.Packer, value: Any) -> Iterator[bytes]:
    """Pack a value, and yield full slices.

    A map is packed key by key, a long tuple item by item.
    """
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
    """Build the next value; a map is built key by key. The generator returns the value."""
    if kind is Any:
        return (yield from _build_any_in_slices(unpacker.unpack()))
    if typing.get_origin(kind) is not PMap:
        return _build(kind, unpacker.unpack())
    key_kind, item_kind = typing.get_args(kind)
    build_key = _builder(key_kind)
    count = unpacker.read_map_header()
    # Allocated at its final size: growing it would be a long slice.
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
    """Build as `_build_any` does, but slice by slice, because an extension's state may be large."""
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
    """Return whether building it may take more than a slice."""
    return isinstance(plain, dict) or (isinstance(plain, list) and len(plain) > SLICE_ITEMS)


def misfits(state: Any) -> str:
    """Return the first part of a state that a snapshot cannot hold, in words; empty if all parts fit."""
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
    """Return what msgpack packs in place of ``value``: a class's fields as a list, a map sorted. Raises `TypeError`."""
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
    """Return the value of type ``kind`` that `_plain` turned into ``plain``; raises `TypeError` and `ValueError`."""
    return _builder(kind)(plain)


@cache
def _builder(kind: Any) -> Callable[[Any], Any]:
    """Return the function that builds values of a type.

    It checks types, because a snapshot may come from an untrusted file.
    """
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
    plain = type(arguments[0]) if origin is typing.Literal else kind
    return {Any: _build_any, int: _build_int}.get(plain) or partial(_checked, plain)


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
    raise ValueError(f"{plain!r:.100} is not a number that a replica may hold")


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
