"""The sink of a job's query: one for all its outputs, so that a batch is committed once.

The sink gets one frame with all rows that lead to outputs. It has a column for each region before the outputs, and one
for each frame whose rows go to files as columns. In a row, one of these columns has the row as a struct, and the others
are null. The regions are a part of the sink's function. So a segment passes from a region to its output by a call, and
not through Spark.

Rows for queues are prepared with the peers (`onyxq.spark.queues.sink`). Rows for other outputs are written to hidden
files (`onyxq.spark.files.file_sink`). Then one entry of the log commits the batch with the tasks that it has read, and
files become visible. Without a peer (a query that is run by hand) only Spark's checkpoint decides.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache, cached_property, lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow
from attrs import asdict, field, frozen
from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from onyxq.core.errors import BadRequest
from onyxq.core.ids import make_id
from onyxq.jobs import letters
from onyxq.jobs.encoding import decode
from onyxq.jobs.key_state import hash64
from onyxq.jobs.options import GROWING
from onyxq.jobs.values import Unfit, pack, shown, unpack
from onyxq.spark.checkpoint import news_of, offsets_of, recorded
from onyxq.spark.failures import described, of_task
from onyxq.spark.files import file_sink
from onyxq.spark.files.columns import segments
from onyxq.spark.files.staging import Folder, Staging
from onyxq.spark.files.staging import Written as File
from onyxq.spark.lineage import of_letter
from onyxq.spark.plan import rows
from onyxq.spark.plan.fused import Place, Row, Take, made
from onyxq.spark.plan.regions import Region, stages

FORMAT = "onyxq-outputs"


def _names(given: Iterable[str]) -> tuple[str, ...]:
    return tuple(given)


@frozen
class Struct:
    """The contents of one of the sink's columns; with neither region nor outputs they are dropped."""

    entry: str = ""
    """The entry of the region that takes the rows; empty if they go to files as columns."""
    shape: str = ""
    """The shape of the rows for the region (`onyxq.spark.plan.rows`)."""
    names: tuple[str, ...] = field(default=(), converter=_names)
    """Names of the columns for the region, if the rows have the shape of columns."""
    outs: tuple[str, ...] = field(default=(), converter=_names)
    """The outputs that take the columns, without a region."""


def runs(batches: Iterable[Any]) -> Iterator[tuple[str, Any]]:
    """Yield the sink's rows in their order, as an Arrow batch for each stretch of rows in the same column.

    Each batch has the name of its column. The order matters: the rows of a part of an input follow each other, so one
    call of a region gets all of them and can count them.
    """
    for batch in batches:
        start = 0
        while start < batch.num_rows:
            name, values = next(
                (name, column.slice(start))
                for name, column in zip(batch.schema.names, batch.columns, strict=True)
                if column[start].is_valid
            )
            length = values.is_valid().index(False).as_py()
            values = values.slice(0, length if length >= 0 else None)
            if len(values) < batch.num_rows or batch.num_columns > 1:
                # Files keep columns for a while. A view would keep the whole batch, also the nulls of other columns.
                values = values.take(pyarrow.array(range(len(values))))
            yield name, pyarrow.RecordBatch.from_struct_array(values)
            start += len(values)


@lru_cache(maxsize=64)
def _regions(body: bytes) -> dict[str, Region]:
    """Return the regions of a job that lead to outputs, by their entries."""
    (regions,) = stages(decode(body))[-1].sides
    return {region.entry: region for region in regions}


@frozen
class Written(WriterCommitMessage):
    """The output of one task of a batch."""

    files: tuple[File, ...]
    parts: tuple[bytes, ...] = ()
    """The parts that peers have prepared for queues."""


def options_of(
    folders: list[Folder],
    queues: Mapping[str, Mapping[str, Any]],
    errors: Mapping[str, str],
    common: Mapping[str, str],
) -> dict[str, str]:
    """Return the options of the sink.

    ``errors``: output -> the output for segments that it refuses; ``common``: the options that the sink shares with
    the source of queues.
    """
    said = {**common, "folders": json.dumps([asdict(folder) for folder in folders])}
    return {**said, "outputs": json.dumps(queues), "errors": json.dumps(errors)}


def regions_of(body: bytes, structs: Mapping[str, Struct]) -> dict[str, str]:
    """Return further options of the sink: the job's bytes, and what the columns contain, by their names."""
    contents = {name: asdict(struct) for name, struct in structs.items()}
    return {"body": base64.b64encode(body).decode(), "structs": json.dumps(contents)}


