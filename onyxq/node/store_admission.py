"""Whether the log knows a node's store, so that other nodes may rely on the copies in it.

A node that lost its store has a new, empty one.  Until the log knows that, members count on the
copies and the promises of the lost store.  So the node answers nothing about copies before it has read the
record by which the store joined.  That record gave all of its partitions new epochs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import trio

from onyxq.core.errors import StoreFailed
from onyxq.core.replica import Replica
from onyxq.store.interface import ADMITTED_META, STORE_META, Batch
from onyxq.store.store import Store

RETRY_S = 1.0

log = logging.getLogger(__name__)


class Admission:
    """See the module's first paragraph; ``epochs`` are those that the node promised."""

    def __init__(self, store: Store, *, node_id: str, epochs: dict[int, int], start_soon: Callable[..., Any]) -> None:
        self.store_id = (store.meta(STORE_META) or b"").decode()
        self.admitted = trio.Event()
        """Set once the store has joined and no promise of an earlier store can be broken."""
        if store.meta(ADMITTED_META) == self.store_id.encode():
            self.admitted.set()
        self._store = store
        self._node_id = node_id
        self._epochs = epochs
        self._start_soon = start_soon
        self._admitting = False

    def is_known(self, replica: Replica) -> bool:
        """Return whether other nodes may rely on the store, as far as this node has read the log."""
        own = replica.nodes.get(self._node_id)
        return self.admitted.is_set() and (own is None or own.store == self.store_id)

    def note(self, replica: Replica) -> None:
        """Promise the present epochs once the log knows the store."""
        own = replica.nodes.get(self._node_id)
        if not (self._admitting or self.admitted.is_set()) and own is not None and own.store == self.store_id:
            self._admitting = True
            self._start_soon(self._admit, replica)

    async def _admit(self, replica: Replica) -> None:
        # All that an earlier store of this node promised is below.
        present = {number: placed.epoch for number, placed in replica.partitions.items()}
        for number, epoch in present.items():
            self._epochs[number] = max(epoch, self._epochs.get(number, 0))
        batch = Batch(epochs=tuple(sorted(present.items())), meta=((ADMITTED_META, self.store_id.encode()),))
        while not self.admitted.is_set():
            try:
                await self._store.write(batch)
                self.admitted.set()
            except StoreFailed as error:
                log.warning("the new store cannot be admitted yet: %s", error.message)
                await trio.sleep(RETRY_S)
