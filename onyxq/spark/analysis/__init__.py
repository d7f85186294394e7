"""Whether history holds, and what it says of queues: archives of any size, looked through on Spark.

Needs the extra ``spark``; a peer imports nothing of it.  `onyxq.spark.analysis.tables` reads the
archive, `onyxq.spark.analysis.history_check` looks for what must never be, `onyxq.spark.analysis.stats` sums
up, and `onyxq.spark.analysis.plots` draws.
"""

from __future__ import annotations
