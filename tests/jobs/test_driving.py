"""A job is driven by one peer at a time, from its submission to its end, whatever process dies."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
import trio

from log_entries import commit_batch, drain_node, set_slots
from onyxq import HostSettings
from onyxq.jobs import encoding
from onyxq.node.jobs.held_claims import worker_name
from simulation.world.world import World
from tests.jobs.driving_world import SLOTS, Stage, completion, job_of, on_stage, submit


def test_a_job_is_started_at_its_drivers_host_and_completes() -> None:
    """The host gets what the log knows of the job, and its reports get into the log."""

    async def play(stage: Stage) -> None:
        await submit(stage)
        await stage.ready()
        (start,) = stage.link().told("start")
        job = stage.job()
        assert (start["job"], start["version"], start["slots"]) == ("j", job.version, job.slots)
        assert (start["batch"], start["offsets"], start["sealed"]) == (-1, "", [])
        assert encoding.decode(base64.b64decode(start["body"])) == job_of()
        assert sum(len(hosts.links) for hosts in stage.hosts.values()) == 1
        stage.say("completed")
        assert (await stage.ended()).state == "completed"

    on_stage(play)


def test_what_changes_while_a_job_runs_is_passed_on() -> None:
    """The host learns of a sealed input, and of slots that the job loses or gets."""

    async def play(stage: Stage) -> None:
        await submit(stage)
        await stage.ready()
        link = stage.link()
        await stage.client.seal_job("j", "in")
        await stage.until(lambda: bool(link.told("seal")), "the seal is passed on")
        assert link.told("seal")[0]["input"] == "in"
        assert stage.job().slots == 4
        await submit(stage, job_of("k"))
        await stage.ready("k")
        await stage.until(lambda: bool(link.told("slots")), "the slots are passed on")
        assert link.told("slots")[-1]["slots"] == stage.job().slots == 2
        assert stage.hosts_of("k") is stage.hosts_of("j") and len(stage.hosts_of().links) == 1

    on_stage(play, spark=(0,))


def test_a_job_starts_again_after_the_death_of_its_host() -> None:
    """It restarts under the same version from the log's state, and does not count as failed."""

    async def play(stage: Stage) -> None:
        await submit(stage)
        await stage.ready()
        version, first = stage.job().version, stage.link()
        await stage.client.seal_job("j", "in")
        first.die()
        await stage.until(lambda: stage.link() is not first and bool(stage.link().told("start")), "it starts again")
        (start,) = stage.link().told("start")
        assert (start["version"], start["sealed"]) == (version, ["in"])
        assert (stage.job().version, stage.job().state) == (version, "running")
        told = await stage.client.job("j")
        assert told["progress"]["failures"] == 1 and "killed" in told["progress"]["error"]

    on_stage(play)


def test_a_job_that_fails_too_often_in_a_row_has_failed() -> None:
    """The error has the task, the segment and the traceback."""

    async def play(stage: Stage) -> None:
        await submit(stage, restarts=2)
        for number in range(1, 4):
            await stage.until(lambda n=number: len(stage.hosts_of().told("start")) == n, f"start {number}")
            stage.say(
                "failed",
                error="ValueError: no number",
                task="work",
                segment="{'x': 'ä'}",
                traceback="Traceback: line 7",
                restart=True,
            )
        job = await stage.ended()
        assert job.state == "failed"
        assert job.why == "ValueError: no number\ntask: work\nsegment: {'x': 'ä'}\nTraceback: line 7"
        outcome = await stage.client.wait_job("j", 0)
        assert (outcome.state, outcome.error) == ("failed", job.why)

    on_stage(play)


def test_failures_with_progress_between_them_are_not_in_a_row() -> None:
    """A job that makes progress is started again each time."""

    async def play(stage: Stage) -> None:
        await submit(stage, restarts=1)
        for number in range(1, 6):
            await stage.until(lambda n=number: len(stage.hosts_of().told("start")) == n, f"start {number}")
            stage.say("progress", progress={"batch": number, "rows": 10})
            stage.say("failed", error="bad luck", restart=True)
        await stage.until(lambda: len(stage.hosts_of().told("start")) == 6, "it starts again")
        assert stage.job().state == "running"

    on_stage(play)


