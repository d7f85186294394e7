"""Checks and statistics of history: archives of any size, read on Spark.

Needs the extra ``spark``; a peer imports none of it. `onyxq.spark.analysis.tables` reads the archive,
`onyxq.spark.analysis.history_check` looks for violated rules, `onyxq.spark.analysis.stats` computes statistics, and
`onyxq.spark.analysis.plots` draws.
"""

from __future__ import annotations
