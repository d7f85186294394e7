"""The replica as bytes: it is equal after decoding, canonical, and damage is detected."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from pyrsistent import pmap, v

from onyxq.core.replica import EMPTY, Replica
from onyxq.core.snapshot import pack, packing, unpack, unpacking
from onyxq.errors import Corrupt
from tests.entries.generated import generated_world


@pytest.fixture(scope="module")
def rich() -> Replica:
    """Return a replica with every kind of content: also limits, a running transaction and an extension."""
    world = generated_world(seed=6, records=800)
    everything = "claims nodes outbox queues limited running rates transactions periodic jobs".split()
    found = [one for one in world.replicas if one.ring.pairs and all(getattr(one, name) for name in everything)][-1]
    state: dict[str, Any] = {"list": (1, None, "x"), "map": pmap({"b": b"b"})}
    return evolve(found, extensions=pmap({"ext": pmap(state)}))


def test_the_empty_replica_comes_back() -> None:
    """It is the replica before the first record."""
    assert unpack(pack(EMPTY)) == EMPTY


def test_a_rich_replica_comes_back_equal(rich: Replica) -> None:
    """All fields are equal, and it packs to the same bytes again."""
    again = unpack(pack(rich))
    assert again == rich
    assert pack(again) == pack(rich)


def test_types_come_back_too(rich: Replica) -> None:
    """Maps are persistent, claims are plain tuples, as pure code expects."""
    again = unpack(pack(rich))
    assert type(again.claims) is type(rich.claims)
    stretches = again.claims[min(again.claims)]
    assert all(type(piece) is tuple for pieces in stretches.values() for piece in pieces)
    assert type(again.ring.queue) is tuple and type(again.cluster) is type(rich.cluster)


def test_equal_replicas_give_equal_bytes_however_they_came_about() -> None:
    """Maps that were filled in another order, and things that were added and removed, make no difference."""
    names = [f"p{number}" for number in range(200)]
    forth = evolve(EMPTY, outbox=pmap(dict.fromkeys(names, 1)))
    back = evolve(EMPTY, outbox=pmap({"x": 9, **dict.fromkeys(reversed(names), 1)}).remove("x"))
    assert pack(forth) == pack(back)


def test_damage_is_noticed(rich: Replica) -> None:
    """Damage is a flipped bit anywhere, truncation, or other bytes."""
    data = pack(rich)
    for place in range(0, len(data), max(1, len(data) // 200)):
        broken = bytearray(data)
        broken[place] ^= 1 << place % 8
        with pytest.raises(Corrupt):
            unpack(bytes(broken))
    for other in (b"", data[:-1], data[:8], data + b"x", b"x" * 100):
        with pytest.raises(Corrupt):
            unpack(other)


def test_what_an_extension_may_not_hold_is_refused_where_it_is_packed() -> None:
    """Otherwise a reader of the snapshot would fail, which is too late."""
    with pytest.raises(TypeError):
        pack(evolve(EMPTY, extensions=pmap({"ext": v(object())})))


@pytest.mark.long
def test_a_large_state_of_an_extension_is_packed_and_built_in_slices() -> None:
    """Long tuples and maps are divided, and are equal after decoding."""
    pairs = tuple(tuple((block, number) for number in range(200)) for block in range(300))
    rows = pmap({part: pmap({number: ("group", number, "data") for number in range(100)}) for part in range(300)})
    rich = evolve(EMPTY, extensions=pmap({"big": pmap({"pairs": pairs, "rows": rows, "none": None})}))
    assert len([part for part in packing(rich) if part]) > 1
    built = unpacking(pack(rich))
    slices = 0
    while True:
        try:
            next(built)
            slices += 1
        except StopIteration as done:
            assert done.value == rich
            break
    assert slices > 500
    assert pack(unpack(pack(rich))) == pack(rich)
