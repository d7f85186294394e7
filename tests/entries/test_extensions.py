"""Entries of extensions: how they are found, which are refused, and errors that stop a peer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from attrs import define, evolve, frozen
from pyrsistent import PMap, pmap

from log_entries import leave_cluster
from log_entries.__main__ import page
from log_entries.registry import ENTRIES
from onyxq.core.diff import diff
from onyxq.core.duties import Extended, duties
from onyxq.core.entry import APPLIED, Entries, Malformed, Stamp, named_args
from onyxq.core.extensions import state_of, with_state
from onyxq.core.invariants.replica import violations
from onyxq.core.log.interface import Record
from onyxq.core.log.record import encode_entry, encode_record
from onyxq.core.replica import EMPTY, Replica
from onyxq.core.snapshot import pack, unpack
from onyxq.core.step import owed, step
from onyxq.errors import BadExtension, ExtensionFailed
from onyxq.history.words import sentence
from onyxq.system.extensions import GROUP, entry_of, installed, with_extensions
from onyxq.testing import check_extension
from tests.entries.world import CLUSTER_ID, START_MS, creation, joining


@frozen
class Args:
    """Arguments of the tests' entry."""

    name: str
    count: int = 1
    parts: tuple[int, ...] = ()


def count(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, str]:
    """Adds to a count."""
    counts = state_of(replica, "tally")
    if abs(args.count) > 9:
        return replica, "too much"
    return with_state(replica, "tally", counts.set(args.name, counts.get(args.name, 0) + args.count)), APPLIED


def module(**changes: Any) -> Any:
    """Return a module with a valid entry and some changes; None removes a part."""
    parts = {"VERSION": 1, "Args": Args, "apply": count, "__doc__": "Counts.", **changes}
    return SimpleNamespace(**{name: part for name, part in parts.items() if part is not None})


def tally(**changes: Any) -> Entries:
    """Return OnyxQ's entries and one of an extension."""
    return Entries([*ENTRIES.values(), entry_of("tally.add", module(**changes))])


@define
class Log:
    """One peer's log under a registry."""

    entries: Entries
    replica: Replica = EMPTY

    def submit(self, *args: Any) -> list[str]:
        """Append a record; the verdicts."""
        number = self.replica.outbox.get("a", 0) + 1
        packed = [encode_entry(one, self.entries) for one in args]
        place = self.replica.position + 1
        record = Record(place, START_MS, encode_record(CLUSTER_ID, "a", number, START_MS, packed))
        done = step(self.replica, record, self.entries)
        self.replica = done.replica
        return [one.verdict for one in done.outcomes]


def begun(entries: Entries) -> Log:
    """A cluster of one peer."""
    log = Log(entries)
    request = evolve(joining("a"), versions=entries.versions)
    assert log.submit(creation(enabled=entries.versions), request) == [APPLIED, APPLIED]
    return log


# --- finding ---------------------------------------------------------------------


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Callable[..., EntryPoint]:
    """Make an importable module and return its entry point."""

    def make(name: str, found: Any, value: str = "") -> EntryPoint:
        home = ModuleType(f"extension_{name.replace('.', '_')}")
        vars(home).update(vars(found))
        monkeypatch.setitem(sys.modules, home.__name__, home)
        return EntryPoint(name, value or home.__name__, GROUP)

    return make


def test_an_entry_point_makes_an_entry(install: Callable[..., EntryPoint]) -> None:
    """It comes after OnyxQ's own, named by the extension, a dot, and the entry point."""
    other = module(Args=Plain, apply=count_one)
    entries = with_extensions([install("tally.add", module(SUBMIT=True)), install("bag.fill", other)])
    assert list(entries) == [*ENTRIES, "bag.fill", "tally.add"]
    assert (entries["tally.add"].extension, entries["tally.add"].submitted) == ("tally", True)
    assert not entries["bag.fill"].submitted and entries.versions["bag.fill"] == 1


def test_an_entry_point_that_is_seen_twice_counts_once(install: Callable[..., EntryPoint]) -> None:
    """Metadata of one installation may be on the path twice."""
    point = install("tally.add", module())
    assert "tally.add" in with_extensions([point, point])


