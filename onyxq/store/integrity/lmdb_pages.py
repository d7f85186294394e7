"""Checks that the pages of a closed LMDB file are consistent: LMDB itself trusts them.

A checksum finds a flipped bit in a row or an entry.  A flipped bit in a page's own fields
(a pointer, a size, a page number) can make LMDB read outside of the file, which kills the
process, or overwrite other data.  So such a file must not be opened.  `check_file` follows
every page as LMDB would, without trusting any number in it.  It raises at the first
impossibility: pages in two places, sizes that do not fit, keys out of order, sums that do not
add up.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable
from itertools import repeat
from operator import ge
from pathlib import Path
from typing import NamedTuple, TypeAlias

from onyxq.core.errors import Corrupt

MAGIC, VERSION = 0xBEEFC0DE, 1
PAGE_BYTES = (4096, 8192, 16384, 32768)
DEPTH_MAX = 32
BRANCH, LEAF, OVERFLOW, META = 1, 2, 4, 8
_BIG, _SUB = 1, 2
_INTEGER_KEYS = 8
_NONE = (1 << 64) - 1

_HEADER = struct.Struct("<QHHHH")
_OVERFLOW = struct.Struct("<QHHI")
_NODE = struct.Struct("<HHHH")
_NODE_BYTES = 8
_HEADER_BYTES = 16
_META = struct.Struct("<IIQQ")
_DB = struct.Struct("<IHHQQQQQ")
_TAIL = struct.Struct("<QQ")
_NUMBER = struct.Struct("<Q")


Each: TypeAlias = Callable[[bytes, memoryview, int], None]
"""Called with an entry's key, value and flags."""


class Tree(NamedTuple):
    """LMDB's record of one tree."""

    pad: int
    flags: int
    depth: int
    branch_pages: int
    leaf_pages: int
    overflow_pages: int
    entries: int
    root: int


class Meta(NamedTuple):
    """Contents of one of the two meta pages."""

    free: Tree
    main: Tree
    last_page: int
    transaction: int


def check_file(path: Path) -> None:
    """Raise `Corrupt` unless the pages of an LMDB data file are consistent. No process may write it meanwhile."""
    with path.open("rb") as file:
        size = path.stat().st_size
        if size == 0:
            return
        # Not closed here: an error's traceback may still refer to parts of it.
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        _File(memoryview(mapped), size).check()


def meta_pages(descriptor: int) -> list[tuple[int, bytes]]:
    """Return offset and bytes of the two meta pages of an open file; none if they are damaged."""
    for page_bytes in PAGE_BYTES:
        pages = [(page * page_bytes, os.pread(descriptor, page_bytes, page * page_bytes)) for page in (0, 1)]
        try:
            data = b"".join(page for _, page in pages)
            _File(memoryview(data), len(data)).metas()
        except Corrupt:
            continue
        return pages
    return []


