"""The duty of the ring's first peer to enqueue periodic tasks when they are due.

It has two steps. First the due runs are enqueued as by a client; their ids depend only on name and time. Once a
majority has them, ``fire_periodic`` advances the periodic task to its next time. If a peer ends between the
steps, the next one repeats the first, which changes nothing, and the second, which applies once.

A client that knows the name can compute these ids, and enqueue tasks of another queue under them. Such a run gets
its `other_id`, which all peers compute alike and no client can. So it is made, and once.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import trio
from attrs import frozen

from log_entries import fire_periodic
from onyxq.access.grants import derived_key
from onyxq.core import facts
from onyxq.core.errors import BadRequest, Conflict, OnyxqError, Unavailable, from_map
from onyxq.core.ids import TaskId
from onyxq.core.limits import TIME_MS_MAX
from onyxq.core.periodic import Plan, due, other_id, plan, run_options, task_id
from onyxq.core.replica import Periodic
from onyxq.node.node import Node
from onyxq.operations.table.enqueue import Enqueue, NewRun

LOOK_EVERY_S = 0.25
"""Longest pause between checks, in seconds: wall clocks may jump, and periodic tasks may change meanwhile."""
PAUSE_S = 1.0
"""Pause after an error, in seconds."""
TOGETHER = 200
"""Maximum number of periodic tasks that fire together."""
ENQUEUE_BYTES = 4 << 20
ENQUEUE_RUNS = 1_000
"""Limits of one request, with `ENQUEUE_BYTES`."""
LONG_MS = 3_600_000
"""A periodic task that is late by more than this takes long to plan, so a thread does it; in ms."""

log = logging.getLogger(__name__)


@frozen
class Firing:
    """One periodic task, and what to do with it now."""

    periodic: Periodic
    plan: Plan

    @property
    def entry(self) -> fire_periodic.Args:
        """The entry that advances it."""
        return fire_periodic.Args(self.periodic.name, self.periodic.next_ms, self.plan.next_ms, len(self.plan.fires))

    def body(self, fired_ms: int) -> bytes:
        """Return the row of the run that was due at ``fired_ms``; it is the same for every peer."""
        header: dict[str, Any] = {**run_options(self.periodic)}
        if (expires_after_ms := header.pop("expires_after_ms", None)) is not None:
            header["expires_ms"] = min(fired_ms + expires_after_ms, TIME_MS_MAX)
        if self.periodic.format != "bytes":
            header["format"] = self.periodic.format
        if self.periodic.priority:
            header["priority"] = self.periodic.priority
        header["queue"] = self.periodic.queue
        return facts.pack_task(dict(sorted(header.items())), [self.periodic.payload])


async def fire(node: Node) -> None:
    """Fire due periodic tasks until cancelled."""
    broken: dict[str, Periodic] = {}
    while True:
        now_ms = node.wall_ms()
        found = [one for one in due(node.replica, now_ms) if broken.get(one.name) != one]
        try:
            # A node that cannot read the log cannot know whether they still exist.
            if found and node.can_submit():
                await _fire(node, await _planned(node, found[:TOGETHER], now_ms, broken))
        except OnyxqError as error:
            log.info("periodic tasks wait: %s", error.message)
            await trio.sleep(PAUSE_S)
        if len(found) <= TOGETHER:
            await _pause(node)


async def _pause(node: Node) -> None:
    now_ms = node.wall_ms()
    ahead = [one.next_ms for one in node.replica.periodic.values() if not one.paused and one.next_ms > now_ms]
    wait_s = (min(ahead) - now_ms) / 1000 if ahead else LOOK_EVERY_S
    await trio.sleep(min(wait_s, LOOK_EVERY_S))


async def _planned(node: Node, found: Sequence[Periodic], now_ms: int, broken: dict[str, Periodic]) -> list[Firing]:
    """Return the plans.

    A periodic task that this machine cannot plan is skipped until it is set again.
    """
    firings = []
    for periodic in found:
        try:
            if now_ms - periodic.next_ms > LONG_MS:
                planned = await node.offload(plan, periodic, now_ms)
            else:
                planned = plan(periodic, now_ms)
        except BadRequest as error:
            log.error("periodic task %s is not fired: %s", periodic.name, error.message)
            broken[periodic.name] = periodic
            continue
        firings.append(Firing(periodic, planned))
    return firings


async def _fire(node: Node, firings: Sequence[Firing]) -> None:
    """Enqueue the runs, then advance their periodic tasks."""
    partitions = node.replica.settings.partitions
    work = [(place, fired_ms) for place, one in enumerate(firings) for fired_ms in one.plan.fires]
    waiting: set[int] = set()
    done = 0
    while done < len(work):
        some = _some(firings, work[done : done + ENQUEUE_RUNS], partitions)
        done += len(some)
        for (place, task, _), problem in zip(some, await _enqueue(node, some), strict=True):
            if isinstance(problem, (BadRequest, Conflict)):
                name = firings[place].periodic.name
                log.error("the run %s of periodic task %s is lost: %s", task.hex(), name, problem.message)
            elif problem is not None:
                waiting.add(place)
                log.info("a periodic task waits: %s", problem.message)
    entries = [one.entry for place, one in enumerate(firings) if place not in waiting]
    if entries:
        await node.verdicts(entries)
    if waiting:
        await trio.sleep(PAUSE_S)


def _some(
    firings: Sequence[Firing], work: Sequence[tuple[int, int]], partitions: int
) -> list[tuple[int, TaskId, bytes]]:
    """Return the first runs of ``work`` that fit into one request, each with the place of its firing."""
    some: list[tuple[int, TaskId, bytes]] = []
    size = 0
    for place, fired_ms in work:
        body = firings[place].body(fired_ms)
        size += len(body)
        if some and size > ENQUEUE_BYTES:
            break
        some.append((place, task_id(firings[place].periodic, fired_ms, partitions), body))
    return some


async def _enqueue(node: Node, work: Sequence[tuple[int, TaskId, bytes]]) -> list[OnyxqError | None]:
    """Enqueue runs, and return each one's error, or None.

    If a task of another queue has the id of a run, the run gets its `other_id`.
    """
    problems = await _stored(node, [NewRun(first, body) for _, first, body in work])
    taken = [place for place, problem in enumerate(problems) if isinstance(problem, Conflict)]
    if taken:
        again = []
        secret = await _secret(node)
        for _, first, body in (work[place] for place in taken):
            log.error("a task of another queue has the id %s of a periodic run, which gets another id", first.hex())
            again.append(NewRun(other_id(first, secret), body))
        for place, problem in zip(taken, await _stored(node, again), strict=True):
            problems[place] = problem
    return problems


async def _secret(node: Node) -> bytes:
    """Return the key of `other_id`. It is empty in a cluster without credentials, where clients may do anything."""
    if node.credential is None:
        return b""
    key: bytes = await node.offload(derived_key, node.credential, b"onyxq periodic runs")
    return key


async def _stored(node: Node, runs: list[NewRun]) -> list[OnyxqError | None]:
    if node.enqueue is None:
        raise Unavailable("this node does not accept tasks yet")
    answer = await node.enqueue(Enqueue(runs=runs))
    return [from_map(ack) if isinstance(ack, dict) else None for ack in answer.acks]
