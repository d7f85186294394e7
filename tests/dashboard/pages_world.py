"""A cluster with every kind of content, and texts that would break pages that do not escape them."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from onyxq.client import Client
from onyxq.interfaces.local_cluster import LocalCluster
from tests.interfaces.http_world import JOB

TURNED = "in\u202egnp.exe\u2066\u2028\u200bvoice"
"""A text with characters that change the direction of writing, and with invisible ones."""
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "a' onmouseover='alert(1)",
    "..",
    "a/b?c=d&e#f",
    "{{7*7}}",
    "ünïcödé 队列",
    TURNED,
    "x" * 200,
)
"""Names of queues."""
MARKUP = b"<script>alert('data')</script>"
DEAD = 5


@frozen
class Filled:
    """The content of the pages."""

    base: str
    """The address of the peer's pages."""
    address: str
    claimed: str
    """Id of a task that a worker holds."""
    dead: str
    """Id of a dead letter."""

    def pages(self) -> dict[str, str]:
        """Every page's path by a name."""
        return {
            "overview": "/",
            "queues": "/ui/queues",
            "queue": "/ui/queue?name=paused",
            "hostile queue": "/ui/queue?name=%3Cscript%3Ealert(1)%3C%2Fscript%3E",
            "tasks": "/ui/tasks",
            "claimed task": f"/ui/tasks/{self.claimed}",
            "dead task": f"/ui/tasks/{self.dead}",
            "story": f"/ui/tasks/{self.dead}/story",
            "failed tasks": "/ui/tasks?state=failed&where=ValueError",
            "workers": "/ui/workers",
            "timers": "/ui/timers",
            "periodic": "/ui/periodic",
            "jobs": "/ui/jobs",
            "job": "/ui/job?id=words",
            "cluster": "/ui/cluster",
            "log": "/ui/log",
            "settings": "/ui/settings",
            "interface": "/docs",
            "login": "/ui/login",
            "error": "/ui/tasks?state=nope",
        }


def filled(cluster: LocalCluster) -> Filled:
    """Put every kind of content into a cluster."""
    address = cluster.addresses[0]
    with Client(address) as client:
        for name in HOSTILE:
            client.enqueue_many(name, [name.encode(), MARKUP], retries=0)
        client.enqueue("bytes", b"\xff\xfe\x00")
        client.enqueue("later", b"{}", delay_ms=3_600_000)
        client.enqueue_many("mail", [b'{"to": "somebody@example.com"}'] * 20, retries=0)
        claims = client.claim("mail", max=DEAD + 3, worker="worker <1>", lease_ms=3_600_000, wait_ms=30_000)
        client.fail(claims[:DEAD], "ValueError: <script>alert('error')</script>\n  File <x>")
        client.complete(claims[DEAD : DEAD + 1], result=b'{"sent": true}')
        client.update(claims[DEAD + 1], MARKUP)
        client.update(claims[DEAD + 1], b'{"progress": {"done": 3, "total": 4, "note": "<b>page</b> 3"}}')
        call = b'{"task": "<script>alert(2)</script>", "args": ["<img src=x onerror=alert(3)>"], "kwargs": {"<i>": 1}}'
        client.enqueue("calls", call, format="json")
        client.pause("paused", by="eve <i>", why="too <many>")
        asked: dict[str, Any] = {"name": "nightly <b>", "queue": "mail", "schedule": "0 3 * * *", "data": b"{}"}
        client.call("periodic.set", asked)
        callback = {"transport": "http", "method": "post", "uri": "http://127.0.0.1:9/remind"}
        client.call("timer.set", {"id": "<i>7", "timeout": 3_600_000, "data": None, "callback": callback})
        client.call("job.submit", {"body": _job()})
        assert client.call("queues.page", {"wait_ms": 30_000})["counted_ms_ago"] is not None
    return Filled(
        base=f"http://{cluster.http_addresses[0]}",
        address=address,
        claimed=claims[DEAD + 1].id.hex(),
        dead=claims[0].id.hex(),
    )


def _job() -> bytes:
    from onyxq.jobs.encoding import encode_map, from_map, to_map

    return encode_map(to_map(from_map({**JOB, "id": "words"})))
