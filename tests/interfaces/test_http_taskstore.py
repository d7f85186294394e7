"""The task store over HTTP, on a real cluster: requests and answers of TaskStore's clients."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterator
from itertools import count
from typing import Any

import httpx
import pytest

import onyxq
from onyxq.errors import BadRequest
from onyxq.interfaces.peer_config import PeerConfig, check_config
from tests.interfaces.http_world import check_problem
from tests.interfaces.live_world import running

_serial = count(1)
_MINUTE = 60_000


@pytest.fixture(scope="module")
def http() -> Iterator[httpx.Client]:
    """A client of a cluster of one peer."""
    with running(http=True) as cluster:
        base = f"http://{cluster.http_addresses[0]}/taskstore"
        headers = {"x-peer": cluster.addresses[0]}
        with httpx.Client(base_url=base, timeout=30, trust_env=False, headers=headers) as client:
            yield client


@pytest.fixture
def group() -> str:
    """A group that no other test uses."""
    return f"group-{next(_serial)}"


def update(http: httpx.Client, client: int = 1, **body: Any) -> Any:
    """Send an update that is answered with 200."""
    answer = http.post("/update", json={"clientid": client, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def claim(http: httpx.Client, group: str, client: int = 1, duration: int = _MINUTE, **body: Any) -> Any:
    """Send a claim that is answered with 200."""
    answer = http.post("/claim", json={"clientid": client, "group": group, "duration": duration, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def added(http: httpx.Client, group: str, *data: str, client: int = 1) -> list[int]:
    """Add tasks that are available; return their ids."""
    done = update(http, client, adds=[{"group": group, "data": one} for one in data])
    assert done["Error"] is None
    return [task["id"] for task in done["Tasks"]]


def refused(done: Any) -> dict[str, Any]:
    """Return those of the five lists that are not empty."""
    assert done["Tasks"] is None and set(done["Error"]) == {*LISTS, "Messages"}
    return {name: done["Error"][name] for name in LISTS if done["Error"][name]}


LISTS = ("Changes", "Deletes", "Depends", "Owned", "Bugs")


def test_new_tasks_come_back_with_ids_that_rise(http: httpx.Client, group: str) -> None:
    """They are in the given order; then they can be read by id, together, and by group."""
    first, second = added(http, group, "a", "b")
    assert second == first + 1
    seen = http.get(f"/task/{first}").json()
    assert seen == {
        "id": first,
        "group": group,
        "data": "a",
        "timespec": seen["timespec"],
        "duration": seen["timespec"],
        "ownerid": 1,
    }
    assert [one and one["data"] for one in http.get(f"/tasks/{second},7,{first}").json()] == ["b", None, "a"]
    assert [one["id"] for one in http.get(f"/group/{group}").json()] == [first, second]
    assert group in http.get("/groups").json() and group in http.get("/group").json()


def test_a_missing_task_is_404(http: httpx.Client) -> None:
    """It is a problem; an invalid id gives 400."""
    check_problem(http.get("/task/7"), 404, code="not_found", field="id")
    check_problem(http.get("/task/seven"), 400, code="bad_request", field="number")
    for wrong in ("1,,2", f"1,{1 << 63}", f"1,{'9' * 5_000}", "0" * 5_000):
        check_problem(http.get(f"/tasks/{wrong}"), 400, code="bad_request", field="numbers")


def test_an_update_answers_adds_then_updates(http: httpx.Client, group: str) -> None:
    """The changed task has a new id and the old one is gone; the group stays."""
    (old,) = added(http, group, "a")
    done = update(http, updates=[{"id": old, "data": "b"}], adds=[{"group": group, "data": "c"}])
    assert [(task["data"], task["group"]) for task in done["Tasks"]] == [("c", group), ("b", group)]
    assert old < done["Tasks"][0]["id"] < done["Tasks"][1]["id"]
    assert http.get(f"/task/{old}").status_code == 404


def test_an_update_without_fields_clears_data_and_sets_the_time_to_now(http: httpx.Client, group: str) -> None:
    """Its owner releases the task."""
    (old,) = added(http, group, "a")
    held = claim(http, group)["Tasks"][0]
    assert held["id"] > old and http.get(f"/group/{group}").json() == []
    (new,) = update(http, updates=[{"id": held["id"]}])["Tasks"]
    assert new["data"] == "" and new["timespec"] < held["timespec"]
    assert [one["id"] for one in http.get(f"/group/{group}").json()] == [new["id"]]


def test_deletes_only_answer_an_empty_list(http: httpx.Client, group: str) -> None:
    """A group ends with its last task."""
    numbers = added(http, group, "a", "b")
    assert update(http, deletes=numbers) == {"Tasks": [], "Error": None}
    assert group not in http.get("/groups").json()


def test_all_that_is_wrong_is_told_and_nothing_changes(http: httpx.Client, group: str) -> None:
    """Errors are in the five lists, with status 200."""
    (kept,) = added(http, group, "a", client=1)
    held = claim(http, group, client=2)["Tasks"][0]["id"]
    body = {"adds": [{"group": group}], "updates": [{"id": kept}], "deletes": [4, held], "depends": [5]}
    assert refused(update(http, **body)) == {"Changes": [kept], "Deletes": [4], "Depends": [5], "Owned": [held]}
    done = update(http, adds=[{"data": "x"}], deletes=[4])
    assert refused(done) == {"Deletes": [4], "Bugs": [None]} and "group" in done["Error"]["Messages"][0]
    assert refused(update(http, depends=[held])) == {"Bugs": [None]}
    assert [one["id"] for one in http.get(f"/group/{group}?owned=1").json()] == [held]


def test_a_claim_takes_what_is_available(http: httpx.Client, group: str) -> None:
    """It has a new id until the lease is over; then nothing is available, which is not an error."""
    (old,) = added(http, group, "a")
    (mine,) = claim(http, group, client=9)["Tasks"]
    assert mine["id"] > old and (mine["data"], mine["ownerid"]) == ("a", 9)
    assert claim(http, group, client=8) == {"Tasks": None, "Error": None}
    assert refused(claim(http, group, client=8, depends=[old])) == {"Depends": [old]}
    assert refused(update(http, 8, deletes=[mine["id"]])) == {"Owned": [mine["id"]]}
    assert update(http, 9, deletes=[mine["id"]]) == {"Tasks": [], "Error": None}


def test_times_are_absolute_or_from_now(http: httpx.Client, group: str) -> None:
    """This holds for both names; only available tasks are listed, or all with ``owned``."""
    far = 4_000_000_000_000
    sent = [{"timespec": far}, {"duration": far + 1}, {"timespec": -_MINUTE}, {"Duration": 1}]
    done = update(http, adds=[{"group": group, **one} for one in sent])
    times = [task["timespec"] for task in done["Tasks"]]
    assert times[:2] == [far, far + 1] and times[3] == 1 and 1 < times[2] < far
    listed = [one["timespec"] for one in http.get(f"/group/{group}").json()]
    assert listed == [1]
    for word in ("1", "yes", "true", "True"):
        assert len(http.get(f"/group/{group}?owned={word}").json()) == 4
    assert len(http.get(f"/group/{group}?owned=1&limit=3").json()) == 3
    assert len(http.get(f"/group/{group}?owned=no&limit=0").json()) == 1
    check_problem(http.get(f"/group/{group}?owned=maybe"), 400, code="bad_request", field="owned")


def test_bodies_come_without_a_type_as_forms_and_in_any_case(http: httpx.Client, group: str) -> None:
    """TaskStore's own client and server disagree about them."""
    told = json.dumps(
        {"ClientID": 3, "Adds": [{"Group": group, "Data": "a", "ID": 0}], "Updates": None, "Deletes": None}
    )
    plain = http.build_request("POST", "/update", content=told)
    assert "content-type" not in plain.headers
    form = {"content-type": "application/x-www-form-urlencoded"}
    sent = [
        http.send(plain),
        http.post("/update", data={"update": told}),
        http.post("/update", content=told, headers=form),
        http.post(f"/update?update={urllib.parse.quote(told)}"),
    ]
    assert [(one.status_code, one.json()["Error"]) for one in sent] == [(200, None)] * 4
    assert len(http.get(f"/group/{group}").json()) == 4
    taken = http.post("/claim", data={"claim": json.dumps({"clientid": 3, "group": group, "duration": 1})})
    assert taken.json()["Tasks"][0]["data"] == "a"


