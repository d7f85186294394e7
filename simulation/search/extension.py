"""An extension for the pure cluster, and the programs that know it or not (design: simulation, upgrades).

The extension counts by name.  ``tally.add`` has two versions; who is full is owed a
``tally.clear``.  A node runs one of `PROGRAMS`; as nodes come back with another one, the
ring's first peer enables what all know by then.  `TallyModel` says once more, and as simply
as can be, what may be used from when on and what comes of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import ClassVar

from attrs import define, field, frozen

from log_entries.registry import ENTRIES
from onyxq.core.entry import APPLIED, Entries, Malformed, Stamp, Verdict, decode_args
from onyxq.core.extensions import state_of, with_state
from onyxq.core.replica import Replica, first_peer
from onyxq.core.step import NOT_ENABLED, NOT_IN_RING, Outcome, Step
from onyxq.system.extensions import entry_of
from simulation.checkers import Model
from simulation.probes import Probes

TALLY, ADD, CLEAR = "tally", "tally.add", "tally.clear"
FULL = 12
COUNT_MAX = 9


@frozen
class AddOne:
    """Version 1 of ``tally.add``."""

    name: str


@frozen
class Add:
    """Version 2; ``count``: 1 to `COUNT_MAX`."""

    name: str
    count: int


@frozen
class Clear:
    """Starts a full count again."""

    name: str


def add_one(replica: Replica, args: AddOne, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Count one."""
    return add(replica, Add(args.name, 1), stamp)


def add(replica: Replica, args: Add, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Count several."""
    if not 0 < args.count <= COUNT_MAX:
        return replica, "bad count"
    counts = state_of(replica, TALLY)
    return with_state(replica, TALLY, counts.set(args.name, counts.get(args.name, 0) + args.count)), APPLIED


def clear(replica: Replica, args: Clear, stamp: Stamp) -> tuple[Replica, Verdict]:
    """Forget a count that is full."""
    counts = state_of(replica, TALLY)
    if counts.get(args.name, 0) < FULL:
        return replica, "not full"
    return with_state(replica, TALLY, counts.remove(args.name)), APPLIED


def full(replica: Replica, me: str) -> Sequence[Clear]:
    """The ring's first peer owes a `Clear` for each count that is full."""
    if first_peer(replica) != me:
        return ()
    return [Clear(name) for name, count in sorted(state_of(replica, TALLY).items()) if count >= FULL]


_ADD_1 = SimpleNamespace(VERSION=1, Args=AddOne, apply=add_one)
_ADD_2 = SimpleNamespace(VERSION=2, Args=Add, apply=add, EARLIER=(_ADD_1,), lowered=lambda args: AddOne(args.name))
_CLEAR = SimpleNamespace(VERSION=1, Args=Clear, apply=clear, owed=full)

PROGRAMS: tuple[Entries, ...] = (
    ENTRIES,
    Entries([*ENTRIES.values(), entry_of(ADD, _ADD_1)]),
    Entries([*ENTRIES.values(), entry_of(ADD, _ADD_2), entry_of(CLEAR, _CLEAR)]),
)
"""What a node may run, the oldest first: without the extension, with its first version, with all of it."""

NEWEST = PROGRAMS[-1]


@define(eq=False)
class TallyModel(Model):
    """What is enabled and counted, from the entries alone."""

    name: ClassVar[str] = "extensions"
    probes: Probes
    enabled: dict[str, int] = field(factory=dict)
    counts: dict[str, int] = field(factory=dict)

    def follow(self, before: Replica, done: Step) -> str:
        """See `Model.follow`."""
        after = done.replica
        for outcome in done.outcomes:
            if outcome.name == "create_cluster" and outcome.verdict == APPLIED:
                self.enabled = dict(outcome.args.enabled)
            elif outcome.name == "raise_minimum":
                self._raise(outcome)
            elif outcome.name in (ADD, CLEAR):
                wrong = self._entry(before, done, outcome)
                if wrong:
                    return f"{outcome.name} of {done.peer}: {wrong}"
        if after.extensions is not before.extensions and dict(state_of(after, TALLY)) != self.counts:
            return f"the extension holds {dict(state_of(after, TALLY))}, its entries amount to {self.counts}"
        if after.enabled is not before.enabled or after.peers is not before.peers:
            return self._known(before, after)
        return ""

    def _raise(self, outcome: Outcome) -> None:
        if outcome.verdict == APPLIED:
            self.enabled[outcome.args.name] = outcome.args.version
            self.probes.reached("a version was enabled")
        elif outcome.verdict == "not known to every peer":
            self.probes.reached("a version was to be enabled that not everybody knows")

    def _entry(self, before: Replica, done: Step, outcome: Outcome) -> str:
        if outcome.version > self.enabled.get(outcome.name, 0):
            self.probes.reached("an extension's entry came before it was enabled")
            return "" if outcome.verdict == NOT_ENABLED else f"{outcome.verdict} although it is not enabled"
        if outcome.verdict == NOT_IN_RING:
            both = done.peer in before.ring.members and done.peer in done.replica.ring.members
            return "its writer is in the ring" if both else ""
        args = outcome.args
        have = self.counts.get(args.name, 0)
        if isinstance(args, Clear):
            wanted = have >= FULL
        else:
            count = 1 if isinstance(args, AddOne) else args.count
            wanted = 0 < count <= COUNT_MAX
        if wanted != (outcome.verdict == APPLIED):
            return f"{outcome.verdict} at a count of {have}"
        if wanted and isinstance(args, Clear):
            del self.counts[args.name]
            self.probes.reached("an obligation of an extension was met")
        elif wanted:
            self.counts[args.name] = have + count
            self.probes.reached(f"an extension's entry counted in version {outcome.version}")
        return ""

    def _known(self, before: Replica, after: Replica) -> str:
        """Return what is wrong if a peer does not know all that is enabled, or anything is disabled again."""
        if after.enabled is not before.enabled and dict(after.enabled) != self.enabled:
            return f"{dict(after.enabled)} are enabled, not {self.enabled}"
        found = [(name, self.enabled[name]) for name in (ADD, CLEAR) if name in self.enabled]
        for peer in after.peers.values() if found else ():
            if any(peer.versions.get(name, 0) < version for name, version in found):
                return f"{peer.id} does not know what is enabled"
        return ""


def appended(entries: Entries, name: str, values: list[object]) -> object | None:
    """Arguments of any entry that a program knows, in the newest version; None if there are none such."""
    found = entries.get(name)
    try:
        return decode_args(found.args, values) if found is not None else None
    except Malformed:
        return None
