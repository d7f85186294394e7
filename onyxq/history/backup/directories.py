"""Data directories into which a backup is restored, one for each node.

Each has a temporary name until all of them are complete.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from onyxq.core.errors import Conflict, Corrupt
from onyxq.store.lmdb_store import LmdbStore
from onyxq.store.store import Store
from onyxq.system.directories import sync_directory

_NAME = re.compile(r"[0-9A-Za-z_-]{1,64}")
UNFINISHED = ".unfinished"
"""Suffix of a directory's name until it is complete."""


class Directories:
    """The data directories of a restored cluster.

    ``directory_of`` maps a node's number and id to its directory.
    """

    def __init__(self, directory_of: Callable[[int, str], Path]) -> None:
        self.made: dict[str, Path] = {}
        """Node id -> its data directory, once all are complete."""
        self._directory_of = directory_of

    def check(self, nodes: Sequence[str]) -> dict[str, Path]:
        """Return the directory of each node.

        Raises `Conflict` if a directory is not empty, and `Corrupt` for an invalid node id.
        """
        for node in nodes:
            _check_name(node)
        directories = {node: self._directory_of(number, node) for number, node in enumerate(nodes)}
        for directory in directories.values():
            _check_free(directory)
        return directories

    @asynccontextmanager
    async def new_stores(self, nodes: Sequence[str]) -> AsyncIterator[Mapping[str, Store]]:
        """Open a new store for each node, and give the directories their names after the block; see `check`."""
        directories = self.check(nodes)
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
    """Raise `Corrupt` unless a node's id is a plain name: it may become the name of a directory."""
    if not _NAME.fullmatch(node):
        raise Corrupt(f"the backup has a node with the id {node[:100]!r}", hint="Nothing was restored. Use another.")


def _check_free(directory: Path) -> None:
    for place in (directory, _unfinished(directory)):
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise Conflict(f"{place} is not empty", field="data", hint="Choose another directory, or delete it.")


def _unfinished(directory: Path) -> Path:
    return directory.with_name(directory.name + UNFINISHED)
