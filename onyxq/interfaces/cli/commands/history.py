"""The commands of ``onyxq history`` and ``onyxq archive``, declared."""

from __future__ import annotations

from onyxq.interfaces.cli.parser import Command, option

MASTER = option(
    "--master",
    default="local[*]",
    metavar="URL",
    help="where Spark runs: local[N], spark://..., yarn, k8s://... (default local[*]: all cores here)",
)
MEMORY = option("--memory", default="2g", metavar="SIZE", help="heap of Spark on this machine (default 2g)")
ARCHIVED = option("archive", metavar="DIR", nargs="+", help="archives of tasks, as peers write them; a path or a URI")

HISTORY_COMMANDS: tuple[Command, ...] = (
    Command(
        "archive log",
        "onyxq.interfaces.cli.past.archive:archive_log",
        "write records of the log, with what became of each entry, to Parquet files by day",
        "onyxq archive log /var/lib/onyxq-tasks --archive /var/lib/onyxq-archive",
        (
            option("directory", metavar="DIR", help="where to; what is there already is not written again"),
            option(
                "--archive",
                action="append",
                metavar="DIR",
                help="take the records that peers archived there, and ask no peer; may be repeated",
            ),
            option("--live", action="store_true", help="with --archive: also those that a peer's log still has"),
            option("--follow", action="store_true", help="go on until interrupted"),
            option("--every", default="10m", metavar="TIME", help="with --follow: how often (default 10m)"),
        ),
        talks=True,
    ),
    Command(
        "history check",
        "onyxq.interfaces.cli.past.analysis:history_check",
        "look for what must never be in archived tasks, on Spark; exit code 1 if there is any",
        "onyxq history check /var/lib/onyxq-tasks",
        (
            ARCHIVED,
            option("--apart", default="5s", metavar="TIME", help="how far clocks may have been apart (default 5s)"),
            option(
                "--records",
                action="append",
                metavar="DIR",
                help="hold them against the log's records there, too, as peers or `archive log` wrote them",
            ),
            option(
                "--live",
                action="append",
                metavar="FILE",
                help="what `task list --all --json` printed since: granted tasks that are in neither are lost",
            ),
            option("--first", type=int, default=10, metavar="N", help="offenders to name for each rule (default 10)"),
            MASTER,
            MEMORY,
        ),
    ),
    Command(
        "history stats",
        "onyxq.interfaces.cli.past.analysis:history_stats",
        "how long archived tasks waited and ran, and their retries, by queue and hour, on Spark",
        "onyxq history stats /var/lib/onyxq-tasks --plots /tmp/plots",
        (
            ARCHIVED,
            option("--queue", metavar="QUEUE", help="only of this queue"),
            option("--plots", metavar="DIR", help="draw them as PNG files there"),
            MASTER,
            MEMORY,
        ),
    ),
)
