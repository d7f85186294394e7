"""Dead letters of jobs: which tasks have them, what they keep, how they are listed, and how they are sent again."""

from __future__ import annotations

import datetime
import decimal
import uuid
from typing import Any

import pytest
import trio
from attrs import evolve

from log_entries import gc
from onyxq.core.log.record import decode_record
from onyxq.errors import BadRequest, Conflict, NotFound
from onyxq.jobs import letters
from onyxq.jobs.encoding import decode, encode
from onyxq.jobs.job_check import check
from onyxq.jobs.model import (
    Condition,
    Function,
    Input,
    Job,
    Join,
    Lifecycle,
    Output,
    Reduce,
    Sql,
    Task,
    Trigger,
    Window,
)
from onyxq.jobs.values import pack, unpack
from onyxq.operations.enqueues import Enqueueing
from onyxq.operations.table.enqueue import Enqueue
from onyxq.spark.queues.options import QueueOutput
from onyxq.spark.queues.shares import Share
from onyxq.testing import preview
from tests.jobs.driving_world import Stage, on_stage, submit

SEGMENT = {
    "at": datetime.datetime(2026, 5, 1, 12, tzinfo=datetime.UTC),
    "price": decimal.Decimal("1.10"),
    "of": uuid.UUID(int=7),
    "tags": ("a", frozenset({1, 2})),
    "raw": b"\xff",
    "nothing": None,
}