def test_an_owner_is_a_signed_number_of_32_bits(http: httpx.Client, group: str) -> None:
    """TaskStore's client reads it as such; other numbers are refused by name."""
    for owner in (-(1 << 31), -1, 0, (1 << 31) - 1):
        (number,) = added(http, f"{group}{owner}", "a", client=owner)
        (held,) = claim(http, f"{group}{owner}", client=owner)["Tasks"]
        assert held["ownerid"] == owner and update(http, owner, deletes=[held["id"]])["Error"] is None, number
    with pytest.raises(BadRequest) as error, onyxq.Client(http.headers["x-peer"]) as client:
        client.task_store(1 << 31).update(adds=[(group, "a")])
    assert error.value.field == "client"


def test_a_store_of_python_draws_owners_that_other_clients_can_read(http: httpx.Client, group: str) -> None:
    """This includes the form in the answer."""
    with onyxq.Client(http.headers["x-peer"]) as client:
        owners = {client.task_store().client_id for _ in range(200)}
        client.task_store(max(owners)).update(adds=[(group, "a")])
    assert len(owners) == 200 and all(0 <= owner < 1 << 31 for owner in owners)
    assert http.get(f"/group/{group}").json()[0]["ownerid"] == max(owners)


def test_no_ids_are_no_tasks(http: httpx.Client) -> None:
    """TaskStore's client requests an empty list this way."""
    assert http.get("/tasks/").json() == []
    check_problem(http.get("/task/"), 400, code="bad_request", field="number")
    check_problem(http.get("/group/"), 400, code="bad_request", field="group")


