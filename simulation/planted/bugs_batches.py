"""Planted bugs of jobs' batches: their fence, their numbers, and that they are whole."""

from __future__ import annotations

from simulation.planted.planted import Planted

BATCH_BUGS: tuple[Planted, ...] = (
    Planted(
        "the version of a batch is not looked at",
        "log_entries/commit_batch.py",
        "refused = refusal(replica, args.job, args.version)",
        'refused = "" if args.job in replica.jobs else "no such job"',
        "a driver that was replaced commits what its successor does not know of",
        "late_batches",
        quick=25,
    ),
    Planted(
        "the number of a batch is not looked at",
        "log_entries/commit_batch.py",
        "if args.batch <= job.batch:",
        "if args.batch < 0:",
        "two attempts at a batch count both",
        "late_batches",
        more=(
            (
                "log_entries/commit_batch.py",
                'return OUT_OF_ORDER if job.batch >= 0 and args.batch != job.batch + 1 else ""',
                'return ""',
            ),
        ),
        quick=25,
    ),
    Planted(
        "a batch is committed in part",
        "log_entries/commit_batch.py",
        "return replica, verdict",
        "return after, verdict",
        "what a batch wrote is seen, and what it read is read again",
        "late_batches",
    ),
    Planted(
        "what a batch has read is not completed",
        "onyxq/operations/job_batches.py",
        "done = (ready,)",
        "done = ()",
        "it is read again when its lease has run out",
        "replaced_drivers",
        quick=3,
    ),
    Planted(
        "another attempt at a batch passes for a repeat",
        "log_entries/commit_batch.py",
        "other = args.batch == job.batch and args.offsets != job.offsets",
        "other = False",
        "its driver goes on behind what was never committed",
        "late_batches",
        more=(
            (
                "onyxq/operations/job_batches.py",
                "if asked.batch == job.batch and asked.offsets != job.offsets:",
                "if asked.batch < 0:",
            ),
        ),
        quick=25,
    ),
    Planted(
        "what replaced drivers have prepared is kept",
        "onyxq/leader/cohort/pending_facts.py",
        "return replica.log_time_ms > part.deadline_ms or is_void(replica, part.name)",
        "return replica.log_time_ms > part.deadline_ms",
        "each driver that dies leaves its batch in the stores for an hour",
        "replaced_drivers",
        quick=2,
    ),
    Planted(
        "what is prepared for the next batch is dropped",
        "onyxq/core/jobs/batch_names.py",
        "return share.version < job.version or (share.version == job.version and share.batch <= job.batch)",
        "return share.version < job.version or (share.version == job.version and share.batch <= job.batch + 1)",
        "the batch is committed and its tasks are not there",
        "replaced_drivers",
    ),
)
"""Deliberate faults that the scenes about batches find."""
