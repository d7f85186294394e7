"""Topics of Kafka: one transaction has the messages of a batch and its number, as an offset of a consumer group.

The group and the transactional id have the writer's name. A producer that begins with this id fences the one before,
and Kafka aborts what that one has not committed. Then the group's offset shows whether the topic has the batch. So
the batch counts once for consumers that read committed messages only, whichever drivers write it.

When the log commits the batch, the transaction is open and the brokers have all messages. If the driver dies before
Kafka's own commit, the next driver writes the batch from its hidden files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onyxq.core.errors import BadRequest, Incomplete, OnyxqError, Unavailable
from onyxq.jobs.options import PRODUCER
from onyxq.spark.files.staging import Folder
from onyxq.spark.sinks.tables import Batch, Files

try:
    import confluent_kafka
    from confluent_kafka import KafkaError, KafkaException, TopicPartition
except ImportError as error:
    raise Incomplete(
        f"outputs of the format kafka need a package: {error}", hint="pip install 'onyxq[kafka]'"
    ) from error

TIMEOUT_S = 30.0
"""Longest wait for a call of the brokers."""
ABORT_S = 5.0
"""Longest wait for the end of a transaction that does not count; after its own timeout the brokers end it."""
_FULL_S = 1.0
_DEFAULTS = {"partitioner": "murmur2_random"}
"""A key is in the partition where Kafka's Java clients would put it."""
_REFUSED = (
    KafkaError.MSG_SIZE_TOO_LARGE,
    KafkaError.INVALID_MSG,
    KafkaError.RECORD_LIST_TOO_LARGE,
    KafkaError.INVALID_RECORD,
)
"""Errors that are due to a message: it would be refused again."""
_QUIET = {"log_level": 3}


class Prepared:
    """A transaction that holds a batch."""

    def __init__(self, folder: Folder, producer: Any) -> None:
        self._folder = folder
        self._producer = producer
        self._open = True

    def commit(self) -> None:
        """Make the batch count."""
        with _explained(self._folder):
            self._producer.commit_transaction(TIMEOUT_S)
        self._open = False

    def close(self) -> None:
        """Roll back unless it was committed."""
        if self._open:
            with contextlib.suppress(KafkaException):
                self._producer.abort_transaction(ABORT_S)


def check(folder: Folder, schema: Any) -> None:
    """Raise `BadRequest` if the cluster has no such topic, or the client refuses a setting."""
    _producer(folder, folder.name)
    topic = folder.options["topic"]
    with _consumer(folder, folder.name) as consumer, _explained(folder):
        found = consumer.list_topics(topic, TIMEOUT_S).topics[topic].error
    if found is not None:
        if found.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise _wrong(folder, f"the cluster has no topic {topic!r}: create it first", "topic")
        raise _failure(folder, found)


def prepare(folder: Folder, files: Files, batch: Batch) -> Prepared | None:
    """Return an open transaction whose messages the brokers have; None if the topic has the batch already.

    Raises `BadRequest` if the brokers refuse a message.
    """
    with _consumer(folder, batch.writer) as consumer:
        producer = _producer(folder, batch.writer)
        with _explained(folder):
            producer.init_transactions(TIMEOUT_S)
            if _next_batch(folder, consumer) > batch.number:
                return None
            producer.begin_transaction()
        prepared = Prepared(folder, producer)
        try:
            with _explained(folder):
                _send(folder, producer, files)
                mark = _mark(folder, batch.number + 1)
                producer.send_offsets_to_transaction([mark], consumer.consumer_group_metadata(), TIMEOUT_S)
        except BaseException:
            prepared.close()
            raise
        return prepared


def write(folder: Folder, files: Files, batch: Batch) -> None:
    """Write the batch, unless the topic has it."""
    prepared = prepare(folder, files, batch)
    if prepared is not None:
        with contextlib.closing(prepared):
            prepared.commit()


def _send(folder: Folder, producer: Any, files: Files) -> None:
    """Send all messages, and wait until the brokers have them."""
    failures: list[KafkaError] = []

    def sent(error: KafkaError | None, _: Any) -> None:
        if error is not None and not failures:
            failures.append(error)

    for key, value, headers in files.packed():
        while True:
            try:
                producer.produce(
                    folder.options["topic"], value, key, headers=list(map(tuple, headers)), on_delivery=sent
                )
                break
            except BufferError:  # The producer's queue is full.
                producer.poll(_FULL_S)
        producer.poll(0)
        if failures:
            break
    if not failures:
        producer.flush()  # A message ends, at the latest, with the timeout of its transaction.
    if failures:
        raise _failure(folder, failures[0])


def _mark(folder: Folder, offset: int = -1) -> TopicPartition:
    """Return the place of the next batch's number among the offsets of the group."""
    return TopicPartition(folder.options["topic"], 0, offset)


def _next_batch(folder: Folder, consumer: Any) -> int:
    """Return the number after the last batch that the topic has; negative if it has none."""
    (found,) = consumer.committed([_mark(folder)], TIMEOUT_S)
    if found.error is not None:
        raise _failure(folder, found.error)
    return int(found.offset)


# --- clients -----------------------------------------------------------------------


def _producer(folder: Folder, writer: str) -> Any:
    return _client(folder, confluent_kafka.Producer, {"transactional.id": writer})


@contextlib.contextmanager
def _consumer(folder: Folder, writer: str) -> Iterator[Any]:
    """Open the group's consumer, which reads and names the group, but consumes nothing."""
    ours = {"group.id": writer, "enable.auto.commit": False, "isolation.level": "read_committed", **_QUIET}
    consumer = _client(folder, confluent_kafka.Consumer, ours)
    try:
        yield consumer
    finally:
        consumer.close()


def _client(folder: Folder, make: Any, ours: dict[str, Any]) -> Any:
    said = {name.removeprefix(PRODUCER): value for name, value in folder.options.items() if name.startswith(PRODUCER)}
    brokers = {"bootstrap.servers": folder.options["brokers"]}
    try:
        return make({**_DEFAULTS, **_properties(folder), **said, **brokers, **ours})
    except KafkaException as error:
        what = error.args[0].str()
        named = (f"{PRODUCER}{name}" for name, value in said.items() if f'"{name}"' in what or f'"{value}"' in what)
        raise _wrong(folder, what, next(named, "properties")) from None


def _properties(folder: Folder) -> dict[str, str]:
    """Return the settings in the file that the option ``properties`` names: ``NAME=VALUE`` in each line."""
    path = folder.options.get("properties")
    if path is None:
        return {}
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(folder, f"properties: {path} cannot be read: {type(error).__name__}", "properties") from None
    found = {}
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            name, equals, value = line.partition("=")
            if not equals:
                raise _wrong(folder, f"properties: line {number} of {path} must be NAME=VALUE", "properties")
            found[name.strip()] = value.strip()
    return found


# --- errors ------------------------------------------------------------------------


@contextlib.contextmanager
def _explained(folder: Folder) -> Iterator[None]:
    """Turn errors of the client into ours."""
    try:
        yield
    except KafkaException as error:
        raise _failure(folder, error.args[0]) from error


def _failure(folder: Folder, error: KafkaError) -> OnyxqError:
    said = f"output {folder.name}: {error.str()} ({error.name()})"
    if error.code() in _REFUSED:
        return BadRequest(said, field=folder.name)
    return Unavailable(said, hint="Passwords and TLS belong in the file that the option properties names.")


def _wrong(folder: Folder, what: str, option: str) -> BadRequest:
    return BadRequest(f"output {folder.name}: {what}", field=f"{folder.name}.options.{option}")