@pytest.mark.parametrize("path", ["/groups", "/group", "/group/g", "/task/1", "/tasks/1"])
def test_only_get_reads(http: httpx.Client, path: str) -> None:
    """HEAD is refused, as by TaskStore's server."""
    for method in ("HEAD", "POST"):
        answer = http.request(method, path)
        assert answer.status_code == 405 and answer.headers["allow"] == "GET, OPTIONS"


def test_a_claim_without_a_group_finds_nothing(http: httpx.Client) -> None:
    """No task has a group without a name."""
    for body in ({"clientid": 1}, {"clientid": 1, "group": ""}, {"clientid": 1, "group": None, "duration": 5}):
        assert http.post("/claim", json=body).json() == {"Tasks": None, "Error": None}


def test_an_update_of_no_task_adds_one(http: httpx.Client, group: str) -> None:
    """An id of 0 or less is not an id; the answer has the order of the request."""
    (old,) = added(http, group, "old")
    updates = [
        {"id": old, "data": "b"},
        {"id": 0, "group": group, "data": "c"},
        {"id": -5, "group": group, "data": "d"},
    ]
    done = update(http, adds=[{"group": group, "data": "a"}], updates=updates)
    assert [task["data"] for task in done["Tasks"]] == ["a", "b", "c", "d"]
    assert sorted(one["data"] for one in http.get(f"/group/{group}").json()) == ["a", "b", "c", "d"]
    assert refused(update(http, updates=[{"id": 0}])) == {"Bugs": [None]}


def test_an_unknown_key_is_named_as_it_was_sent(http: httpx.Client) -> None:
    """The hint knows both names of a key."""
    answer = http.post("/claim", json={"clientid": 1, "group": "g", "Timespc": 1})
    problem = check_problem(answer, 400, code="bad_request", field="Timespc")
    assert problem["hint"] == "Did you mean timespec?"


def test_names_of_groups_may_have_slashes(http: httpx.Client, group: str) -> None:
    """Escaped or not."""
    name = f"{group}/map/1"
    added(http, name, "a")
    for path in (name, urllib.parse.quote(name, safe="")):
        assert [one["data"] for one in http.get(f"/group/{path}").json()] == ["a"]


def test_of_two_requests_for_one_task_one_is_served(http: httpx.Client, group: str) -> None:
    """A change of a task removes its id."""
    (number,) = added(http, group, "a")
    assert update(http, updates=[{"id": number, "data": "b"}])["Error"] is None
    assert refused(update(http, updates=[{"id": number, "data": "c"}])) == {"Changes": [number]}
    twice = [{"id": number}, {"id": number}]
    assert refused(update(http, updates=twice)) == {"Changes": [number, number], "Bugs": [None]}