def test_a_failure_that_no_start_can_cure_ends_the_job_at_once() -> None:
    """The host reports it, as for a policy that kills the job."""

    async def play(stage: Stage) -> None:
        await submit(stage)
        await stage.ready()
        stage.say("failed", error="x" * 20_000, traceback="the end", restart=False)
        job = await stage.ended()
        assert (job.state, sum(len(one.told("start")) for one in stage.hosts.values())) == ("failed", 1)
        assert len(job.why.encode()) <= 8 << 10 and job.why.endswith("the end")

    on_stage(play)


def test_a_host_that_cannot_be_started_fails_its_jobs_with_the_reason() -> None:
    """They fail after as many attempts as the job allows."""

    async def play(stage: Stage) -> None:
        for hosts in stage.hosts.values():
            hosts.refusals = ["no memory for Java"] * 3
        await submit(stage, restarts=2)
        job = await stage.ended()
        assert (job.state, job.why) == ("failed", "no memory for Java")
        assert not any(hosts.links for hosts in stage.hosts.values())

    on_stage(play)


def test_hosts_that_never_come_up_fail_their_jobs() -> None:
    """Each host that does not come up counts as a failure in the row, however long that takes."""

    async def play(stage: Stage) -> None:
        for hosts in stage.hosts.values():
            hosts.up_by_themselves = False
        await submit(stage, restarts=1)
        await stage.until(lambda: stage.job().state == "running", "it has a driver")
        hosts = stage.hosts_of()
        await stage.world.until(lambda: stage.job().state == "failed", "it has failed", within_s=600)
        assert "not up within" in stage.job().why and len(hosts.links) == 2

    on_stage(play)


def test_a_failure_after_a_long_run_is_the_first_of_a_row() -> None:
    """After an hour a job may fail once more, even if no batch was committed meanwhile."""

    async def play(stage: Stage) -> None:
        await submit(stage, restarts=1)
        for number in range(1, 4):
            await stage.until(lambda n=number: len(stage.hosts_of().told("start")) == n, f"start {number}")
            await trio.sleep(100)
            stage.say("failed", error="bad luck", restart=True)
        await stage.until(lambda: len(stage.hosts_of().told("start")) == 4, "it starts again")
        stage.say("failed", error="no luck at all", restart=True)
        assert (await stage.ended()).why == "no luck at all"

    on_stage(play)


def test_a_killed_job_is_stopped_at_its_host() -> None:
    """Its host continues for other jobs."""

    async def play(stage: Stage) -> None:
        await submit(stage)
        await stage.ready()
        link = stage.link()
        assert (await stage.client.kill_job("j"))["state"] == "killed"
        await stage.until(lambda: bool(link.told("stop")), "it is stopped")
        assert link.running
        await submit(stage, job_of("k"))
        await stage.ready("k")

    on_stage(play, spark=(0,))


def test_another_peer_takes_over_when_the_drivers_peer_dies() -> None:
    """The new driver has a higher version; the dead peer's host has ended too."""

    async def play(stage: Stage) -> None:
        await submit(stage)
        await stage.ready()
        old, version, link = stage.driver(), stage.job().version, stage.link()
        await stage.world.crash_node(old)
        await stage.until(lambda: stage.job().version > version and stage.job().ready, "another one drives it")
        assert stage.driver() is not old and not link.running
        (start,) = stage.link().told("start")
        assert start["version"] == stage.job().version > version
        await stage.world.bring_back(old)

    on_stage(play)


def test_the_next_driver_starts_its_host_before_the_log_says_that_it_drives() -> None:
    """It does so while the lost peer's session is still valid; no other peer starts a host."""

    async def play(stage: Stage) -> None:
        await submit(stage)
        await stage.ready()
        old, version = stage.driver(), stage.job().version
        await stage.world.crash_node(old)
        others = [hosts for name, hosts in stage.hosts.items() if name != old.name]
        await stage.until(lambda: any(hosts.alive for hosts in others), "a host is started")
        assert stage.job().version == version
        await stage.until(lambda: stage.job().version > version and stage.job().ready, "it is taken over")
        assert [len(hosts.links) for hosts in others] in ([0, 1], [1, 0])
        assert len(stage.hosts_of().links) == 1
        await stage.world.bring_back(old)

    on_stage(play)


def test_a_peer_that_leaves_hands_its_jobs_over() -> None:
    """As on SIGTERM, the job is stopped on the leaving peer."""

    async def play(stage: Stage) -> None:
        await submit(stage)
        await stage.ready()
        old, version = stage.driver(), stage.job().version
        await stage.world.stop_node(old)
        await stage.until(lambda: stage.job().version > version and stage.job().ready, "another one drives it")
        assert not stage.hosts[old.name].alive

    on_stage(play)


