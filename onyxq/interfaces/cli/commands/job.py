"""The commands of ``onyxq job``, declared."""

from __future__ import annotations

from onyxq.interfaces.cli.parser import Command, Option, option

STATES = ("waiting", "running", "completed", "killed", "failed")
JOB = option("job", metavar="ID", help="id of the job")
TIMEOUT = option("--timeout", metavar="TIME", help="give up after that, with exit code 6 (default: a day)")


def _command(name: str, about: str, example: str, *options: Option) -> Command:
    run = f"onyxq.interfaces.cli.jobs:{name.replace(' ', '_')}"
    return Command(name, run, about, f"onyxq {name} {example}".rstrip(), options, talks=True)


JOB_COMMANDS: tuple[Command, ...] = (
    _command(
        "job submit",
        "have a job run on Spark; the same job under the same id again is the same job",
        "pipelines.py:job --id words --wait",
        option("target", metavar="FILE.py:NAME", help="where the onyxq.Job is; or MODULE:NAME"),
        option("--id", metavar="ID", help="instead of the one that the job has"),
        option("--wait", action="store_true", help="until it has ended; exit code 1 unless it completed"),
        TIMEOUT,
        option("--keep", metavar="TIME", help="keep its outcome for so long once it has ended (default 7d)"),
        option("--no-import", action="store_true", help="do not look here whether named functions can be imported"),
    ),
    _command(
        "job list",
        "jobs, those under way first",
        "--state running",
        option("--state", choices=STATES, metavar="STATE", help=f"only of this state: {', '.join(STATES)}"),
    ),
    _command("job show", "one job: its state, slots, and progress", "words --json", JOB),
    _command(
        "job wait", "wait until it has ended; exit code 1 unless it completed", "words --timeout 10m", JOB, TIMEOUT
    ),
    _command(
        "job seal",
        "say that nothing more comes on an input",
        "words in",
        JOB,
        option("input", metavar="INPUT", help="name of the input"),
    ),
    _command("job kill", "end a job; what it has not committed never counts", "words", JOB),
)
