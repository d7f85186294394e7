"""Spark hosts in memory: they obey orders at once, and report or fail as a test says."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from onyxq.node.jobs.hosts import HostEnded, Message, Plan

SPARK_UI = "http://127.0.0.1:4040"

Answer = Callable[["FakeLink", Message], None]


def obedient(link: FakeLink, order: Message) -> None:
    """Return a host that runs and stops whatever it is ordered to."""
    what = {"start": "ready", "stop": "stopped"}.get(order["do"])
    if what is not None:
        link.say(what, order["job"], order["version"])


class FakeLink:
    """One host that runs or ran."""

    def __init__(self, plan: Plan, answer: Answer) -> None:
        self.plan = plan
        self.orders: list[Message] = []
        self.running = True
        self._answer = answer
        self._why = "the fake host ended"
        self._send, self._receive = trio.open_memory_channel[Message](1_000)

    def up(self) -> None:
        """Report that its session is open, with Spark's own pages."""
        self._send.send_nowait({"event": "up", "ui": SPARK_UI})

    def say(self, event: str, job: str, version: int, **details: Any) -> None:
        """Report an event of a job."""
        if self.running:
            self._send.send_nowait({"event": event, "job": job, "version": version, **details})

    def die(self, why: str = "the fake host was killed") -> None:
        """End the process."""
        self.running, self._why = False, why
        self._send.close()

    def told(self, what: str) -> list[Message]:
        """Return the orders of a kind."""
        return [order for order in self.orders if order["do"] == what]

    async def send(self, message: Mapping[str, Any]) -> None:
        """See `onyxq.node.jobs.hosts.Link`."""
        await trio.lowlevel.checkpoint()
        if not self.running:
            raise HostEnded(self._why)
        self.orders.append(dict(message))
        self._answer(self, dict(message))

    async def receive(self) -> Message | None:
        """See `onyxq.node.jobs.hosts.Link`."""
        try:
            return await self._receive.receive()
        except trio.EndOfChannel:
            return None

    def why(self) -> str:
        """See `onyxq.node.jobs.hosts.Link`."""
        return self._why


class FakeHosts:
    """Launches hosts in memory and keeps them for inspection."""

    def __init__(self, answer: Answer = obedient) -> None:
        self.links: list[FakeLink] = []
        self.answer = answer
        self.up_by_themselves = True
        self.refusals: list[str] = []
        """Errors of the next starts, each used once."""

    @property
    def last(self) -> FakeLink:
        """The host that was started last."""
        return self.links[-1]

    @property
    def alive(self) -> list[FakeLink]:
        """Those that run."""
        return [link for link in self.links if link.running]

    def told(self, what: str) -> list[Message]:
        """Return the orders of a kind that any of them got."""
        return [order for link in self.links for order in link.told(what)]

    @asynccontextmanager
    async def launch(self, plan: Plan) -> AsyncIterator[FakeLink]:
        """See `onyxq.node.jobs.hosts.Launch`."""
        await trio.lowlevel.checkpoint()
        if self.refusals:
            raise HostEnded(self.refusals.pop(0))
        link = FakeLink(plan, self.answer)
        self.links.append(link)
        if self.up_by_themselves:
            link.up()
        try:
            yield link
        finally:
            if link.running:
                link.die("the fake host was stopped")
