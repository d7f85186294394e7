"""Seams: the named functions, methods and constants of the tree that planted bugs replace.

A seam is written as ``module:name`` or ``module:Class.name``. If another module imported the name,
``module:name`` of that module means only the uses there, so the fault is one of that caller.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias

from attrs import frozen

from onyxq.system.procedures import pause

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("onyxq", "log_entries", "simulation")
OWN = Path(__file__).resolve().parent

Fault: TypeAlias = Callable[[Any], Any]
"""Takes the object at a seam, and returns its replacement."""


class NotPlanted(AssertionError):
    """A seam does not exist, or no code uses it, so the planted bug must name another one."""


def instead(replacement: object) -> Fault:
    """Return the fault that puts a function or a value at a seam."""
    return lambda _: replacement


def returning(answer: object) -> Fault:
    """Return the fault that makes a function only return ``answer``."""

    def fault(original: Callable[..., Any]) -> Callable[..., Any]:
        async def later(*_: object, **__: object) -> object:
            await pause(0.0)
            return answer

        return later if inspect.iscoroutinefunction(original) else lambda *_, **__: answer

    return fault


@frozen
class Seam:
    """One place for a planted bug."""

    path: str
    owner: Any
    """The module or the class that has the name."""
    name: str
    found: Any
    """The function, property or value that has the name."""

    @property
    def everywhere(self) -> bool:
        """Whether this is the definition of a function or class, which other modules may have imported."""
        return inspect.ismodule(self.owner) and getattr(self.found, "__module__", "") == self.owner.__name__


def seam_at(path: str) -> Seam:
    """Return the seam of that path; raises `NotPlanted` if it does not exist."""
    module, _, names = path.partition(":")
    *outer, name = names.split(".")
    try:
        owner: Any = import_module(module)
        for one in outer:
            owner = getattr(owner, one)
        return Seam(path, owner, name, vars(owner)[name])
    except (ImportError, AttributeError, KeyError) as error:
        raise NotPlanted(f"{path}: no such seam ({type(error).__name__}: {error})") from error


def check(path: str, fault: Fault) -> None:
    """Raise `NotPlanted` if a seam does not exist, is unused, or if the fault takes other arguments."""
    seam = seam_at(path)
    _check_used(seam)
    found: Any = _function(seam.found)
    if callable(found) and not _takes_the_same(found, _function(_made(seam.found, fault))):
        raise NotPlanted(f"{path}: the fault does not take the arguments {inspect.signature(found)}")


def _takes_the_same(found: Callable[..., Any], made: Callable[..., Any]) -> bool:
    """Return whether a function can be called like the one that it replaces, by position and by name."""
    taken = inspect.signature(found).parameters.values()
    named = {one.name: one for one in taken if one.kind is not one.VAR_POSITIONAL and one.kind is not one.VAR_KEYWORD}
    placed = [one for one in named.values() if one.kind is not one.KEYWORD_ONLY]
    for args, names in ((placed, named.keys() - {one.name for one in placed}), ((), named.keys())):
        try:
            inspect.signature(made).bind(*args, **dict.fromkeys(names))
        except TypeError:
            continue
        return True
    return False


def _check_used(seam: Seam) -> None:
    """Raise `NotPlanted` if no code uses the name of a seam."""
    if seam.name.startswith("__"):
        return  # Python calls it.
    owner = seam.owner.__name__ if inspect.ismodule(seam.owner) and not seam.everywhere else ""
    if not any(seam.name in names for module, names in _used_names().items() if owner in ("", module)):
        raise NotPlanted(f"{seam.path}: nothing uses this name")


@cache
def _used_names() -> dict[str, set[str]]:
    """Return the names and attributes that each module of the tree reads, planted bugs excluded."""
    used = {}
    for file in (file for package in PACKAGES for file in (ROOT / package).rglob("*.py") if OWN not in file.parents):
        nodes = list(ast.walk(ast.parse(file.read_text("utf-8"))))
        names = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        names |= {node.attr for node in nodes if isinstance(node, ast.Attribute)}
        used[".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")] = names
    return used


@contextmanager
def faulty(faults: Sequence[tuple[str, Fault]]) -> Iterator[None]:
    """Put faults at seams, given by their paths, until the context ends; raises `NotPlanted`.

    Modules that were imported before, or are imported meanwhile, see the faults.
    """
    with ExitStack() as undo:
        for path, fault in faults:
            seam = seam_at(path)
            made = _made(seam.found, fault)
            undo.callback(_replace, seam, made, seam.found)
            _replace(seam, seam.found, made)
        yield


def _made(found: Any, fault: Fault) -> Any:
    """Return the replacement that a fault makes; for a property, the fault replaces its function."""
    return property(fault(found.fget)) if isinstance(found, property) else fault(found)


def _function(found: Any) -> Any:
    return found.fget if isinstance(found, property) else found


def _replace(seam: Seam, old: Any, new: Any) -> None:
    """Bind ``new`` at a seam; for a definition, also in each module that imported it."""
    if seam.everywhere:
        for module in [module for name, module in sys.modules.items() if _is_ours(name)]:
            for name in [name for name, value in vars(module).items() if value is old]:
                setattr(module, name, new)
    else:
        setattr(seam.owner, seam.name, new)


def _is_ours(module: str) -> bool:
    """Return whether faults apply to a module: it is of the tree and holds no planted bugs."""
    return module.partition(".")[0] in PACKAGES and not module.startswith(__package__)
