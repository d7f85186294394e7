"""A model of Kafka's transactions: fencing by transactional id, and messages and offsets that count together or not.

It has the calls of `confluent_kafka` that the output uses. Each request calls ``moment`` before and after its effect,
so that a test can end a driver there or let another one run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

from attrs import Factory, define
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition


@define
class Transaction:
    """The messages and offsets that do not count yet."""

    values: list[bytes] = Factory(list)
    offsets: dict[tuple[str, str, int], int] = Factory(dict)


class Cluster:
    """The brokers."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin with an empty topic."""
        self.values: list[bytes] = []
        """What consumers of committed messages see."""
        self.offsets: dict[tuple[str, str, int], int] = {}
        self.open: dict[str, Transaction] = {}
        """Transactional id -> open transaction."""
        self.moment: Callable[[], None] = lambda: None
        self._epochs: dict[str, int] = {}

    def request(self, effect: Callable[..., Any], *given: Any) -> Any:
        """Answer a request of a client."""
        self.moment()
        answer = effect(*given)
        self.moment()
        return answer

    def begin(self, name: str) -> int:
        """Fence earlier producers of a transactional id, and abort what they left open."""
        self.open.pop(name, None)
        self._epochs[name] = self._epochs.get(name, 0) + 1
        return self._epochs[name]

    def opened(self, name: str, epoch: int) -> Transaction:
        """Return the open transaction; raise an error for a producer that is fenced."""
        if self._epochs[name] != epoch:
            raise KafkaException(KafkaError(KafkaError._FENCED, "fenced"))
        return self.open.setdefault(name, Transaction())

    def end(self, name: str, epoch: int, commit: bool) -> None:
        """Commit or abort."""
        found = self.opened(name, epoch)
        del self.open[name]
        if commit:
            self.values += found.values
            self.offsets |= found.offsets

    @property
    def module(self) -> Any:
        """The names of `confluent_kafka` that the output uses."""
        return SimpleNamespace(Producer=partial(Producer, self), Consumer=partial(Consumer, self))


class Producer:
    """A transactional producer."""

    def __init__(self, cluster: Cluster, conf: dict[str, Any]) -> None:
        self._cluster = cluster
        self._name = conf["transactional.id"]
        self._epoch = 0
        self._values: list[bytes] = []

    def init_transactions(self, timeout: float) -> None:
        self._epoch = self._cluster.request(self._cluster.begin, self._name)

    def begin_transaction(self) -> None:
        """Only the client knows that it has begun."""

    def produce(self, topic: str, value: bytes, key: bytes | None, *, headers: Any, on_delivery: Any) -> None:
        self._values.append(value)

    def poll(self, timeout: float) -> None:
        """Nothing is sent before `flush`."""

    def flush(self) -> None:
        self._cluster.request(self._deliver)

    def _deliver(self) -> None:
        self._cluster.opened(self._name, self._epoch).values += self._values

    def send_offsets_to_transaction(self, marks: list[TopicPartition], group: str, timeout: float) -> None:
        self._cluster.request(self._note, marks, group)

    def _note(self, marks: list[TopicPartition], group: str) -> None:
        offsets = {(group, mark.topic, mark.partition): mark.offset for mark in marks}
        self._cluster.opened(self._name, self._epoch).offsets |= offsets

    def commit_transaction(self, timeout: float) -> None:
        self._cluster.request(self._cluster.end, self._name, self._epoch, True)

    def abort_transaction(self, timeout: float) -> None:
        self._cluster.request(self._cluster.end, self._name, self._epoch, False)


class Consumer:
    """A consumer that only looks at the offsets of its group."""

    def __init__(self, cluster: Cluster, conf: dict[str, Any]) -> None:
        assert conf["isolation.level"] == "read_committed"
        self._cluster = cluster
        self._group = conf["group.id"]

    def consumer_group_metadata(self) -> str:
        return str(self._group)

    def committed(self, marks: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        return list(self._cluster.request(self._look, marks))

    def _look(self, marks: list[TopicPartition]) -> list[TopicPartition]:
        keys = [(self._group, mark.topic, mark.partition) for mark in marks]
        return [TopicPartition(key[1], key[2], self._cluster.offsets.get(key, OFFSET_INVALID)) for key in keys]

    def close(self) -> None:
        """It has joined no group."""
