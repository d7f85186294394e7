"""The process that forks Spark's Python workers, with their common imports loaded already.

Spark's own daemon forks first and imports after that. So every worker spends over half a second of processor time
on importing pandas, Arrow and this package. A batch has up to three workers for each of its parts. The setting
``spark.python.daemon.module`` names this module instead; the rest is Spark's code.

The imported libraries start threads: OpenBLAS and the allocator. These are idle until they have work, and the
libraries handle a fork themselves.
"""

from __future__ import annotations

import gc
import importlib

MODULES = (
    "pandas",
    "pyarrow.compute",
    "pyspark.worker",
    "onyxq.spark.datasource",
    "onyxq.spark.plan.fused",
    "onyxq.spark.plan.outputs",
)
"""Modules that workers of jobs use."""


def main() -> None:
    """Import, then fork workers until Spark ends the process."""
    for name in MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # Workers collect garbage after each task, and need not scan these objects.
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
