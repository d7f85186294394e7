"""Every house rule can fail: a planted violation is found, and correct code is not reported."""

from __future__ import annotations

import pytest

from tests.tidy import rules

ENTRY = "log_entries/example.py"
DOC = '"""Doc."""\n'

PLANTED = [
    (rules.pure_modules_import_no_effects, ENTRY, "import time", "import math"),
    (rules.pure_modules_import_no_effects, "onyxq/core/step.py", "from os import path", "from struct import Struct"),
    (rules.pure_modules_import_no_effects, "onyxq/core/ring.py", "def f():\n import trio.lowlevel", "import timeit"),
    (rules.pure_modules_import_pure_modules, ENTRY, "import onyxq.client", "from onyxq.core import replica"),
    (rules.pure_modules_import_pure_modules, ENTRY, "from onyxq.store import interface", "import onyxq.core.placement"),
    (
        rules.pure_modules_import_pure_modules,
        "onyxq/core/ring.py",
        "from ..wire import tcp",
        "from .replica import Ring",
    ),
    (rules.some_imports_have_one_home, "onyxq/client/pool.py", "import kazoo.client", "import msgpack"),
    (rules.some_imports_have_one_home, "onyxq/node/loop.py", "import lmdb", "import trio"),
    (rules.some_imports_have_one_home, "onyxq/node/loop.py", "from simulation import world", "import onyxq"),
    (rules.some_imports_have_one_home, "onyxq/operations/jobs.py", "import pickle", "import json"),
    (rules.some_imports_have_one_home, "onyxq/spark/host.py", "from pyspark import cloudpickle", "import pyspark"),
    (rules.imports_run_one_way, "onyxq/wire/server.py", "from onyxq.node import loop", "import onyxq.core.errors"),
    (rules.imports_run_one_way, "onyxq/wire/server.py", "from ..node import loop", "from ..core.errors import X"),
    (rules.imports_run_one_way, "onyxq/client/pool.py", "from onyxq.node import loop", "from onyxq.wire import tcp"),
    (
        rules.imports_run_one_way,
        "onyxq/node/node.py",
        "if T:\n from onyxq.operations import a",
        "import onyxq.leader.a",
    ),
    (rules.imports_run_one_way, "onyxq/leader/a.py", "import onyxq.errors", "from onyxq import __version__"),
    (rules.procedures_need_no_task, "onyxq/leader/a.py", "import trio.lowlevel", "import onyxq.system.procedures"),
    (rules.procedures_need_no_task, "onyxq/leader/grants/a.py", "from anyio import sleep", "from math import inf"),
    (rules.procedures_need_no_task, "onyxq/leader/a.py", "async def f(): yield", "def f(): yield"),
    (rules.pure_modules_are_exact, ENTRY, "x = hash('a')", "x = hashed('a')"),
    (rules.pure_modules_are_exact, ENTRY, "x = 0.5", "x = 5"),
    (rules.pure_modules_are_exact, ENTRY, "x = a / b", "x = a // b"),
    (rules.pure_modules_are_exact, ENTRY, "x /= b", "x //= b"),
    (rules.pure_modules_iterate_no_sets, ENTRY, "for x in {1, 2}: pass", "for x in (1, 2): pass"),
    (rules.pure_modules_iterate_no_sets, ENTRY, "x = list(set(y))", "x = sorted(set(y))"),
    (rules.pure_modules_iterate_no_sets, ENTRY, "x = [y for y in set(z) - w]", "x = {y for y in set(z) - w}"),
    (
        rules.pure_modules_iterate_no_sets,
        ENTRY,
        "def f(a):\n found = set(a)\n for x in found: pass",
        "def f(a):\n found = set(a)\n for x in sorted(found): pass",
    ),
    (
        rules.pure_modules_iterate_no_sets,
        ENTRY,
        "def f(a: set[int]):\n return tuple(x for x in a)",
        "def f(a: set[int]):\n return sorted(x for x in a)",
    ),
    (rules.nothing_is_swallowed, ENTRY, "try: f()\nexcept: raise", "try: f()\nexcept ValueError: pass"),
    (rules.nothing_is_swallowed, ENTRY, "try: f()\nexcept Exception: pass", "try: f()\nexcept Exception: log()"),
    (rules.nothing_is_swallowed, ENTRY, "with suppress(Exception): f()", "with suppress(OSError): f()"),
    (rules.modules_say_where_they_stand, ENTRY, "import math", DOC + "import math"),
    (rules.public_names_have_docstrings, "onyxq/a.py", "def f(): pass", "def _f(): pass"),
    (rules.public_names_have_docstrings, ENTRY, "class A: pass", "class Args: pass"),
    (rules.tests_say_what_they_show, "tests/test_a.py", "def test_a(): pass", "def test_a():\n " + DOC),
    (rules.modules_stay_short, "onyxq/a.py", "\n" * 601, "\n" * 600),
    (rules.functions_stay_short, "onyxq/a.py", "def f():" + "\n 1" * 60, "def f():" + "\n 1" * 59),
    (
        rules.functions_take_few_parameters,
        "onyxq/a.py",
        "def f(self, a, b, c, d, *, e, f, g, h): pass",
        "def f(self, a, b, c, d, *, e, f, g, **h): pass",
    ),
    (rules.tests_do_not_sleep, "tests/test_a.py", "time.sleep(1)", "clock.sleep(1)"),
    (rules.tests_do_not_sleep, "tests/test_a.py", "from trio import sleep", "from trio import run"),
    (rules.tests_do_not_sleep, "tests/test_a.py", "trio.sleep(0.1)", "trio.sleep(0)"),
    (rules.tests_do_not_sleep, "tests/test_a.py", "while True: trio.sleep(1)", "while not done: trio.sleep(1)"),
    (rules.tests_do_not_sleep, "tests/test_a.py", "trio.sleep(1)", "import simulation.world.clock\ntrio.sleep(1)"),
]


