"""The encoding and the effect of every entry's versions never change."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve, frozen

from log_entries import set_slots
from log_entries.registry import ENTRIES
from onyxq.core.entry import APPLIED, Entries, Stamp
from onyxq.core.replica import Replica
from tests.entries.golden import HOME, add_missing, broken_bytes, broken_meaning, frozen_log, read_entries, read_logs
from tests.entries.golden.examples import EXAMPLES, SCRIPTS

EXISTING = [(name, version) for name, entry in ENTRIES.items() for version in entry.forms]
FROZEN, LOGS = read_entries(), read_logs()
HOW = "give it an example, and a script that applies it, in tests/entries/golden/examples.py; then --add"


@pytest.mark.parametrize(("name", "version"), [*FROZEN], ids=lambda part: str(part))
def test_the_bytes_are_as_they_were(name: str, version: int) -> None:
    """They decode to the same arguments, and are encoded the same way."""
    assert not list(broken_bytes(name, version, FROZEN[name, version]))


@pytest.mark.parametrize("name", [*LOGS])
def test_the_meaning_is_as_it_was(name: str) -> None:
    """A whole log gives the frozen verdicts and replicas."""
    assert broken_meaning(name, LOGS[name]) == ""


def test_every_version_of_every_entry_is_frozen() -> None:
    """Each has an example and is applied in a log."""
    applied = {line for log in LOGS.values() for kept in log.records for line in kept["became"]}
    for name, version in EXISTING:
        assert (name, version) in FROZEN, f"{name} version {version} has no golden bytes: {HOW}"
        assert f"{name} {version}: {APPLIED}" in applied, f"{name} version {version} is in no golden log: {HOW}"


def test_the_first_log_is_about_sixty_records_with_every_kind_of_no_op() -> None:
    """Entries that change nothing are frozen too."""
    said = {line.partition(": ")[2] or line for kept in LOGS["first"].records for line in kept["became"]}
    assert 60 <= len(LOGS["first"].records) <= 90
    assert {"repeat", "gap", "not a record", "other cluster", "not in the ring", "not enabled"} <= said
    assert {"stale epoch", "not free", "older than the cluster", "already enabled", "not known to every peer"} <= said


# --- the files do their work -----------------------------------------------------------


@frozen
class Renamed:
    """The arguments of ``set_slots`` under another name."""

    peer: str
    capacity: int


@frozen
class Turned:
    """The arguments of ``set_slots`` in another order."""

    slots: int
    peer: str


def generous(replica: Replica, args: set_slots.Args, stamp: Stamp) -> tuple[Replica, str]:
    """Give one more slot."""
    return set_slots.apply(replica, evolve(args, slots=args.slots + 1), stamp)


def silent(replica: Replica, args: set_slots.Args, stamp: Stamp) -> tuple[Replica, str]:
    """Return another verdict."""
    after, verdict = set_slots.apply(replica, args, stamp)
    return after, "done" if verdict == APPLIED else verdict


def changed(**changes: Any) -> Entries:
    """Return the registry with another ``set_slots`` under the same version."""
    entry = ENTRIES["set_slots"]
    form = evolve(entry.forms[1], **changes)
    twisted = evolve(entry, forms={1: form}, **changes)
    return Entries([twisted if one is entry else one for one in ENTRIES.values()])


@pytest.mark.parametrize("args", [Renamed, Turned])
def test_other_arguments_under_the_same_version_are_noticed(args: type) -> None:
    """The message names the entry and says what to do instead."""
    found = next(broken_bytes("set_slots", 1, FROZEN["set_slots", 1], changed(args=args)))
    assert "set_slots version 1" in found and "add a new one: docs/upgrades.rst" in found


@pytest.mark.parametrize("apply", [generous, silent])
def test_another_meaning_under_the_same_version_is_noticed(apply: Any) -> None:
    """It is reported at the first affected record."""
    said = broken_meaning("first", LOGS["first"], changed(apply=apply))
    assert "set_slots 1: " in said and "add a new one: docs/upgrades.rst" in said


def test_a_version_that_is_gone_is_noticed() -> None:
    """Logs may contain it for ever."""
    without = Entries([entry for entry in ENTRIES.values() if entry.name != "set_slots"])
    assert "not known any more" in next(broken_bytes("set_slots", 1, FROZEN["set_slots", 1], without))


def test_a_new_field_of_the_replica_is_none_of_an_old_logs_business() -> None:
    """Its digests cover the fields that existed then; a removed field is reported."""
    earlier = {kind: names[:-1] for kind, names in LOGS["first"].fields.items()}
    assert broken_meaning("first", frozen_log(SCRIPTS["first"](), fields=earlier)) == ""
    later = {**LOGS["first"].fields, "Node": ["id", "rack"]}
    assert "rack" in broken_meaning("first", evolve(LOGS["first"], fields=later))


def test_adding_touches_no_file_that_is_there(tmp_path: Path) -> None:
    """Even a wrong file is not changed."""
    shutil.copytree(HOME, tmp_path, dirs_exist_ok=True)
    (tmp_path / "entries" / "gc-1.json").write_text("{}")
    (tmp_path / "entries" / "set_slots-1.json").unlink()
    shutil.rmtree(tmp_path / "logs")
    assert add_missing(tmp_path, EXAMPLES, SCRIPTS) == [
        "entries/set_slots-1.json",
        *(f"logs/{name}.jsonl" for name in SCRIPTS),
    ]
    assert (tmp_path / "entries" / "gc-1.json").read_text() == "{}"
    assert add_missing(tmp_path, EXAMPLES, SCRIPTS) == []
    assert json.loads((tmp_path / "entries" / "set_slots-1.json").read_text()) == FROZEN["set_slots", 1]


def test_a_log_is_frozen_in_the_same_way_again() -> None:
    """Nothing in it depends on the process."""
    assert frozen_log(SCRIPTS["first"]()) == frozen_log(SCRIPTS["first"]())
