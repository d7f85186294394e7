"""What jobs must do, said once more and as simply as can be (design: jobs on Spark, simulation).

The model knows each job by what was said of it: submitted, sealed, committed, ended.  Every entry
about jobs must have the verdict that the model finds.  Who drives which job is the replica's to
say; `simulation.search.jobs_places` judges that.  It shares no code with the entries.
"""

from __future__ import annotations

from typing import Any, ClassVar

from attrs import define, evolve, field

from log_entries import (
    commit_batch,
    complete_job,
    driver_ready,
    fail_job,
    gc,
    kill_job,
    replace_job,
    seal_input,
    submit_job,
)
from onyxq.core.entry import APPLIED
from onyxq.core.replica import Replica
from onyxq.core.step import NOT_IN_RING, Outcome, Step
from simulation.checkers import Model
from simulation.probes import Probes
from simulation.search.jobs_places import Asked, Places

SAID_BY_DRIVERS = (driver_ready.Args, complete_job.Args, fail_job.Args, commit_batch.Args)
JOB_ENTRIES = (submit_job.Args, replace_job.Args, seal_input.Args, kill_job.Args, *SAID_BY_DRIVERS)
STATE_KEEP_MS_MIN = 86_400_000
"""How long the outcome of a job is kept at least whose state another job takes over, in ms."""


@define
class Known:
    """What was said of a job."""

    asked: Asked
    digest: bytes
    keep_ms: int
    state: str = ""
    """How it ended; empty before."""
    ended_ms: int = -1
    sealed: set[str] = field(factory=set)
    batch: int = -1
    offsets: bytes = b""
    ready_at: int = -1
    """The version under which it was said to run."""


