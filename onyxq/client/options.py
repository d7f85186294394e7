"""Keyword options that several calls share, declared once and shown in the signature of each call.

A call takes them as ``**options: Unpack[X]``, where ``X`` is a ``TypedDict`` with ``total=False``.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from inspect import Parameter
from types import MethodType
from typing import Any, TypeVar, cast

from onyxq.system.settings import did_you_mean

C = TypeVar("C", bound=type)
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


def refuse_unknown(given: Mapping[str, object], call: Callable[..., Any], options: Mapping[str, object]) -> None:
    """Raise `TypeError` for an option that ``call`` does not have; a method is given bound."""
    if not given.keys() <= options.keys():
        raise _unexpected(min(given.keys() - options.keys()), call)


def known(given: Mapping[str, object], call: Callable[..., Any], defaults: Given) -> Given:
    """Return all options of a call, defaults included; raise `TypeError` for an unknown one."""
    refuse_unknown(given, call, defaults)
    return cast(Given, {**defaults, **given})


def check_call(call: Callable[..., Any], args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """Raise `TypeError` if ``call``, a bound method, does not take these arguments."""
    signature = inspect.signature(call)
    for name in kwargs:
        if name not in signature.parameters:
            raise _unexpected(name, call) from None
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{_name(call)}() {error}") from None


def explains_calls(cls: C) -> C:
    """Let each coroutine method of a class, also an inherited one, answer wrong arguments as `check_call` does.

    Methods with shared options are left: they answer unknown ones, and `Enqueuing.enqueue`, which must be quick, is
    one of them.
    """
    for owner in cls.__mro__:
        for name, method in list(vars(owner).items()):
            if inspect.iscoroutinefunction(method) and not name.startswith("_"):
                if not method.__code__.co_flags & inspect.CO_VARKEYWORDS:
                    setattr(owner, name, _explained(method))
    return cls


def _explained(method: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Coroutine[Any, Any, Any]]:
    @functools.wraps(method)
    async def call(self: object, /, *args: Any, **kwargs: Any) -> Any:
        try:
            made = method(self, *args, **kwargs)
        except TypeError:
            check_call(MethodType(call, self), args, kwargs)
            raise
        return await made

    return call


def _unexpected(name: str, call: Callable[..., Any]) -> TypeError:
    """Return the error of Python for an unknown argument, with the nearest one, and all of them as a hint."""
    taken = list(inspect.signature(call).parameters)
    guess = did_you_mean(name, taken)
    error = TypeError(f"{_name(call)}() got an unexpected keyword argument {name!r}{guess}")
    error.add_note(f"Hint: It takes {', '.join(taken)}.")
    return error


def _name(call: Callable[..., Any]) -> str:
    owner = getattr(call, "__self__", None)
    return call.__name__ if owner is None else f"{type(owner).__name__}.{call.__name__}"
