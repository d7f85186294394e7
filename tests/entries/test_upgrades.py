"""Rolling upgrades: two versions of a program in one ring, and when the newer one's entries are enabled."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

import msgpack
import pytest
from attrs import define, evolve, field, fields
from pyrsistent import pmap

from log_entries import leave_cluster, raise_minimum
from log_entries.registry import ENTRIES
from onyxq.core import step as stepping
from onyxq.core.entry import Entries
from onyxq.core.invariants.replica import violations
from onyxq.core.log.interface import Record
from onyxq.core.log.record import encode_entry, encode_record
from onyxq.core.replica import EMPTY, Replica
from onyxq.core.ring import latest_peer
from onyxq.core.snapshot import MAGIC, pack, unpack
from onyxq.core.step import Step, owed, step
from onyxq.errors import NotEnabled, OlderThanCluster
from tests.entries.versions import NEW, OLD, OWING, Brand, Paint, PaintOnce
from tests.entries.world import CLUSTER_ID, START_MS, creation, joining


@define
class Program:
    """A peer: its program, and the replica as that program has computed it."""

    entries: Entries
    replica: Replica = EMPTY


@define
class MixedRing:
    """One log, read by peers of different versions; their replicas are compared after every record."""

    programs: dict[str, Program] = field(factory=dict)
    records: list[Record] = field(factory=list)

    def append(self, peer: str, *args: Any) -> Step:
        """Append a record of a peer, in the versions that it knows to be enabled; return its outcome."""
        writer = self.programs[peer]
        enabled = writer.replica.enabled if writer.replica.cluster else None
        entries = [encode_entry(one, writer.entries, enabled) for one in args]
        return self.append_entries(peer, *entries)

    def append_entries(self, peer: str, *entries: bytes) -> Step:
        """Append a record of packed entries."""
        number = self.programs[peer].replica.outbox.get(peer, 0) + 1
        place = len(self.records)
        data = encode_record(CLUSTER_ID, peer, number, START_MS + place, list(entries))
        self.records.append(Record(place, START_MS + place, data))
        done = [step(one.replica, self.records[-1], one.entries) for one in self.programs.values()]
        for program, its in zip(self.programs.values(), done, strict=True):
            program.replica = its.replica
        assert len({pack(its.replica) for its in done}) == 1
        assert len({tuple((one.verdict, one.version) for one in its.outcomes) for its in done}) == 1
        assert violations(done[0].replica) == []
        return done[0]

    def start(self, peer: str, entries: Entries, *, node: str = "") -> str:
        """Start a peer that reads the log and asks to join; return the verdict."""
        fresh = Program(entries)
        for record in self.records:
            fresh.replica = step(fresh.replica, record, entries).replica
        self.programs[peer] = fresh
        if fresh.replica.cluster is None:
            self.append(peer, creation(enabled=entries.versions))
        request = joining(peer, node)
        previous = latest_peer(fresh.replica, request.node)
        args = evolve(request, zone="", slots=1, versions=entries.versions, previous=previous)
        return self.append(peer, args).outcomes[0].verdict

    def settle(self) -> list[tuple[str, Any]]:
        """Let all peers append the entries that they owe until there are none; return who appended which."""
        done = []
        for _ in range(200):
            debts = [
                (name, args) for name, one in self.programs.items() for args in owed(one.replica, name, one.entries)
            ]
            if not debts:
                return done
            self.append(*debts[0])
            done.append(debts[0])
        raise AssertionError(f"still owed: {debts}")

    def stop(self, peer: str) -> None:
        """Let the peer leave and end."""
        self.append(peer, leave_cluster.Args(peer, "stopped"))
        del self.programs[peer]

    def drop_who_left(self) -> None:
        """End programs whose peer is not in the ring."""
        for name in [name for name in self.programs if name not in self.replica.peers]:
            del self.programs[name]

    @property
    def replica(self) -> Replica:
        """Return the replica that all have."""
        return next(iter(self.programs.values())).replica


def ring_of(**programs: Entries) -> MixedRing:
    """Return a ring whose peers have joined in this order."""
    ring = MixedRing()
    for name, entries in programs.items():
        assert ring.start(name, entries) == "applied"
        ring.settle()
    return ring


def test_a_new_version_is_used_once_the_last_peer_has_it() -> None:
    """Peers are replaced one by one; entries are written in version 1 until all know version 2."""
    ring = ring_of(a=OLD, b=OLD, c=OLD)
    said: list[int] = []
    for number, peer in enumerate("abc"):
        ring.stop(peer)
        ring.start(f"{peer}2", NEW, node=f"node-{peer}")
        if number < 2:
            ring.settle()
            said.append(ring.append(f"{peer}2", Paint("red", 3)).outcomes[0].version)
            assert ring.replica.extensions["paint"] == ("red", 1)
            assert ring.replica.enabled["paint"] == 1
    assert said == [1, 1]
    debts = ring.settle()
    raised = [(peer, args) for peer, args in debts if isinstance(args, raise_minimum.Args)]
    assert raised == [("a2", raise_minimum.Args("brand", 1)), ("a2", raise_minimum.Args("paint", 2))]
    done = ring.append("a2", Paint("blue", 3)).outcomes[0]
    assert (done.version, done.verdict) == (2, "applied")
    assert ring.replica.extensions["paint"] == ("blue", 3)


def test_a_peer_with_the_version_before_is_refused_afterwards() -> None:
    """Its request to join changes nothing and says why; the missing version can be named."""
    ring = ring_of(a=NEW, b=NEW)
    assert ring.start("c", OLD) == "older than the cluster"
    assert "c" not in ring.replica.peers
    assert OLD.unknown(ring.replica.enabled) == "entry brand, version 1"
    assert NEW.unknown(ring.replica.enabled) == ""


def test_nothing_is_raised_while_a_joiner_does_not_know_it() -> None:
    """A joiner that is being stitched in counts as well as members."""
    ring = ring_of(a=OLD)
    ring.start("b", OLD)
    assert ring.replica.ring.prepared
    ring.programs["a"].entries = NEW
    assert ring.append("a", raise_minimum.Args("paint", 2)).outcomes[0].verdict == "not known to every peer"


@pytest.mark.parametrize(("name", "version"), [("paint", 1), ("gc", 1), ("gc", 0), ("gc", -5)])
def test_what_is_enabled_is_not_raised_again(name: str, version: int) -> None:
    """It is not lowered either."""
    ring = ring_of(a=OLD)
    assert ring.append("a", raise_minimum.Args(name, version)).outcomes[0].verdict == "already enabled"
    assert ring.replica.enabled == OLD.versions


def test_what_nobody_announced_is_not_raised() -> None:
    """This holds for any name."""
    ring = ring_of(a=OLD)
    for name in ("nothing", "", "brand"):
        assert ring.append("a", raise_minimum.Args(name, 1)).outcomes[0].verdict == "not known to every peer"


def test_only_the_first_peer_owes_it() -> None:
    """After it left, the next first peer owes it."""
    ring = ring_of(a=OLD, b=NEW, c=NEW)
    assert not any(owed(ring.replica, peer, NEW) for peer in "abc")
    ring.stop("a")
    assert [bool(owed(ring.replica, peer, NEW)) for peer in "bc"] == [True, False]


def test_a_new_entry_is_owed_only_once_every_peer_knows_it() -> None:
    """Before that, newer peers submit nothing that they cannot write."""
    ring = ring_of(a=OLD, b=OWING)
    assert owed(ring.replica, "b", OWING) == [] and "paint" not in ring.replica.extensions
    ring.stop("a")
    ring.settle()
    assert ring.replica.enabled["brand"] == 1 and ring.replica.extensions["paint"] == "owed"


def test_an_entry_without_an_enabled_version_cannot_be_written() -> None:
    """The writer gets an error at once, and nothing reaches the log."""
    ring = ring_of(a=OLD, b=NEW)
    with pytest.raises(NotEnabled, match="brand"):
        ring.append("b", Brand("oak"))
    ring.stop("a")
    ring.settle()
    assert ring.append("b", Brand("oak")).outcomes[0].verdict == "applied"


def test_an_entry_that_is_written_too_early_is_a_no_op_for_all() -> None:
    """This includes peers that know it: peers of two versions stay equal."""
    ring = ring_of(a=OLD, b=NEW)
    done = ring.append_entries("b", encode_entry(Paint("red", 3), NEW), encode_entry(Brand("oak"), NEW))
    assert [one.verdict for one in done.outcomes] == [stepping.NOT_ENABLED] * 2
    assert "paint" not in ring.replica.extensions


def test_the_version_before_goes_on_to_count() -> None:
    """A writer that has not read of the rise yet wrote in version 1, and means version 1."""
    ring = ring_of(a=NEW, b=NEW)
    done = ring.append_entries("b", encode_entry(PaintOnce("red"), NEW))
    assert (done.outcomes[0].version, done.outcomes[0].verdict) == (1, "applied")
    assert ring.replica.extensions["paint"] == ("red", 1)


def test_what_is_enabled_and_not_known_stops_the_reader() -> None:
    """It stops at the first such entry, and names entry and version."""
    ring = ring_of(a=NEW)
    ring.append("a", Paint("red", 2))
    replica = EMPTY
    with pytest.raises(OlderThanCluster, match="entry paint, version 2"):
        for record in ring.records:
            replica = step(replica, record, OLD).replica


@pytest.mark.long
def test_whatever_comes_and_goes_replicas_are_equal_and_members_know_what_is_enabled() -> None:
    """Peers of both versions start, stop, write and raise in any order; all is enabled once all have it."""
    raised = refused = 0
    for seed in range(25):
        random = Random(seed)
        ring = ring_of(p0=OLD)
        for number in range(1, 40):
            peer = random.choice([*ring.programs])
            chance = random.random()
            if chance < 0.3:
                entries = random.choice([OLD, NEW, NEW])
                try:
                    verdict = ring.start(f"p{number}", entries, node=f"n{random.randrange(4)}")
                except OlderThanCluster:
                    verdict = "older than the cluster"
                if verdict != "applied":
                    refused += 1
                    assert (verdict, entries is OLD) == ("older than the cluster", True)
                ring.drop_who_left()
            elif chance < 0.5 and len(ring.programs) > 1:
                ring.stop(peer)
            elif chance < 0.7:
                early = raise_minimum.Args(*random.choice([("paint", 2), ("brand", 1)]))
                raised += ring.append(peer, early).outcomes[0].verdict == "applied"
            elif chance < 0.9:
                args = Paint("red", number) if ring.programs[peer].entries is NEW else PaintOnce("blue")
                ring.append(peer, args)
            else:
                ring.settle()
            assert not any(one.entries.unknown(ring.replica.enabled) for one in ring.programs.values())
        for peer in [name for name, one in ring.programs.items() if one.entries is OLD]:
            ring.start(f"{peer}-new", NEW, node=ring.replica.peers[peer].node)
            ring.drop_who_left()
        ring.settle()
        assert ring.replica.enabled == NEW.versions
    assert raised > 10 and refused > 10


def test_an_origin_of_another_version_is_read() -> None:
    """Fields that it lacks have their defaults, and unknown ones are ignored."""
    ring = ring_of(a=OLD, b=OLD)
    ring.append("a", PaintOnce("red"))
    packed = msgpack.unpackb(zlib.decompress(pack(ring.replica)[8:]), strict_map_key=False)
    names = [item.name for item in fields(Replica)]

    def origin(change: Callable[[list[Any]], None]) -> bytes:
        plain = copy.deepcopy(packed)
        change(plain)
        body = zlib.compress(msgpack.packb(plain))
        return MAGIC + zlib.crc32(body).to_bytes(4, "little") + body

    def older(plain: list[Any]) -> None:
        del plain[names.index("extensions") :], plain[names.index("peers")]["a"][-1]

    def newer(plain: list[Any]) -> None:
        plain.append({"unheard": 1})
        plain[names.index("peers")]["a"].append("of")

    assert unpack(origin(newer)) == ring.replica
    assert unpack(origin(older)) == evolve(ring.replica, extensions=pmap(), digest=b"", trail=(), milestones=())


def test_a_cluster_created_by_a_later_version_of_the_creation_stops_the_reader() -> None:
    """It is not mistaken for an empty log."""
    ring = ring_of(a=NEW)
    data = ring.records[0].data.replace(b"\xaecreate_cluster\x01", b"\xaecreate_cluster\x02")
    with pytest.raises(OlderThanCluster, match="create_cluster, version 2"):
        step(EMPTY, Record(0, START_MS, data), ENTRIES)
