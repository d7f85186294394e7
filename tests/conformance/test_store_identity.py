"""The identity of a node in its data directory, which outlives its store."""

from __future__ import annotations

from pathlib import Path

import pytest

from onyxq.errors import StoreFailed
from onyxq.store import identity
from onyxq.store.integrity.lmdb_check import DATA
from onyxq.store.interface import CLUSTER_META, NODE_META, PEERS_META, STORE_META, Batch
from onyxq.store.lmdb_store import LmdbStore
from tests.conformance.store_world import in_trio

KNOWN = {NODE_META: b"n1", CLUSTER_META: b"c1", PEERS_META: b"p1 p2"}


async def filled(directory: Path) -> None:
    """Make a store that knows its node, and close it."""
    store = LmdbStore.open(directory)
    await store.write(Batch(meta=((NODE_META, b"n1"), (STORE_META, b"s1"), ("other", b"x"))))
    await store.write(Batch(epochs=((3, 7),), meta=((CLUSTER_META, b"c1"), (PEERS_META, b"p1"))))
    await store.write(Batch(meta=((PEERS_META, b"p1 p2"),)))
    await store.aclose()


@pytest.mark.parametrize("how", ["damaged", "deleted"])
@in_trio
async def test_a_new_store_has_the_nodes_identity_and_no_id_yet(tmp_path: Path, how: str) -> None:
    """Its promises and all rows are gone, and the log distinguishes the two stores."""
    await filled(tmp_path)
    if how == "damaged":
        (tmp_path / DATA).write_bytes(b"\1" * 20_000)
    else:
        (tmp_path / DATA).unlink()
    store = LmdbStore.open_or_begin_anew(tmp_path)
    assert {name: store.meta(name) for name in KNOWN} == KNOWN
    assert (store.meta(STORE_META), store.meta("other"), store.epochs()) == (None, None, {})
    await store.aclose()


@in_trio
async def test_a_store_that_is_there_keeps_what_it_has(tmp_path: Path) -> None:
    """The file is only for new stores."""
    await filled(tmp_path)
    identity.write(tmp_path, {PEERS_META: "p9"})
    store = LmdbStore.open(tmp_path)
    assert store.meta(PEERS_META) == b"p1 p2"
    await store.aclose()


@pytest.mark.parametrize("content", [b"", b"{}", b'{"node_id": "n2"}\n1\n', b"\xff\n\xff\n", b"[1]\n1\n"])
@in_trio
async def test_a_damaged_file_names_no_node(tmp_path: Path, content: bytes) -> None:
    """The machine then becomes a new node."""
    (tmp_path / identity.FILE).write_bytes(content)
    store = LmdbStore.open(tmp_path)
    assert store.meta(NODE_META) is None
    await store.aclose()


@in_trio
async def test_a_value_is_in_the_file_before_its_write_returns(tmp_path: Path) -> None:
    """If the file cannot be written, the write fails and the store keeps what it had."""
    await filled(tmp_path)
    store = LmdbStore.open(tmp_path)
    (tmp_path / (identity.FILE + ".new")).mkdir()
    with pytest.raises(StoreFailed):
        await store.write(Batch(meta=((PEERS_META, b"p3"),)))
    assert store.meta(PEERS_META) == b"p1 p2"
    await store.aclose()
    store = LmdbStore.open(tmp_path)
    assert store.meta(PEERS_META) == b"p1 p2"
    (tmp_path / (identity.FILE + ".new")).rmdir()
    await store.write(Batch(meta=((PEERS_META, b"p3"),)))
    assert identity.read(tmp_path)[PEERS_META] == "p3"
    await store.aclose()
