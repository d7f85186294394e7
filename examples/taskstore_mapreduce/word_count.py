"""A MapReduce on the task store: three mappers and three reducers count the words of a file, exactly.

Each step is one update, which deletes the finished task and adds the tasks that follow from it. A
killed worker has either finished a step or not started it, and the leases of its tasks expire. Run
it with

    python examples/taskstore_mapreduce/word_count.py README.rst --kills 6

It starts a cluster of its own, unless --connect names one. It kills workers at random meanwhile,
and compares the counts with those of a plain loop.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from onyxq import Client
from onyxq.client import StoredTask, TaskStore
from onyxq.errors import OnyxqError, StoreRefused

MAPPERS = REDUCERS = 3
LINES = 5
"""Lines of a map task."""
LOOK_S = 0.02
PARENT = os.getppid()
"""For a worker: the process of the job, without which the worker ends."""
WORD = re.compile(r"[a-z']+")


def counted(lines: Sequence[str]) -> Counter[str]:
    """Return how often each word occurs."""
    return Counter(word for line in lines for word in WORD.findall(line.lower()))


# --- the workers


class Worker:
    """Base class of mappers and reducers."""

    def __init__(self, client: Client, job: str, *, lease_ms: int, pause_s: float) -> None:
        self.store: TaskStore = client.task_store()
        self.job = job
        self.lease_ms = lease_ms
        self.pause_s = pause_s
        """Duration of one step, so that some steps are always running."""

    def claimed(self, group: str) -> StoredTask:
        """Return a claimed task of the group, once one is available."""
        while True:
            if os.getppid() != PARENT:
                sys.exit("the job is gone")
            task = self.store.claim(f"{self.job}/{group}", self.lease_ms)
            if task is not None:
                return task
            time.sleep(LOOK_S)

    def done(self, tasks: Sequence[StoredTask], results: Sequence[tuple[str, object]]) -> None:
        """Replace tasks by their results, unless another worker did so after the leases expired."""
        time.sleep(self.pause_s)
        adds = [(f"{self.job}/{group}", json.dumps(data)) for group, data in results]
        try:
            self.store.update(adds=adds, deletes=[task.id for task in tasks])
        except StoreRefused:
            pass  # another worker did it, or this very request whose answer was lost

    def map(self) -> None:
        """Count the words of some lines, and divide them among the reducers."""
        task = self.claimed("map")
        counts = counted(json.loads(task.data))
        parts: list[dict[str, int]] = [{} for _ in range(REDUCERS)]
        for word, count in counts.items():
            parts[zlib.crc32(word.encode()) % REDUCERS][word] = count
        self.done([task], [(f"reduce/{number}", [1, part]) for number, part in enumerate(parts)])

    def reduce(self, number: int, total: int) -> None:
        """Add two counts; the counts that cover all map tasks are the result."""
        group = f"reduce/{number}"
        first = self.claimed(group)
        maps, counts = json.loads(first.data)
        if maps == total:
            self.done([first], [("result", counts)])
            return
        second = self.store.claim(f"{self.job}/{group}", self.lease_ms)
        if second is None:
            self.store.update(changes=[(first.id, first.data)])  # release it
            time.sleep(LOOK_S)
            return
        more, others = json.loads(second.data)
        self.done([first, second], [(group, [maps + more, Counter(counts) + Counter(others)])])


def work(args: argparse.Namespace) -> None:
    """Work until killed."""
    with Client(args.connect.split(",")) as client:
        worker = Worker(client, args.job, lease_ms=args.lease_ms, pause_s=args.pause_ms / 1000)
        while True:
            try:
                if args.work == "map":
                    worker.map()
                else:
                    worker.reduce(int(args.work), args.total)
            except StoreRefused:
                pass  # this worker no longer holds the task
            except OnyxqError as error:
                print(f"{args.work}: {error}", file=sys.stderr)
                time.sleep(1)


# --- the job


def submitted(store: TaskStore, lines: Sequence[str]) -> tuple[str, int]:
    """Add the map tasks exactly once; return the name of the job and their number."""
    chunks = [lines[start : start + LINES] for start in range(0, len(lines), LINES)]
    (start,) = store.update(adds=[("start", "")])
    job = f"words-{start.id}"
    try:
        # A lost answer may make an update of adds run twice. This one also deletes the start task, so it cannot.
        store.update(adds=[(f"{job}/map", json.dumps(chunk)) for chunk in chunks], deletes=[start.id])
    except StoreRefused:
        pass  # the answer was lost, and this was the repeat
    return job, len(chunks)


def left(store: TaskStore, job: str) -> int:
    """Return how many tasks are left; a step reduces them by one, except that a map task makes three."""
    names = [f"{job}/reduce/{number}" for number in range(REDUCERS)]
    return (REDUCERS + 1) * len(store.group(f"{job}/map", owned=True)) + sum(
        len(store.group(name, owned=True)) for name in names
    )


def results(store: TaskStore, job: str) -> Counter[str] | None:
    """Return the counts, once all reducers have finished."""
    found = store.group(f"{job}/result")
    if len(found) < REDUCERS:
        return None
    assert len(found) == REDUCERS, "each reducer has one result"
    return sum((Counter(json.loads(task.data)) for task in found), Counter())


class Workers:
    """Three mappers and three reducers, each in a process of its own."""

    def __init__(self, connect: str, job: str, total: int, *, lease_ms: int, pause_ms: int) -> None:
        self._options = ["--connect", connect, "--job", job, "--total", str(total)]
        self._options += ["--lease-ms", str(lease_ms), "--pause-ms", str(pause_ms)]
        self._running: dict[str, tuple[str, subprocess.Popen[bytes]]] = {}
        for number in range(MAPPERS):
            self._start(f"mapper {number}", "map")
        for number in range(REDUCERS):
            self._start(f"reducer {number}", str(number))

    def _start(self, name: str, part: str) -> None:
        command = [sys.executable, __file__, "--work", part, *self._options]
        self._running[name] = part, subprocess.Popen(command)

    def kill(self, chooser: random.Random) -> str:
        """Kill a random worker and start another in its place; return its name."""
        name = chooser.choice(sorted(self._running))
        part, process = self._running[name]
        process.kill()
        process.wait()
        self._start(name, part)
        return name

    def end(self) -> None:
        """Kill all workers."""
        for _, process in self._running.values():
            process.kill()
        for _, process in self._running.values():
            process.wait()


@contextmanager
def cluster(connect: str | None) -> Iterator[str]:
    """Return the address of the cluster, or of a new one that ends with this program."""
    if connect:
        yield connect
        return
    command = [sys.executable, "-m", "onyxq", "dev", "--peers", "3", "--json"]
    command += ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        yield ",".join(peer["listen"] for peer in ready["peers"])
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def run(args: argparse.Namespace) -> int:
    """Count the words of the file; 0 if the counts are exact."""
    lines = Path(args.file).read_text("utf-8").splitlines()
    chooser = random.Random(args.seed)
    with cluster(args.connect) as connect, Client(connect.split(",")) as client:
        store = client.task_store()
        job, total = submitted(store, lines)
        workers = Workers(connect, job, total, lease_ms=args.lease_ms, pause_ms=args.pause_ms)
        # Each kill comes at a random time.
        moments = sorted(chooser.uniform(0.1, 0.95) for _ in range(args.kills))
        try:
            while (counts := results(store, job)) is None:
                done = 1 - left(store, job) / ((REDUCERS + 1) * total)
                while moments and done >= moments[0]:
                    moments.pop(0)
                    print(f"{done:.0%} done, {workers.kill(chooser)} is killed", file=sys.stderr)
                time.sleep(LOOK_S)
        finally:
            workers.end()
        store.update(deletes=[task.id for task in store.group(f"{job}/result")])
        clean = not [group for group in store.groups() if group.startswith(job)]
    exact = counts == counted(lines) and clean and not moments
    print(f"{total} map tasks, {sum(counts.values())} words, {len(counts)} different, {args.kills} kills")
    print(f"exact: {'yes' if exact else 'NO'}")
    return 0 if exact else 1


def main() -> int:
    """Run the job, or with --work one of its workers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", default=str(Path(__file__).parents[2] / "README.rst"))
    parser.add_argument("--connect", metavar="HOST:PORT,...", help="peers of a cluster (default: a new one)")
    parser.add_argument("--kills", type=int, default=0, help="workers to kill")
    parser.add_argument("--seed", type=int, help="seed of the kills")
    parser.add_argument(
        "--lease-ms", type=int, default=5_000, help="lease of tasks; those of a dead worker are free after it"
    )
    parser.add_argument("--pause-ms", type=int, default=0, help="additional duration of each task")
    parser.add_argument("--work", metavar="map|NUMBER", help=argparse.SUPPRESS)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--total", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args)
        return 0
    return run(args)


if __name__ == "__main__":
    sys.exit(main())