@define(eq=False)
class JobsModel(Model):
    """See the module's first paragraph."""

    name: ClassVar[str] = "jobs"
    probes: Probes
    known: dict[str, Known] = field(factory=dict)
    outcomes: dict[str, tuple[bytes, str, int]] = field(factory=dict)
    """Of jobs that a collection took: digest, how it ended, until when that is remembered."""
    forgotten: set[str] = field(factory=set)
    submitted: int = 0
    heirs: dict[str, str] = field(factory=dict)
    """Jobs that this record submitted in place of others, and these others."""
    places: Places = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.places = Places(self.probes)

    def follow(self, before: Replica, done: Step) -> str:
        """See `Model.follow`."""
        moving = 0
        self.heirs = {}
        for outcome in done.outcomes:
            if isinstance(outcome.args, JOB_ENTRIES) and outcome.verdict != NOT_IN_RING:
                wrong = self._entry(before, done, outcome, believed=moving > 0)
                if wrong:
                    return f"{outcome.name} of {done.peer}: {outcome.verdict} although {wrong}"
            elif isinstance(outcome.args, gc.Args) and outcome.verdict == APPLIED:
                self._collect(done.replica.clock_ms)
            moving += outcome.verdict == APPLIED and outcome.name in _MOVING
        after = done.replica
        if not after.jobs and not before.jobs and not self.outcomes:
            return ""
        wrong = self._compare(after)
        asked = {name: self._bound(one.asked) for name, one in self.known.items() if not one.state}
        return wrong or self.places.step(before, after, asked, heirs=self.heirs, alone=moving <= 1)

    def _bound(self, asked: Asked) -> Asked:
        """What is asked for, without a mate that has ended, also if its name was given to another job since."""
        mate = self.known.get(asked.beside)
        return asked if mate is not None and mate.asked.order < asked.order else evolve(asked, beside="")

    # --- entries

    def _entry(self, before: Replica, done: Step, outcome: Outcome, *, believed: bool) -> str:
        """Follow an entry; ``believed``: who drives may have changed within the record, so only the log knows."""
        args, applied = outcome.args, outcome.verdict == APPLIED
        if isinstance(args, submit_job.Args):
            return (
                self._replace(before, done, args, applied, believed=believed)
                if isinstance(args, replace_job.Args)
                else self._submit(args, applied)
            )
        name = args.job
        one = self.known.get(name)
        if isinstance(args, SAID_BY_DRIVERS):
            stands = one is not None and not one.state and before.jobs.get(name) is not None
            stands = stands and before.jobs[name].driver != "" and before.jobs[name].version == args.version
            if not stands and one is not None and not applied:
                self.probes.reached("a driver that was replaced said something")
                if isinstance(args, commit_batch.Args):
                    self.probes.reached("a driver that was replaced committed")
            if one is None or one.state or not (stands or believed):
                return "its version had passed" if applied else ""
            return self._said(one, args, done.replica.clock_ms, applied, surely=stands and not believed)
        if one is None or one.state:
            return "the job is not under way" if applied else ""
        if isinstance(args, kill_job.Args):
            self._end(one, "killed", done.replica.clock_ms)
            return "" if applied else "it is under way"
        wanted = args.input in one.asked.inputs and args.input not in one.sealed
        one.sealed |= {args.input} if wanted else set()
        return "" if wanted == applied else "the input is another"

    def _submit(self, args: submit_job.Args, applied: bool) -> str:
        one, kept = self.known.get(args.id), self.outcomes.get(args.id)
        if one is not None or kept is not None:
            digest = one.digest if one is not None else kept[0] if kept is not None else b""
            self._note_repeat(args, same=digest == args.digest, ended=one is None or bool(one.state))
            return "its name is taken" if applied else ""
        if args.beside and args.beside not in self.known and args.beside not in self.outcomes:
            return "it is to run beside nobody" if applied else ""
        if not applied:
            return "its name is free"
        self._add(args)
        return ""

    def _replace(self, before: Replica, done: Step, args: replace_job.Args, applied: bool, *, believed: bool) -> str:
        """Follow the end of a job and the submission of another one in its place: both happen, or neither."""
        if args.id in self.known or args.id in self.outcomes:
            return "its name is taken" if applied else ""
        one = self.known.get(args.replaces)
        if one is None or one.state:
            self.probes.reached("a job was to be replaced after its end")
            return "the earlier job is not under way" if applied else ""
        if not args.resume and one.batch < 0:
            return "the earlier job has no state" if applied else ""
        job = before.jobs.get(args.replaces)
        if not believed and (job is not None and job.submitted == args.submitted) != applied:
            return "the earlier job is another one" if applied else "the earlier job is under way"
        if not applied:
            return ""
        self.probes.reached("a job was replaced")
        one.state, one.ended_ms = "killed", done.replica.clock_ms
        if not args.resume:
            one.keep_ms = max(one.keep_ms, STATE_KEEP_MS_MIN)
        new = self._add(args)
        if args.resume:
            new.batch, new.offsets = one.batch, one.offsets
        self.heirs[args.id] = args.replaces
        return ""

    def _add(self, args: submit_job.Args) -> Known:
        """Note a job that was submitted."""
        if args.id in self.forgotten:
            self.probes.reached("a name was free again")
        if args.beside:
            self.probes.reached("a job was submitted beside another")
        self.submitted += 1
        asked = Asked(
            order=self.submitted,
            kind=args.scheduler,
            share=args.percentage,
            least=max(args.min_slots, *(task[1] for task in args.tasks)),
            most=args.max_slots,
            zones=args.zones,
            beside=args.beside,
            inputs=args.inputs,
        )
        self.known[args.id] = Known(asked, args.digest, args.keep_ms)
        return self.known[args.id]

    def _note_repeat(self, args: submit_job.Args, *, same: bool, ended: bool) -> None:
        if not same:
            self.probes.reached("another job was submitted under a name that was taken")
        elif args.id in self.outcomes:
            self.probes.reached("a job that a collection had taken was submitted again")
        else:
            self.probes.reached("a job that had ended was submitted again" if ended else "a job was submitted twice")

    def _said(self, one: Known, args: Any, clock_ms: int, applied: bool, *, surely: bool) -> str:
        """Follow what a driver says that is, as far as one can know, the present one."""
        if isinstance(args, commit_batch.Args):
            follows = args.batch >= 0 and (one.batch < 0 or args.batch == one.batch + 1)
            if follows and applied:
                one.batch, one.offsets = args.batch, args.offsets
            elif args.batch == one.batch:
                self.probes.reached("a batch was committed twice")
            return "it is another batch's turn" if applied and not follows else self._due(follows, applied, surely)
        if isinstance(args, driver_ready.Args):
            wanted = one.ready_at != args.version
            one.ready_at = args.version if applied else one.ready_at
            return "it was ready" if applied and not wanted else self._due(wanted, applied, surely)
        if applied:
            self._end(one, "completed" if isinstance(args, complete_job.Args) else "failed", clock_ms)
        return self._due(True, applied, surely)

    def _due(self, wanted: bool, applied: bool, surely: bool) -> str:
        return "its driver said so" if surely and wanted and not applied else ""

    def _end(self, one: Known, state: str, clock_ms: int) -> None:
        self.probes.reached({"killed": "a job was killed", "failed": "a job failed"}.get(state, "a job completed"))
        one.state, one.ended_ms = state, clock_ms

    def _collect(self, clock_ms: int) -> None:
        for name in [name for name, one in self.known.items() if one.state]:
            one = self.known.pop(name)
            self.outcomes[name] = one.digest, one.state, one.ended_ms + one.keep_ms
        for name in [name for name, (_, _, until_ms) in self.outcomes.items() if until_ms <= clock_ms]:
            del self.outcomes[name]
            self.forgotten.add(name)

    # --- the replica

    def _compare(self, after: Replica) -> str:
        if sorted(after.jobs) != sorted(self.known):
            return f"the jobs are {sorted(after.jobs)}, not {sorted(self.known)}"
        for name, one in self.known.items():
            job = after.jobs[name]
            if job.state != one.state and (one.state or job.state not in ("waiting", "running")):
                return f"job {name} is {job.state}, not {one.state or 'under way'}"
            if (set(job.sealed), job.batch, job.offsets) != (one.sealed, one.batch, one.offsets):
                return f"job {name} has {job.sealed}, {job.batch}, not {sorted(one.sealed)}, {one.batch}"
            if not one.state and job.ready != (bool(job.driver) and job.version == one.ready_at):
                return f"job {name} is {'ready' if job.ready else 'not ready'} at {job.version}, said of {one.ready_at}"
        kept = {key.removeprefix("job/"): one for key, one in after.remembered.items() if key.startswith("job/")}
        if {name: (one.answer["digest"], one.answer["state"]) for name, one in kept.items()} != {
            name: (digest, state) for name, (digest, state, _) in self.outcomes.items()
        }:
            return f"remembered are {sorted(kept)}, not {sorted(self.outcomes)}"
        return ""


_MOVING = frozenset(
    "submit_job replay_job replace_job restore_job kill_job complete_job fail_job set_slots drain_node leave_cluster "
    "prepare_join_cluster accept_join_cluster abort_join_cluster".split()
)
"""Entries after which another peer may drive a job."""