def test_two_extensions_of_one_name_are_refused(install: Callable[..., EntryPoint]) -> None:
    """The error names both."""
    one, other = install("tally.add", module()), EntryPoint("tally.add", "elsewhere", GROUP)
    with pytest.raises(BadExtension, match="two extensions bring an entry tally.add.*elsewhere"):
        with_extensions([one, other])


def test_entries_and_versions_that_share_their_arguments_are_refused(install: Callable[..., EntryPoint]) -> None:
    """An entry would be written as the other one, and a peer would lower arguments to the version before for ever."""
    both = {"tally.add": module(), "tally.sum": module()}
    complaint = (
        "entry tally.add of the extension tally, version 1, and entry tally.sum of the extension tally, version 1,"
        " have the same class as Args"
    )
    with pytest.raises(BadExtension, match=complaint):
        with_extensions([install(name, found) for name, found in both.items()])
    assert [complaint in text for text in check_extension(both)] == [True]
    newer = module(VERSION=2, EARLIER=(module(),), lowered=lambda args: args)
    with pytest.raises(BadExtension, match=r"tally.add .*, version 1, and .* tally.add .*, version 2, have the same"):
        with_extensions([install("tally.add", newer)])


def test_what_cannot_be_imported_is_named() -> None:
    """The error has the reason."""
    with pytest.raises(BadExtension, match=r"lock.take = no_such_module cannot be loaded: ModuleNotFoundError"):
        with_extensions([EntryPoint("lock.take", "no_such_module", GROUP)])


@pytest.mark.parametrize(
    "name", ["lock", "gc", "lock.", ".take", "Lock.take", "lock.take.x", "lock.1", "l" * 99 + ".take"]
)
def test_names_are_an_extension_and_an_entry(name: str) -> None:
    """So they can never collide with OnyxQ's own entries, now or later."""
    with pytest.raises(BadExtension, match="EXTENSION.ENTRY"):
        entry_of(name, module())


class Loose:
    """Not an attrs class."""


@frozen
class Floating:
    """Has a float, on which peers may not agree."""

    share: float


@frozen
class Keyed:
    """Has a map with keys of a class that no entry can have."""

    names: PMap[str, Any]


@frozen
class Numbered:
    """Has a map with numbers as keys, which msgpack refuses to decode: the whole record would count as malformed."""

    counts: PMap[int, str]


@frozen
class Maps:
    """Has maps with the keys that a record can hold."""

    names: PMap[str, int]
    parts: tuple[PMap[bytes, bool], ...]


async def run(duty: str, context: object) -> None:
    """Do nothing."""


WRONG = [
    ({"apply": None}, "it has no apply"),
    ({"Args": None}, "it has no Args"),
    ({"VERSION": None}, "it has no VERSION"),
    ({"VERSION": 0}, "VERSION must be an integer from 1"),
    ({"VERSION": "1"}, "VERSION must be an integer from 1"),
    ({"Args": Loose}, "Args must be a frozen attrs class"),
    ({"Args": Floating}, "share of Args is <class 'float'>"),
    ({"Args": Keyed}, "names of Args is"),
    ({"Args": Numbered}, "counts of Args is"),
    ({"apply": lambda replica: (replica, "applied")}, "apply must be a function of replica, args and stamp"),
    ({"owed": lambda replica: ()}, "owed must be a function of 2 arguments"),
    ({"run": run}, "duties and run come together"),
    ({"duties": lambda replica, me: ()}, "duties and run come together"),
    ({"run": lambda duty, context: None, "duties": lambda replica, me: ()}, "run must be an async function"),
    ({"EARLIER": (module(),)}, "versions must rise"),
    ({"VERSION": 2, "EARLIER": (module(apply=None),)}, "it has no apply"),
]


@pytest.mark.parametrize(("changes", "complaint"), WRONG, ids=[complaint for _, complaint in WRONG])
def test_what_is_no_entry_is_refused_with_the_reason(changes: dict[str, Any], complaint: str) -> None:
    """It is refused before anything reaches a log; the check for authors does the same."""
    with pytest.raises(BadExtension) as error:
        entry_of("tally.add", module(**changes))
    assert complaint in error.value.message and "tally.add" in error.value.message
    assert check_extension({"tally.add": module(**changes)}) == [error.value.message]


def test_without_extensions_there_are_onyxqs_entries() -> None:
    """This is so in the environment of these tests, unless an extension is installed there."""
    assert set(ENTRIES) <= set(installed())


