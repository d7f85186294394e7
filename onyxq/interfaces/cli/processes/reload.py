"""``--reload``: run a command in a process of its own, and start it again when a Python file changes.

The command runs in its own process, so an error in a changed file ends only that process. The next change starts it
again. It starts at once after the exit code `AGAIN`, and soon if a signal killed it. Signals are passed on to it,
and it is killed if this process is.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from onyxq.system.parent_death import killed_with_parent

STOP_S = 2.0
"""How long the command may take to end after a change before it gets a second signal, in seconds."""
LOOK_EVERY_S = 0.4
"""Pause between two looks at the files, in seconds."""
KILLED_PAUSE_S = 1.0
"""Pause before a command that was killed starts again, in seconds: it may crash each time it starts."""
AGAIN = 75
"""Exit code with which a command that `is_watched` asks to be started again."""
WATCHED = "ONYXQ_WATCHED"
"""Variable that such a command finds in its environment."""
SKIPPED = {"__pycache__", "node_modules", "site-packages"}
"""Directories whose files are not the user's; so are those whose name starts with a dot."""

_TEST = re.compile(r"test_.*|.*_test\.py|conftest\.py")
"""Names of pytest's files. Workers do not import them."""

Files = dict[str, int]
"""Time of the last change of each file, in nanoseconds."""


class Notes(Protocol):
    """The part of the output that is needed here."""

    def note(self, text: str) -> None:
        """Print a line."""


def signal_name(code: int) -> str:
    """Return the name of the signal in the negative exit code of a process, such as ``SIGKILL``."""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def is_watched() -> bool:
    """Return whether this process is a command that is started again if it ends with `AGAIN`."""
    return WATCHED in os.environ


def command_without(flag: str) -> list[str]:
    """Return the command line of this process without a flag."""
    return [sys.executable, "-m", "onyxq", *(word for word in sys.argv[1:] if word != flag)]


def start_child(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a command that gets no signal of the terminal, and that is killed if this process is."""
    return subprocess.Popen(
        command,
        env=environment,
        # In the group of this process, it would get Ctrl-C twice, and the second signal would end it at once.
        process_group=0,
        preexec_fn=killed_with_parent(),  # noqa: PLW1509  # two system calls, their library loaded before
    )


def keep_running(out: Notes, command: Sequence[str]) -> int:
    """Run a command again and again until SIGINT, SIGTERM or SIGHUP; return its exit code."""
    directory = Path.cwd()
    stopped: list[int] = []
    running: list[subprocess.Popen[bytes]] = []

    def stop(number: int, _: object) -> None:
        stopped.append(number)
        for process in running:
            process.send_signal(signal.SIGTERM if number == signal.SIGHUP else number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    while True:
        before = files_in(directory)
        with start_child(command, {**os.environ, WATCHED: "1"}) as process:
            running[:] = [process]
            if stopped:
                process.terminate()  # the signal came before there was this process
            reason = _until_changed(before, directory, process, stopped, out)
            if reason:
                out.note(f"{reason}: starting again")
                _end(process)
            code = process.wait()
        if stopped:
            return code if code >= 0 else 128 - code


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command in good order, and soon."""
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.terminate()


def _until_changed(
    before: Files, directory: Path, process: subprocess.Popen[bytes], stopped: list[int], out: Notes
) -> str:
    """Wait for a reason to start again or a signal; return the reason, or nothing."""
    ended = False
    while not stopped:
        if changed := _first_change(before, files_in(directory)):
            return f"{os.path.relpath(changed, directory)} changed"
        if process.poll() is not None and not ended:
            if process.returncode == AGAIN:
                return "the server is a new cluster"
            if process.returncode < 0:
                time.sleep(KILLED_PAUSE_S)
                return "" if stopped else f"the worker was killed by {signal_name(process.returncode)}"
            ended = True
            out.note(f"the worker ended with exit code {process.returncode}; waiting for a change")
        time.sleep(LOOK_EVERY_S)
    return ""


def _first_change(before: Files, now: Files) -> str:
    return min((name for name, _ in before.items() ^ now.items()), default="")


def files_in(directory: Path) -> Files:
    """Return the Python files of a directory and below, without tests."""
    return dict(_files(directory))


def _files(directory: Path) -> Iterator[tuple[str, int]]:
    for place, directories, names in os.walk(directory):
        directories[:] = [name for name in directories if name not in SKIPPED and not name.startswith(".")]
        for name in names:
            if name.endswith(".py") and not _TEST.fullmatch(name):
                try:
                    yield os.path.join(place, name), os.stat(os.path.join(place, name)).st_mtime_ns
                except FileNotFoundError:
                    continue  # an editor replaces files
