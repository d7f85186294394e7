"""Scenario files: what happens in the pure cluster, told in words and reviewed (design: simulation).

A line is a command; indented lines below it are what it printed, and belong to the file:
every record that landed with its verdicts, and the ring wherever it changed.  Comments
start with ``#``.  `play` runs a file and writes it again; a test compares both, and
``python -m simulation.scenario --regenerate`` replaces what was printed, to be read in
review.  ``docs/scenarios.rst`` describes the commands.
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from attrs import define, field

from onyxq.core.replica import Replica
from onyxq.core.step import Step
from onyxq.system.settings import did_you_mean
from simulation.checkers import Broken, LogChecker
from simulation.scenarios.expect import EXPECTATIONS, ScenarioError, Unmet
from simulation.scenarios.words import claims_words, job_words, partition_words, record_words, ring_words
from simulation.search.calm import calm, lead
from simulation.search.cluster import ACTIONS, Cluster, Options, parameters
from simulation.search.run import new_cluster, perform

DIRECTORY = Path(__file__).with_name("scenarios")
INDENT = "    "
ROUNDS_MAX = 400


@define(eq=False)
class Scenario:
    """One file being played."""

    name: str
    cluster: Cluster = field(init=False)
    last: Step | None = None
    printed: list[str] = field(factory=list)
    shown: list[str] = field(factory=list)
    """The lines about the ring that were printed last."""

    def __attrs_post_init__(self) -> None:
        self._make(Options())

    def _make(self, options: Options) -> None:
        self.last, self.shown = None, []
        self.cluster = new_cluster(options)
        course = self.cluster.log.course
        course.checkers = (_Printer(self), *course.checkers)

    def landed(self, done: Step) -> None:
        """Print a record that landed, and the ring if it changed."""
        self.last = done
        self.printed += record_words(done)
        lines = ring_words(done.replica)
        if lines != self.shown:
            self.printed += lines
            self.shown = lines

    # --- commands

    def command(self, words: Sequence[str]) -> list[str]:
        """Carry one line out; returns what it printed. Raises `Unmet`, `Broken`."""
        self.printed = []
        if words[0] == "given" and len(words) > 1:
            self.command(words[1:])
            return []
        word, *args = words
        if word == "cluster":
            self._cluster(args)
        elif word == "expect":
            self._expect(args)
        elif word in OWN:
            self._own(word, args)
        elif word in ACTIONS:
            if not perform(self.cluster, (word, *_values(word, args))):
                self.printed.append("nothing happens")
        else:
            known = [*ACTIONS, *OWN, "cluster", "expect", "given"]
            raise Unmet(f"no such command: {word}{did_you_mean(word, known)}")
        return self.printed

    def _cluster(self, args: Sequence[str]) -> None:
        known = list(Options.__annotations__)
        values: dict[str, Any] = {}
        for arg in args:
            name, _, value = arg.partition("=")
            if name not in known or not value.isdigit():
                raise Unmet(f"{arg}: NAME=NUMBER expected, NAME one of {', '.join(known)}")
            values[name] = int(value)
        self._make(Options(**values))

    def _expect(self, args: Sequence[str]) -> None:
        if not args or args[0] not in EXPECTATIONS:
            raise Unmet(f"expect one of {', '.join(EXPECTATIONS)}")
        EXPECTATIONS[args[0]](self.cluster, self.last, list(args[1:]))

    def _own(self, word: str, args: Sequence[str]) -> None:
        needed = list(inspect.signature(OWN[word]).parameters)[1:]
        if len(args) != len(needed):
            raise Unmet(f"{word} takes {' '.join(needed).upper() or 'nothing'}")
        OWN[word](self, *args)

    def _do(self, *action: int | str) -> bool:
        return perform(self.cluster, action)

    def join(self, node: str) -> None:
        """A new peer of a node asks to join, and that lands; the first one founds the cluster before."""
        if not self._do("start", node):
            raise Unmet(f"the last peer of {node} still runs")
        peer = self.cluster.latest[node]
        while not peer.asked:
            self._do("send", peer.id)
            self._do("flush", peer.id)
            self._do("read", peer.id)
        self._do("send", peer.id)
        self._do("flush", peer.id)

    def crowd(self, node: str, count: str) -> None:
        """Start ``count`` nodes, named after ``node``, at the same time."""
        for number in range(int(count)):
            self.join(f"{node}{number + 1:02}")

    def settle(self) -> None:
        """Let all peers read everything and append what they owe, in turn, until nothing is left to append."""
        for _ in range(ROUNDS_MAX):
            before = self.cluster.log.end
            for peer in self.cluster.living():
                self._do("turn", peer.id)
            if self.cluster.log.end == before:
                return
        raise Unmet("the cluster does not come to rest")

    def serve(self) -> None:
        """As ``settle``, and leaders say ready and settle their partitions."""
        for _ in range(ROUNDS_MAX):
            before = self.cluster.log.end
            for peer in self.cluster.living():
                self._do("read", peer.id)
                lead(self.cluster, peer)
                self._do("turn", peer.id)
            if self.cluster.log.end == before:
                return
        raise Unmet("the cluster does not come to rest")

    def calm(self) -> None:
        """Faults stop: sessions of the dead end, and the cluster must come to rest, complete and served."""
        calm(self.cluster)

    def show(self, what: str) -> None:
        """Print ``partitions``, ``claims`` or ``jobs`` as of the end of the log, or the ``ring`` again."""
        now = self.cluster.log.now
        views = {"partitions": partition_words, "claims": claims_words, "jobs": job_words, "ring": ring_words}
        if what not in views:
            raise Unmet(f"show: {what!r} is none of {', '.join(views)}")
        self.printed += views[what](now)


@define(eq=False)
class _Printer(LogChecker):
    scenario: Scenario

    def step(self, before: Replica, step: Step) -> None:
        """Print a record before it is judged."""
        self.scenario.landed(step)


OWN: dict[str, Callable[..., None]] = {
    word: getattr(Scenario, word) for word in ("join", "crowd", "settle", "serve", "calm", "show")
}
"""Commands that are more than one action."""


def _values(word: str, args: Sequence[str]) -> list[int | str]:
    """Arguments of an action as it takes them; raises `Unmet`."""
    takes = parameters(word)
    if any(one.kind is inspect.Parameter.VAR_POSITIONAL for one in takes):
        return [int(arg) if arg.lstrip("-").isdigit() else arg for arg in args]
    least = sum(one.default is inspect.Parameter.empty for one in takes)
    if not least <= len(args) <= len(takes):
        names = [one.name.upper() if n < least else f"[{one.name.upper()}]" for n, one in enumerate(takes)]
        raise Unmet(f"{word} takes {' '.join(names) or 'nothing'}")
    values: list[int | str] = []
    for one, arg in zip(takes, args, strict=False):
        if one.annotation == "int" and not arg.lstrip("-").isdigit():
            raise Unmet(f"{word}: {one.name.upper()} must be a whole number, not {arg}")
        values.append(int(arg) if one.annotation == "int" else arg)
    return values


def play(name: str, text: str) -> str:
    """The file as it is written after running it; raises `ScenarioError` naming file and line."""
    scenario, out = Scenario(name), []
    for number, line in enumerate(text.splitlines(), 1):
        if line.startswith(INDENT):
            continue
        out.append(line)
        words = line.split("#", 1)[0].split()
        if not words:
            continue
        try:
            out += [INDENT + printed for printed in scenario.command(words)]
        except (Unmet, Broken) as error:
            said = "".join(f"\n{INDENT}{printed}" for printed in scenario.printed)
            raise ScenarioError(f"{name}:{number}: {line.strip()}: {error}{said}") from error
    return "\n".join(out) + "\n"


def files() -> list[Path]:
    """All scenario files of the project, sorted."""
    return sorted(DIRECTORY.glob("*.txt"))


def main(arguments: Sequence[str] | None = None) -> int:
    """Play files; see ``--help``."""
    parser = argparse.ArgumentParser(prog="python -m simulation.scenario", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("files", nargs="*", type=Path, help="default: all of simulation/scenarios")
    parser.add_argument("--regenerate", action="store_true", help="write what is printed into the files")
    asked = parser.parse_args(arguments)
    failed = 0
    for path in asked.files or files():
        text = path.read_text("utf-8")
        try:
            fresh = play(path.name, text)
        except ScenarioError as error:
            print(error, file=sys.stderr)
            failed += 1
            continue
        if fresh != text and asked.regenerate:
            path.write_text(fresh, "utf-8")
            print(f"{path}: written")
        elif fresh != text:
            failed += 1
            sys.stdout.writelines(
                difflib.unified_diff(text.splitlines(True), fresh.splitlines(True), str(path), "as it runs now")
            )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
