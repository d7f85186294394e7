"""A cache of the heads of ordering keys.

A leader asks for the head of a key each time that it looks at a ready task, and each change of a
key's first task begins with its head.  The cache holds heads as of the last committed
transaction.  A transaction keeps what it changes to itself (`onyxq.store.index.key_index.Ruled`),
and the store adds that once it is committed.
"""

from __future__ import annotations

from collections.abc import Mapping

from onyxq.core.ids import TaskId
from onyxq.store.index.facets import head_of
from onyxq.store.tables import Tables

HEADS_MAX = 16_384
"""Heads that are kept in memory, about 200 bytes each."""


class KeyHeads:
    """Heads of ordering keys by partition and key digest; None: no task has the key."""

    def __init__(self) -> None:
        self._heads: dict[bytes, TaskId | None] = {}

    def __len__(self) -> int:
        return len(self._heads)

    def find(self, tables: Tables, prefix: bytes) -> TaskId | None:
        """Return the head of a key that no transaction under way has changed."""
        try:
            return self._heads[prefix]
        except KeyError:
            if len(self._heads) >= HEADS_MAX:
                self._heads.clear()
            head = self._heads[prefix] = head_of(tables, prefix)
            return head

    def take(self, changed: Mapping[bytes, TaskId | None]) -> None:
        """Take the changes of a transaction that is committed."""
        if len(self._heads) + len(changed) > HEADS_MAX:
            self._heads.clear()
        self._heads.update(changed)

    def forget(self) -> None:
        """Forget all heads, because they may differ from the tables."""
        self._heads.clear()
