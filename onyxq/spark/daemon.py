"""The process that forks Spark's Python workers, with what all of them import loaded already.

Spark's own daemon forks first and imports then, so that every worker of a batch, three for each of its
parts, pays over half a second of processor time for pandas, Arrow and this package before it
begins.  The setting ``spark.python.daemon.module`` names this module instead; all the rest is Spark's.

Libraries start threads when they are imported, OpenBLAS' and the allocator's, which do nothing until
there is something to do, and which those libraries themselves see to at a fork.
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
"""What workers of jobs use."""


def main() -> None:
    """Import, then fork workers until told to end."""
    for name in MODULES:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # workers collect behind each task, and need not look at all this
    from pyspark.daemon import manager

    manager()


if __name__ == "__main__":
    main()
