"""A replay reads inputs of another job again; what cannot be read again or would double outputs is refused by name."""

from __future__ import annotations

import base64
from typing import Any

import msgpack
import pytest
from attrs import evolve

from log_entries import commit_batch
from onyxq.errors import BadRequest, Conflict, NotFound
from onyxq.jobs.encoding import decode
from onyxq.jobs.job_check import check
from onyxq.jobs.model import Input, Job, Output, Reduce, Task, Trigger, Window
from onyxq.jobs.replays import check_replay, places_in, replayed
from onyxq.node.jobs import past_batches
from tests.jobs.driving_world import Stage, on_stage, submit

KAFKA = Input("clicks", format="kafka", options={"subscribe": "clicks", "startingOffsets": "latest"})
OUTPUTS: tuple[Task, ...] = (
    Output("tasks", queue="large"),
    Output("files", format="json", path="/data/out"),
    Output("rows", format="postgres", path="/hidden", options={"url": "x", "table": "totals", "schema": "n bigint"}),
    Output("messages", format="kafka", path="/hidden", options={"brokers": "k:9092", "topic": "alerts"}),
    Output("calls", foreach_batch="m:charge", path="/hidden"),
)
ELSEWHERE = {"tasks": "again", "files": "/data/again", "rows": "totals_again", "messages": "alerts-again"}


def job(*inputs: Task, outputs: tuple[Task, ...] = OUTPUTS, **more: Any) -> Job:
    """Return a job from the inputs through a window to the outputs."""
    names = [task.name for task in outputs]
    edges = [*((task.name, "count") for task in inputs), *(("count", name) for name in names)]
    return Job(
        id="old", workflow=edges, catalog=[*inputs, Reduce("count"), *outputs],
        windows=[Window("all", "count", aggregation="count")], triggers=[Trigger("all")], **more,
    )  # fmt: skip


def files(**more: Any) -> Input:
    """Return an input of files."""
    return Input("lines", format="text", path="/data/in", **more)


def again(old: Job, *, same_outputs: bool = False, **said: Any) -> Job:
    """Return the replay of a job."""
    said = {"since_ms": None, "outputs": {}, **said}
    check_replay(old, same_outputs=same_outputs, **said)
    return replayed(old, id=None, **said)


def record(place: bytes, **more: Any) -> bytes:
    """Return what a driver records with a batch."""
    return bytes(msgpack.packb({"offsets": place, "mark": "of files", "inputs": ["lines"], "sources": b"", **more}))


def test_a_replay_is_the_same_job_with_other_places() -> None:
    """All kinds of outputs move, inputs begin at a time, and nothing is taken over from any job."""
    static = Input("users", format="parquet", path="/data/users", static=True)
    old = job(files(), KAFKA, static, resume="older", drop_state=["w"], metadata={"team": "a"})
    new = again(old, since_ms=5_000, outputs=ELSEWHERE, same_outputs=True)
    assert new.catalog[:3] == (files(since_ms=5_000), evolve(KAFKA, options={"subscribe": "clicks"}, since_ms=5_000),
                               static)  # fmt: skip
    moved = {task.name: task for task in new.catalog if isinstance(task, Output)}
    assert (moved["tasks"].queue, moved["files"].path) == ("again", "/data/again")
    assert (moved["rows"].options["table"], moved["messages"].options["topic"]) == ("totals_again", "alerts-again")
    assert moved["calls"] == OUTPUTS[-1]
    assert (new.resume, new.drop_state) == (None, ())
    assert evolve(new, id=old.id, catalog=old.catalog, resume="older", drop_state=["w"]) == old


def test_a_replay_from_the_start_reads_all_that_is_left() -> None:
    """Kafka begins with its oldest message, not with the next one; an earlier bound in time is dropped."""
    new = again(job(files(since_ms=7), KAFKA), same_outputs=True)
    assert new.catalog[:2] == (files(), evolve(KAFKA, options={"subscribe": "clicks", "startingOffsets": "earliest"}))


