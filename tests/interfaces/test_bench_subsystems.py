"""Samples of processor time count for the subsystem that causes them."""

from __future__ import annotations

import pytest

from bench.subsystems import shares, subsystem

LOOP = "unrolled_run (/venv/lib/python3.11/site-packages/trio/_core/_run.py:2866)"
READ = "_Exchange.read (onyxq/wire/server.py:160)"


@pytest.mark.parametrize(
    ("innermost", "name"),
    [
        ((READ,), "wire"),
        (("Granter._round (/work/onyxq/leader/grants/granter.py:366)",), "leader"),
        (("LmdbTable.get (onyxq/store/lmdb_store.py:90)",), "lmdb"),
        (("Store.get (onyxq/store/store.py:90)",), "store"),
        (("Procedure.step (onyxq/system/procedures.py:366)",), "procedures"),
        (("apply (log_entries/grant_claims.py:50)",), "log entries"),
        ((READ, "receive (anyio/_backends/_trio.py:200)"), "event loop"),
        ((READ, "__exit__ (contextlib.py:141)", "<lambda> (<string>:1)"), "wire"),
        ((READ, "get (pyrsistent/_pmap.py:90)"), "persistent maps"),
    ],
)
def test_a_sample_counts_for_the_innermost_function_that_is_known(innermost: tuple[str, ...], name: str) -> None:
    """The standard library and generated code count for their caller."""
    assert subsystem((LOOP, *innermost)) == name


def test_shares_add_up_and_the_largest_is_first() -> None:
    """py-spy writes one line for each stack, with the number of its samples."""
    found = shares([f"{LOOP} 1", f"{LOOP};{READ} 2", f"{LOOP};{READ};__exit__ (contextlib.py:141) 4", " 1"])
    assert list(found.items()) == [("wire", 0.75), ("event loop", 0.125), ("other", 0.125)]
