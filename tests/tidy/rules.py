"""The house rules that a machine can check, each a function from a source to complaints.

A rule yields ``(line, what is wrong)`` for one parsed file.  `test_rules` plants a
violation of each; `test_tree` applies all of them to the whole tree.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeAlias

from attrs import frozen

from onyxq.testing import purity

ROOT = Path(__file__).resolve().parents[2]
MODULE_LINES_MAX = 600

FUNCTION_LINES_MAX = 60
PARAMETERS_MAX = 7
PACKAGE_MODULES_MAX = 25
SMALL_MODULE_LINES = 40
"""A module below this that only one other imports belongs into that one."""

PURE = (
    "onyxq/core/*",
    "log_entries/*",
    "onyxq/leader/completion_rows.py",
    "onyxq/leader/missing_tasks.py",
    "onyxq/leader/state/*",
    "onyxq/history/recovery/new_replica.py",
)
"""Modules that only compute: same input, same output, on every peer."""

CALENDARS = (("onyxq/core/cron.py", "imports datetime"),)
"""Pure modules that may compute with dates. They never read a clock."""

PURE_PACKAGES = (
    "onyxq.core",
    "log_entries",
    "onyxq.leader.completion_rows",
    "onyxq.leader.missing_tasks",
    "onyxq.leader.state",
    "onyxq.history.recovery.new_replica",
)
"""Packages of the project that pure modules may import."""

ONLY_IN = {
    "kazoo": tuple(
        f"onyxq/log/{name}.py"
        for name in (
            "kazoo_client",
            "kazoo_connection",
            "zookeeper",
            "zookeeper_access",
            "zookeeper_origin",
            "zookeeper_pulses",
            "zookeeper_reader",
            "zookeeper_segments",
        )
    ),
    **dict.fromkeys(
        ("pickle", "cloudpickle", "pyspark.cloudpickle", "dill", "marshal", "shelve", "jsonpickle"),
        ("onyxq/spark/functions.py", "onyxq/jobs/functions.py"),  # what a job brings, in Spark's processes alone
    ),
    "lmdb": ("onyxq/store/lmdb_store.py", "onyxq/store/environment.py"),
    "simulation": ("simulation/*", "onyxq/interfaces/cli/*", "onyxq/testing/*"),
}
"""Modules that only some files may import; tests and benchmarks may import anything."""

PROCEDURES = "onyxq/leader/*"
"""Modules whose coroutines run as procedures (`onyxq.system.procedures`)."""

TASKS = ("onyxq/leader/leader.py", "onyxq/leader/purge.py", "onyxq/leader/cohort/*")
"""Those of them that run as tasks: takeovers, copies, and the purger, which writes files."""

SERVER_ORDER = (
    "onyxq.core",
    "log_entries",
    "onyxq.operations.table",
    "onyxq.wire",
    "onyxq.access",
    "onyxq.system",
    "onyxq.store",
    "onyxq.log",
    "onyxq.jobs",
    "onyxq.history",
    "onyxq.leader",
    "onyxq.node",
    "onyxq.operations",
    "onyxq.interfaces",
)
"""The packages of a peer, in order: each may import those before it."""

_SHARED = ("onyxq.core", "onyxq.operations.table", "onyxq.wire", "onyxq.access", "onyxq.system", "onyxq.jobs")

MAY_IMPORT = {
    **{package: SERVER_ORDER[:place] for place, package in enumerate(SERVER_ORDER)},
    "onyxq.operations.table": ("onyxq.core",),
    "onyxq.interfaces": (
        *SERVER_ORDER,
        "onyxq.client",
        "onyxq.worker",
        "onyxq.outbox",
        "onyxq.spark",
        "simulation",
    ),
    "onyxq.client": _SHARED,
    "onyxq.worker": (*_SHARED, "onyxq.client"),
    "onyxq.outbox": (*_SHARED, "onyxq.client"),
    "onyxq.integrations": (*_SHARED, "onyxq.client", "onyxq.worker"),
    "onyxq.spark": (*_SHARED, "onyxq.client", "onyxq.worker", "onyxq.history"),
    "simulation": (*SERVER_ORDER, "onyxq.client", "onyxq.worker", "onyxq.spark"),
    "onyxq.testing": (*SERVER_ORDER, "onyxq.client", "onyxq.worker", "simulation"),
}
"""Which packages of the project each package may import, besides itself; `docs/decisions.rst` says why."""

OF_ONE_KIND = (
    "log_entries",
    "onyxq/core/taskstore",
    "onyxq/interfaces/dashboard",
    "simulation/checkers",
    "simulation/planted",
)
"""Packages with one module for each thing of a kind (entry, page, checker), which grow with the kind."""

SIMULATED_TIME = ("simulation", "onyxq.testing", "tests.interfaces.fake_service.played", "trio.testing.MockClock")
"""Tests that import one of these use simulated time, in which sleeps take no time."""

SLEEPS_ALLOWED: dict[str, str] = {}
"""Test files that may sleep, and why."""

Complaints: TypeAlias = Iterator[tuple[int, str]]


@frozen
class Source:
    """One parsed file; ``path`` is relative to the root."""

    path: str
    text: str
    tree: ast.Module

    @property
    def module(self) -> str:
        """Its dotted name."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def pure(self) -> bool:
        """Whether it is a pure module."""
        return matches(self.path, PURE) and not self.program

    @property
    def program(self) -> bool:
        """Whether it is run by ``python -m``, and may import what its program needs."""
        return self.path.endswith("/__main__.py")

    @property
    def product(self) -> bool:
        """Whether it is installed, in contrast to tests and benchmarks."""
        return self.path.startswith(("onyxq/", "log_entries/", "simulation/"))

    @property
    def test(self) -> bool:
        """Whether it belongs to the tests."""
        return self.path.startswith("tests/")


