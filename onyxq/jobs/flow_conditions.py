"""Flow conditions as plain functions: which of the next tasks a segment goes to.

`compiled` makes closures of one task's conditions once; `routes` calls them for each segment. Conditions are checked in
the order of the job's list, up to the first that holds and short-circuits. The tasks and the excluded fields of all
conditions that hold are united. A segment for which no condition holds goes nowhere. A segment of a task without
conditions goes to all next tasks, except those that get only exceptions. An exception that no condition takes is
raised. An exception of a predicate ends the search: the segment goes to the condition's ``errors_to`` and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import frozen

from onyxq.jobs.model import Condition, Job
from onyxq.jobs.predicates import And, Not, Or, Predicate, Ref
from onyxq.jobs.values import shown

Resolve = Callable[[Ref, str], Callable[..., Any]]
"""Loader of the function that a reference names; it also gets the field that holds the reference."""
Test = Callable[[Any, Any, Sequence[Any]], Any]
"""Function that returns whether a predicate holds for ``(segment, old, all_new)``."""
Route = tuple[str, Any]
"""A next task, and the segment as it is sent there."""


@frozen
class _Rule:
    """One condition, with its functions loaded."""

    holds: Test
    to: tuple[str, ...]
    exclude: frozenset[str]
    last: bool
    """Whether no further condition is checked if this one holds."""
    transform: Callable[[Any, Exception], Any] | None
    errors_to: tuple[str, ...] | None
    """Destinations of segments at which the predicate raises an exception; None raises it."""


@frozen
class Compiled:
    """The conditions of one task, with their functions loaded."""

    task: str
    always: tuple[str, ...]
    """Destinations of segments if the task has no conditions for them."""
    rules: tuple[_Rule, ...]
    of_exceptions: tuple[_Rule, ...]


def of_task(job: Job, task: str) -> list[tuple[int, Condition]]:
    """Return the conditions that decide about a task's segments, each with its place in the job's list."""
    after = job.after(task)
    return [(place, one) for place, one in enumerate(job.flow_conditions) if _concerns(one, task, after)]


def compiled(job: Job, task: str, resolve: Resolve) -> Compiled:
    """Return the conditions of one task of a checked job."""
    after = job.after(task)
    rules: list[_Rule] = []
    of_exceptions: list[_Rule] = []
    for place, condition in of_task(job, task):
        (of_exceptions if condition.exceptions else rules).append(
            _rule(condition, after, resolve, f"flow_conditions[{place}]")
        )
    named = [names for rule in of_exceptions for names in (rule.to, rule.errors_to or ())]
    handlers = {to for names in named for to in names if len(names) < len(after)}
    return Compiled(
        task=task,
        always=tuple(to for to in after if to not in handlers),
        rules=tuple(rules),
        of_exceptions=tuple(of_exceptions),
    )


def routes(compiled: Compiled, segment: Any, all_new: Sequence[Any] = (), old: Any = None) -> list[Route]:
    """Return the destinations of a segment, in the workflow's order, each task once.

    ``all_new`` is everything that the task made of the segment ``old``. For an exception the conditions with
    ``exceptions`` decide; if none takes it, it is raised.
    """
    if isinstance(segment, Exception):
        return _of_exception(compiled, segment, old)
    if not compiled.rules:
        return [(to, segment) for to in compiled.always]
    to, exclude, rule, raised = _asked(compiled.rules, segment, old, all_new)
    if rule is not None and raised is not None:
        return _of_predicate(compiled.task, rule, raised, segment)
    return _sent(to, _without(segment, exclude))


def _of_exception(compiled: Compiled, error: Exception, old: Any) -> list[Route]:
    to, exclude, rule, raised = _asked(compiled.of_exceptions, error, old, ())
    if rule is None:
        raise error
    if raised is not None:
        return _of_predicate(compiled.task, rule, raised, old)
    segment = None if rule.transform is None else rule.transform(old, error)
    return _sent(to, _without(segment, exclude))


def _of_predicate(task: str, rule: _Rule, error: Exception, segment: Any) -> list[Route]:
    """Return where a segment goes at which the predicate of a rule raised an exception."""
    if rule.transform is not None:
        told = _without(rule.transform(segment, error), rule.exclude)
    else:
        text = shown(_without(segment, rule.exclude))
        told = {"task": task, "error": f"{type(error).__name__}: {error}", "segment": text}
    return _sent(rule.errors_to or (), told)


def _asked(
    rules: tuple[_Rule, ...], segment: Any, old: Any, all_new: Sequence[Any]
) -> tuple[tuple[str, ...], frozenset[str], _Rule | None, Exception | None]:
    """Return the tasks and the excluded fields of all rules that hold, and the last of these rules.

    The last value is the exception of a predicate that ended the search; then the rule is that of this predicate.
    """
    to: tuple[str, ...] = ()
    exclude: frozenset[str] = frozenset()
    found: _Rule | None = None
    for rule in rules:
        try:
            holds = rule.holds(segment, old, all_new)
        except Exception as error:
            if rule.errors_to is None:
                raise
            return (), frozenset(), rule, error
        if holds:
            to = to + tuple(name for name in rule.to if name not in to) if to else rule.to
            exclude = exclude | rule.exclude if rule.exclude else exclude
            found = rule
            if rule.last:
                break
    return to, exclude, found, None


def _without(segment: Any, exclude: frozenset[str]) -> Any:
    if exclude and isinstance(segment, dict):
        return {name: value for name, value in segment.items() if name not in exclude}
    return segment


def _sent(to: tuple[str, ...], segment: Any) -> list[Route]:
    return [(name, segment) for name in to]


# --- made once ------------------------------------------------------------------


def _concerns(condition: Condition, task: str, after: tuple[str, ...]) -> bool:
    if condition.from_ != "all":
        return condition.from_ == task
    named = [to for to in (condition.to, condition.errors_to) if isinstance(to, tuple)]
    return all(set(to) <= set(after) for to in named)


def _rule(condition: Condition, after: tuple[str, ...], resolve: Resolve, path: str) -> _Rule:
    transform, errors_to = condition.transform, condition.errors_to
    return _Rule(
        holds=loaded(condition.when, resolve, f"{path}.when"),
        to=_named(condition.to, after),
        exclude=frozenset(condition.exclude),
        last=condition.short_circuit,
        transform=None if transform is None else resolve(transform, f"{path}.transform"),
        errors_to=None if errors_to is None else _named(errors_to, after),
    )


def _named(said: tuple[str, ...] | str, after: tuple[str, ...]) -> tuple[str, ...]:
    """Return the tasks that a list of names, ``all`` or ``none`` means, in the workflow's order."""
    if isinstance(said, str):
        return after if said == "all" else ()
    return tuple(name for name in after if name in said)


def loaded(when: Any, resolve: Resolve, path: str) -> Test:
    """Return a predicate as one function; None always holds."""
    if when is None:
        return lambda segment, old, all_new: True
    if isinstance(when, And):
        tests = [loaded(one, resolve, f"{path}.and[{place}]") for place, one in enumerate(when.all)]
        return lambda segment, old, all_new: all(test(segment, old, all_new) for test in tests)
    if isinstance(when, Or):
        tests = [loaded(one, resolve, f"{path}.or[{place}]") for place, one in enumerate(when.any)]
        return lambda segment, old, all_new: any(test(segment, old, all_new) for test in tests)
    if isinstance(when, Not):
        negated = loaded(when.negated, resolve, f"{path}.not")
        return lambda segment, old, all_new: not negated(segment, old, all_new)
    return _called(when, resolve(when.fn, f"{path}.fn"))


def _called(predicate: Predicate, fn: Callable[..., Any]) -> Test:
    params = dict(predicate.params)
    if predicate.whole:
        return lambda segment, old, all_new: fn(segment, old, all_new, **params)
    if params:
        return lambda segment, old, all_new: fn(segment, **params)
    return lambda segment, old, all_new: fn(segment)
