"""A web log with Spark's own tools: a join with a table, session windows, and hours in SQL."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import running
from pyarrow import parquet
from pyspark.sql import functions as F

from onyxq import Frame, Input, Job, Output, Sql

BEGIN, GAP = datetime(2027, 1, 15, tzinfo=UTC), timedelta(minutes=30)
HOURS = "select window.start as hour, land, sum(bytes) as bytes from known group by window(at, '1 hour'), land"
USERS = [{"user": number, "land": ("NO", "SE", "FI")[number % 3]} for number in range(40)]
TIMES = [BEGIN + timedelta(seconds=97 * number) for number in range(5_000)]
LOG = [{"at": at.isoformat(), "user": n * n % 83 % 40, "bytes": n * 7919 % 50_000} for n, at in enumerate(TIMES)]


def known(requests: Any, users: Any) -> Any:
    """Return the requests with the country of their user."""
    return requests.join(users, "user")


def visits(known: Any) -> Any:
    """Return the visits of each user, which end after half an hour without a request."""
    visit = F.session_window("at", "30 minutes")
    return known.groupBy("user", visit).count().select("user", "session_window.start", "count")


def web_log(at: Any) -> Job:
    """Return the job, from folders of requests and users to folders of visits and hours."""
    edges = ["requests known", "users known", "known visits", "known hours", "visits visits_out", "hours hours_out"]
    requests = Input("requests", None, "json", f"{at}/log", schema="at timestamp, user long, bytes long", time="at")
    users = Input("users", None, "json", f"{at}/users", schema="user long, land string", static=True)
    tasks = [requests, users, Frame("known", known), Frame("visits", visits), Sql("hours", HOURS)]
    outputs = [Output(f"{name}_out", format="parquet", path=f"{at}/{name}") for name in ("visits", "hours")]
    return Job(workflow=[edge.split() for edge in edges], catalog=tasks + outputs)


def main() -> None:
    """Run the job, and compare its output with a computation in Python."""
    with running.folder() as at, running.local_cluster(at / "peer") as cluster:
        running.write_json(at / "log/1.json", LOG)
        running.write_json(at / "users/1.json", USERS)
        running.run(web_log(at), cluster)
        found = [[(*row.values(),) for row in parquet.read_table(at / to).to_pylist()] for to in ("visits", "hours")]
    visited, hours, last = Counter(), Counter(), {}
    for time, row in zip(TIMES, LOG, strict=True):
        began, before = last.get(row["user"], (time, time))
        last[row["user"]] = (began if time - before < GAP else time), time
        visited[row["user"], last[row["user"]][0]] += 1
        hours[time.replace(minute=0, second=0), USERS[row["user"]]["land"]] += row["bytes"]
    running.check("visits", found[0], ((*key, count) for key, count in visited.items()))
    running.check("bytes by hour", found[1], ((*key, size) for key, size in hours.items()))


if __name__ == "__main__":
    running.main(main)
