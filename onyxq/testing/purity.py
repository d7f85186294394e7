"""Checks of a syntax tree for code that may give different results on different peers.

Every peer applies the entries of OnyxQ and of extensions on its own. An entry that reads a clock, or iterates a set in
hash order, forks the cluster. The project's own checks and `onyxq.testing.check_extension` share these functions. Each
yields ``(line, problem)``.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TypeAlias

Complaints: TypeAlias = Iterator[tuple[int, str]]

EFFECTS = frozenset(
    "aiohttp anyio asyncio concurrent datetime fastapi ftplib glob http httpx hypercorn kazoo lmdb logging "
    "multiprocessing os pathlib queue random requests sched secrets select selectors shutil signal socket "
    "socketserver ssl starlette subprocess tempfile threading time trio urllib uuid".split()
)
"""Modules that code which peers must agree on never imports."""
INEXACT = ("hash", "id", "float")
ORDER_KEEPING = ("list", "tuple", "enumerate", "iter", "next", "zip", "map", "filter", "reversed")
ORDER_FREE = ("sorted", "set", "frozenset", "any", "all", "sum", "min", "max", "len")
SET_METHODS = ("union", "intersection", "difference", "symmetric_difference")


def effects(tree: ast.Module) -> Complaints:
    """Yield imports of clocks, randomness, the system, the network and logging."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from ((node.lineno, f"imports {name}") for name in names if name.partition(".")[0] in EFFECTS)


def inexact(tree: ast.Module) -> Complaints:
    """Yield uses of ``hash()``, ``id()``, floats and true division outside of async functions."""
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, ast.AsyncFunctionDef):
            waiting.extend(ast.iter_child_nodes(node))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in INEXACT:
            yield node.lineno, f"{node.func.id}()"
        elif isinstance(node, ast.Constant) and isinstance(node.value, float):
            yield node.lineno, f"the float {node.value}"
        elif isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, ast.Div):
            yield node.lineno, "true division"


def unsorted(tree: ast.Module) -> Complaints:
    """Yield iterations over sets in hash order."""
    for scope in ast.walk(tree):
        if isinstance(scope, (ast.FunctionDef, ast.Module)):
            names = _set_names(scope)
            fine = _order_free(scope)
            for line, what in _iterated(scope, fine):
                if _is_set(what, names):
                    yield line, f"a set is iterated unsorted: {ast.unparse(what)}"


def _own(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a scope, without those of functions and classes defined in it."""
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            waiting.extend(ast.iter_child_nodes(node))


def _iterated(scope: ast.AST, fine: set[ast.AST]) -> Iterator[tuple[int, ast.expr]]:
    for node in _own(scope):
        if isinstance(node, ast.For):
            yield node.lineno, node.iter
        elif isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.DictComp)) and node not in fine:
            yield from ((node.lineno, part.iter) for part in node.generators)
        elif isinstance(node, ast.Call) and _name(node.func) in (*ORDER_KEEPING, "join", "extend"):
            yield from ((node.lineno, argument) for argument in node.args)
        elif isinstance(node, ast.Starred):
            yield node.lineno, node.value


def _order_free(scope: ast.AST) -> set[ast.AST]:
    """Return comprehensions whose order is lost at once: arguments of ``sorted``, ``any`` and others."""
    calls = (node for node in _own(scope) if isinstance(node, ast.Call) and _name(node.func) in ORDER_FREE)
    return {argument for call in calls for argument in call.args}


def _name(function: ast.expr) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _set_names(scope: ast.AST) -> frozenset[str]:
    """Return local names that only ever hold sets, as far as the code shows."""
    sets: set[str] = set()
    others: set[str] = set()
    for node in _own(scope):
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            (sets if _is_set(node.value, frozenset()) else others).add(node.targets[0].id)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            noted = ast.unparse(node.annotation).startswith(("set", "frozenset"))
            (sets if noted else others).add(node.target.id)
    if isinstance(scope, ast.FunctionDef):
        for argument in (*scope.args.args, *scope.args.kwonlyargs):
            if argument.annotation and ast.unparse(argument.annotation).startswith(("set[", "frozenset[")):
                sets.add(argument.arg)
    return frozenset(sets - others)


def _is_set(what: ast.expr, names: frozenset[str]) -> bool:
    if isinstance(what, (ast.Set, ast.SetComp)):
        return True
    if isinstance(what, ast.Name):
        return what.id in names
    if isinstance(what, ast.Call):
        if isinstance(what.func, ast.Attribute) and what.func.attr in SET_METHODS:
            return True
        return isinstance(what.func, ast.Name) and what.func.id in ("set", "frozenset")
    if isinstance(what, ast.BinOp) and isinstance(what.op, (ast.BitOr, ast.BitAnd, ast.Sub, ast.BitXor)):
        return _is_set(what.left, names) or _is_set(what.right, names)
    return False
