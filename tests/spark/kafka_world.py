"""Brokers for tests: librdkafka's mock cluster, or real brokers that ``ONYXQ_TEST_KAFKA`` names.

The mock accepts transactions, but it neither fences producers, nor hides or removes messages that were aborted, nor
stores the offsets of a transaction. `kafka_model` does.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition

WAIT_S = 60.0
REAL = os.environ.get("ONYXQ_TEST_KAFKA", "")


@pytest.fixture(scope="module")
def brokers() -> Iterator[str]:
    """The addresses of brokers that make topics when a producer names them."""
    if REAL:
        yield REAL
        return
    mock = Producer({"test.mock.num.brokers": 2, "bootstrap.servers": "replaced"})
    yield ",".join(f"{one.host}:{one.port}" for one in mock.list_topics(timeout=WAIT_S).brokers.values())


@pytest.fixture
def topic(brokers: str) -> str:
    """A new topic."""
    name = f"words-{uuid.uuid4()}"
    maker = Producer({"bootstrap.servers": brokers})
    maker.produce(name, b"first")
    assert maker.flush(WAIT_S) == 0
    return name


def keep_offset(brokers: str, topic: str, group: str, offset: int) -> None:
    """Store the offset of partition 0 that a transaction has committed, which the mock has forgotten."""
    if not REAL:
        with closing(Consumer({"bootstrap.servers": brokers, "group.id": group})) as consumer:
            consumer.commit(offsets=[TopicPartition(topic, 0, offset)], asynchronous=False)


def read(brokers: str, topic: str) -> list[Any]:
    """Return all committed messages, except the one that made the topic."""
    conf = {"bootstrap.servers": brokers, "group.id": "reader", "isolation.level": "read_committed"}
    with closing(Consumer({**conf, "enable.partition.eof": True})) as consumer:
        parts = list(consumer.list_topics(topic, WAIT_S).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, part, OFFSET_BEGINNING) for part in parts])
        found, ended = [], set()
        while len(ended) < len(parts):
            message = consumer.poll(WAIT_S)
            assert message is not None, "the brokers do not answer"
            error = message.error()
            if error is None:
                found.append(message)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                ended.add(message.partition())
    return [message for message in found if message.value() != b"first"]
