"""Finished tasks in Parquet files, written before they are purged.

Read by id, or by Spark as tables. `onyxq.history.parquet.writer.write_bucket` writes,
`onyxq.history.parquet.reader.find` reads one task. `onyxq.history.parquet.schema` has the columns,
`onyxq.history.parquet.layout` the directories.
"""

from __future__ import annotations