@pytest.mark.parametrize(("rule", "path", "bad", "good"), PLANTED)
def test_a_planted_violation_is_found(rule: rules.Rule, path: str, bad: str, good: str) -> None:
    """The rule complains about the bad text and not about the good one."""
    assert list(rule(rules.parse(path, bad)))
    assert not list(rule(rules.parse(path, good)))


def test_every_rule_has_a_planted_violation() -> None:
    """No rule is without a test."""
    assert {rule for rule, *_ in PLANTED} == set(rules.RULES)


def _sources(**texts: str) -> list[rules.Source]:
    return [rules.parse(f"onyxq/core/{name}.py", text) for name, text in texts.items()]


def test_a_loop_of_imports_is_found_wherever_it_hides() -> None:
    """A loop over three modules is named, even if a function or a type check hides it."""
    hidden = _sources(
        a="from onyxq.core import b",
        b="def f():\n    from onyxq.core.c import x",
        c="if TYPE_CHECKING:\n    import onyxq.core.a",
        d="import onyxq.core.a",
    )
    assert rules.loops(rules.edges(hidden)) == [["onyxq.core.a", "onyxq.core.b", "onyxq.core.c"]]
    assert rules.loops(rules.edges(hidden[:2] + hidden[3:])) == []


def test_crowds_and_fragments_are_found() -> None:
    """A package of 26 modules is reported, and so is a small module with one importer."""
    many = _sources(**{f"m{number}": "" for number in range(26)})
    assert rules.crowded_packages(many) == ["onyxq/core has 26 modules; at most 25"]
    assert rules.crowded_packages(many[1:]) == []
    small = _sources(a="import onyxq.core.b", b="x = 1\n", c="x = 1\n" * 40, d="import onyxq.core.c")
    assert rules.fragments(small) == ["onyxq/core/b.py has 1 lines, and only onyxq.core.a imports it"]
    assert rules.fragments([*small, *_sources(e="import onyxq.core.b")]) == []
