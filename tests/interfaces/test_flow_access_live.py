"""Flows of several callers at one node: each sees and cancels those whose queues it may look at."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from onyxq.access.grants import Access, Token
from onyxq.client import Client
from onyxq.core.limits import FLOW_JOINS_QUEUE, FLOWS_QUEUE
from onyxq.errors import BadRequest, Forbidden
from tests.interfaces.live_world import Live, running

ADMIN, OURS, THEIRS, READER = "a token for everything", "a token for ours", "a token for theirs", "a token to read ours"
OPERATOR = "a token to operate ours"
PAGE = 7
ACCESS = Access(
    (
        Token.of(ADMIN, "admin", ["admin"]),
        Token.of(OURS, "ours", ["produce:ours.", f"produce:{FLOWS_QUEUE}"]),
        Token.of(THEIRS, "theirs", ["produce:theirs.", f"produce:{FLOWS_QUEUE}"]),
        Token.of(READER, "reader", ["read:ours.", f"read:{FLOWS_QUEUE}"]),
        Token.of(OPERATOR, "operator", ["operate:ours.", f"operate:{FLOWS_QUEUE}"]),
    ),
    "what the peers share",
)
KINDS = {"ours": ("ours.a", "ours.b"), "theirs": ("theirs.a",), "both": ("ours.a", "theirs.a")}


@pytest.fixture(scope="module")
def live() -> Iterator[Live]:
    """A node that asks for credentials."""
    with running(http=True, access=ACCESS) as cluster:
        found = Live(cluster, ADMIN)
        yield found
        found.close()


@pytest.fixture(scope="module")
def made(live: Live) -> dict[str, list[bytes]]:
    """Flows of each kind, in turn, so that each page has some of each."""
    found: dict[str, list[bytes]] = {kind: [] for kind in KINDS}
    with Client(live.address, token=ADMIN) as client:
        for _ in range(2 * PAGE):
            for kind, queues in KINDS.items():
                found[kind].append(client.make_flow(client.chain(*((queue, b"") for queue in queues))).id)
    return found


def listed(client: Client, *, newest_first: bool = False) -> list[bytes]:
    """Return the ids of all pages."""
    found: list[bytes] = []
    after: bytes | None = None
    while True:
        page = client.flows(after=after, limit=PAGE, newest_first=newest_first)
        assert len(page["flows"]) <= PAGE
        found += [one["id"] for one in page["flows"]]
        after = page["after"]
        if after is None:
            return found


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize(
    ("token", "kinds"), [(ADMIN, {*KINDS}), (OURS, {"ours"}), (THEIRS, {"theirs"}), (READER, {"ours"})]
)
def test_a_list_has_only_the_flows_all_of_whose_queues_the_caller_may_look_at(
    live: Live, made: dict[str, list[bytes]], token: str, kinds: set[str], newest_first: bool
) -> None:
    """Page after page, in the order of the ids, none twice; over HTTP too."""
    with Client(live.address, token=token) as client:
        found = listed(client, newest_first=newest_first)
    wanted = sorted((one for kind in kinds for one in made[kind]), reverse=newest_first)
    assert found == wanted
    headers = {"authorization": f"Bearer {token}"}
    answer = live.http.get(f"/v1/flows?limit=1000&newest_first={str(newest_first).lower()}", headers=headers).json()
    assert [one["id"] for one in answer["flows"]] == [one.hex() for one in wanted]


def test_a_flow_with_a_queue_of_others_is_neither_shown_nor_cancelled(live: Live, made: dict[str, list[bytes]]) -> None:
    """The error names no queue."""
    with Client(live.address, token=OURS) as client:
        assert client.flow(made["ours"][0])["queues"] == ["ours.a", "ours.b"]
        for kind in ("theirs", "both"):
            for call in (client.flow, client.cancel_flow, client.requeue_flow, lambda one: client.wait_flow(one, 10)):
                with pytest.raises(Forbidden) as refused:
                    call(made[kind][0])
                assert "theirs" not in refused.value.message
            path = f"/v1/flows/{made[kind][0].hex()}"
            for answer in (
                live.http.get(path, headers={"authorization": f"Bearer {OURS}"}),
                live.http.get(f"{path}/outcome", headers={"authorization": f"Bearer {OURS}"}),
                live.http.delete(path, headers={"authorization": f"Bearer {OURS}"}),
            ):
                assert answer.status_code == 403, answer.text


def test_the_record_of_a_flow_counts_as_a_task_of_all_its_queues(live: Live, made: dict[str, list[bytes]]) -> None:
    """A caller that may use flows cancels, reads and purges no record of another's."""
    ids = {kind: made[kind][1] for kind in KINDS}
    headers = {"authorization": f"Bearer {OURS}"}
    with Client(live.address, token=OURS) as client, Client(live.address, token=ADMIN) as admin:
        for kind in ("theirs", "both"):
            with pytest.raises(Forbidden) as refused:
                client.cancel(ids[kind])
            assert "theirs" not in refused.value.message
            assert live.http.delete(f"/v1/tasks/{ids[kind].hex()}", headers=headers).status_code == 403
            assert admin.flow(ids[kind])["state"] == "waiting"
    with Client(live.address, token=READER) as reader:
        assert reader.get(ids["ours"]).queue == FLOWS_QUEUE
        for kind in ("theirs", "both"):
            with pytest.raises(Forbidden):
                reader.get(ids[kind])
        for operation, queue in product(("list", "list.next", "dead"), (FLOWS_QUEUE, FLOW_JOINS_QUEUE)):
            with pytest.raises(Forbidden, match="every queue"):
                reader.call(operation, {"queue": queue})
    with Client(live.address, token=OPERATOR) as operator:
        for change in (operator.purge_queue, operator.discard_dead):
            with pytest.raises(Forbidden, match="every queue"):
                change(queue=FLOWS_QUEUE)


def test_prefixes_only_narrow_what_a_caller_may_look_at(live: Live, made: dict[str, list[bytes]]) -> None:
    """A caller cannot name more queues than it has a role on."""

    def ids(client: Client, prefixes: Any) -> list[bytes]:
        return [one["id"] for one in client.call("flow.list", {"limit": 1_000, "prefixes": prefixes})["flows"]]

    with Client(live.address, token=OURS) as client:
        for prefixes in (["ours.", "theirs."], ["o"], ["ours.a", "ours.b"], None):
            assert ids(client, prefixes) == made["ours"]
        for nothing in (["theirs."], ["ours.a"], []):
            assert ids(client, nothing) == []
        for bad in ([""], "ours.", ["x" * 201], [5]):
            with pytest.raises(BadRequest) as refused:
                ids(client, bad)
            assert (refused.value.field or "").startswith("prefixes")
    with Client(live.address, token=ADMIN) as client:
        assert ids(client, ["theirs."]) == made["theirs"]
    assert live.http.get("/v1/flows?prefixes=theirs.").status_code == 400


def test_a_caller_without_a_role_on_flows_lists_none() -> None:
    """A role on the queues of tasks alone is not enough, as before."""
    access = Access((Token.of(OURS, "ours", ["produce:ours."]),), "what the peers share")
    with running(access=access) as cluster, Client(cluster.addresses[0], token=OURS) as client:
        with pytest.raises(Forbidden, match=FLOWS_QUEUE):
            client.flows()
