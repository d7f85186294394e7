"""Every house rule can fail: a planted violation is found, its harmless twin is not."""

from __future__ import annotations

import pytest

from tests.tidy import rules

ENTRY = "log_entries/example.py"
DOC = '"""Doc."""\n'

PLANTED = [
    (rules.pure_modules_import_no_effects, ENTRY, "import time", "import math"),
    (rules.pure_modules_import_no_effects, "onyxq/step.py", "from os import path", "from struct import Struct"),
    (rules.pure_modules_import_no_effects, "onyxq/ring.py", "def f():\n import trio.lowlevel", "import timeit"),
    (rules.pure_modules_import_pure_modules, ENTRY, "import onyxq.client", "from onyxq import replica"),
    (rules.pure_modules_import_pure_modules, ENTRY, "from onyxq.store import interface", "import onyxq.placement"),
    (rules.pure_modules_import_pure_modules, "onyxq/ring.py", "from . import config", "from .replica import Ring"),
    (rules.some_imports_have_one_home, "onyxq/client.py", "import kazoo.client", "import msgpack"),
    (rules.some_imports_have_one_home, "onyxq/peer/loop.py", "import lmdb", "import trio"),
    (rules.some_imports_have_one_home, "onyxq/peer/loop.py", "from simulation import world", "import onyxq"),
    (rules.some_imports_have_one_home, "onyxq/peer/jobs.py", "import pickle", "import json"),
    (rules.some_imports_have_one_home, "onyxq/spark/host.py", "from pyspark import cloudpickle", "import pyspark"),
    (rules.imports_run_one_way, "onyxq/wire/server.py", "from onyxq.peer import loop", "import onyxq.errors"),
    (rules.imports_run_one_way, "onyxq/wire/server.py", "from ..peer import loop", "from ..errors import X"),
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
    (rules.tests_do_not_sleep, "tests/test_a.py", "time.sleep(1)", "clock.sleep(1)"),
    (rules.tests_do_not_sleep, "tests/test_a.py", "from trio import sleep", "from trio import run"),
    (rules.tests_do_not_sleep, "tests/test_a.py", "trio.sleep(0.1)", "trio.sleep(0)"),
    (rules.tests_do_not_sleep, "tests/test_a.py", "while True: trio.sleep(1)", "while not done: trio.sleep(1)"),
    (rules.tests_do_not_sleep, "tests/test_a.py", "trio.sleep(1)", "import simulation.clock\ntrio.sleep(1)"),
]


@pytest.mark.parametrize(("rule", "path", "bad", "good"), PLANTED)
def test_a_planted_violation_is_found(rule: rules.Rule, path: str, bad: str, good: str) -> None:
    """The rule complains about the bad text and not about the good one."""
    assert list(rule(rules.parse(path, bad)))
    assert not list(rule(rules.parse(path, good)))


def test_every_rule_has_a_planted_violation() -> None:
    """No rule stands here untested."""
    assert {rule for rule, *_ in PLANTED} == set(rules.RULES)