# --- in the log -------------------------------------------------------------------


def test_an_extension_keeps_a_state_of_its_own() -> None:
    """It is in the snapshot, and differences name its place."""
    log = begun(tally())
    before = log.replica
    assert log.submit(Args("x", 2), Args("x")) == [APPLIED, APPLIED]
    assert log.replica.extensions == pmap({"tally": pmap({"x": 3})})
    assert unpack(pack(log.replica)) == log.replica
    paths = ["/".join(change.path) for change in diff(before, log.replica)]
    assert "extensions/tally" in paths


def test_arguments_with_maps_come_back_from_a_record() -> None:
    """Types that `Args` may have must be types that every peer can decode: else the writer's later records are void."""

    def keep(replica: Replica, args: Maps, stamp: Stamp) -> tuple[Replica, str]:
        return with_state(replica, "tally", pmap({"names": args.names, "parts": args.parts})), APPLIED

    log = begun(tally(Args=Maps, apply=keep))
    given = Maps(pmap({"a": 1, "b": 2}), (pmap({b"\xff": True}),))
    assert log.submit(given, given) == [APPLIED, APPLIED]
    assert log.replica.extensions["tally"] == pmap({"names": given.names, "parts": given.parts})


def test_an_entry_of_an_extension_is_shown_like_any_other() -> None:
    """It is shown in words, and in the reference page of the installed entries."""
    assert sentence("tally.add", Args("x", 2)) == "tally add: name x, count 2, parts []"
    shown = page(tally(SUBMIT=True))
    assert "tally.add\n---------\n\nCounts." in shown
    assert ":Extension: tally\n:Submitted by clients: yes\n:Duties: no\n" in shown
    assert "tally" not in page()


def test_arguments_come_by_name_with_their_defaults() -> None:
    """A missing or unknown argument, or one of another type, is named."""
    assert named_args(Args, {"name": "x", "parts": [1, 2]}) == Args("x", 1, (1, 2))
    for given, told in [
        ({}, "name: is missing"),
        ({"name": 1}, "name: str"),
        ({"name": "x", "more": 1}, "more: is not"),
    ]:
        with pytest.raises(Malformed, match=told):
            named_args(Args, given)


def _raise(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, str]:
    raise ValueError("a bug")


def _take_over(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, str]:
    return evolve(replica, partitions=pmap()), APPLIED


def _meddle(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, str]:
    return with_state(replica, "other", pmap({"x": 1})), APPLIED


def _say_nothing(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, Any]:
    return replica, None


@pytest.mark.parametrize("apply", [_raise, _take_over, _meddle, _say_nothing])
def test_a_bug_in_apply_stops_the_peer_before_it_takes_effect(apply: Any) -> None:
    """It stops every peer at the same record, so nothing forks; the check for authors finds it."""
    log = begun(tally(apply=apply))
    before = log.replica
    with pytest.raises(ExtensionFailed, match=r"tally\.add"):
        log.submit(Args("x"))
    assert log.replica is before
    assert check_extension({"tally.add": module(apply=apply)})


def test_a_bug_in_obligations_or_duties_stops_the_peer() -> None:
    """This includes a duty that is not a value."""

    def bad(replica: Replica, me: str) -> list[Any]:
        raise KeyError(me)

    owing, doing = tally(owed=bad), tally(duties=bad, run=run)
    with pytest.raises(ExtensionFailed, match="owed of tally.add raised KeyError"):
        owed(begun(owing).replica, "a", owing)
    with pytest.raises(ExtensionFailed, match="duties of tally.add raised KeyError"):
        duties(begun(doing).replica, "a", doing)
    listed = tally(duties=lambda replica, me: [["no", "value"]], run=run)
    with pytest.raises(ExtensionFailed, match="unhashable"):
        duties(begun(listed).replica, "a", listed)


@pytest.mark.parametrize("owing", ["x", leave_cluster.Args("a", "a bug")])
def test_a_peer_owes_no_other_entries_for_an_extension(owing: Any) -> None:
    """This is a bug of the extension, which is named, whether the value is an entry of OnyxQ or none at all."""
    entries = tally(owed=lambda replica, me: [Args(me), owing])
    with pytest.raises(ExtensionFailed, match=r"owed of tally.add returned .*, which is not an entry of its extension"):
        owed(begun(entries).replica, "a", entries)
    assert check_extension({"tally.add": module(owed=lambda replica, me: [owing])})