def test_a_driver_that_was_replaced_cannot_end_the_job() -> None:
    """A replaced driver without contact cannot complete the job, whatever its host reports."""

    async def play(stage: Stage) -> None:
        await submit(stage)
        await stage.ready()
        old, version, link = stage.driver(), stage.job().version, stage.link()
        stage.world.disconnect_log(old)
        link.say("completed", "j", version)
        await stage.until(lambda: stage.job().version > version and stage.job().ready, "another one drives it")
        stage.world.reconnect_log(old)
        await stage.world.settle()
        node = stage.driver().running
        assert node is not None and node.node is not None
        _, verdicts = await node.node.verdicts([completion(stage, "j", version)])
        assert verdicts == ["superseded"]
        assert stage.job().state == "running"
        await stage.until(lambda: bool(link.told("stop")) or not link.running, "the old one is stopped")

    on_stage(play)


def test_a_job_with_a_host_of_its_own_shares_none() -> None:
    """Its host has as many threads as the job has slots, and is replaced when these change."""

    async def play(stage: Stage) -> None:
        await submit(stage, own_host=True)
        await stage.ready()
        own = stage.link()
        assert own.plan.slots == 4 and own.plan.work.endswith("spark/jobs/j")
        await submit(stage, job_of("k"))
        await stage.ready("k")
        await stage.until(lambda: len(stage.hosts_of().alive) == 2 and not own.running, "another own host")
        alive = {link.plan.work.rpartition("/")[2]: link.plan.slots for link in stage.hosts_of().alive}
        assert alive == {"j": 2, "spark": 4}
        assert (await stage.client.job("j"))["progress"]["failures"] == 0
        await stage.client.kill_job("j")
        await stage.until(lambda: len(stage.hosts_of("k").alive) == 1, "the own host ends with its job")

    on_stage(play, spark=(0,))


def test_a_host_of_a_job_starts_with_the_settings_of_the_job() -> None:
    """Each start has them, and the host of other jobs has none of them."""

    async def play(stage: Stage) -> None:
        await submit(stage, own_host=True, host=HostSettings(executor_memory="4g", packages=["a:b:1"]))
        await stage.ready()
        await submit(stage, job_of("k"))
        await stage.ready("k")
        wanted = {"spark.executor.memory": "4g", "spark.jars.packages": "a:b:1"}
        await stage.until(lambda: len(stage.hosts_of().alive) == 2, "another own host")
        links = stage.hosts_of().links
        assert len(links) == 3
        assert all(link.plan.conf == (wanted if link.plan.work.endswith("/j") else {}) for link in links)

    on_stage(play, spark=(0,))


@pytest.mark.parametrize("own_host", [False, True])
def test_the_checkpoint_of_a_job_that_has_ended_is_deleted_by_its_host(own_host: bool) -> None:
    """This is done on any peer, not before the log has recorded the end, and not by a replaced driver."""

    async def play(stage: Stage) -> None:
        await submit(stage, own_host=own_host)
        await stage.ready()
        old, version, first = stage.driver(), stage.job().version, stage.hosts_of()
        await stage.world.stop_node(old)
        await stage.until(lambda: stage.job().version > version and stage.job().ready, "another one drives it")
        assert first.told("forget") == []
        hosts = stage.hosts_of()
        await stage.client.kill_job("j")
        await stage.until(lambda: bool(hosts.told("forget")), "the checkpoint is forgotten")
        (order,) = hosts.told("forget")
        assert (order["job"], order["version"]) == ("j", stage.job().version)
        assert encoding.decode(base64.b64decode(order["body"])) == job_of(own_host=own_host)
        assert [one["do"] for one in hosts.last.orders][-2:] == ["stop", "forget"]

    on_stage(play)


def test_a_job_that_waits_for_slots_keeps_its_checkpoint() -> None:
    """The only peer with slots removes them for a while: the job stops and its state is kept."""

    async def play(stage: Stage) -> None:
        await submit(stage)
        await stage.ready()
        driver, version, link = stage.driver(), stage.job().version, stage.link()
        node = driver.running
        assert node is not None and node.node is not None and driver.peer_id is not None
        for slots in (0, SLOTS):
            _, verdicts = await node.node.verdicts([set_slots.Args(driver.peer_id, slots)])
            assert verdicts == ["applied"]
            if not slots:
                assert stage.job().state == "waiting"
                await stage.until(lambda: bool(link.told("stop")), "it is stopped")
        await stage.ready()
        assert stage.job().version > version and stage.driver() is driver
        assert stage.hosts_of().told("forget") == []

    on_stage(play, spark=(0,))


