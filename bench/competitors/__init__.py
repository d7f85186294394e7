"""The systems with which OnyxQ is compared, one module each."""

from __future__ import annotations

from collections.abc import Callable

from bench.competitors.base import System
from bench.competitors.beanstalkd import Beanstalkd
from bench.competitors.huey_redis import HueyRedis
from bench.competitors.locking_queue import LockingQueueOn1, LockingQueueOn3
from bench.competitors.nats_jetstream import NatsJetStream
from bench.competitors.postgresql import PostgreSql
from bench.competitors.redis_streams import RedisStreams

COMPETITORS: dict[str, Callable[[], System]] = {
    made.name: made
    for made in (RedisStreams, Beanstalkd, PostgreSql, NatsJetStream, LockingQueueOn1, LockingQueueOn3, HueyRedis)
}
"""Name -> constructor of each system."""