def halved(segment: dict[str, Any]) -> dict[str, Any]:
    """Change the segment, and fail for odd numbers."""
    segment["seen"] = True
    if segment["n"] % 2:
        raise ValueError(f"{segment['n']} is odd")
    return {**segment, "n": segment["n"] // 2}


def job(*more: Task, edges: tuple[tuple[str, str], ...] = (), **fields: Any) -> Job:
    """Return a job whose function leads to an output and to a window."""
    return Job(
        id="orders",
        workflow=[("in", "parse"), ("parse", "out"), ("parse", "count"), ("count", "counts"), *edges],
        catalog=[
            Input("in", queue="in"),
            Function("parse", halved),
            Reduce("count"),
            Output("out", queue="out", ordering_key="n"),
            Output("counts", format="json", path="/data/counts"),
            *more,
        ],
        windows=[Window("w", "count", "fixed", range_ms=1_000, key="n", time="at", aggregation="count")],
        triggers=[Trigger("w")],
        **fields,
    )


def changed(old: Job, name: str, **fields: Any) -> Job:
    """Return a job with another definition of a task."""
    return evolve(old, catalog=[evolve(one, **fields) if one.name == name else one for one in old.catalog])


def test_a_task_decides_and_the_job_has_the_default() -> None:
    """Inputs and joins have none, and an output with a place for refused segments needs none."""
    assert not letters.any_in(job())
    assert [one.name for one in job(dead_letters=True).catalog if letters.wanted(job(dead_letters=True), one.name)] == [
        "parse", "count", "out", "counts",
    ]  # fmt: skip
    assert not letters.wanted(changed(job(dead_letters=True), "parse", dead_letters=False), "parse")
    assert letters.wanted(changed(job(), "parse", dead_letters=True), "parse")
    assert not letters.wanted(changed(job(dead_letters=True), "out", errors="counts"), "out")


@pytest.mark.parametrize(
    ("wrong", "field", "what"),
    [
        (job(dead_letters="yes"), "dead_letters", "must be True or False"),
        (changed(job(), "parse", dead_letters=1), "catalog[1].dead_letters", "must be True or False, or None"),
        (
            job(Sql("q", "select 1", schema="n int"), Output("rows", format="json", path="/r"), dead_letters=True,
                edges=(("parse", "q"), ("q", "rows"))),
            "dead_letters",
            "is not for 'parse': it leads to 'q', whose rows are not segments; give it dead_letters=False",
        ),
        (
            changed(
                job(Sql("q", "select 1", schema="n int"), Output("rows", format="json", path="/r"),
                    edges=(("count", "q"), ("q", "rows"))),
                "count",
                dead_letters=True,
            ),
            "catalog[2].dead_letters",
            "is not for 'count': it leads to 'q', whose rows are not segments",
        ),
        (
            changed(job(), "out", errors="counts", dead_letters=True),
            "catalog[3].dead_letters",
            "errors of 'out' exclude each other",
        ),
        (
            changed(job(), "counts", format="parquet", dead_letters=True),
            "catalog[4].dead_letters",
            "needs a schema",
        ),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit_are_refused_by_name(wrong: Job, field: str, what: str) -> None:
    """Nothing is stored."""
    with pytest.raises(BadRequest) as caught:
        check(wrong)
    assert caught.value.field == field and what in caught.value.message


def test_a_letter_keeps_its_segment_with_all_types() -> None:
    """A text that is not valid Unicode does not stop it; a reader of a later release may add fields."""
    made = letters.failed(task="parse", way="", segment=SEGMENT, error=("E", "half \ud800", "where"))
    data = letters.stamped({**made, "later": 1}, job="orders", batch=7, attempt=2)
    found = letters.letter_in(data)
    assert found.segment == SEGMENT and type(found.segment["tags"]) is tuple
    assert (found.job, found.batch, found.task, found.attempt) == ("orders", 7, "parse", 2)
    assert found.message == "half \\ud800" and found.says("E: half") and not found.says("F: half")


def test_the_job_that_sends_letters_again_has_a_way_to_each_of_their_tasks() -> None:
    """It keeps its other tasks, takes over nothing, and reads letters only; its own letters count one attempt more."""
    old = job(
        Input("more", format="text", path="/data/more"),
        Join("pairs", left="in", right="more", on="n"),
        Output("paired", format="json", path="/data/pairs"),
        edges=(("in", "pairs"), ("more", "pairs"), ("pairs", "paired")),
        dead_letters=True,
        resume="older",
    )
    new = letters.requeued(old, id="orders-2")
    check(decode(encode(new)))
    assert new.after("in") == ("parse", "pairs", "count", "out", "counts", "paired")
    assert new.task("in") == Input("in", queue="onyxq.requeued.2.orders")
    assert new.task("more") == Input("more", queue="onyxq.requeued.nothing")
    assert (new.resume, letters.streams_of(new)) == (None, ["in", "more"])
    assert (letters.attempt_of(old), letters.attempt_of(new)) == (1, 2)
    assert letters.again_queue_of(new) == "onyxq.requeued.3.orders-2"


def beside_frames() -> Job:
    """Return a job with tasks before and after a query; a join has a stream, and a function that feeds the query."""
    return Job(
        id="orders",
        workflow=[
            *(("in", "q"), ("users", "q"), ("more", "clean"), ("clean", "q"), ("q", "parse"), ("parse", "out")),
            *(("parse", "count"), ("count", "counts"), ("parse", "pairs"), ("clean", "pairs"), ("pairs", "paired")),
        ],
        catalog=[
            Input("in", queue="in", schema="n int"),
            Input("users", format="json", path="/data/users", static=True),
            Input("more", queue="more"),
            Function("clean", "json:loads", dead_letters=False),
            Sql("q", "select n from `in` union all select n from clean", schema="n int"),
            Function("parse", "json:loads"),
            Reduce("count"),
            Join("pairs", left="parse", right="clean", on="n", keep_all=True),
            *(Output(name, queue=name) for name in ("out", "counts", "paired")),
        ],
        flow_conditions=[
            Condition("clean", to=["q"], when="json:loads"),
            Condition("parse", to=["out", "count", "pairs"], when="json:loads"),
        ],
        windows=[Window("w", "count", aggregation="count")],
        triggers=[Trigger("w")],
        lifecycles=[Lifecycle("clean", on_exception="restart"), Lifecycle("parse", before_batch="json:loads")],
        dead_letters=True,
    )


def test_tasks_after_frame_tasks_have_dead_letters_that_go_again_without_the_frames() -> None:
    """In the job that sends them, streams that read nothing take the place of the tasks that led to them."""
    old = beside_frames()
    check(decode(encode(old)))
    new = letters.requeued(old, id="orders-2")
    check(decode(encode(new)))
    nothing = "onyxq.requeued.nothing"
    assert new.catalog == (
        Input("clean", queue="onyxq.requeued.2.orders"), Input("q", queue=nothing), *old.catalog[5:],
    )  # fmt: skip
    assert new.before("parse") == ("q", "clean") and new.before("pairs") == ("parse", "clean")
    assert new.after("clean") == ("pairs", "parse", "count", "out", "counts", "paired")
    assert (new.flow_conditions, new.lifecycles) == (old.flow_conditions[1:], old.lifecycles[1:])
    assert (new.windows, new.triggers) == (old.windows, old.triggers)


@pytest.mark.parametrize("number", ["²", "x", ""])
def test_an_input_whose_name_only_begins_like_that_of_letters_is_an_ordinary_one(number: str) -> None:
    """A user may choose any name of a queue for an input. Its job is at its first attempt."""
    reader = Input("in", queue=f"onyxq.requeued.{number}.x")
    old = Job(id="orders", workflow=[("in", "out")], catalog=[reader, Output("out", queue="b")])
    assert letters.attempt_of(old) == 1


def test_a_preview_shows_dead_letters() -> None:
    """The function's changes are undone; a late segment and one without a key are the window's."""
    rows = [{"n": n, "at": at} for n, at in ((1, 0), (2, 5_000), (4, 100), (6, 5_900), (8, 5_500))]
    found = preview(job(dead_letters=True), {"in": rows}, batch_rows=2)
    assert found.letters == {
        "parse": [{"n": 1, "at": 0}],
        "count": [{"n": 2, "at": 100, "seen": True}],
        "out": [], "counts": [],
    }  # fmt: skip
    assert found.late == {"count": 1}
    assert sorted(one["key"] for one in found.outputs["counts"]) == [1, 3, 4]
    unkeyed = changed(job(dead_letters=True), "parse", fn=dict)
    assert preview(unkeyed, {"in": [{"at": 1}]}).letters["count"] == [{"at": 1}]
    with pytest.raises(ValueError, match="1 is odd"):
        preview(job(), {"in": rows})


# --- operations ---------------------------------------------------------------------


async def write(stage: Stage, made: list[dict[str, Any]], *, batch: int, own: bool = True) -> None:
    """Commit a batch of a job with dead letters, as its driver does."""
    known = stage.job("orders")
    output = QueueOutput(letters.queue_of("orders"), own=own)
    share = Share(
        partitions=await stage.client.partition_count(), now_ms=await stage.client.now_ms(), random_64=lambda: batch
    )
    for one in made:
        share.add(output, letters.stamped(one, job="orders", batch=batch, attempt=1), name="<letter>")
    name = f"job/orders/{known.version}/{batch}"
    prepared = await stage.client.prepare_batch(
        name=f"{name}/share", enqueue=share.take(), job="orders", version=known.version
    )
    await stage.client.commit_batch(
        name=f"{name}/commit", prepared=[prepared], job="orders", version=known.version, batch=batch, offsets=b"x"
    )


def letter(n: int, task: str = "parse", error: str = "ValueError") -> dict[str, Any]:
    """Return what a task makes of a segment at which it fails."""
    return letters.failed(task=task, way="", segment={**SEGMENT, "n": n}, error=(error, f"{n} is odd", "line 1"))


def named(stage_job: Job) -> Job:
    """Return the job with a function that is given by name."""
    return changed(stage_job, "parse", fn="pkg:halved")


def test_letters_are_listed_counted_and_shown() -> None:
    """Each with the batch that wrote it; filters, pages and unknown jobs."""

    async def play(stage: Stage) -> None:
        await submit(stage, named(job(dead_letters=True)))
        await stage.ready("orders")
        client = stage.client
        assert (await client.job_letters("orders"))["letters"] == []
        with pytest.raises(NotFound):
            await client.job_letters("other")
        late = letters.late(task="count", window="w", segment={"n": 9}, time_ms=5, watermark_ms=2_000)
        await write(stage, [letter(1), letter(3), letter(5, error="KeyError"), late], batch=0)
        found = (await client.job_letters("orders"))["letters"]
        assert sorted((one["task"], one["error"], unpack(one["packed"])["n"]) for one in found) == [
            ("count", "Late", 9), ("parse", "KeyError", 5), ("parse", "ValueError", 1), ("parse", "ValueError", 3),
        ]  # fmt: skip
        (said,) = (await client.job_letters("orders", task="count"))["letters"]
        assert (said["window"], said["time_ms"], said["watermark_ms"], said["batch"]) == ("w", 5, 2_000, 0)
        assert "the watermark of window w was 2000" in said["message"]
        counts = (await client.job_letters("orders", count=True))["counts"]
        assert [(one["task"], one["error"], one["count"]) for one in counts] == [
            ("count", "Late", 1), ("parse", "KeyError", 1), ("parse", "ValueError", 2),
        ]  # fmt: skip
        (one,) = (await client.job_letters("orders", error="KeyError: 5"))["letters"]
        (same,) = (await client.job_letters("orders", letter=one["id"]))["letters"]
        assert same == one and same["traceback"] == "line 1" and same["packed"] == pack({**SEGMENT, "n": 5})
        with pytest.raises(NotFound):
            await client.job_letters("orders", letter=one["id"][:-1] + b"\xff")
        seen, after = [], None
        while True:
            page = await client.job_letters("orders", limit=1, after=after)
            seen += page["letters"]
            if (after := page["after"]) is None:
                break
        assert seen == found

    on_stage(play, spark=(0,))


def test_letters_go_again_once() -> None:
    """Of several requests at once each letter is sent by one; a repeat changes nothing; the others stay."""

    async def play(stage: Stage) -> None:
        old = named(job(dead_letters=True))
        await submit(stage, old)
        await stage.ready("orders")
        await write(stage, [letter(n) for n in range(1, 61, 2)] + [letter(0, error="KeyError")], batch=0)
        client, answers = stage.client, []

        begun = stage.world.audit.replica.position

        async def ask() -> None:
            answers.append(await client.requeue_job("orders", task="parse", error="ValueError"))

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(ask)
        answers.append(await client.requeue_job("orders", error="ValueError"))
        (again,) = {one["id"] for one in answers}
        assert again.startswith("orders-requeue-")
        sent = [letters.letter_in(one.data).segment["n"] async for one in client.list_all("onyxq.requeued.2.orders")]
        assert sorted(sent) == list(range(1, 61, 2))
        assert [one["error"] for one in (await client.job_letters("orders"))["letters"]] == ["KeyError"]
        assert stage.job(again).sealed == ("in",)
        records = [decode_record(data) for _, _, data in (await client.call("log.raw", {"from": begun}))["records"]]
        made = [[entry.name for entry in one.entries] for one in records if one is not None]
        pairs = [names[at : at + 2] for names in made for at, name in enumerate(names) if name == "submit_job"]
        assert pairs and all(one == ["submit_job", "seal_input"] for one in pairs), "one record has both"
        assert decode(stage.job(again).body) == letters.requeued(old, id=again)
        left = (await client.job_letters("orders"))["letters"]
        with pytest.raises(BadRequest, match="id"):
            await client.requeue_job("orders", new_id="no.id")
        assert (await client.job_letters("orders"))["letters"] == left, "a refusal moves no letter"
        last = await client.requeue_job("orders", new_id="last")
        assert (last["id"], last["count"], last["more"]) == ("last", 1, False)

    on_stage(play, spark=(0,))


def test_a_requeue_that_was_cut_short_is_continued_by_the_next() -> None:
    """Letters wait for a job that was killed, and another one takes them; without letters there is no job."""

    async def play(stage: Stage) -> None:
        await submit(stage, named(job(dead_letters=True)))
        await stage.ready("orders")
        client = stage.client
        assert await client.requeue_job("orders") == {"id": None, "count": 0, "more": False}
        with pytest.raises(NotFound):
            await client.requeue_job("other")
        await write(stage, [letter(n) for n in (1, 3, 5)], batch=0)
        first = await client.requeue_job("orders", limit=2)
        assert (first["count"], first["more"]) == (2, True)
        await client.kill_job(first["id"])
        second = await client.requeue_job("orders")
        assert second["count"] == 1 and second["id"] != first["id"]
        await client.kill_job(second["id"])
        third = await client.requeue_job("orders")
        assert third["count"] == 0 and third["id"] not in (first["id"], second["id"])
        assert len([one async for one in client.list_all("onyxq.requeued.2.orders")]) == 3
        with pytest.raises(Conflict) as caught:
            await client.requeue_job("orders", new_id=first["id"])
        assert caught.value.field == "new_id"
        await write(stage, [letter(7, task="gone")], batch=1)
        with pytest.raises(Conflict, match="another job that had the id orders") as caught:
            await client.requeue_job("orders")
        assert caught.value.field == "task" and len((await client.job_letters("orders"))["letters"]) == 1

    on_stage(play, spark=(0,))


def test_a_letter_that_cannot_be_sent_stays_in_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader of one of the letters refuses it; the others go, and the next request sends this one too."""
    whole = Enqueueing.in_waves

    async def refusing_the_first(self: Enqueueing, args: Enqueue) -> list[Any]:
        stored = await whole(self, Enqueue(runs=args.runs[1:], w=args.w))
        return [Conflict("its partition takes no tasks now").to_map(), *stored]

    async def play(stage: Stage) -> None:
        await submit(stage, named(job(dead_letters=True)))
        await stage.ready("orders")
        await write(stage, [letter(n) for n in (1, 3, 5)], batch=0)
        client = stage.client
        with monkeypatch.context() as patch:
            patch.setattr(Enqueueing, "in_waves", refusing_the_first)
            with pytest.raises(Conflict, match="takes no tasks now"):
                await client.requeue_job("orders")
        assert len((await client.job_letters("orders"))["letters"]) == 1
        assert (await client.requeue_job("orders"))["count"] == 1
        sent = [letters.letter_in(one.data).segment["n"] async for one in client.list_all("onyxq.requeued.2.orders")]
        assert sorted(sent) == [1, 3, 5]

    on_stage(play, spark=(0,))


def test_letters_of_an_earlier_job_of_the_id_are_not_lost() -> None:
    """They still wait to be sent, and do not fit the new job: the request is refused until they are cancelled."""

    async def play(stage: Stage) -> None:
        client = stage.client
        await client.submit_job(named(job(dead_letters=True)), importable=False, keep_ms=0)
        await stage.ready("orders")
        await write(stage, [letter(1)], batch=0)
        again = await client.requeue_job("orders")
        await client.kill_job(again["id"])
        await client.kill_job("orders")
        node = stage.world.nodes[0].running
        assert node is not None and node.node is not None
        while any(one["id"] == "orders" for one in await client.jobs()):
            await node.node.verdicts([gc.Args()])
        await client.submit_job(changed(named(job()), "count", dead_letters=True), importable=False)
        await stage.ready("orders")
        with pytest.raises(Conflict, match="of task 'parse' of another job that had the id orders"):
            await client.requeue_job("orders")
        (waiting,) = [one async for one in client.list_all("onyxq.requeued.2.orders")]
        assert waiting.state == "ready"
        await client.cancel(waiting.id)
        assert await client.requeue_job("orders") == {"id": None, "count": 0, "more": False}

    on_stage(play, spark=(0,))


def test_letters_of_a_collected_job_are_refused_and_stay() -> None:
    """The definition of an ended job is not kept beyond a log collection. The error says so, and no letter moves."""

    async def play(stage: Stage) -> None:
        await submit(stage, named(job(dead_letters=True)))
        await stage.ready("orders")
        await write(stage, [letter(1)], batch=0)
        await stage.client.kill_job("orders")
        node = stage.world.nodes[0].inner
        assert node is not None
        await node.verdicts([gc.Args()])
        with pytest.raises(Conflict, match="its definition is not kept any more") as caught:
            await stage.client.requeue_job("orders")
        assert caught.value.field == "id"
        assert [one["task"] for one in (await stage.client.job_letters("orders"))["letters"]] == ["parse"]
        assert [one async for one in stage.client.list_all("onyxq.requeued.2.orders")] == []
        assert list(stage.world.audit.replica.jobs) == []

    on_stage(play, spark=(0,))


def test_only_the_job_writes_to_the_queue_of_its_letters() -> None:
    """Clients are refused, and so is the driver of another job."""

    async def play(stage: Stage) -> None:
        await submit(stage, named(job(dead_letters=True)))
        await submit(stage, evolve(named(job()), id="other"))
        await stage.ready("other")
        with pytest.raises(BadRequest, match=r"onyxq\.letters\.orders"):
            await stage.client.enqueue("onyxq.letters.orders", b"x")
        with pytest.raises(BadRequest, match=r"must not begin with onyxq\."):
            await write(stage, [letter(1)], batch=0, own=False)
        share = Share(partitions=await stage.client.partition_count(), now_ms=0, random_64=lambda: 1)
        share.add(QueueOutput("onyxq.letters.orders", own=True), b"x", name="<letter>")
        with pytest.raises(BadRequest) as caught:
            await stage.client.prepare_batch(
                name="share", enqueue=share.take(), job="other", version=stage.job("other").version
            )
        assert caught.value.field == "enqueue[0].queue"

    on_stage(play, spark=(0,))


def test_the_definition_of_a_job_shows_its_setting() -> None:
    """Jobs without it have the bytes that they had, so their digests stay."""
    assert b"dead_letters" not in encode(named(job()))
    assert decode(encode(named(job(dead_letters=True)))).dead_letters
