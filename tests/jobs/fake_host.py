"""Spark hosts in memory: they do what they are told at once, and what a test has them say or suffer."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import trio

from onyxq.node.jobs.hosts import HostEnded, Message, Plan

Answer = Callable[["FakeLink", Message], None]


def obedient(link: FakeLink, order: Message) -> None:
    """A host that runs whatever it is told to, and stops it."""
    what = {"start": "ready", "stop": "stopped"}.get(order["do"])
    if what is not None:
        link.say(what, order["job"], order["version"])


class FakeLink:
    """One host that runs, or ran."""

    def __init__(self, plan: Plan, answer: Answer) -> None:
        self.plan = plan
        self.orders: list[Message] = []
        self.running = True
        self._answer = answer
        self._why = "the fake host ended"
        self._send, self._receive = trio.open_memory_channel[Message](1_000)

    def up(self) -> None:
        """Its session is open."""
        self._send.send_nowait({"event": "up"})

    def say(self, event: str, job: str, version: int, **details: Any) -> None:
        """Something happens to a job."""
        if self.running:
            self._send.send_nowait({"event": event, "job": job, "version": version, **details})

    def die(self, why: str = "the fake host was killed") -> None:
        """The process ends."""
        self.running, self._why = False, why
        self._send.close()

    def told(self, what: str) -> list[Message]:
        """The orders of a kind."""
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
    """Launches hosts in memory and keeps them for a look."""

    def __init__(self, answer: Answer = obedient) -> None:
        self.links: list[FakeLink] = []
        self.answer = answer
        self.up_by_themselves = True
        self.refusals: list[str] = []
        """Why the next starts fail, each once."""

    @property
    def last(self) -> FakeLink:
        """The host that was started last."""
        return self.links[-1]

    @property
    def alive(self) -> list[FakeLink]:
        """Those that run."""
        return [link for link in self.links if link.running]

    def told(self, what: str) -> list[Message]:
        """The orders of a kind that all of them were given."""
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
