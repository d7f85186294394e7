"""Buttons have the effect of the HTTP operation, and errors in a form are shown on a page."""

from __future__ import annotations

import json
import logging
import tracemalloc
from typing import Any

import pytest

from onyxq.core.facts import pack_task
from onyxq.core.ids import make_id
from onyxq.errors import Conflict
from onyxq.interfaces.dashboard.actions import ACTIONS
from onyxq.interfaces.dashboard.rendering import DONE, ENVIRONMENT
from tests.interfaces.http_world import JOB, NOW_MS, FakeService, client_of, on_trio

IDS = [make_id(NOW_MS, 3, 7, number) for number in range(3)]
SITE = {"origin": "http://peer"}


async def do(service: FakeService, action: str, form: dict[str, Any]) -> Any:
    """Send a form."""
    async with client_of(service) as client:
        return await client.post(f"/ui/do/{action}", data=form, headers=SITE)


async def with_dead() -> FakeService:
    """Make three dead letters of the queue ``a&b``."""
    service = FakeService()
    await service.call("enqueue", {"runs": [[one, pack_task({"queue": "a&b"}, [b"1"])] for one in IDS], "w": None})
    for task in service.tasks.values():
        task.state, task.error = "failed", "no <way>"
    return service


@on_trio
async def test_a_queue_is_paused_and_resumed() -> None:
    """Actor and reason are recorded; the answer leads back to the queue, which shows what was done."""
    service = FakeService()
    answer = await do(service, "pause", {"queue": "a&b", "by": "ann", "why": "it floods"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/ui/queue?name=a%26b&did=pause")
    asked = {"queue": "a&b", "paused": True, "by": "ann", "why": "it floods"}
    assert service.asked("queue.set") == [asked]
    async with client_of(service) as client:
        page = (await client.get(answer.headers["location"])).text
        assert "The queue is paused." in page and "Paused by ann: it floods" in page
    await do(service, "resume", {"queue": "a&b"})
    assert service.asked("queue.set")[1]["paused"] is False


@on_trio
async def test_only_changed_settings_are_set() -> None:
    """Settings that another user changed meanwhile stay; an empty field means the default."""
    service = FakeService()
    form = {"queue": "a", "lease_ms": "5000", "was-lease_ms": "30000", "rate": "2.5", "was-rate": "0"}
    form |= {"retries": "25", "was-retries": "25", "grace_ms": "", "was-grace_ms": "5", "archive": "true"}
    await do(service, "queue", form | {"was-archive": "false", "on_dead": "stops", "was-on_dead": "goes on"})
    (asked,) = service.asked("queue.set")
    changed = {"lease_ms": 5000, "rate": 2.5, "grace_ms": None, "archive": True, "on_dead": "stops"}
    assert asked == {"queue": "a", **changed}
    answer = await do(service, "queue", {"queue": "a", "lease_ms": "soon"})
    assert answer.status_code == 400 and "lease_ms" in answer.text and len(service.asked("queue.set")) == 1


@on_trio
async def test_ticked_tasks_are_counted_and_requeued() -> None:
    """A page asks first and has the ids; then these are requeued, and the next page counts them."""
    service = await with_dead()
    ticked = [one.hex() for one in IDS[:2]]
    async with client_of(service) as client:
        form = {"action": "requeue", "which": "ticked", "id": ticked, "queue": "a&b", "state": "failed"}
        answer = await client.post("/ui/chosen", data=form, headers=SITE)
        assert "Requeue 2 tasks?" in answer.text and " ".join(ticked) in answer.text and "no &lt;way&gt;" in answer.text
        assert service.asked("dead.requeue") == []
        done = await client.post("/ui/do/requeue", data={"ids": " ".join(ticked), "queue": "a&b"}, headers=SITE)
        assert done.headers["location"] == "/ui/tasks?queue=a%26b&did=requeue&count=2"
        assert [task.state for task in service.tasks.values()] == ["ready", "ready", "failed"]
        assert "Requeued 2 tasks." in (await client.get(done.headers["location"])).text


@on_trio
async def test_all_tasks_of_a_search_are_chosen() -> None:
    """Those that the action cannot change are left out, and said."""
    service = await with_dead()
    service.tasks[IDS[0]].state = "ready"
    async with client_of(service) as client:

        async def chosen(**form: Any) -> str:
            return str((await client.post("/ui/chosen", data=form, headers=SITE)).text)

        assert "Discard 2 tasks?" in await chosen(action="discard", which="all", where="way")
        assert "Cancel 1 task?" in await chosen(action="cancel", which="all")
        assert "Cancel 0 tasks?" in await chosen(action="cancel", which="all", queue="another")
        text = await chosen(action="cancel", which="ticked", id=[one.hex() for one in IDS])
        assert "Cancel 1 task?" in text and "2 tasks cannot be changed this way" in text
    assert {method for method, _ in service.calls} <= {"enqueue", "list", "get"}


@on_trio
async def test_the_page_before_an_action_holds_no_data_of_tasks() -> None:
    """Thousands of tasks may be chosen, of 16 MiB each."""
    service = await with_dead()
    get, size, count = service._get, 500_000, 100
    service._get = lambda args: get({"id": IDS[0]}) | {"data": bytes(size)}  # type: ignore[method-assign]
    form = {"action": "discard", "which": "ticked", "id": [IDS[0].hex()] * count}
    async with client_of(service) as client:
        tracemalloc.start()
        try:
            answer = await client.post("/ui/chosen", data=form, headers=SITE)
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert f"Discard {count} tasks?" in answer.text
    assert most < size * count / 4


@on_trio
async def test_a_refused_task_is_counted() -> None:
    """A task that changed after the page asked is left unchanged, and the next page says so."""
    service = await with_dead()
    service.tasks[IDS[0]].state = "completed"
    answer = await do(service, "discard", {"ids": f"{IDS[0].hex()} {IDS[1].hex()}"})
    assert answer.headers["location"] == "/ui/tasks?did=discard&count=1&refused=1"
    async with client_of(service) as client:
        text = (await client.get(answer.headers["location"])).text
        assert "1 task was left unchanged, because its state has changed" in text


@on_trio
async def test_bad_choices_change_nothing() -> None:
    """No tick, an unknown action and an id that is none are errors that name the field."""
    service = await with_dead()
    async with client_of(service) as client:
        for form, field in (
            ({"action": "discard"}, "id"),
            ({"action": "explode"}, "action"),
            ({"action": "discard", "id": ["<b>"]}, "id"),
            ({"action": "discard", "id": [IDS[0].hex()] * 101}, "id"),
        ):
            answer = await client.post("/ui/chosen", data=form, headers=SITE)
            assert answer.status_code == 400 and f"({field})" in answer.text, form
        other = await client.post("/ui/chosen", data={"action": "cancel"}, headers={"origin": "http://elsewhere"})
        assert other.status_code == 403
    assert service.asked("dead.discard") == []


@on_trio
async def test_a_task_is_edited_and_enqueued() -> None:
    """The new task has the edited data and the settings of the form, and no unique key; the answer leads to it."""
    service = FakeService()
    form = {"queue": "a", "format": "json", "data": '{"to":\r\n"ann"}', "priority": "3", "delay_ms": "", "retries": "0"}
    answer = await do(service, "enqueue", form)
    (task_id, task), *_ = service.tasks.items()
    assert answer.headers["location"] == f"/ui/tasks/{task_id.hex()}?did=enqueue"
    assert json.loads(task.data) == {"to": "ann"} and task.header["priority"] == 3 and task.header["retries"] == 0
    other = FakeService()
    copied = {"queue": "a", "format": "bytes", "data_base64": "/w==", "ordering_key": "o", "unique_key": "u"}
    assert (await do(other, "enqueue", copied)).status_code == 303
    (copy,) = other.tasks.values()
    assert copy.data == b"\xff" and copy.header["ordering_key"] == "o" and "unique_key" not in copy.header
    for wrong, field in (
        ({"data": "{"}, "data"),
        ({"data": "1", "priority": "high"}, "priority"),
        ({"data_base64": "?"}, "data_base64"),
    ):
        answer = await do(service, "enqueue", {"queue": "a", "format": "json", **wrong})
        assert answer.status_code == 400 and f"({field})" in answer.text
    assert len(service.tasks) == 1


@on_trio
async def test_a_copy_of_a_task_has_its_limit_of_retries_or_none() -> None:
    """A task without a limit has null in the form, because a field that is left out means the limit of the queue."""
    task = {"queue": "a", "format": "json", "priority": 0, "ordering_key": None}
    copied = vars(ENVIRONMENT.get_template("parts.html").module)["copied"]
    for retries, field in ((None, 'name="retries" value="null"'), (3, 'name="retries" value="3"')):
        form = copied({**task, "retries": retries})
        assert field in form and form.count('name="retries"') == 1
    service = FakeService()
    assert (await do(service, "enqueue", {"queue": "a", "data": "1", "retries": "null"})).status_code == 303
    (made,) = service.tasks.values()
    assert made.header["retries"] is None


@on_trio
async def test_the_other_buttons_do_what_they_say() -> None:
    """Each calls the method of its operation."""
    service = await with_dead()
    service.tasks[IDS[0]].state = "ready"
    await service.call("periodic.set", {"name": "p/..", "queue": "a", "schedule": "every 60s", "data": b"1"})
    async with client_of(service) as client:
        await client.post("/v1/jobs", json=JOB)
    for action, form, method, args in (
        ("cancel", {"ids": IDS[0].hex(), "page": "task"}, "cancel", {"ids": [IDS[0]], "claimed": True}),
        ("periodic-pause", {"name": "p/.."}, "periodic.set", {"name": "p/..", "paused": True}),
        ("periodic-resume", {"name": "p/.."}, "periodic.set", {"name": "p/..", "paused": False}),
        ("periodic-remove", {"name": "p/.."}, "periodic.remove", {"name": "p/.."}),
        ("seal", {"id": JOB["id"], "input": "in"}, "job.seal", {"id": JOB["id"], "input": "in"}),
        ("kill", {"id": JOB["id"]}, "job.kill", {"id": JOB["id"]}),
        ("gc", {}, "gc", {}),
        ("leave", {"peer": "p1", "permanent": "yes"}, "leave", {"peer": "p1", "permanent": True}),
    ):
        answer = await do(service, action, form)
        assert answer.status_code == 303, (action, answer.text)
        assert service.asked(method)[-1] == args, action


@on_trio
async def test_a_run_by_hand_has_the_options_of_its_periodic_task() -> None:
    """It expires so long after the click; no limit of retries stays none."""
    service = FakeService()
    given = {"name": "p", "queue": "a", "schedule": "every 60s", "priority": 3}
    options = {"retries": None, "backoff_ms": 5_000, "expires_after_ms": 60_000}
    await service.call("periodic.set", {**given, **options})
    assert (await do(service, "periodic-run", {"name": "p"})).status_code == 303
    (task,) = service.tasks.values()
    assert (task.header["priority"], task.header["retries"], task.header["backoff_ms"]) == (3, None, 5_000)
    assert task.header["expires_ms"] == NOW_MS + 60_000


@on_trio
async def test_what_goes_wrong_is_a_page() -> None:
    """The page has the problem's words as text, and its status."""
    service = FakeService()
    service.broken["gc"] = Conflict("not <now>", hint="Wait.")
    answer = await do(service, "gc", {})
    assert answer.status_code == 409 and "not &lt;now&gt;" in answer.text and "Wait." in answer.text
    for form, field in (({}, "queue"), ({"queue": ["a", "b"]}, "queue"), ({"queue": "a\x07"}, "queue")):
        answer = await do(service, "pause", form)
        assert answer.status_code == 400 and f"({field})" in answer.text
    async with client_of(service) as client:
        for content, kind in ((b"{}", "application/json"), (b"a=%ff", "application/x-www-form-urlencoded")):
            answer = await client.post("/ui/do/gc", content=content, headers={**SITE, "content-type": kind})
            assert answer.status_code in (400, 415) and "text/html" in answer.headers["content-type"]
    assert service.asked("queue.set") == []


@on_trio
async def test_a_link_cannot_put_words_into_a_page() -> None:
    """A link only names an action; the page has the sentence for it."""
    async with client_of(FakeService()) as client:
        assert "Requeued 3 tasks." in (await client.get("/ui/tasks?did=requeue&count=3")).text
        assert 'role="status"' not in (await client.get("/ui/tasks?did=you+are+hacked")).text


def test_what_was_done_is_written_down(caplog: pytest.LogCaptureFixture) -> None:
    """The peer's log has the action with the fields of the form, even at the level of warnings."""

    @on_trio
    async def done() -> None:
        await do(FakeService(), "pause", {"queue": "a", "by": "ann", "why": "so"})

    assert logging.getLogger().getEffectiveLevel() == logging.WARNING
    done()
    (said,) = [one.getMessage() for one in caplog.records if one.name == "onyxq.dashboard"]
    assert said == "pause by the dashboard: {'queue': ['a'], 'by': ['ann'], 'why': ['so']}"


def test_every_action_says_what_it_did() -> None:
    """The next page has a sentence for each action, and each action has the role of its operation."""
    assert {action.name for action in ACTIONS} == set(DONE)
    assert all(action.operation.roles and "read" not in action.operation.roles for action in ACTIONS)
