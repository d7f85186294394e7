"""The end of a job's inputs as a segment, which makes the last windows fire.

Spark never ends event time, so the last windows would wait for ever after the end of the inputs. So a job with
windows or joins has one more source. It yields nothing until the host notes in the job's checkpoint that all inputs
have ended (`note`). Then it yields one row ``(END, END, nil)``, which goes to every cut and is later than all other
segments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from onyxq.spark.places import exists, located, write
from onyxq.spark.plan import rows

FORMAT = "onyxq-end"
NOTE = "ended"


def note(checkpoint: str) -> None:
    """Note that all inputs have ended, and that their segments are processed."""
    write(*located(f"{checkpoint}/{NOTE}"), b"")


def noted(checkpoint: str) -> bool:
    """Return whether it was noted."""
    return exists(*located(f"{checkpoint}/{NOTE}"))


class End(DataSource):
    """The source as a data source of Spark; option ``checkpoint``."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> str:
        return rows.SCHEMA

    def streamReader(self, schema: Any) -> EndReader:
        return EndReader(self.options["checkpoint"])


class OneBatch(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream of one batch; its offset is 0 before the batch, and 1 after it."""

    parts = 1

    def ready(self) -> bool:
        """Return whether the batch can be read now."""
        return True

    def initialOffset(self) -> dict[str, int]:
        return {"ended": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Do nothing: `latestOffset` decides."""

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"ended": int(bool(start["ended"]) or self.ready())}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return [InputPartition(place) for place in range(self.parts)] if end["ended"] > start["ended"] else []


class EndReader(OneBatch):
    """Reads the one row."""

    def __init__(self, checkpoint: str) -> None:
        self._checkpoint = checkpoint

    def ready(self) -> bool:
        """Return whether the end was noted."""
        return noted(self._checkpoint)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        yield from rows.batches([(rows.END, b"", b"\xc0")])
