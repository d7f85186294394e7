"""A web log with DataFrames and SQL: a join, bad lines, late rows, windows, and alerts that a second job reads."""

from typing import Any

import running
import web_log_count
from pyspark.sql import functions as F

from onyxq import Frame, Input, Job, Output, Sql

LINE = "id long, at timestamp, user string, status int, bytes long, _corrupt_record string"
BAD = "select _corrupt_record as line from lines where _corrupt_record is not null"
MINUTES = """select window.start as minute, land, count(*) as requests, sum(bytes) as bytes
             from requests group by window(at, '1 minute'), land"""
ALERTS = "select id, cast(at as string) as at, user, land, status from requests where status >= 500"
ALERT = "id long, at timestamp, user string, land string, status int"
BURSTS = "select window.start, status, count(*) as alerts from alerts group by window(at, '10 minutes'), status"


def requests(lines: Any, users: Any) -> Any:
    """Return the good lines with the country of their user."""
    good = lines.where("_corrupt_record is null").drop("_corrupt_record")
    return good.join(users, "user", "left").fillna("unknown", "land")


def visits(requests: Any) -> Any:
    """Return the visits of each user, which end after three minutes without a request."""
    visits = requests.groupBy("user", F.session_window("at", "3 minutes"))
    sums = visits.agg(F.count("*").alias("requests"), F.sum("bytes").alias("bytes"))
    return sums.select("user", "session_window.start", "requests", "bytes")


def web_log(at: Any) -> Job:
    """Return the job from folders of lines and users to tables and a queue of alerts; a batch reads one file."""
    one = {"maxFilesPerTrigger": "1"}
    lines = Input("lines", None, "json", f"{at}/log", one, schema=LINE, time="at", watermark_ms=120_000)
    users = Input("users", None, "csv", f"{at}/users", schema="user string, land string", static=True)
    tasks = [lines, users, Frame("requests", requests), Sql("bad", BAD), Sql("minutes", MINUTES)]
    tasks += [Frame("visits", visits), Sql("alerts", ALERTS), Output("alerts_out", queue="alerts", ordering_key="user")]
    edges = ["lines requests", "users requests", "lines bad", "requests minutes", "requests visits", "requests alerts"]
    return job("web-log", [*edges, "alerts alerts_out"], tasks, at, "requests", "bad", "minutes", "visits")


def reports(at: Any) -> Job:
    """Return the second job, from the queue of alerts to tables; the log is shorter than its watermark."""
    alerts = Input("alerts", queue="alerts", schema=ALERT, time="at", watermark_ms=7_200_000)
    tasks = [alerts, Sql("reports", "select * from alerts"), Sql("bursts", BURSTS)]
    return job("reports", ["alerts reports", "alerts bursts"], tasks, at, "reports", "bursts")


def job(name: str, edges: list[str], tasks: list[Any], at: Any, *tables: str) -> Job:
    """Return a job; the results of some of its tasks become tables."""
    outputs = [Output(f"{table}_out", format="parquet", path=f"{at}/{table}") for table in tables]
    workflow = [edge.split() for edge in [*edges, *(f"{table} {table}_out" for table in tables)]]
    return Job(id=name, workflow=workflow, catalog=tasks + outputs)


if __name__ == "__main__":
    running.main(lambda: web_log_count.compare(web_log, reports))
