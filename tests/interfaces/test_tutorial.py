"""Run docs/tutorial.rst from its first command to its last, in a real shell with real processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/tutorial.rst").read_text("utf-8")
BLOCK = re.compile(r"\.\. code-block:: (\w+)\n   :caption: (.+)\n\n((?:   .*\n|\n)+)")
COMMANDS_MAX = 12
PATIENCE_S = 90.0
LOOK_EVERY_S = 0.2


def blocks(kind: str, caption: str) -> list[str]:
    """Return the code under a caption."""
    return [textwrap.dedent(text) for of, name, text in BLOCK.findall(PAGE) if (of, name) == (kind, caption)]


def steps(caption: str) -> list[tuple[str, list[str]]]:
    """Return the commands of a terminal, each with the expected lines."""
    found: list[tuple[str, list[str]]] = []
    for line in "\n".join(blocks("console", caption)).splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        elif line.strip():
            found[-1][1].append(line)
    return found


class Shell:
    """A shell for the commands of the second terminal."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            ["bash", "--norc"],
            cwd=directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def type(self, command: str) -> str:
        """Run a command; return its output until the next prompt."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(f"{command}\necho; echo ---\n")
        self.process.stdin.flush()
        lines = []
        for line in self.process.stdout:
            if line == "---\n":
                return "".join(lines)
            lines.append(line)
        pytest.fail(f"the shell ended at {command!r}: {''.join(lines)}")

    def type_until(self, command: str, wanted: list[str]) -> str:
        """Repeat a command, as a reader would, until it prints the expected lines."""
        until = time.monotonic() + PATIENCE_S
        printed = self.type(command)
        while not re.search(_pattern(wanted), printed):
            assert time.monotonic() < until, f"{command!r} never printed {wanted}, but {printed}"
            time.sleep(LOOK_EVERY_S)
            printed = self.type(command)
        return printed

    def end(self) -> None:
        """Kill it and all processes that it started."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()


def _pattern(lines: list[str]) -> str:
    """Return a pattern for the lines of the page: ``...`` is any text, alone on a line any lines; blanks may differ."""
    return "(?m)" + "".join(
        r"(?:.*\n)*?" if line.strip() == "..." else rf"^\s*{_within(line.strip())}\s*?\n" for line in lines
    )


def _within(line: str) -> str:
    return re.sub(r"(?:\\ )+", r"\\s+", re.escape(line).replace(r"\.\.\.", ".*"))


@pytest.fixture
def first_terminal(tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Start the cluster as on the page but on free ports; return its addresses."""
    command = steps("first terminal")[1][0].split()
    free = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    with subprocess.Popen(
        [sys.executable, "-m", "onyxq", *command[1:], *free],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    ) as process:
        assert process.stdout is not None
        try:
            ready = dict(part.split("=") for part in process.stdout.readline().split()[1:])
            yield ready["listen"], ready["http"]
        finally:
            process.kill()


@pytest.fixture
def shell(tmp_path: Path, first_terminal: tuple[str, str]) -> Iterator[Shell]:
    """Open the second terminal, in the directory of the file."""
    (file,) = blocks("python", "hello.py")
    (tmp_path / "hello.py").write_text(file.replace("127.0.0.1:7400", first_terminal[0]), "utf-8")
    (tmp_path / "bin").mkdir()
    for name, module in (("onyxq", "-m onyxq"), ("python", "")):
        program = tmp_path / "bin" / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n', "utf-8")
        program.chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    made = Shell(tmp_path, os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "ONYXQ_CONNECT": first_terminal[0]})
    yield made
    made.end()


def test_the_path_is_short_and_begins_as_the_readme_does() -> None:
    """It has twelve commands; the first one is the installation, which is done before these tests."""
    commands = [command for caption in ("first terminal", "second terminal") for command, _ in steps(caption)]
    assert 8 <= len(commands) <= COMMANDS_MAX
    assert f"``{commands[0]}``" in (ROOT / "README.rst").read_text("utf-8")


@pytest.mark.long
def test_a_new_user_arrives(shell: Shell, first_terminal: tuple[str, str]) -> None:
    """With task, worker, HTTP, the worker's death and the retry, each command prints the lines of the page."""
    printed = {command: shell.type_until(command, said) for command, said in steps("second terminal")}
    assert "kill -9 $worker" in printed

    explained = printed["onyxq task explain $second"]
    assert explained.count("grants it to worker") == 2, explained
    begun = re.search(r"from (\d+) in attempt 2", shell.type("onyxq task get $second"))
    assert begun and 1 <= int(begun[1]) < 60

    for address in re.findall(r"http://127\.0\.0\.1:7480(\S*?)[,;\s]", PAGE):
        answer = httpx.get(f"http://{first_terminal[1]}{address}", trust_env=False)
        assert answer.status_code == 200, address
        assert "/v1/tasks" not in address or answer.json()["tasks"][0]["queue"] == "hello"
        assert address != "/ui/tasks?queue=hello" or "greet" in answer.text
