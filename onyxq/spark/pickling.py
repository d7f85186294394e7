"""Functions pickled by value for the Spark processes that run them; only these load them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from pyspark import cloudpickle as _cloudpickle

cloudpickle: Any = _cloudpickle


def pickled(fn: Callable[..., Any]) -> bytes:
    """The function with all that it uses of its module, whether or not that can be imported elsewhere."""
    module = sys.modules.get(getattr(fn, "__module__", None) or "")
    if module is None or module.__name__ == "__main__":
        return bytes(cloudpickle.dumps(fn))
    cloudpickle.register_pickle_by_value(module)
    try:
        return bytes(cloudpickle.dumps(fn))
    finally:
        cloudpickle.unregister_pickle_by_value(module)