def refusal(error: BadRequest, out: str, payload: bytes) -> bytes:
    """Return the segment, as msgpack, about a segment that an output has refused."""
    return pack({"output": out, "error": error.message, "segment": shown(unpack(payload))})


class Outputs(DataSource):
    """The sink as a data source of Spark."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamWriter(self, schema: Any, overwrite: bool) -> Routed:
        options = dict(self.options)
        folders = {said["name"]: Folder(**said) for said in json.loads(options.pop("folders"))}
        return Routed(folders, options)


class Fed(DataSourceStreamArrowWriter):
    """Base of the writers that get the sink's columns."""

    def __init__(self, options: dict[str, str]) -> None:
        self._options = options
        self._job = options["job"]

    def _rows(
        self, batches: Iterable[Any], columns: Callable[[str, Any], Iterable[Row]], take: Take | None = None
    ) -> Iterator[Row]:
        """Yield what regions make of the rows, and pass the rows that stay columns to ``columns``.

        That function gets the name of an output and an Arrow batch, and returns the rows that do not stay columns.
        ``take``: as for `made`.
        """
        structs = {name: Struct(**said) for name, said in json.loads(self._options["structs"]).items()}
        body = base64.b64decode(self._options["body"])
        place = Place(body, self._job, int(self._options["version"]))
        for name, found in groupby(runs(batches), itemgetter(0)):
            struct, mine = structs[name], (batch for _, batch in found)
            if struct.entry:
                yield from made(place, _regions(body)[struct.entry], struct.shape, struct.names, mine, take)
            for batch in mine:  # If there was a region, it has read all.
                for out in struct.outs:
                    yield from columns(out, batch)


