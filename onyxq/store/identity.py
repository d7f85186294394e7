"""The file beside a node's store that keeps the node's identity if the store is lost.

It holds the node's id, its cluster's id and its latest peers.  A store that is made in a directory
with such a file takes them over, under a new id of its own.  So the log recognises the node, and that
its copies are lost.  If the file is lost too, the machine is a new node.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from onyxq.store.interface import CLUSTER_META, NODE_META, PEERS_META
from onyxq.system.directories import write_durably

FILE = "node.identity"
NAMES = (NODE_META, CLUSTER_META, PEERS_META)
"""The named values of a store that the file keeps."""


def kept_in(meta: Iterable[tuple[str, bytes]]) -> dict[str, str]:
    """Return those of some named values that the file keeps."""
    return {name: value.decode() for name, value in meta if name in NAMES}


def read(directory: Path) -> dict[str, str]:
    """Return what a directory's file has; nothing if there is none, or if it is damaged."""
    try:
        lines = (directory / FILE).read_bytes().splitlines()
        found = json.loads(lines[0]) if zlib.crc32(lines[0]) == int(lines[1]) else {}
        return {name: str(value) for name, value in found.items()}
    except (OSError, ValueError, IndexError):
        return {}


def write(directory: Path, values: Mapping[str, str]) -> None:
    """Change some values of a directory's file durably; raises `OSError`."""
    line = json.dumps({**read(directory), **values}).encode()
    write_durably(directory / FILE, line + b"\n%d\n" % zlib.crc32(line))
