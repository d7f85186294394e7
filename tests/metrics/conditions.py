"""For each alert the condition that it is about, as Prometheus sees it, and a cluster in which nothing is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

A, B = 'job="onyxq",instance="a"', 'job="onyxq",instance="b"'
ON_A = {"job": "onyxq", "instance": "a"}


class Condition(NamedTuple):
    """Series with a value each minute, and the alert that fires after a time."""

    series: dict[str, str]
    after: str
    summary: str
    labels: Mapping[str, str] = MappingProxyType({})
    """Labels of the alert besides its severity."""
    evaluated: str = "1m"
    """How often Prometheus looks at the rules; seldom, where it looks at days."""


HEALTHY = {
    f"up{{{A}}}": "1x120",
    f'onyxq_build_info{{{A},version="1"}}': "1x120",
    f'onyxq_partition_leader{{{A},partition="0"}}': "1x120",
    f'onyxq_partition_leader{{{A},partition="1"}}': "1x120",
    f"onyxq_log_went_back{{{A}}}": "0x120",
    f"onyxq_log_lag_entries{{{A}}}": "3x120",
    f'onyxq_log_append_seconds_bucket{{{A},le="0.01"}}': "0+100x120",
    f'onyxq_log_append_seconds_bucket{{{A},le="+Inf"}}': "0+100x120",
    f'onyxq_queue_depth{{{A},queue="mail",state="ready"}}': "5x120",
    f'onyxq_queue_oldest_seconds{{{A},queue="mail"}}': "2x120",
    f'onyxq_tasks_total{{{A},queue="mail",event="claimed"}}': "0+60x120",
    f'onyxq_tasks_total{{{A},queue="mail",event="failed"}}': "0x120",
    f"onyxq_claims_expired_total{{{A}}}": "0x120",
    f"onyxq_store_writable{{{A}}}": "1x120",
    f"onyxq_damaged_rows{{{A}}}": "0x120",
    f'onyxq_repaired_total{{{A},what="rows"}}': "0x120",
    f"onyxq_prepared_transactions{{{A}}}": "0x120",
    f"onyxq_spark_host_up{{{A}}}": "1x120",
    f'onyxq_jobs_driven{{{A},state="running"}}': "1x120",
    f"onyxq_job_failures_total{{{A}}}": "0x120",
    f'onyxq_job_rows_total{{{A},spark_job="bills",input="orders"}}': "0+60x120",
    f'onyxq_job_lag_rows{{{A},spark_job="bills",input="orders"}}': "5x120",
}

CONDITIONS = {
    "OnyxqPeerDown": Condition({f"up{{{A}}}": "1x2 0x10"}, "5m", "a does not answer", ON_A),
    "OnyxqPartitionsNotServed": Condition(
        {
            f'onyxq_partition_leader{{{A},partition="0"}}': "1x30",
            f'onyxq_partition_leader{{{A},partition="1"}}': "1x10 0x20",
        },
        "15m",
        "Fewer partitions are led and ready than there are",
    ),
    "OnyxqLogWentBack": Condition(
        {f"onyxq_log_went_back{{{A}}}": "0 1x5"},
        "3m",
        "a has read more of the log than ZooKeeper has, and grants nothing",
        ON_A,
    ),
    "OnyxqBehindTheLog": Condition(
        {f"onyxq_log_lag_entries{{{A}}}": "600x5"}, "3m", "a is 600 records behind the log", ON_A
    ),
    "OnyxqAppendsSlow": Condition(
        {
            f'onyxq_log_append_seconds_bucket{{{A},le="1"}}': "0x20",
            f'onyxq_log_append_seconds_bucket{{{A},le="2"}}': "0+10x20",
            f'onyxq_log_append_seconds_bucket{{{A},le="+Inf"}}': "0+10x20",
        },
        "15m",
        "Appending to the log takes 1.99 s",
    ),
    "OnyxqNothingClaimed": Condition(
        {f'onyxq_queue_depth{{{A},queue="mail",state="ready"}}': "5x30"},  # no worker was ever there
        "16m",
        "Tasks are ready and no worker claims any",
    ),
    "OnyxqTasksOld": Condition(
        {f'onyxq_queue_oldest_seconds{{{A},queue="mail"}}': "4000x10"},
        "6m",
        "The oldest ready task of mail waits for 4000 s",
        {"queue": "mail"},
    ),
    "OnyxqLeasesRunOut": Condition(
        {f"onyxq_claims_expired_total{{{A}}}": "0+30x40"}, "30m", "0.5 leases run out each second"
    ),
    "OnyxqDeadLetters": Condition(
        {f'onyxq_tasks_total{{{A},queue="mail",event="failed"}}': "0 0+1x30"},
        "20m",
        "15 tasks of mail failed for good in a quarter of an hour",
        {"queue": "mail"},
    ),
    "OnyxqDiskRefusesWrites": Condition(
        {f"onyxq_store_writable{{{A}}}": "1 0x5"},
        "3m",
        "the disk of a refuses writes; its peer leaves the ring meanwhile",
        ON_A,
    ),
    "OnyxqDamagedRows": Condition(
        {f"onyxq_damaged_rows{{{A}}}": "0 2x5"},
        "4m",
        "a has 2 damaged rows that no other node could give back",
        ON_A,
    ),
    "OnyxqRepairs": Condition(
        {f'onyxq_repaired_total{{{A},what="rows"}}': "0x720 3x720"},
        "1d",
        "a repaired 3 rows in a day",
        {**ON_A, "what": "rows"},
        evaluated="10m",
    ),
    "OnyxqCopiesLacking": Condition(
        {f'onyxq_sync_partitions_left{{{A},node="n"}}': "4x70"},
        "65m",
        "n lacks something of 4 partitions for an hour",
        {"node": "n"},
    ),
    "OnyxqPurgeWaits": Condition(
        {f'onyxq_purge_waits{{{A},why="a node does not answer"}}': "2x1500"},
        "1460m",
        "2 partitions cannot purge finished tasks: a node does not answer",
        {"why": "a node does not answer"},
        evaluated="10m",
    ),
    "OnyxqTransactionsUnsettled": Condition(
        {f"onyxq_prepared_transactions{{{A}}}": "1x70"},
        "65m",
        "a keeps 1 parts of transactions for an hour",
        ON_A,
    ),
    "OnyxqSparkHostDown": Condition(
        {
            f"onyxq_spark_host_up{{{A}}}": "0x10",
            f'onyxq_jobs_driven{{{A},state="pausing"}}': "1x10",
            f"onyxq_spark_host_up{{{B}}}": "0x10",  # it drives no job
        },
        "5m",
        "a drives jobs and its Spark host is not there",
        ON_A,
    ),
    "OnyxqJobsFail": Condition(
        {f"onyxq_job_failures_total{{{A}}}": "0 0+1x80"},
        "70m",
        "Runs of jobs failed 60 times in an hour on a",
        ON_A,
    ),
    "OnyxqJobReadsNothing": Condition(
        {
            f'onyxq_job_rows_total{{{A},spark_job="bills",input="orders"}}': "900x40",
            f'onyxq_job_lag_rows{{{A},spark_job="bills",input="orders"}}': "5x40",
        },
        "20m",
        "The job bills reads nothing of orders, which has 5 rows for it",
        {"spark_job": "bills", "input": "orders"},
    ),
    "OnyxqVersionsDiffer": Condition(
        {f'onyxq_build_info{{{A},version="1"}}': "1x1500", f'onyxq_build_info{{{B},version="2"}}': "1x1500"},
        "1460m",
        "2 versions run for a day",
        evaluated="10m",
    ),
}