class Routed(Fed):
    """Writes the rows of the sink's columns, and what regions make of them, to their outputs."""

    def __init__(self, folders: dict[str, Folder], options: dict[str, str]) -> None:
        super().__init__(options)
        self._folders = folders
        self._errors: dict[str, str] = json.loads(options.get("errors", "{}"))
        self._lettered = frozenset(json.loads(options.get("letters", "[]")))
        """Outputs for which a segment that they refuse becomes a dead letter."""

    @cached_property
    def _target(self) -> Any:
        """The cluster and the job; None without a peer."""
        if not self._options.get("connect"):
            return None
        from onyxq.spark.queues.options import target_of

        return target_of(self._options)

    @cached_property
    def _queues(self) -> dict[str, Any]:
        """The outputs that are queues, by name; none without a peer."""
        if self._target is None:
            return {}
        from onyxq.spark.queues.options import QueueOutput

        return {name: QueueOutput(**said) for name, said in json.loads(self._options["outputs"]).items()}

    @property
    def _only_files(self) -> bool:
        """Whether no row needs its lineage, from which the ids of tasks in queues are made."""
        return not json.loads(self._options.get("outputs", "{}"))

    # --- executors

    def _found(self, batches: Iterable[Any], staging: Staging) -> Iterator[Row]:
        """Yield what regions make of the rows, and write the rows that are columns, or that files take as they are."""
        numbers = itertools.count()

        def columns(out: str, batch: Any) -> Iterable[Row]:
            if out in self._lettered and self._folders[out].format not in GROWING:
                return self._by_row(out, batch, staging.part, numbers)
            staging.add_batch(out, batch)
            return ()

        return self._rows(batches, columns, staging.take if self._only_files else None)

    def _by_row(self, out: str, batch: Any, part: str, numbers: Iterator[int]) -> Iterator[Row]:
        """Yield the rows of an Arrow batch as segments for an output that may refuse single ones."""
        maker = hash64(f"{self._job}/{part}/{out}".encode())
        try:
            for segment in segments(batch):
                yield out, make_id(0, 0, maker, next(numbers)), pack(segment)
        except Unfit as error:
            raise of_task(error, task=out, segment=None, restart=False) from error

    def write(self, iterator: Iterator[Any]) -> Written:
        """Prepare the rows of one task; runs on an executor."""
        context: Any = TaskContext.get()
        batch = int(context.getLocalProperty("streaming.sql.batchId"))
        folders = list(self._folders.values())
        found = cache(lambda: file_sink.found_schemas(folders, job=self._job, batch=batch))
        staging = Staging(
            self._folders,
            job=self._job,
            batch=batch,
            part=context.partitionId(),
            found=lambda folder: found().get(folder.name, ""),
        )
        try:
            parts = self._write(self._found(iterator, staging), staging, batch)
            return Written(tuple(staging.finish()), parts)
        except BadRequest as error:
            staging.discard()
            raise of_task(error, task=error.field or self._job, segment=None, restart=False) from error
        except BaseException:
            staging.discard()
            raise

    def _write(self, found: Iterable[Row], staging: Staging, batch: int) -> tuple[bytes, ...]:
        from onyxq.spark.queues.shares import fitting_task

        sending = self._sending(batch)

        def put(out: str, payload: bytes, lineage: bytes) -> None:
            if out == rows.LETTER:
                payload = self._letter(payload, batch)
            try:
                if out in self._folders:
                    staging.add(out, payload)
                    return
                queue, data, key = fitting_task(self._queues[out], payload, out)
            except BadRequest as error:
                if out in self._lettered:
                    letter = letters.failed(task=out, way="", segment=unpack(payload), error=described(error))
                    put(rows.LETTER, pack(letter), of_letter(lineage, "", out))
                    return
                if out not in self._errors:
                    raise of_task(error, task=out, segment=unpack(payload), restart=False) from error
                put(self._errors[out], refusal(error, out, payload), lineage)
                return
            # An error here may be about an earlier row: it fails the job.
            sending.add_task(queue, data, lineage=lineage, name=out, key=key)

        for out, lineage, payload in found:
            put(out, payload, lineage)
        return () if sending is None else tuple(sending.finish().parts)

    def _letter(self, payload: bytes, batch: int) -> bytes:
        """Return the segment that the queue of dead letters gets."""
        attempt = int(self._options["attempt"])
        return pack(letters.stamped(unpack(payload), job=self._job, batch=batch, attempt=attempt))

    def _sending(self, batch: int) -> Any:
        if not self._queues:
            return None
        from onyxq.spark.queues.sink import Sending

        return Sending(self._target, f"job/{self._job}/{self._target.version}/{batch}")

    # --- the driver

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit the batch, or find that it was committed; then make its files visible."""
        if batchId <= int(self._options.get("committed", -1)):
            return  # Spark repeats a batch that the log has already. Other files would make it another attempt.
        folders = list(self._folders.values())
        written = [one for message in messages if isinstance(message, Written) for one in message.files]
        if self._target is None:
            mark = file_sink.staged(folders, job=self._job, batch=batchId)
            mark = mark or file_sink.stage(folders, written, job=self._job, batch=batchId)
        else:
            mark = self._mark(batchId) if folders else ""
            if mark and not file_sink.is_staged(folders, job=self._job, batch=batchId, mark=mark):
                file_sink.stage(folders, written, job=self._job, batch=batchId, mark=mark)
            parts = [part for message in messages if isinstance(message, Written) for part in message.parts]
            with self._prepared(folders, batchId, mark) as tables:
                self._commit(parts, batchId, mark)  # A repeat: the answer to an earlier request was lost.
                for table in tables:
                    table.commit()
        if mark:
            version = int(self._options["version"])
            file_sink.publish(folders, job=self._job, batch=batchId, mark=mark, version=version)

    def _prepared(self, folders: list[Folder], batch: int, mark: str) -> AbstractContextManager[Any]:
        if not mark:
            return nullcontext([])
        version = int(self._options["version"])
        return file_sink.prepared(folders, job=self._job, batch=batch, mark=mark, version=version)

    def _mark(self, batch: int) -> str:
        """Return a mark that is the same for a repeat, and differs for a batch of this number with other offsets."""
        return hashlib.blake2b(offsets_of(self._options["checkpoint"], batch), digest_size=8).hexdigest()

    def _commit(self, parts: list[bytes], batch: int, mark: str) -> Any:
        from onyxq.spark.queues.options import COMMIT_TIMEOUT_S
        from onyxq.spark.queues.source import connected, held_in, queue_offsets

        target, checkpoint = self._target, self._options["checkpoint"]
        news = news_of(checkpoint, batch)
        complete = [[*held[:3], None] for offset in queue_offsets(news) for held in held_in(offset)]
        offsets = recorded(checkpoint, batch, mark, json.loads(self._options["inputs"]))
        name = f"job/{target.job}/{target.version}/{batch}/{secrets.token_hex(8)}"
        return connected(target).call(
            lambda client: client.commit_batch(
                name=name,
                prepared=parts,
                complete=complete,
                job=target.job,
                version=target.version,
                batch=batch,
                offsets=offsets,
                timeout_ms=1_000 * COMMIT_TIMEOUT_S,
            )
        )

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: hidden files are removed with the next batch, and prepared rows expire at their deadline."""
