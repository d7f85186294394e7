"""The pages of flows against a real node: the list, one flow as a graph, and its cancel."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import httpx
import pytest

from onyxq import Client, Step
from onyxq.errors import Unavailable
from onyxq.interfaces.dashboard.flows import NODES_MAX, flow_of, graph_of
from onyxq.interfaces.http.endpoint import Call
from tests.dashboard.test_pages import HTML, found, parsed, texts
from tests.interfaces.http_world import on_trio
from tests.interfaces.live_world import running

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "<script>alert('flow')</script>"


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Client, httpx.Client]]:
    """A client of one node, and one of its pages."""
    with running(http=True) as cluster, Client(cluster.addresses[0]) as client:
        base = f"http://{cluster.http_addresses[0]}"
        with httpx.Client(base_url=base, timeout=60, trust_env=False, follow_redirects=True) as http:
            yield client, http


def test_a_flow_is_drawn_and_cancelled(served: tuple[Client, httpx.Client]) -> None:
    """A box for each task and one for many alike, lines between them, and the states as colours."""
    client, http = served
    many = client.group(*((HOSTILE, b"%d" % number) for number in range(20)))
    flow = client.make_flow(client.chain(("first", b"x"), many), name=HOSTILE, on_done=Step("report"))
    (claim,) = client.claim("first", wait_ms=10_000)
    client.fail(claim, "no", retry_in_ms=3_600_000)
    listed = http.get("/ui/flows")
    assert HOSTILE in texts(parsed(listed.text)) and flow.id.hex() in listed.text
    tree = parsed(http.get(f"/ui/flow?id={flow.id.hex()}").text)
    boxes = list(tree.iter(f"{SVG}rect"))
    assert len(boxes) == 3 and len(list(tree.iter(f"{SVG}path"))) == 2
    assert boxes[1].get("fill") == "var(--warn-ground)"
    assert f"{HOSTILE}: 20 waiting" in texts(tree)
    assert not [one for one in found(tree, "script") if "alert" in (one.text or "")]
    assert len(found(tree, "h1")) == 1 and len(list(tree.iter(f"{HTML}tr"))) == 23
    answer = http.post("/ui/do/flow-cancel", data={"id": flow.id.hex()}, headers={"origin": str(http.base_url)})
    assert "The flow is cancelled." in answer.text and "/ui/do/flow-cancel" not in answer.text
    assert flow.state() == "cancelled"


def test_a_failed_flow_is_shown_as_a_flow_and_requeued_with_its_tasks(served: tuple[Client, httpx.Client]) -> None:
    """Its id leads to its page, wherever it is typed in."""
    client, http = served
    flow = client.make_flow(client.chain(Step("breaks", b"x", retries=0), ("after", b"y")), name="nightly")
    (claim,) = client.claim("breaks", wait_ms=10_000)
    client.fail(claim, "no")
    flow.wait(10_000)
    for path in (f"/ui/search?q={flow.id.hex()}", f"/ui/tasks?id={flow.id.hex()}", f"/ui/tasks/{flow.id.hex()}"):
        assert str(http.get(path).url).endswith(f"/ui/flow?id={flow.id.hex()}")
    assert "flow nightly" in texts(parsed(http.get("/ui/tasks?state=failed").text))
    origin = {"origin": str(http.base_url)}
    ticked = http.post("/ui/chosen", data={"action": "requeue", "id": flow.id.hex()}, headers=origin).text
    assert "Requeue 0 tasks?" in ticked and f"/ui/flow?id={flow.id.hex()}" in ticked, "alone it would fail again"
    answer = http.post("/ui/do/flow-requeue", data={"id": flow.id.hex()}, headers=origin)
    assert "are due again" in answer.text and "/ui/do/flow-requeue" not in answer.text
    assert client.flow(flow.id)["counts"] == {"ready": 1, "waiting": 1}
    flow.cancel()


def test_the_page_of_a_task_shows_its_flow(served: tuple[Client, httpx.Client]) -> None:
    """The graph marks the task. Tasks that start after it are named. A task without a flow has none of this."""
    client, http = served
    flow = client.make_flow(client.chain(("one", b"x"), ("two", b"y")), name=HOSTILE, on_done=Step("report"))
    assert client.get(flow.ids[0]).flow == flow.id
    tree = parsed(http.get(f"/ui/tasks/{flow.ids[0].hex()}").text)
    links = [one.get("href") for one in found(tree, "a")]
    assert f"/ui/flow?id={flow.id.hex()}" in links and f"/ui/tasks/{flow.ids[1].hex()}" in links
    assert HOSTILE in texts(tree) and "followed by" in texts(tree)
    boxes = [one for one in tree.iter(f"{SVG}rect") if one.get("rx")]
    assert [one.get("stroke-width") for one in boxes] == ["3", "1", "1"]
    alone = client.enqueue("one", b"z")
    assert client.get(alone).flow is None and "/ui/flow?" not in http.get(f"/ui/tasks/{alone.hex()}").text
    flow.cancel()


@on_trio
async def test_the_page_of_a_task_does_without_its_flow() -> None:
    """Other partitions have the rest of a flow. While they have no leader, the page shows the task alone."""

    class Apart:
        async def ask(self, *_: Any, **__: Any) -> Any:
            raise Unavailable("partition 3 has no leader now")

    assert await flow_of(cast(Call, Apart()), {"id": b"t" * 20, "flow": b"f" * 20}) is None


def test_a_page_of_flows_refuses_what_does_not_exist(served: tuple[Client, httpx.Client]) -> None:
    """A state that flows do not have, and an unknown flow."""
    _, http = served
    assert http.get("/ui/flows?state=ready").status_code == 400
    assert http.get(f"/ui/flow?id={'00' * 20}").status_code == 404
    assert http.get("/ui/flows?state=running").status_code == 200


def test_a_graph_that_nobody_could_read_is_not_drawn() -> None:
    """A long chain has too many boxes."""
    chain: list[dict[str, Any]] = [
        {"id": bytes([place]) * 20, "queue": "q", "state": "ready", "after": [place - 1] if place else []}
        for place in range(NODES_MAX + 1)
    ]
    assert graph_of(chain, None) is None
    drawn = graph_of(chain[:NODES_MAX], None)
    assert drawn is not None and len({node.x for node in drawn.nodes}) == NODES_MAX
