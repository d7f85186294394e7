"""The archive of a cluster: filled by work that partly fails, summed up by a job, and checked on Spark.

    python examples/jobs/archive_analysis.py

Two workers process the queue ``mail``. Some tasks fail the first time. Some are not completed
before their lease expires. Finished tasks are archived and purged. The archive has Parquet files of
tasks and of claims. Then

* a job counts claims by outcome, and adds up how long they were held::

    claims -> spans -> held -> sums

* `onyxq.spark.analysis` does the same as ``onyxq history check`` and ``onyxq history stats``. It
  searches for faults, such as two claims on a task at one time, and sums up waits, run times and
  retries.
* a claim that was never granted is added to the archive, and the check must find it.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow
import running
from pyarrow import dataset, parquet

from onyxq import Client, Function, Input, Job, Output, Reduce, Trigger, Window
from onyxq.errors import StaleToken
from onyxq.spark.analysis.history_check import check
from onyxq.spark.analysis.rules import OVERLAPPING
from onyxq.spark.analysis.session import spark_session
from onyxq.spark.analysis.stats import stats

TASKS = 1_000
CUSTOMERS = 100
"""The tasks of one customer run one after the other, in order."""
LEASE_MS = 3_000
SOON = ("--purge-bucket-ms", "1000", "--purge-margin-ms", "10000", "--spark-warm")
"""Archive tasks after seconds instead of hours, so that Spark can read them soon."""
PURGED_S_MAX = 180
APART = timedelta(seconds=5)
"""Claims may overlap by less than this, because their times come from two clocks."""


def spans(claim: dict[str, Any]) -> dict[str, Any]:
    """Return the outcome of a claim, and how long it was held. Timestamps of Parquet are datetimes here."""
    return {"outcome": claim["outcome"], "ms": (claim["ended"] - claim["granted"]) // timedelta(milliseconds=1)}


def archive_analysis(archive: Path, sums: Path) -> Job:
    """Return the job, from the archive's claims to a folder."""
    return Job(
        id="archive-analysis",
        workflow=[("claims", "spans"), ("spans", "held"), ("held", "sums")],
        catalog=[
            Input("claims", format="parquet", path=str(archive / "claims")),
            Function("spans", spans),
            Reduce("held"),
            Output("sums", format="json", path=str(sums)),
        ],
        windows=[
            Window("claims", "held", "global", key="outcome", aggregation="count"),
            Window("ms", "held", "global", key="outcome", aggregation="sum", field="ms"),
        ],
        triggers=[Trigger("claims", "watermark"), Trigger("ms", "watermark")],
        key_groups=2,
    )


def work(client: Client, worker: str) -> None:
    """Process the queue until it is empty; some tasks succeed only at the second attempt."""
    while any(client.count("mail")["mail"].get(state) for state in ("ready", "claimed", "scheduled", "waiting")):
        for number, claim in enumerate(client.claim("mail", max=20, lease_ms=LEASE_MS, wait_ms=500, worker=worker)):
            try:
                if number == 7 and not claim.attempts:
                    client.fail(claim, "the relay is down", retry_in_ms=100)
                elif number != 13 or claim.attempts:  # otherwise it is not completed, and its lease expires
                    client.complete(claim, result=b"sent")
            except StaleToken:
                continue  # its lease expired, and another claim holds the task now