def test_the_id_of_a_replay_follows_from_the_request() -> None:
    """So a repeat changes nothing, and another replay of the same job has another id."""
    old = job(files())
    first, other = (again(old, same_outputs=True, since_ms=since_ms).id for since_ms in (None, 5))
    assert first.startswith("old-replay-") and first != other
    assert again(old, same_outputs=True).id == first
    check(again(evolve(old, id="x" * 100), same_outputs=True))


@pytest.mark.parametrize(
    ("old", "said", "field", "what"),
    [
        (job(Input("orders", queue="q")), {"same_outputs": True}, "id", "input 'orders' is the queue 'q': its tasks"),
        (
            job(Input("n", format="rate")),
            {"same_outputs": True, "since_ms": 1},
            "from_ms",
            "input 'n' of job old is rate",
        ),
        (job(files()), {}, "outputs", "output 'tasks': queue 'large' would get its tasks again"),
        (job(files()), {"outputs": {**ELSEWHERE}}, "outputs", "output 'calls': its function would be called again"),
        (job(files()), {"outputs": {"flies": "/x"}, "same_outputs": True}, "outputs", "did you mean files"),
        (
            job(files()),
            {"outputs": {"calls": "/x"}, "same_outputs": True},
            "outputs",
            "'calls', which calls a function",
        ),
        *(
            (job(files(), KAFKA), {"outputs": {name: place}, "same_outputs": True}, "outputs", what)
            for name, place, what in (
                ("files", "/data/out", "output 'files' ('/data/out'): leave it out"),
                ("files", "/data/out/b/", "where job old has output 'files'"),
                ("files", "/data", "output 'files' ('/data/out')"),
                ("files", "file:///data/x/../out", "where job old has output 'files'"),
                ("files", "/data//out", "where job old has output 'files'"),
                ("files", "/data/in/new", "which input 'lines' reads"),
                ("rows", "public.totals", "where job old has output 'rows'"),
                ("messages", "clicks", "which input 'clicks' reads"),
            )
        ),
    ],
)
def test_what_cannot_be_replayed_is_refused(old: Job, said: dict[str, Any], field: str, what: str) -> None:
    """The error names the input or output, and the reason."""
    with pytest.raises(BadRequest, match="(?s).*") as caught:
        again(old, **said)
    assert caught.value.field == field
    assert what in caught.value.message


@pytest.mark.parametrize(
    ("source", "output", "place"),
    [
        (Input("read", format="text", path="/data/*/in"), "files", "/data/new/in"),
        (Input("read", format="text", path="/data/in-{a,b}*"), "files", "/data/in-b2/again"),
        (Input("read", format="text", path="/data/in-[^a-z]/x"), "files", "/data/in-7"),
        (Input("read", format="text", path="/data/{a,b/c}"), "files", "/data/b/c/again"),
        (Input("read", format="text", path="/data/{a,{b,c}}-in"), "files", "/data/c-in"),
        (Input("read", format="text", path="/data{/a,/{b,c/d}}"), "files", "/data/b"),
        (Input("read", format="kafka", options={"assign": '{"clicks": [0, 1], "more": [2]}'}), "messages", "more"),
    ],
)
def test_places_that_a_pattern_or_partitions_of_an_input_read_are_refused(
    source: Input, output: str, place: str
) -> None:
    """The replay would read what it writes, without an end."""
    with pytest.raises(BadRequest, match="which input 'read' reads"):
        again(job(source), outputs={output: place}, same_outputs=True)
    assert again(job(source), outputs={output: "/other" if output == "files" else "others"}, same_outputs=True)


def test_the_place_of_an_output_is_not_a_pattern() -> None:
    """Its files are in the folder of that name only."""
    old = job(files(), outputs=(Output("files", format="json", path="/data/out[12]"),))
    assert again(old, outputs={"files": "/data/out1"})
    with pytest.raises(BadRequest, match="where job old has output 'files'"):
        again(old, outputs={"files": "/data/out[12]/new"})


def test_each_output_without_a_choice_is_named() -> None:
    """The details have all of them, each with what would happen to its place."""
    with pytest.raises(BadRequest) as caught:
        again(job(files()), outputs={"tasks": "again"})
    said = [what for _, what in caught.value.details]
    assert [name for name in ("files", "rows", "messages", "calls") for one in said if f"output {name!r}" in one] == [
        "files", "rows", "messages", "calls",
    ]  # fmt: skip