Rule: TypeAlias = Callable[[Source], Complaints]


def parse(path: str, text: str) -> Source:
    """Parse a text that is, or could be, the file at ``path``."""
    return Source(path=path, text=text, tree=ast.parse(text))


@cache
def sources() -> list[Source]:
    """Every Python file of the project."""
    tops = ("onyxq", "log_entries", "simulation", "tests", "bench", "examples")
    files = [file for top in tops for file in sorted((ROOT / top).rglob("*.py"))]
    return [parse(file.relative_to(ROOT).as_posix(), file.read_text("utf-8")) for file in files]


def matches(path: str, patterns: tuple[str, ...]) -> bool:
    """Whether ``path`` is one of the patterns, or under one that ends in ``*``."""
    return any(path.startswith(p[:-1]) if p.endswith("*") else path == p for p in patterns)


def imported(source: Source) -> Iterator[tuple[int, str]]:
    """``(line, dotted name)`` of all that a file imports, wherever it does so."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = absolute(source.path, node)
            yield from ((node.lineno, f"{module}.{alias.name}") for alias in node.names)


def absolute(path: str, node: ast.ImportFrom) -> str:
    """The module an import names, relative ones resolved."""
    if not node.level:
        return node.module or ""
    package = path.removesuffix(".py").split("/")[: -node.level]
    return ".".join([*package, *([node.module] if node.module else [])])


def package_of(name: str) -> str:
    """The package of the project that a module or a name in it belongs to; empty for other projects."""
    found = [package for package in MAY_IMPORT if within(name, package)]
    if found:
        return max(found, key=len)
    return "onyxq" if name.partition(".")[0] == "onyxq" else ""


def within(name: str, module: str) -> bool:
    """Whether a dotted name is ``module`` or something in it."""
    return name == module or name.startswith(module + ".")


# --- imports ------------------------------------------------------------------


def pure_modules_import_no_effects(source: Source) -> Complaints:
    """Pure modules see no clock, randomness, system, network or logging."""
    if source.pure:
        for line, what in purity.effects(source.tree):
            if (source.path, what) not in CALENDARS:
                yield line, f"a pure module {what}"


def pure_modules_import_pure_modules(source: Source) -> Complaints:
    """Pure modules import only pure modules of the project."""
    if source.pure:
        for line, name in imported(source):
            if package_of(name) and not any(within(name, package) for package in PURE_PACKAGES):
                yield line, f"a pure module imports {name}, which is not pure"


def some_imports_have_one_home(source: Source) -> Complaints:
    """kazoo, lmdb and the simulation are imported only in a few known modules."""
    if source.product:
        for line, name in imported(source):
            for module, homes in ONLY_IN.items():
                if within(name, module) and not matches(source.path, homes):
                    yield line, f"{module} is imported outside {', '.join(homes)}"


def imports_run_one_way(source: Source) -> Complaints:
    """A package imports only packages that are before it in the order, anywhere in its files and also for types."""
    own = package_of(source.module)
    if not source.product or source.program or own == "onyxq":
        return
    for line, name in imported(source):
        package = package_of(name)
        if package and package != own and name != "onyxq.__version__" and package not in MAY_IMPORT.get(own, ()):
            yield line, f"{own} may not import {name}"


def procedures_need_no_task(source: Source) -> Complaints:
    """Procedures import no event loop, and have no async generators, which a loop would have to finish."""
    if matches(source.path, (PROCEDURES,)) and not matches(source.path, TASKS):
        for line, name in imported(source):
            if within(name, "trio") or within(name, "anyio"):
                yield line, f"a module of procedures imports {name}"
        for node in ast.walk(source.tree):
            if isinstance(node, ast.AsyncFunctionDef) and any(isinstance(one, ast.Yield) for one in ast.walk(node)):
                yield node.lineno, f"{node.name} is an async generator"


# --- determinism --------------------------------------------------------------


def pure_modules_are_exact(source: Source) -> Complaints:
    """No ``hash()``, ``id()``, floats or true division where peers must agree."""
    if source.pure:
        yield from ((line, f"{what} in a pure module") for line, what in purity.inexact(source.tree))


def pure_modules_iterate_no_sets(source: Source) -> Complaints:
    """Nothing unordered is iterated unsorted in code that must give the same result on every peer."""
    if source.pure:
        yield from purity.unsorted(source.tree)


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


# --- shape --------------------------------------------------------------------


def nothing_is_swallowed(source: Source) -> Complaints:
    """There is no bare ``except``, and no handler that catches everything and reports nothing."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.ExceptHandler):
            if node.type is None:
                yield node.lineno, "a bare except"
            elif _catches_all(node.type) and all(
                isinstance(s, (ast.Pass, ast.Continue)) or _dots(s) for s in node.body
            ):
                yield node.lineno, "every exception is swallowed"
        elif isinstance(node, ast.Call) and _name(node.func) == "suppress" and any(map(_catches_all, node.args)):
            yield node.lineno, "every exception is suppressed"