def fill_archive(client: Client) -> None:
    """Enqueue and process tasks until they are archived and purged."""
    client.set_queue("mail", retention_ms=1_000, archive=True)
    letters = [b"letter %d" % number for number in range(TASKS)]
    keys = [f"customer {number % CUSTOMERS}" for number in range(TASKS // 2)]
    client.enqueue_many("mail", letters[: len(keys)], ordering_key=keys)
    client.enqueue_many("mail", letters[len(keys) :])
    workers = [threading.Thread(target=work, args=(client, name)) for name in ("worker-1", "worker-2")]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    deadline = time.monotonic() + PURGED_S_MAX
    while client.count("mail")["mail"]["total"]:
        if time.monotonic() > deadline:
            raise running.Failed(f"not all is purged after {PURGED_S_MAX} s: {client.count('mail')}")
        time.sleep(0.2)


def table(archive: Path, name: str) -> list[dict[str, Any]]:
    """Return the rows of a table of the archive."""
    return list(dataset.dataset(archive / name, partitioning="hive").to_table().to_pylist())


def check_sums(sums: list[dict[str, Any]], claims: list[dict[str, Any]]) -> None:
    """Check the job's sums against the claims of the archive."""
    counts: Counter[tuple[str, str]] = Counter()
    for claim in claims:
        counts["claims", claim["outcome"]] += 1
        counts["ms", claim["outcome"]] += (claim["ended"] - claim["granted"]) // timedelta(milliseconds=1)
    running.check(
        "sums of the job",
        ((row["window"], row["key"], row["value"]) for row in sums),
        ((window, outcome, value) for (window, outcome), value in counts.items()),
    )


def check_history(session: Any, archive: Path, claims: list[dict[str, Any]]) -> None:
    """Check the history, and compare its figures with those of the claims."""
    report = check(session, [str(archive)])
    if not report.clean:
        raise running.Failed(f"the history is broken: {report.first}")
    overlaps = sum(other["granted"] < one["ended"] - APART for one, other in neighbours(claims))
    running.check_number("tasks in the history", report.tasks, TASKS)
    running.check_number("claims in the history", report.claims, len(claims))
    running.check_number("overlapping claims", report.counts[OVERLAPPING], overlaps)
    (figures,) = stats(session, [str(archive)]).queues
    running.check_number("retries", figures.retries, len(claims) - TASKS)
    running.check("outcomes of claims", figures.outcomes.items(), Counter(one["outcome"] for one in claims).items())
    print(f"half of the claims waited {figures.wait.half_ms} ms and were held {figures.run.half_ms} ms, at most")


def neighbours(claims: list[dict[str, Any]]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield pairs of consecutive claims on a task."""
    ordered = sorted(claims, key=lambda claim: (claim["id"], claim["token"]))
    return [(one, other) for one, other in zip(ordered, ordered[1:], strict=False) if one["id"] == other["id"]]


def forge(archive: Path, claims: list[dict[str, Any]]) -> dict[str, Any]:
    """Add a forged claim on a task that another worker held; return the claim of that worker."""
    held = (claim for claim in claims if claim["outcome"] == "expired" and claim["until"] - claim["token"] > 1)
    first = next(held)
    forged = {**first, "token": first["until"] - 1, "worker": "nobody"}
    file = next((archive / "claims").rglob("*.parquet"))
    columns = parquet.read_schema(file)
    parquet.write_table(pyarrow.Table.from_pylist([forged], schema=columns), file.with_name("forged.parquet"))
    return first


def main() -> None:
    """Fill an archive, and analyse it in three ways."""
    with running.folder() as folder:
        archive = folder / "archive"
        with running.local_cluster(folder / "peer", "--task-archive", str(archive), *SOON) as cluster:
            began = time.monotonic()
            with Client(cluster.address) as client:
                fill_archive(client)
            print(f"{TASKS:,} tasks are done and archived after {time.monotonic() - began:.1f} s")
            running.run(archive_analysis(archive, folder / "sums"), cluster)
        claims = table(archive, "claims")
        running.check(
            "archived tasks", (row["data"] for row in table(archive, "tasks")), (b"letter %d" % n for n in range(TASKS))
        )
        check_sums(running.json_rows(folder / "sums"), claims)
        with spark_session("local[2]", memory="1g") as session:
            check_history(session, archive, claims)
            first = forge(archive, claims)
            report = check(session, [str(archive)])
            running.check(
                "the forged claim is found",
                [(one.rule, one.id) for one in report.first if one.rule == OVERLAPPING],
                [(OVERLAPPING, first["id"])],
            )


if __name__ == "__main__":
    running.main(main)