def test_a_replay_runs_beside_its_job_and_a_repeat_changes_nothing() -> None:
    """The log has a second job without a place in its inputs; refused requests leave nothing in the log."""

    async def play(stage: Stage) -> None:
        old = job(files(), outputs=OUTPUTS[:2])
        await submit(stage, old)
        await stage.ready("old")
        for said, field in (
            ({"from_start": True}, "outputs"),
            ({"same_outputs": True}, "from_ms"),
            ({"from_start": True, "from_ms": 5, "same_outputs": True}, "from_ms"),
            ({"from_ms": 200_000_000_000_000, "same_outputs": True}, "from_ms"),
        ):
            with pytest.raises(BadRequest) as caught:
                await stage.client.replay_job("old", **said)
            assert caught.value.field == field
        with pytest.raises(NotFound):
            await stage.client.replay_job("other", from_start=True, same_outputs=True)
        assert list(stage.world.audit.replica.jobs) == ["old"]
        outputs = {"tasks": "again", "files": "/data/again"}
        names = [await stage.client.replay_job("old", from_ms=5_000, outputs=outputs) for _ in range(2)]
        assert names[0] == names[1]
        await stage.ready(names[0])
        new = stage.job(names[0])
        assert (new.batch, new.offsets, stage.job("old").state) == (-1, b"", "running")
        assert decode(new.body) == again(old, since_ms=5_000, outputs=outputs)

    on_stage(play, spark=(0,))


async def commit(stage: Stage, name: str, batch: int, place: bytes) -> None:
    """Commit a batch as the job's driver does."""
    args = commit_batch.Args(name, stage.job(name).version, batch, record(place), ())
    await stage.world.nodes[0].running.node.verdicts([args])  # type: ignore[union-attr]


def test_a_replay_begins_where_a_batch_of_its_job_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its driver gets the places before that batch, without state; a batch of a replaced driver does not count.

    A search of the log that takes too long is given up, and nothing is submitted.
    """

    async def play(stage: Stage) -> None:
        await submit(stage, job(files(), outputs=OUTPUTS[:2]))
        await stage.ready("old")
        for batch in range(3):
            stale = commit_batch.Args("old", stage.job("old").version - 1, batch, record(b"stale"), ())
            await stage.world.nodes[0].running.node.verdicts([stale])  # type: ignore[union-attr]
            await commit(stage, "old", batch, b"after %d" % batch)
        for batch, said in ((0, "it has 1 to 2"), (3, "it has 1 to 2")):
            with pytest.raises(BadRequest, match=said) as caught:
                await stage.client.replay_job("old", from_batch=batch, same_outputs=True)
            assert caught.value.field == "from_batch"
        one, two = [await stage.client.replay_job("old", from_batch=batch, same_outputs=True) for batch in (1, 2)]
        assert one != two and await stage.client.replay_job("old", from_batch=1, same_outputs=True) == one
        await stage.ready(two)
        places = places_in(record(b"after 1"))
        assert (stage.job(two).batch, stage.job(two).offsets) == (-1, places)
        (start,) = [order for order in stage.link(two).told("start") if order["job"] == two]
        assert start["resumed"]["state"] == "completed" and base64.b64decode(start["resumed"]["offsets"]) == places
        monkeypatch.setattr(past_batches, "SEARCH_S", 0)
        with pytest.raises(Conflict, match="not found in the log within 0 s") as late:
            await stage.client.replay_job("old", from_batch=2, same_outputs=True, new_id="late")
        assert late.value.field == "from_batch" and "late" not in stage.world.audit.replica.jobs

    on_stage(play, spark=(0,))


@pytest.mark.parametrize(
    ("lacking", "said"), [("sources", "more files by then"), ("inputs", "does not name the places")]
)
def test_a_batch_whose_record_lacks_places_cannot_be_replayed(lacking: str, said: str) -> None:
    """The error gives the reason."""
    with pytest.raises(BadRequest, match=said) as caught:
        places_in(record(b"there", **{lacking: None}))
    assert caught.value.field == "from_batch"