BAD: list[tuple[str, Any, str | None]] = [
    ("/update", {"adds": []}, "clientid"),
    ("/update", {"clientid": 1 << 31}, "clientid"),
    ("/claim", {"clientid": -(1 << 31) - 1, "group": "g"}, "clientid"),
    ("/update", {"clientid": 1, "Adds": [{"Group": "g", "Dta": ""}]}, "adds[0].Dta"),
    ("/update", {"clientid": True}, "clientid"),
    ("/update", {"clientid": 1, "adds": 1}, "adds"),
    ("/update", {"clientid": 1, "adds": [{"group": "g", "timspec": 1}]}, "adds[0].timspec"),
    ("/update", {"clientid": 1, "adds": [{"group": "g", "data": 1}]}, "adds[0].data"),
    ("/update", {"clientid": 1, "adds": [{"group": "g", "timespec": 1, "duration": 2}]}, "adds[0].duration"),
    ("/update", {"clientid": 1, "updates": [{}]}, "updates[0].id"),
    ("/update", {"clientid": 1, "deletes": ["1"]}, "deletes[0]"),
    ("/update", [1], None),
    ("/claim", {"clientid": 1, "group": "g", "duration": 1.5}, "duration"),
]


@pytest.mark.parametrize(("path", "body", "field"), BAD)
def test_malformed_requests_are_refused(http: httpx.Client, path: str, body: Any, field: str | None) -> None:
    """With 400 and the field's name."""
    check_problem(http.post(path, json=body), 400, code="bad_request", field=field)


def test_sizes_are_bounded(http: httpx.Client, group: str) -> None:
    """A task too large is 413; other methods are 405."""
    large = {"clientid": 1, "adds": [{"group": group, "data": "ü" * 32_769}]}
    check_problem(http.post("/update", json=large), 413, code="too_large", field="adds[0].data")
    assert added(http, group, "ü" * 32_768)
    many = {"clientid": 1, "adds": [{"group": group, "data": "x" * 60_000}] * 6}
    check_problem(http.post("/update", json=many), 413, code="too_large")
    assert http.get("/update").status_code == 405


def test_a_port_of_its_own_has_it_at_the_root_in_nanoseconds() -> None:
    """Times are in the port's unit, it serves nothing else, and both ports have the same tasks."""
    with running(http=True, first={"taskstore": "127.0.0.1:0", "taskstore_unit": "ns"}) as cluster:
        addresses = cluster.nodes[0].addresses
        assert addresses is not None
        with httpx.Client(timeout=30, trust_env=False) as client:
            own, other = f"http://{addresses.taskstore}", f"http://{addresses.http}/taskstore"
            sent = {"clientid": 1, "adds": [{"group": "g", "duration": 1_000_001}]}
            (task,) = client.post(f"{own}/update", json=sent).json()["Tasks"]
            assert task["timespec"] == task["duration"] == 2_000_000, "rounded up to a millisecond"
            assert client.get(f"{other}/task/{task['id']}").json()["timespec"] == 2
            lease = {"clientid": 1, "group": "g", "duration": _MINUTE * 1_000_000}
            (held,) = client.post(f"{own}/claim", json=lease).json()["Tasks"]
            assert client.get(f"{other}/group/g?owned=1").json()[0]["timespec"] * 1_000_000 == held["timespec"]
            later = {"clientid": 1, "updates": [{"id": held["id"], "timespec": -2 * _MINUTE * 1_000_000}]}
            (renewed,) = client.post(f"{own}/update", json=later).json()["Tasks"]
            assert 0 < renewed["timespec"] - held["timespec"] < 2 * _MINUTE * 1_000_000
            assert client.get(f"{own}/groups").json() == ["g"]
            assert client.get(f"{own}/v1/cluster").status_code == 404


def test_an_unknown_unit_is_refused() -> None:
    """By the setting's name."""
    with pytest.raises(BadRequest, match="taskstore_unit must be ms or ns"):
        check_config(PeerConfig(data="", taskstore_unit="s"))