def test_jobs_that_share_a_host_are_not_blamed_for_its_first_death() -> None:
    """Both restart without a failure; the job that then dies with the host during its trial has one."""

    async def play(stage: Stage) -> None:
        for name in ("j", "k"):
            await submit(stage, job_of(name, restarts=0))
            await stage.ready(name)
        first = stage.link()
        assert first is stage.link("k")
        first.die("out of memory")
        await stage.until(lambda: len(stage.link().told("start")) == 1, "one of them is tried")
        (tried,) = (order["job"] for order in stage.link().told("start"))
        other = "k" if tried == "j" else "j"
        told = await stage.client.job(tried)
        assert (told["state"], told["progress"]["failures"]) == ("running", 0)
        assert told["progress"]["error"] == "out of memory"
        stage.link().die("out of memory again")
        assert (await stage.ended(tried)).why == "out of memory again"
        await stage.until(lambda: len(stage.link(other).told("start")) == 1, "the other one begins")
        assert stage.job(other).state == "running"

    on_stage(play, spark=(0,))


def test_what_ended_jobs_left_on_the_disk_is_deleted(tmp_path: Path) -> None:
    """Checkpoints and directories of ended jobs' hosts are deleted, not those of running jobs, here or elsewhere."""
    kept = [tmp_path / f"n{number}/spark/{folder}/j" for number in range(3) for folder in ("checkpoints", "jobs")]
    old = tmp_path / "n0/spark/checkpoints/old"
    other = tmp_path / "n0/spark/host.log"

    async def play(stage: Stage) -> None:
        await submit(stage)
        await stage.ready()
        for place in (*kept, old):
            (place / "7/offsets").mkdir(parents=True)
        other.write_text("not of a job")
        await stage.until(lambda: not old.exists(), "what nobody knows is gone")
        assert all(place.exists() for place in kept)
        stage.say("completed")
        await stage.ended()
        await stage.until(lambda: not any(place.exists() for place in kept), "what it left is gone")
        assert other.exists()

    on_stage(play, data=tmp_path)


# --- claims


async def claim_as(stage: Stage, version: int, count: int) -> list[int]:
    """Claim tasks as a driver of that version; return their tokens."""
    claims = await stage.client.claim("a", max=count, lease_ms=60_000, wait_ms=10_000, worker=worker_name("j", version))
    assert len(claims) == count
    return sorted({claim.token for claim in claims})


def claimed(world: World) -> dict[str, int]:
    """Return how many tasks each worker has claimed."""
    found: dict[str, int] = {}
    for stretches in world.audit.replica.claims.values():
        for pieces in stretches.values():
            for _, count, _, worker, _ in pieces:
                found[worker] = found.get(worker, 0) + count
    return found


@pytest.mark.long
def test_the_claims_of_a_running_job_are_renewed() -> None:
    """They last far beyond their lease; claims of others expire as usual."""

    async def play(stage: Stage) -> None:
        await stage.client.enqueue_many("a", [b"x"] * 20)
        await submit(stage)
        await stage.ready()
        await claim_as(stage, stage.job().version, 10)
        await stage.client.claim("a", max=10, lease_ms=60_000, worker="somebody")
        await trio.sleep(400)
        assert claimed(stage.world) == {worker_name("j", stage.job().version): 10}

    on_stage(play)


def test_the_claims_of_a_killed_job_are_given_back() -> None:
    """They are released soon, before their leases expire."""

    async def play(stage: Stage) -> None:
        await stage.client.enqueue_many("a", [b"x"] * 10)
        await submit(stage)
        await stage.ready()
        await claim_as(stage, stage.job().version, 10)
        await stage.client.kill_job("j")
        began = trio.current_time()
        await stage.until(lambda: not claimed(stage.world), "the claims are given back")
        assert trio.current_time() - began < 10

    on_stage(play)


