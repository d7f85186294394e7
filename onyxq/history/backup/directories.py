"""Data directories that a backup is restored into, one for each node: each has its name once all of it is there."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from onyxq.core.errors import Conflict, Corrupt
from onyxq.history.blocks import sync_directory
from onyxq.store.interface import Store
from onyxq.store.lmdb_store import LmdbStore

_NAME = re.compile(r"[0-9A-Za-z_-]{1,64}")
UNFINISHED = ".unfinished"
"""What the name of a directory ends with until all of it is there."""


class Directories:
    """See the module's first paragraph; ``directory_of`` gives the place for a node by its number and id."""

    def __init__(self, directory_of: Callable[[int, str], Path]) -> None:
        self.made: dict[str, Path] = {}
        """Node id -> its data directory."""
        self._directory_of = directory_of

    @asynccontextmanager
    async def new_stores(self, nodes: Sequence[str]) -> AsyncIterator[Mapping[str, Store]]:
        """A new store for each node; raises `Conflict` where something is already, and `Corrupt`."""
        for node in nodes:
            _check_name(node)
        directories = {node: self._directory_of(number, node) for number, node in enumerate(nodes)}
        for directory in directories.values():
            _check_free(directory)
        async with AsyncExitStack() as stack:
            stores: dict[str, Store] = {}
            for node, directory in directories.items():
                directory.parent.mkdir(parents=True, exist_ok=True)
                store = stores[node] = LmdbStore.open(_unfinished(directory))
                stack.push_async_callback(store.aclose)
            yield stores
        for directory in directories.values():
            _unfinished(directory).rename(directory)
            sync_directory(directory.parent)
        self.made = directories


def _check_name(node: str) -> None:
    """Raise `Corrupt` unless a node's id from a backup is a plain name: it may become that of a directory."""
    if not _NAME.fullmatch(node):
        raise Corrupt(f"the backup has a node with the id {node[:100]!r}", hint="Nothing was restored. Use another.")


def _check_free(directory: Path) -> None:
    for place in (directory, _unfinished(directory)):
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise Conflict(f"{place} is not empty", field="data", hint="Choose another directory, or delete it.")


def _unfinished(directory: Path) -> Path:
    return directory.with_name(directory.name + UNFINISHED)
