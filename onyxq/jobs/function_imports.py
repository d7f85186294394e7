"""Functions that a job names: whether they can be imported, and whether a peer accepts them."""

from __future__ import annotations

import importlib
import inspect
import operator
from collections.abc import Iterator
from typing import Any

import attrs
from attrs import frozen

from onyxq.jobs import fields, frame_check
from onyxq.jobs.encoding import REFS
from onyxq.jobs.fields import Problem
from onyxq.jobs.model import Aggregation, Frame, Job
from onyxq.jobs.predicates import And, Not, Or, Pickled, Predicate
from onyxq.system.settings import did_you_mean

ANY_MODULE = "any"
"""The word for all modules in a list of modules."""


@frozen
class Allowed:
    """The functions that callers may use in jobs."""

    modules: tuple[str, ...] = ()
    pickled: bool = False
    """Whether pickled functions are allowed as well."""

    def takes(self, name: str) -> bool:
        """Return whether a function ``package.module:name`` is in one of the modules or packages."""
        module = name.partition(":")[0]
        return any(one in (ANY_MODULE, module) or module.startswith(f"{one}.") for one in self.modules)


ANY_FUNCTION = Allowed((ANY_MODULE,), pickled=True)
"""Permission for every function."""


def problems(job: Job) -> Iterator[Problem]:
    """Yield the functions that cannot be imported here, with the reason; the job must be valid otherwise."""
    for field, name in references(job):
        wrong = import_problem(name)
        if wrong:
            yield field, wrong
    for place, task in enumerate(job.catalog):
        if isinstance(task, Frame):
            yield from _frame(job, task, f"catalog[{place}].fn")


def _frame(job: Job, task: Frame, path: str) -> Iterator[Problem]:
    """Yield the problem of a frame task's function that does not take its frames and params."""
    if isinstance(task.fn, Pickled) or (isinstance(task.fn, str) and import_problem(task.fn)):
        return
    fn = _found(task.fn) if isinstance(task.fn, str) else task.fn
    wanted = [*frame_check.parameters(job, task), *task.params]
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        return  # a function of C without a signature
    try:
        signature.bind(**dict.fromkeys(wanted))
    except TypeError as error:
        yield path, f"cannot be called with {', '.join(wanted)}: {error}; each task before it must be a parameter"


def references(job: Job) -> Iterator[tuple[str, str]]:
    """Yield ``(field, package.module:name)`` of every function that is given by name."""
    for name in fields.LISTS:
        for place, part in enumerate(getattr(job, name)):
            yield from _references(part, f"{name}[{place}]")


def _references(part: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(part, (And, Or)):
        word, parts = ("and", part.all) if isinstance(part, And) else ("or", part.any)
        for place, one in enumerate(parts):
            yield from _references(one, f"{path}.{word}[{place}]")
    elif isinstance(part, Not):
        yield from _references(part.negated, f"{path}.not")
    elif type(part) in fields.KINDS:
        for attribute in attrs.fields(type(part)):
            value, where = getattr(part, attribute.name), f"{path}.{attribute.name}"
            if isinstance(value, (Predicate, And, Or, Not, Aggregation)):
                yield from _references(value, where)
            elif attribute.name in REFS and isinstance(value, str) and ":" in value:
                yield where, value


def import_problem(name: str) -> str:
    """Return why the function of that name cannot be imported here; empty if it can."""
    module, _, parts = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
    except Exception as error:  # the user's module may raise anything
        return f"is {name!r}, whose module cannot be imported: {type(error).__name__}: {error}"
    for part in parts.split("."):
        if not hasattr(found, part):
            return f"is {name!r}, but {module} has no {part!r}{did_you_mean(part, dir(found))}"
        found = getattr(found, part)
    return "" if callable(found) else f"is {name!r}, which is a {type(found).__name__}, no function"


def _found(name: str) -> Any:
    module, _, parts = name.partition(":")
    return operator.attrgetter(parts)(importlib.import_module(module))