def test_the_claims_of_an_earlier_driver_are_given_back_before_the_job_starts() -> None:
    """So the next driver can read the tasks of the uncommitted batch."""

    async def play(stage: Stage) -> None:
        await stage.client.enqueue_many("a", [b"x"] * 10)
        await submit(stage)
        await stage.ready()
        version = stage.job().version
        await claim_as(stage, version, 10)
        await stage.world.crash_node(stage.driver())
        await stage.until(lambda: stage.job().version > version and stage.job().ready, "another one drives it")
        await stage.world.settle()
        await claim_as(stage, stage.job().version, 10)
        assert claimed(stage.world) == {worker_name("j", stage.job().version): 10}

    on_stage(play)


def test_the_claims_of_the_next_driver_stay_when_the_one_before_it_ends() -> None:
    """The earlier driver's query takes a while to stop."""

    async def play(stage: Stage) -> None:
        await stage.client.enqueue_many("a", [b"x"] * 10)
        await submit(stage)
        await stage.ready()
        old, version, link = stage.driver(), stage.job().version, stage.link()
        link._answer = lambda link, order: None
        assert old.running is not None and old.running.node is not None
        await old.running.node.verdicts([drain_node.Args(old.node_id, permanent=False)])
        await stage.until(lambda: stage.job().version > version and stage.job().ready, "another one drives it")
        await claim_as(stage, stage.job().version, 10)
        assert link.told("stop")
        link.say("stopped", "j", version)
        await trio.sleep(5)
        assert claimed(stage.world) == {worker_name("j", stage.job().version): 10}

    on_stage(play)


def test_what_a_host_had_claimed_is_given_back_before_it_starts_anew() -> None:
    """The batch is planned again and does not use the earlier claims."""

    async def play(stage: Stage) -> None:
        await stage.client.enqueue_many("a", [b"x"] * 10)
        await submit(stage)
        await stage.ready()
        await claim_as(stage, stage.job().version, 10)
        first = stage.link()
        first.die()
        await stage.until(lambda: stage.link() is not first and bool(stage.link().told("start")), "it starts again")
        await stage.until(lambda: not claimed(stage.world), "the claims are given back")
        await claim_as(stage, stage.job().version, 10)

    on_stage(play)


@pytest.mark.long
def test_a_claim_that_no_batch_knows_of_is_given_back_while_the_host_has_nothing_to_do() -> None:
    """The answer of the claim may be lost; the host is asked while no batch is running."""

    async def play(stage: Stage) -> None:
        await stage.client.enqueue_many("a", [b"x"] * 10)
        await submit(stage)
        await stage.ready()
        await claim_as(stage, stage.job().version, 10)
        await trio.sleep(200)
        assert sum(claimed(stage.world).values()) == 10
        assert len(stage.link().told("idle")) == 1  # one question at a time
        stage.say("idle")
        await stage.until(lambda: not claimed(stage.world), "the claims are given back")
        await claim_as(stage, stage.job().version, 10)
        stage.say("idle")  # an answer without a question: later claims stay
        await trio.sleep(200)
        assert sum(claimed(stage.world).values()) == 10

    on_stage(play)


def test_a_claim_that_a_later_commit_left_behind_is_given_back() -> None:
    """Batches are planned in order: a claim from before a commit belongs to that batch, or is lost."""

    async def play(stage: Stage) -> None:
        await stage.client.enqueue_many("a", [b"x"] * 20)
        await submit(stage)
        await stage.ready()
        version = stage.job().version
        await claim_as(stage, version, 10)
        node = stage.driver().running
        assert node is not None and node.node is not None
        _, verdicts = await node.node.verdicts([commit_batch.Args("j", version, 0, b"so far", ())])
        assert verdicts == ["applied"]
        (token,) = await claim_as(stage, version, 10)
        await trio.sleep(100)
        held = {
            piece[2] for found in stage.world.audit.replica.claims.values() for ps in found.values() for piece in ps
        }
        assert held == {token} and claimed(stage.world) == {worker_name("j", version): 10}

    on_stage(play)


@pytest.mark.parametrize("seed", range(3))
def test_a_driver_without_the_log_goes_on_once_it_is_back(seed: int) -> None:
    """Reports of its host meanwhile are appended then."""

    async def play(stage: Stage) -> None:
        await submit(stage)
        await stage.ready()
        stage.world.log_down()
        stage.say("completed")
        await trio.sleep(20)
        stage.world.log_up()
        assert (await stage.ended()).state == "completed"

    on_stage(play, seed=seed)
