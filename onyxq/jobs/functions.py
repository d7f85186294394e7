"""How functions are submitted: by name if they can be imported elsewhere, otherwise pickled by the client.

Only the submitting client handles function objects; peers pass on the name or the bytes.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable
from typing import Any

from onyxq.core.errors import Incomplete
from onyxq.jobs.predicates import Pickled

REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
"""``package.module:name``, or ``:outer.name``."""


def named_or_pickled(fn: Callable[..., Any]) -> str | Pickled:
    """Return the function's name if another process can import it, otherwise the function pickled by value.

    Raises `Incomplete` if it must be pickled but pyspark, which has the pickler, is not installed.
    """
    name = importable_name(fn)
    if name is not None:
        return name
    try:
        from pyspark import cloudpickle
    except ModuleNotFoundError as error:
        raise Incomplete(
            f"{_called(fn)} cannot be imported by name and is pickled with pyspark, which is not installed ({error})",
            hint="Put the function in a module that can be imported, or: pip install 'onyxq[spark]'",
        ) from None
    return Pickled(_called(fn), _pickled(fn, cloudpickle))


def importable_name(fn: Callable[..., Any]) -> str | None:
    """Return ``package.module:name`` if a new process that imports it gets ``fn``, otherwise None."""
    module, name = getattr(fn, "__module__", None), getattr(fn, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(name, str) or not REFERENCE.fullmatch(f"{module}:{name}"):
        return None
    loaded: Any = sys.modules.get(module)
    if loaded is None or module == "__main__" or not _is_found(module, getattr(loaded, "__file__", None)):
        return None
    for part in name.split("."):
        loaded = getattr(loaded, part, None)
    return f"{module}:{name}" if loaded is fn else None


def _is_found(module: str, file: str | None) -> bool:
    """Return whether importing the module would find the file that was loaded under its name."""
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError, AttributeError):
        return False
    return spec is not None and (file is None or spec.origin == file)


def _called(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, "__qualname__", type(fn).__name__))


def _pickled(fn: Callable[..., Any], cloudpickle: Any) -> bytes:
    """Return the function pickled with all that it uses of its module, whether importable elsewhere or not."""
    module = sys.modules.get(getattr(fn, "__module__", None) or "")
    if module is None or module.__name__ == "__main__":
        return bytes(cloudpickle.dumps(fn))
    cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(fn))
    finally:
        cloudpickle.unregister_pickle_by_value(module)
