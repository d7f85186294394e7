"""Finished tasks in Parquet files, for good: written before they are purged, read by id, or by Spark as tables.

`onyxq.parquet.writer.write_bucket` writes, `onyxq.parquet.reader.find` reads one task;
`onyxq.parquet.schema` has the columns and `onyxq.parquet.layout` the directories.
"""

from __future__ import annotations
