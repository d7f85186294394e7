"""The commands of ``onyxq history`` and ``onyxq archive``, declared."""

from __future__ import annotations

from onyxq.interfaces.cli.parser import Command, local_command, option, peer_command

MASTER = option(
    "--master",
    default="local[*]",
    metavar="URL",
    help="master of Spark: local[N], spark://..., yarn, k8s://... (default local[*]: all cores of this machine)",
)
MEMORY = option("--memory", default="2g", metavar="SIZE", help="heap of Spark on this machine (default 2g)")
ARCHIVED = option("archive", metavar="DIR", nargs="+", help="archive of tasks that peers wrote; a path or a URI")

HISTORY_COMMANDS: tuple[Command, ...] = (
    peer_command(
        "archive log",
        "past.archive:archive_log",
        "write the records of the log and the outcome of each entry to Parquet files, by day",
        "/var/lib/onyxq-tasks --archive /var/lib/onyxq-archive",
        option(
            "directory",
            metavar="DIR",
            help="directory for the files; records that it has already are not written again",
        ),
        option(
            "--archive",
            action="append",
            metavar="DIR",
            help="read the records that peers archived in this directory, and ask no peer; may be repeated",
        ),
        option("--live", action="store_true", help="with --archive: also read the log of a peer"),
        option("--follow", action="store_true", help="write new records until interrupted"),
        option(
            "--every",
            default="10m",
            metavar="TIME",
            help="with --follow: time between two looks at the log (default 10m)",
        ),
    ),
    peer_command(
        "sql",
        "past.sql:sql",
        "query live and archived tasks, claims, attempts and log entries in SQL",
        "'select state, count(*) from tasks group by state'",
        option("query", metavar="QUERY", help="query in DuckDB's dialect; - reads it from stdin"),
        *(
            option(flag, dest=dest, action="append", metavar=metavar, help=f"also read {what}; may be repeated")
            for flag, dest, metavar, what in (
                ("--archive", "archives", "DIR", "the archive of tasks in DIR"),
                ("--records", "records", "DIR", "the log records in DIR, written by `archive log` or a peer"),
                ("--log-archive", "logs", "DIR", "the archive of the log in DIR"),
                ("--dump", "dumps", "FILE", "FILE, which `log dump` wrote"),
            )
        ),
        option("--offline", action="store_true", help="ask no peer; read only the named directories and files"),
        option("--format", choices=("table", "csv"), default="table", help="format of the answer (default table)"),
    ),
    local_command(
        "history check",
        "past.analysis:history_check",
        "check archived tasks for broken promises, on Spark; exit code 1 if one is found",
        "/var/lib/onyxq-tasks",
        ARCHIVED,
        option(
            "--apart",
            default="5s",
            metavar="TIME",
            help="largest difference between the clocks of the machines (default 5s)",
        ),
        option(
            "--records",
            action="append",
            metavar="DIR",
            help="compare with the log records in DIR, written by `archive log` or a peer; may be repeated",
        ),
        option(
            "--live",
            action="append",
            metavar="FILE",
            help="output of a later `task list --all --json`; tasks that are in neither FILE nor DIR are lost",
        ),
        option(
            "--first",
            type=int,
            default=10,
            metavar="N",
            help="number of tasks to name for each broken rule (default 10)",
        ),
        MASTER,
        MEMORY,
    ),
    local_command(
        "history stats",
        "past.analysis:history_stats",
        "summarize waiting times, run times and retries by queue and hour, on Spark",
        "/var/lib/onyxq-tasks --plots /tmp/plots",
        ARCHIVED,
        option("--queue", metavar="QUEUE", help="only tasks of this queue"),
        option("--plots", metavar="DIR", help="directory for plots of the figures, as PNG files"),
        MASTER,
        MEMORY,
    ),
)