class _File:
    """One file while it is checked."""

    def __init__(self, data: memoryview, size: int) -> None:
        self._data = data
        self._size = size
        self._page_bytes = 0
        self._last = 0
        self._seen = bytearray()
        """One byte per page: 1 if a page or list referred to it."""

    def check(self) -> None:
        metas = self.metas()
        meta = max(metas, key=lambda one: one.transaction)
        other = min(metas, key=lambda one: one.transaction)
        if meta.transaction and (metas.index(meta) != meta.transaction & 1 or other.transaction + 1 < meta.transaction):
            raise Corrupt("the two meta pages contradict each other")
        self._last = meta.last_page
        if (self._last + 1) * self._page_bytes > self._size:
            raise Corrupt("the file is shorter than its meta page states")
        self._seen = bytearray(self._last + 1)
        self._seen[0] = self._seen[1] = 1
        self._walk(meta.free, "the free list", numbers=True, each=self._free_pages)
        self._walk(meta.main, "the main tree", each=self._named_tree)

    def metas(self) -> list[Meta]:
        """Return the two meta pages; raises `Corrupt`."""
        for self._page_bytes in PAGE_BYTES:
            if self._size < 2 * self._page_bytes:
                break
            try:
                return [self._meta(0), self._meta(1)]
            except Corrupt:
                continue
        raise Corrupt("a meta page is damaged")

    def _meta(self, page: int) -> Meta:
        base = page * self._page_bytes
        number, _, flags, _, _ = _HEADER.unpack_from(self._data, base)
        magic, version, _, _ = _META.unpack_from(self._data, base + 16)
        free = Tree(*_DB.unpack_from(self._data, base + 40))
        main = Tree(*_DB.unpack_from(self._data, base + 40 + _DB.size))
        last, transaction = _TAIL.unpack_from(self._data, base + 40 + 2 * _DB.size)
        if (number, flags & 0xF, magic, version, free.pad) != (page, META, MAGIC, VERSION, self._page_bytes):
            raise Corrupt("a meta page is damaged")
        if last > self._size // self._page_bytes + (1 << 32):
            raise Corrupt("a meta page is damaged")
        return Meta(free, main, last, transaction)

    def _take(self, page: int, count: int = 1) -> int:
        """Mark pages as used and return their offset; raise `Corrupt` if one was used already."""
        if not 2 <= page <= self._last or page + count - 1 > self._last:
            raise Corrupt(f"page {page} is out of range")
        if any(self._seen[page : page + count]):
            raise Corrupt(f"page {page} is used twice")
        self._seen[page : page + count] = b"\1" * count
        return page * self._page_bytes

    def _free_pages(self, key: bytes, value: memoryview, flags: int) -> None:
        if len(key) != 8 or not value or len(value) % 8:
            raise Corrupt("a list of free pages is malformed")
        numbers = value.cast("Q")
        if numbers[0] + 1 > len(numbers):
            raise Corrupt("a list of free pages is malformed")
        for page in numbers[1 : numbers[0] + 1]:
            self._take(page)

    def _named_tree(self, key: bytes, value: memoryview, flags: int) -> None:
        if flags != _SUB or len(value) != _DB.size:
            raise Corrupt("an entry of the main tree is not a tree")
        self._walk(Tree(*_DB.unpack(value)), f"the tree {key.decode(errors='replace')!r}")

    def _walk(self, tree: Tree, name: str, *, numbers: bool = False, each: Each | None = None) -> None:
        """Follow a tree from its root; ``each`` is called with every entry."""
        found = [0, 0, 0, 0]
        todo = [(tree.root, tree.depth, b"", b"")] if tree.root != _NONE else []
        if len(todo) * tree.depth > DEPTH_MAX or tree.flags & ~_INTEGER_KEYS:
            raise Corrupt(f"the header of {name} is impossible")
        while todo:
            page, depth, low, high = todo.pop()
            base = self._take(page)
            keys, children = self._nodes(base, page, depth, found, each)
            if numbers:
                keys = [key[::-1] for key in keys]
            # The first key of a branch page covers all lower keys, whatever its bytes are.
            inner = keys[1:] if depth > 1 else keys
            if inner and (inner[0] < low or (high and inner[-1] >= high) or any(map(ge, inner, inner[1:]))):
                raise Corrupt(f"the keys of {name} are out of order in page {page}")
            ends = [*keys[1:], high]
            todo += zip(children, repeat(depth - 1), [low, *keys[1:]], ends, strict=False)
        if found != [tree.branch_pages, tree.leaf_pages, tree.overflow_pages, tree.entries]:
            raise Corrupt(f"the page counts of {name} are wrong")

    def _nodes(
        self, base: int, page: int, depth: int, found: list[int], each: Each | None
    ) -> tuple[list[bytes], list[int]]:
        """Return keys, and children, of the nodes of a page."""
        data, page_bytes = self._data, self._page_bytes
        number, _, flags, lower, upper = _HEADER.unpack_from(data, base)
        if number != page or flags != (BRANCH if depth > 1 else LEAF):
            raise Corrupt(f"page {page} has the number or type of another page")
        if not _HEADER_BYTES < lower <= upper <= page_bytes or lower & 1:
            raise Corrupt(f"the header of page {page} is damaged")
        found[0 if depth > 1 else 1] += 1
        keys: list[bytes] = []
        children: list[int] = []
        used = 0
        for place in data[base + _HEADER_BYTES : base + lower].cast("H"):
            if place < upper or place + _NODE_BYTES > page_bytes:
                raise Corrupt(f"an entry of page {page} is outside the page")
            at = base + place
            low, high, more, key_bytes = _NODE.unpack_from(data, at)
            start = at + _NODE_BYTES
            keys.append(bytes(data[start : start + key_bytes]))
            size = _NODE_BYTES + key_bytes
            if depth > 1:
                children.append(low | high << 16 | more << 32)
            else:
                length = low | high << 16
                size += 8 if more & _BIG else length
                if more not in (0, _BIG, _SUB) or place + size > page_bytes:
                    raise Corrupt(f"an entry of page {page} is outside the page")
                found[3] += 1
                if more & _BIG:
                    found[2] += self._overflow(data, start + key_bytes, length)
                if each is not None:
                    each(keys[-1], self._value(start + key_bytes, length, more), more)
            used += size + (size & 1)
        if used != page_bytes - upper:
            raise Corrupt(f"the entries of page {page} do not fill it")
        return keys, children

    def _overflow(self, data: memoryview, at: int, length: int) -> int:
        """Check the pages of a value that has its own; return their number."""
        (page,) = _NUMBER.unpack_from(data, at)
        count = (_HEADER_BYTES - 1 + length) // self._page_bytes + 1
        base = self._take(page, count)
        number, _, flags, pages = _OVERFLOW.unpack_from(data, base)
        if (number, flags, pages) != (page, OVERFLOW, count):
            raise Corrupt(f"page {page} has the number or type of another page")
        return count

    def _value(self, at: int, length: int, flags: int) -> memoryview:
        if flags & _BIG:
            at = _NUMBER.unpack_from(self._data, at)[0] * self._page_bytes + _HEADER_BYTES
        return self._data[at : at + length]
