"""Functions of a job made callable: imported by name, or unpickled.

Only Spark's processes do that.
"""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable
from functools import lru_cache
from types import ModuleType
from typing import Any

from onyxq.core.errors import BadRequest
from onyxq.jobs.predicates import Pickled, Ref


def resolve(ref: Ref, place: str = "fn") -> Callable[..., Any]:
    """Return the function that a reference names; raises `BadRequest` that names what is missing.

    ``place`` is the field of the job, for the message.
    """
    if callable(ref):
        return ref
    return _unpickled(ref, place) if isinstance(ref, Pickled) else _imported(ref, place)


@lru_cache(maxsize=4096)
def _imported(name: str, place: str) -> Callable[..., Any]:
    module, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
            if isinstance(found, ModuleType):
                raise AttributeError(f"{part} is a module of its own; name it before the colon")
    except ModuleNotFoundError as error:
        raise BadRequest(
            f"{place}: no module named {error.name!r} where Spark's workers run; {name!r} needs it",
            field=place,
            hint="Put it on the PYTHONPATH of the peers that offer slots, or submit the function itself.",
        ) from error
    except AttributeError as error:
        raise BadRequest(f"{place}: {name!r} does not exist: {error}", field=place) from error
    if not callable(found):
        raise BadRequest(f"{place}: {name!r} is a {type(found).__name__}, not a function", field=place)
    function: Callable[..., Any] = found
    return function


@lru_cache(maxsize=4096)
def _unpickled(pickled: Pickled, place: str) -> Callable[..., Any]:
    try:
        found = pickle.loads(pickled.pickled)
    except Exception as error:
        raise BadRequest(
            f"{place}: the pickled function {pickled.named!r} cannot be loaded: {type(error).__name__}: {error}",
            field=place,
            hint="Spark's workers need the Python version and the modules of the client that submitted the job.",
        ) from error
    if not callable(found):
        raise BadRequest(f"{place}: {pickled.named!r} is a {type(found).__name__}, not a function", field=place)
    function: Callable[..., Any] = found
    return function
