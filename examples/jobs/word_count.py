"""Words in windows: count the words of Python's ``asyncio`` per hour, as if it were read aloud, a line a second.

    python examples/jobs/word_count.py

The job::

    lines -> words -> counted -> hours     how often each word was read in each hour (Parquet)
                              -> totals    how often in all (JSON)

``words`` is a function: it takes one segment and returns a list of segments. ``counted`` has two
windows by word: one of an hour, and one without end. Each window outputs its result at its end: the
hours once the watermark has passed them, the total once the input has ended.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import running
from pyarrow import parquet

from onyxq import Function, Input, Job, Output, Reduce, Trigger, Window

BEGIN_MS = 667_008_000_000
"""Time of the first line: 20 February 1991, when Python was first published."""
HOUR_MS = 3_600_000
WORD = re.compile(r"[a-z]+")


def words(line: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the words of a line, each with the time at which it was read."""
    return [{"word": word, "at_ms": line["at_ms"]} for word in WORD.findall(line["text"].lower())]


def word_count(folder: Path) -> Job:
    """Return the job, from files of lines to files of counts."""
    return Job(
        id="word-count",
        workflow=[("lines", "words"), ("words", "counted"), ("counted", "hours"), ("counted", "totals")],
        catalog=[
            Input("lines", format="json", path=str(folder / "lines"), schema="at_ms bigint, text string"),
            Function("words", words),
            Reduce("counted"),
            Output("hours", format="parquet", path=str(folder / "hours")),
            Output("totals", format="json", path=str(folder / "totals")),
        ],
        windows=[
            Window("hour", "counted", "fixed", range_ms=HOUR_MS, key="word", time="at_ms", aggregation="count"),
            Window("total", "counted", "global", key="word", aggregation="count"),
        ],
        triggers=[Trigger("hour", "watermark", emit_to=["hours"]), Trigger("total", "watermark", emit_to="totals")],
        key_groups=2,
    )


def read_aloud(folder: Path) -> list[dict[str, Any]]:
    """Write the input: every line of the package, one second after the line before it; a file for each module."""
    said: list[dict[str, Any]] = []
    for number, module in enumerate(running.library("asyncio")):
        text = module.read_text("utf-8").splitlines()
        lines = [{"at_ms": BEGIN_MS + 1_000 * place, "text": line} for place, line in enumerate(text, len(said))]
        running.write_json(folder / "lines" / f"{number}.json", lines)
        said += lines
    return said


def main() -> None:
    """Run the job, and compare with words counted here."""
    with running.folder() as folder:
        lines = read_aloud(folder)
        with running.local_cluster(folder / "peer") as cluster:
            running.run(word_count(folder), cluster)
        hours = parquet.read_table(folder / "hours").to_pylist()
        totals = running.json_rows(folder / "totals")

    by_hour: Counter[tuple[str, int]] = Counter()
    for line in lines:
        hour_ms = line["at_ms"] - line["at_ms"] % HOUR_MS
        by_hour.update((word, hour_ms) for word in re.findall("[a-z]+", line["text"].lower()))
    in_all: Counter[str] = Counter()
    for (word, _), count in by_hour.items():
        in_all[word] += count
    print(f"{len(lines):,} lines, {in_all.total():,} words in {len({start for _, start in by_hour})} hours")
    running.check(
        "words by hour",
        ((row["key"], row["start_ms"], row["value"]) for row in hours),
        ((word, start_ms, count) for (word, start_ms), count in by_hour.items()),
    )
    running.check("words in all", ((row["key"], row["value"]) for row in totals), in_all.items())
    print("most often:", ", ".join(f"{word} {count:,}" for word, count in in_all.most_common(5)))


if __name__ == "__main__":
    running.main(main)