def test_members_have_obligations_and_duties_once_the_entry_is_enabled() -> None:
    """Other peers have none, and no peer has any before."""
    entries = tally(owed=lambda replica, me: [Args(me)], duties=lambda replica, me: [me], run=run)
    replica = begun(entries).replica
    assert owed(replica, "a", entries) == [Args("a")] and owed(replica, "b", entries) == []
    assert Extended("tally.add", "a") in duties(replica, "a", entries)
    assert not any(isinstance(duty, Extended) for duty in duties(replica, "b", entries))
    older = evolve(replica, enabled=ENTRIES.versions)
    assert Args("a") not in owed(older, "a", entries)
    assert not any(isinstance(duty, Extended) for duty in duties(older, "a", entries))


@pytest.mark.parametrize(
    "state", [1.5, {"a"}, [1], pmap({"x": 2.0}), (1, (2, object())), pmap({1: 1, "a": 2}), 1 << 64]
)
def test_a_state_that_no_snapshot_can_hold_breaks_an_invariant(state: Any) -> None:
    """Floats, sets, lists, objects and keys of two kinds do; the check for authors finds them too."""
    broken = with_state(begun(tally()).replica, "tally", state)
    assert any("tally" in text for text in violations(broken))

    def apply(replica: Replica, args: Args, stamp: Stamp) -> tuple[Replica, str]:
        return with_state(replica, "tally", state), APPLIED

    assert check_extension({"tally.add": module(apply=apply)})


# --- the check for authors -----------------------------------------------------------


def test_the_check_finds_nothing_wrong_with_a_good_entry() -> None:
    """Also with obligations that it applies."""
    good = module(owed=lambda replica, me: [Args(me)] if state_of(replica, "tally").get(me, 0) < 3 else [])
    assert check_extension({"tally.add": good}) == []


def test_the_check_finds_what_differs_between_peers(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It finds clocks, floats and sets in the source of a module, by line."""
    text = '''"""Counts."""

import time
from attrs import frozen
from onyxq.core.entry import APPLIED
from onyxq.core.extensions import with_state

VERSION = 1

@frozen
class Args:
    """None."""

def apply(replica, args, stamp):
    """Do it."""
    for peer in {"a", "b"}:
        replica = with_state(replica, "hasty", (peer, int(time.time() * 1.5)))
    return replica, APPLIED
'''
    (tmp_path / "hasty_entry.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    import hasty_entry  # type: ignore[import-not-found]

    found = "\n".join(check_extension({"hasty.go": hasty_entry}))
    for told in ("line 3: imports time", "the float 1.5", "a set is iterated unsorted"):
        assert told in found


@frozen
class Plain:
    """An earlier version's arguments."""

    name: str


def count_one(replica: Replica, args: Plain, stamp: Stamp) -> tuple[Replica, str]:
    """The earlier version."""
    return count(replica, Args(args.name), stamp)


@pytest.mark.long
@pytest.mark.parametrize(
    ("lowered", "complaint"),
    [
        (lambda args: Plain(args.name), ""),
        (lambda args: None, ""),
        (lambda args: args, "which is not of the version before"),
        (lambda args: Plain(args.title), "raised AttributeError"),
    ],
)
def test_the_check_lowers_arguments_to_the_version_before(lowered: Any, complaint: str) -> None:
    """They must be those of that version, or None for what it cannot express."""
    earlier = module(Args=Plain, apply=count_one)
    found = check_extension({"tally.add": module(VERSION=2, EARLIER=(earlier,), lowered=lowered)})
    assert len(found) == bool(complaint) and all(complaint in text for text in found)


@pytest.mark.long
def test_the_check_applies_entries_of_one_extension_together() -> None:
    """Here the one fails only where the other was applied before."""

    @frozen
    class Nothing:
        """None."""

    def empty(replica: Replica, args: Nothing, stamp: Stamp) -> tuple[Replica, str]:
        assert not state_of(replica, "tally")
        return replica, APPLIED

    other = module(Args=Nothing, apply=empty)
    assert check_extension({"tally.empty": other}) == []
    assert "tally.empty" in check_extension({"tally.add": module(), "tally.empty": other})[0]
