"""Whether history holds, and what it says of queues: archives of any size, looked through on Spark.

Needs the extra ``spark``; a peer imports nothing of it.  `onyxq.analysis.tables` reads the
archive, `onyxq.analysis.checking` looks for what must never be, `onyxq.analysis.stats` sums
up, and `onyxq.analysis.plots` draws.
"""

from __future__ import annotations