def _catches_all(what: ast.expr) -> bool:
    parts = what.elts if isinstance(what, ast.Tuple) else [what]
    return any(_name(part) in ("Exception", "BaseException") for part in parts)


def _dots(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def modules_say_where_they_stand(source: Source) -> Complaints:
    """Every module that is not empty starts with a docstring."""
    if source.text.strip() and not ast.get_docstring(source.tree):
        yield 1, "the module has no docstring"


def public_names_have_docstrings(source: Source) -> Complaints:
    """Public functions and classes have docstrings."""
    if not source.product:
        return
    # What an entry's Args, apply and owed are is the same in all of them: onyxq/core/entry.py says it.
    told = ("Args", "apply", "owed") if source.path.startswith("log_entries/") else ()
    for node in source.tree.body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            public = not node.name.startswith("_") and node.name not in told
            if public and not ast.get_docstring(node) and not _overloaded(node):
                yield node.lineno, f"{node.name} has no docstring"


def _overloaded(node: ast.AST) -> bool:
    return any(_name(decorator) == "overload" for decorator in getattr(node, "decorator_list", ()))


def tests_say_what_they_show(source: Source) -> Complaints:
    """Every test has a docstring."""
    if source.test:
        for node in ast.walk(source.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                if not ast.get_docstring(node):
                    yield node.lineno, f"{node.name} has no docstring"


def modules_stay_short(source: Source) -> Complaints:
    """A module past the limit is two modules."""
    lines = source.text.count("\n")
    if lines > MODULE_LINES_MAX:
        yield lines, f"{lines} lines; at most {MODULE_LINES_MAX}"


def functions_stay_short(source: Source) -> Complaints:
    """A function past the limit is two functions."""
    if source.product:
        for node in ast.walk(source.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines > FUNCTION_LINES_MAX:
                    yield node.lineno, f"{node.name} has {lines} lines; at most {FUNCTION_LINES_MAX}"


def functions_take_few_parameters(source: Source) -> Complaints:
    """A function with more parameters than the limit needs a value that combines some of them."""
    if source.product:
        for node in ast.walk(source.tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                every = node.args
                count = len([one for one in (*every.posonlyargs, *every.args) if one.arg not in ("self", "cls")])
                if count + len(every.kwonlyargs) > PARAMETERS_MAX:
                    taken = count + len(every.kwonlyargs)
                    yield node.lineno, f"{node.name} takes {taken} parameters; at most {PARAMETERS_MAX}"


def tests_do_not_sleep(source: Source) -> Complaints:
    """Tests wait for an event, poll a condition, or use simulated time."""
    simulated = any(within(name, home) for _, name in imported(source) for home in SIMULATED_TIME)
    if not source.test or source.path in SLEEPS_ALLOWED or simulated:
        return
    loops = [node for node in ast.walk(source.tree) if isinstance(node, ast.While) and not _for_ever(node)]
    looking = {node for loop in loops for node in ast.walk(loop)}
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "sleep":
            lucky = node not in looking and not _just_yields(node)
            if lucky and _name(node.func.value) in ("time", "trio", "anyio", "asyncio"):
                yield node.lineno, f"{ast.unparse(node.func)} in a test"
    for line, name in imported(source):
        if name in ("time.sleep", "trio.sleep", "anyio.sleep", "asyncio.sleep"):
            yield line, f"{name} in a test"


def _for_ever(loop: ast.While) -> bool:
    return isinstance(loop.test, ast.Constant)


def _just_yields(call: ast.Call) -> bool:
    """Whether this is ``sleep(0)``, which waits for nothing and lets other tasks run."""
    return len(call.args) == 1 and isinstance(call.args[0], ast.Constant) and call.args[0].value == 0


RULES = (
    pure_modules_import_no_effects,
    pure_modules_import_pure_modules,
    some_imports_have_one_home,
    imports_run_one_way,
    procedures_need_no_task,
    pure_modules_are_exact,
    pure_modules_iterate_no_sets,
    nothing_is_swallowed,
    modules_say_where_they_stand,
    public_names_have_docstrings,
    tests_say_what_they_show,
    modules_stay_short,
    functions_stay_short,
    functions_take_few_parameters,
    tests_do_not_sleep,
)

# --- the whole tree -----------------------------------------------------------


def edges(sources: list[Source]) -> dict[str, set[str]]:
    """Module of the product -> the modules of the product that it imports, for types too; without the facade."""
    known = {source.module for source in sources if source.product}
    found: dict[str, set[str]] = {}
    for source in sources:
        if source.product and source.module != "onyxq":
            names = [name for _, name in imported(source)]
            nearest = (name if name in known else name.rpartition(".")[0] for name in names)
            found[source.module] = {name for name in nearest if name in known} - {"onyxq", source.module}
    return found


def loops(graph: dict[str, set[str]]) -> list[list[str]]:
    """The groups of modules that import each other, each sorted."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = [start]
        while waiting:
            for name in graph.get(waiting.pop(), set()) - seen:
                seen.add(name)
                waiting.append(name)
        return seen

    reach = {name: reached(name) for name in graph}
    groups = {tuple(sorted(other for other in reach[one] if one in reach.get(other, ()))) for one in graph}
    return sorted(list(group) for group in groups if group)


def crowded_packages(sources: list[Source]) -> list[str]:
    """Packages with more modules than the limit."""
    counts = Counter(
        source.path.rpartition("/")[0]
        for source in sources
        if source.product and not source.path.endswith("/__init__.py")
    )
    return sorted(
        f"{package} has {count} modules; at most {PACKAGE_MODULES_MAX}"
        for package, count in counts.items()
        if count > PACKAGE_MODULES_MAX and package not in OF_ONE_KIND
    )


def fragments(sources: list[Source]) -> list[str]:
    """Small modules with only one importer; modules of one kind and programs are excluded."""
    importers: dict[str, set[str]] = {}
    for module, targets in edges(sources).items():
        for target in targets:
            importers.setdefault(target, set()).add(module)
    return sorted(
        f"{source.path} has {source.text.count(chr(10))} lines, and only {importer} imports it"
        for source in sources
        if source.product and not source.path.startswith(OF_ONE_KIND) and not source.path.endswith("/__init__.py")
        if source.text.count("\n") < SMALL_MODULE_LINES and len(importers.get(source.module, ())) == 1
        for importer in importers[source.module]
    )
