"""Keyword options that several calls share, declared once and shown in the signature of each call.

A call takes them as ``**options: Unpack[X]``, where ``X`` is a ``TypedDict`` with ``total=False``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])
Given = TypeVar("Given", bound=Mapping[str, object])


def takes(options: type, defaults: Mapping[str, Any]) -> Callable[[F], F]:
    """Return a decorator that shows the keys of ``options`` in a signature, each with its default.

    The docstring of ``options`` after its first paragraph is added to that of the decorated function or class.
    `help` and the reference pages print both.
    """
    added = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=defaults[name], annotation=kind.__forward_arg__)
        for name, kind in options.__annotations__.items()
    ]
    about = inspect.cleandoc(options.__doc__ or "").partition("\n\n")[2]

    def show(target: F) -> F:
        function: Any = vars(target)["__init__"] if isinstance(target, type) else target
        written = inspect.signature(function)
        own = [one for one in written.parameters.values() if one.kind is not Parameter.VAR_KEYWORD]
        function.__signature__ = written.replace(parameters=[*own, *added])
        if target.__doc__ and about:
            target.__doc__ = f"{inspect.cleandoc(target.__doc__)}\n\n{about}"
        return target

    return show


def refuse_unknown(given: Mapping[str, object], call: str, options: Mapping[str, object]) -> None:
    """Raise `TypeError` for an option that ``call`` does not have."""
    if not given.keys() <= options.keys():
        name = min(given.keys() - options.keys())
        raise TypeError(f"{call}() got an unexpected keyword argument {name!r}")


def known(given: Mapping[str, object], call: str, defaults: Given) -> Given:
    """Return all options of a call, defaults included; raise `TypeError` for an unknown one."""
    refuse_unknown(given, call, defaults)
    return cast(Given, {**defaults, **given})
