"""Many runs side by side in child processes.

A child is ``python -m simulation.runs WORKLOAD SECONDS [BUG]``: it reads seeds and writes a `Result` per line.
A seed gives the same run in every process. The limit of a run counts processor time, so it does not matter if
processes are stopped or the machine is busy.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import logging
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from attrs import asdict, evolve

from simulation.results import Result

ROOT = Path(__file__).resolve().parents[1]
"""Directory of the packages."""
RUN_CPU_S_MAX = 300.0
"""Processor time after which a run counts as hung, in seconds."""
LOOK_S = 0.5
"""Real time between two checks of a child that has not answered, in seconds."""
ASLEEP_LOOKS_MAX = 600
"""Number of checks in a row that find a child asleep, after which its run counts as hung."""
WHAT_CHARS_MAX = 2_000
COLLECT_AFTER_OBJECTS = 400_000
"""New objects after which the cyclic collector looks for garbage within a run: once or twice."""


# --- in the child -----------------------------------------------------------------------------


def play(workload: str, seed: int) -> Result:
    """Play one seed of a workload in this process."""
    from simulation.workloads import WORKLOADS

    began_s = time.process_time()
    try:
        done = WORKLOADS[workload].play(seed)
    except Exception as error:  # any error of a run is a finding
        checker, what = blame(error)
        done = Result(workload, seed, checker, what[:WHAT_CHARS_MAX])
    return evolve(done, workload=workload, cpu_s=time.process_time() - began_s)


def blame(error: BaseException) -> tuple[str, str]:
    """Return the checker that raised an error of a run, and its text."""
    from simulation.checkers import Broken

    leaves = list(_leaves(error))
    for leaf in leaves:
        if isinstance(leaf, Broken):
            return leaf.check, str(leaf)
    for leaf in leaves:
        if type(leaf) in (AssertionError, TimeoutError) or type(leaf).__name__ == "TooSlowError":
            return "liveness", str(leaf) or type(leaf).__name__
    leaf = leaves[0]
    return "no errors", f"{type(leaf).__name__}: {leaf}"


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _leaves(one)
    else:
        yield error


def child(workload: str, run_cpu_s: float, bug: str = "") -> None:
    """Play seeds until the input ends, with a planted bug if one is named.

    A run that takes too long prints its stack, and the process ends.
    """
    logging.disable(logging.CRITICAL)
    from simulation import workloads

    assert workload in workloads.WORKLOADS
    with _planted(bug) if bug else nullcontext():
        _answer(workload, run_cpu_s)


def _planted(bug: str) -> AbstractContextManager[None]:
    from simulation.planted.bugs import PLANTED
    from simulation.planted.seams import faulty

    return faulty(next(one for one in PLANTED if one.name == bug).faults)


def _answer(workload: str, run_cpu_s: float) -> None:
    # The cyclic collector need not walk the loaded modules in every run.
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER_OBJECTS, 10, 10)
    faulthandler.register(signal.SIGPROF, all_threads=False, chain=True)  # then the process ends
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, run_cpu_s)
        began_s = time.process_time()
        result = play(workload, int(line))
        gc.collect()  # The world of the run is one large cycle.
        print(json.dumps(asdict(evolve(result, cpu_s=time.process_time() - began_s))), flush=True)


# --- in the parent ----------------------------------------------------------------------------


class Child:
    """A process that plays seeds of one workload, from the packages under ``root``, with the named planted bug."""

    def __init__(
        self,
        workload: str,
        *,
        bug: str = "",
        root: Path = ROOT,
        run_cpu_s: float = RUN_CPU_S_MAX,
        asleep_looks: int = ASLEEP_LOOKS_MAX,
        hash_seed: int = 0,
    ) -> None:
        self.workload = workload
        self._run_cpu_s = run_cpu_s
        self._asleep_looks = asleep_looks
        environment = os.environ | {
            "PYTHONPATH": str(root),
            "PYTHONHASHSEED": str(hash_seed),  # fixed: a failure can be repeated even if code follows a set's order
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "simulation.runs", workload, str(run_cpu_s), bug],
            cwd=root,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._ready = False

    def play(self, seed: int) -> Result:
        """Play one seed; a process that dies or hangs gives a broken result."""
        assert self._process.stdin is not None
        try:
            if not self._ready:
                self._ready = bool(self._line())
            self._process.stdin.write(f"{seed}\n")
            self._process.stdin.flush()
            answer = json.loads(self._line())
        except (BrokenPipeError, EOFError, ValueError):
            return Result(self.workload, seed, *self._end())
        except TimeoutError as error:
            self._end()
            return Result(self.workload, seed, "liveness", str(error))
        return Result(**answer)

    def _line(self) -> str:
        """Return its next line; raises `EOFError`, and `TimeoutError` if the process sleeps for too long."""
        assert self._process.stdout is not None
        looks = 0
        while not select.select([self._process.stdout], [], [], LOOK_S)[0]:
            looks = looks + 1 if _asleep(self._process.pid) else 0
            if looks >= self._asleep_looks:
                raise TimeoutError(f"waited for {looks * LOOK_S:.0f} s for something that is not simulated")
        line = self._process.stdout.readline()
        if not line:
            raise EOFError
        return line

    def _end(self) -> tuple[str, str]:
        """Kill the process; return the checker and the text that describe its end."""
        self._process.kill()
        code = self._process.wait()
        said = self._process.stderr.read() if self._process.stderr is not None else ""
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        if code == -signal.SIGPROF:
            where = "\n".join(line for line in lines if line.startswith("File "))
            return "liveness", f"did not end within {self._run_cpu_s:g} s of processor time, at {where}"
        return "no errors", f"the process died: {lines[-1] if lines else f'exit code {code}'}"

    @property
    def alive(self) -> bool:
        """Whether the process can play another seed."""
        return self._process.poll() is None

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    pass


def _asleep(pid: int) -> bool:
    """Return whether a process sleeps: it does not run, is not stopped, and does not wait for a processor."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"
    except OSError:  # there is no such file, or no such process any more
        return False


def run_many(workload: str, seeds: Iterable[int], *, jobs: int, root: Path = ROOT) -> Iterator[Result]:
    """Play seeds in ``jobs`` processes; yield results as they arrive. Closing the iterator ends the processes."""
    asked: queue.SimpleQueue[int] = queue.SimpleQueue()
    wanted: Sequence[int] = list(seeds)
    for seed in wanted:
        asked.put(seed)
    results: queue.SimpleQueue[Result | BaseException] = queue.SimpleQueue()
    stop = threading.Event()
    threads = [
        threading.Thread(target=_work, args=(workload, root, asked, results, stop), daemon=True)
        for _ in range(min(jobs, len(wanted)))
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in wanted:
            result = results.get()
            if isinstance(result, BaseException):
                raise result
            yield result
    finally:
        stop.set()
        while not asked.empty():
            try:
                asked.get_nowait()
            except queue.Empty:
                break
        for thread in threads:
            thread.join(timeout=1.0)


def _work(
    workload: str,
    root: Path,
    asked: queue.SimpleQueue[int],
    results: queue.SimpleQueue[Result | BaseException],
    stop: threading.Event,
) -> None:
    process: Child | None = None
    try:
        while not stop.is_set():
            try:
                seed = asked.get_nowait()
            except queue.Empty:
                return
            if process is None or not process.alive:
                process = Child(workload, root=root)
            results.put(process.play(seed))
    except BaseException as error:
        results.put(error)
    finally:
        if process is not None:
            process.close()


if __name__ == "__main__":
    child(sys.argv[1], float(sys.argv[2]), *sys.argv[3:])
