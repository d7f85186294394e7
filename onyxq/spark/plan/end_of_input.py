"""The end of a job's inputs as a segment: what makes windows say what they have not said yet.

Spark never ends event time: the last windows of inputs that have ended would wait for ever.  So a job with
windows or joins has one more source, which gives nothing until the host notes in the job's checkpoint that
all inputs have ended (`note`), and then one row ``(END, END, nil)``: it is for every cut, and is later than
everything else.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow

from onyxq.spark.places import located
from onyxq.spark.plan import rows

FORMAT = "onyxq-end"
NOTE = "ended"


def note(checkpoint: str) -> None:
    """All inputs have ended, and what they gave is done."""
    system, path = located(checkpoint)
    with system.open_output_stream(f"{path}/{NOTE}", compression=None) as stream:
        stream.write(b"")


def noted(checkpoint: str) -> bool:
    """Whether it was noted."""
    system, path = located(checkpoint)
    return bool(system.get_file_info(f"{path}/{NOTE}").is_file)


class End(DataSource):
    """The source as Spark finds it; option ``checkpoint``."""

    @classmethod
    def name(cls) -> str:
        """What it is called in ``format``."""
        return FORMAT

    def schema(self) -> str:
        """That of segments."""
        return rows.SCHEMA

    def streamReader(self, schema: Any) -> EndReader:
        """The reader of the one row."""
        return EndReader(self.options["checkpoint"])


class EndReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Offsets say how many rows were given: none, or the one."""

    def __init__(self, checkpoint: str) -> None:
        self._checkpoint = checkpoint

    def initialOffset(self) -> dict[str, int]:
        """Nothing was given."""
        return {"ended": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        """There is but one row."""
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """What is noted by now is looked at by `latestOffset`."""

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Whether the end was noted."""
        return {"ended": 1} if start["ended"] or noted(self._checkpoint) else {"ended": 0}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """One partition with the row, or none."""
        return [InputPartition(0)] if end["ended"] > start["ended"] else []

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """The row."""
        yield from rows.batches([(rows.END, b"", b"\xc0")])
