"""Lineage of segments: which source segment one was made of, and by which way through the workflow.

A lineage is the 20 bytes of its source (a task's id, or what `onyxq.spark.rows` makes like one for a row of
a file), and for all but the source itself 8 bytes more: the path, a hash over the edges it took and its
place among its siblings at each.  The same source gives the same lineages however often, wherever and in
whatever batch it is read; `onyxq.spark.lineage` makes ids of new tasks of them.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

from onyxq.ids import ID_BYTES

PATH_BYTES = 8
START = bytes(PATH_BYTES)
"""The path of a source segment."""


def child(lineage: bytes, edge: int, ordinal: int) -> bytes:
    """The lineage of what comes over an edge of the workflow, the ``ordinal``-th of its siblings."""
    return lineage[:ID_BYTES] + _longer(lineage[ID_BYTES:], edge, ordinal)


def source_of(lineage: bytes) -> bytes:
    """The 20 bytes of the source."""
    return lineage[:ID_BYTES]


def path_of(lineage: bytes) -> bytes:
    """The 8 bytes of the path."""
    return lineage[ID_BYTES:] or START


@lru_cache(maxsize=1 << 16)
def _longer(path: bytes, edge: int, ordinal: int) -> bytes:
    said = (path or START) + edge.to_bytes(4, "big") + ordinal.to_bytes(8, "big")
    return hashlib.blake2b(said, digest_size=PATH_BYTES).digest()
