"""The errors of a type checker in calls that are enqueued."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SOURCE = """
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from onyxq import App, Client, blocking_context, context
from onyxq.app import TaskFunction, TaskHandle

app = App()
App("127.0.0.1:7400", timeout_ms="5s", connect_timeout_ms=timedelta(milliseconds=200))
App(["one:7400", "two:7400"], token="secret")
App(data="./queue")
App(7400)  # wrong
App(data=5)  # wrong
App(adress="127.0.0.1:7400")  # wrong
App(timeout_ms=[5])  # wrong


@app.periodic("0 3 * * *", zone="Europe/Berlin")
@app.task
def nightly() -> None: ...


@app.periodic("0 3 * * *", zone=3)  # wrong
@app.task
def weekly() -> None: ...


@app.task(queue="mail", ordering_key=lambda to, body: str(to), timeout_s="30s", backoff_ms=timedelta(seconds=1))
async def send(to: str, body: str) -> int:
    async with context().transaction("x") as tx:
        send.enqueue_in(tx, to, body)
        send.enqueue_in(tx, 5, body)  # wrong
    await send.enqueue_async("a", "b")
    await send.enqueue_async("a", 1)  # wrong
    return await send(to, body)


@app.task
def thumbnail(path: str, *, width: int = 100) -> bytes:
    blocking_context().sleep("1s")
    blocking_context().sleep(None)  # wrong
    return b""


# calls and options
send.enqueue(to="a", body="b")
send.enqueue("a", "b")
send.enqueue(to=5, body="b")  # wrong
send.enqueue("a")  # wrong
send.options(delay_ms=5).enqueue("a", "b")
send.options(delay_ms="5s", timeout_s=timedelta(minutes=1)).enqueue("a", "b")
send.options(delay_ms=5).enqueue("a", bodi="b")  # wrong
send.options(delay=[1])  # wrong
send.options(delay="1m", expires_ms=datetime.now(UTC)).enqueue("a", "b")
send.options(at_ms="tomorrow")  # wrong
app.task(backoff="10s")
app.task(backoff=(1, "1m"))
app.task(backoff=[None])  # wrong
send.options(delay_ms=[1])  # wrong
send.options(retries="5")  # wrong
send.options(on_dependency_failed="run").enqueue("a", "b")
send.options(on_dependency_failed="runs")  # wrong
app.task(runs="process")
app.task(runs="processes")  # wrong
app.periodic("0 3 * * *", missed="all")
app.periodic("0 3 * * *", missed="every")  # wrong
send.s("a", 7)  # wrong
nightly.enqueue(1)  # wrong
thumbnail.enqueue("a", 5)  # wrong
thumbnail.enqueue("a", width=5)
app.chain(send.s("a", "b"), nightly.s()).enqueue()

# results
picture: bytes = thumbnail.enqueue("a").result(timeout="5s")
text: str = thumbnail.enqueue("a").result()  # wrong
direct: bytes = thumbnail("a")
not_async: bytes = thumbnail(5)  # wrong
number: int = send.enqueue("a", "b").result(timeout=5)
name: str = send.enqueue("a", "b").result(timeout=timedelta(seconds=5))  # wrong
send.enqueue("a", "b").result(timeout=[5])  # wrong
later_number: int = send.result("0" * 40, wait_ms="5s")
later_name: str = send.result("0" * 40)  # wrong
nothing: None = nightly.enqueue().result()

# handles
task: TaskHandle[int] = send.enqueue("a", "b")
other: TaskHandle[str] = send.enqueue("a", "b")  # wrong
task.cancel(claimed=True)
task.state() == "completed"
task.state() == "complete"  # wrong
task.cancel(True)  # wrong
thumbnail.handle("0" * 40).result()
thumbnail.handle(5)  # wrong
thumbnail.handle("0" * 40).reslt()  # wrong
hexadecimal: str = task.id
task.id = "x"  # wrong
progress = task.progress()
progress.done  # wrong
share = progress.done / (progress.total or 1) if progress else 0.0
values = [entry.value for entry in task.updates()]
with Client() as client:
    same: bool = client.get(task).id == task
    client.wait(task, "10s")
    client.get(task).claims[-1].outcome == "expired"
    client.get(task).claims[-1].outcome == "lapsed"  # wrong
    client.list(state="failed")
    client.list(state="dead")  # wrong
    client.enqueue("q", b"{}", format="json")
    client.enqueue("q", b"{}", format="text")  # wrong
    client.wait(task, 0.5)  # wrong
    client.claim("q", lease_ms="20s", wait_ms=timedelta(seconds=1))
    send.options(depends=[task, task.id]).enqueue("a", "b")
    send.options(depends=[5]).enqueue("a", "b")  # wrong

# many
thumbnails: list[bytes] = [one.result() for one in thumbnail.enqueue_many([("a",), {"path": "b"}])]
thumbnail.enqueue_many(["a", "b"])  # wrong
thumbnail.enqueue_many(("a", 5) for _ in range(3))


async def later() -> None:
    number: int = await send.enqueue("a", "b")
    name: str = await send.enqueue("a", "b")  # wrong
    picture: bytes = await (await thumbnail.enqueue_async("a"))
    too_soon: int = await send.enqueue_async("a", "b")  # wrong
    async for entry in thumbnail.enqueue("a").updates():
        print(entry.seq + 1, entry.at_ms)
        print(entry.sequence)  # wrong
    await task.cancel_async()


def run_all(tasks: list[TaskFunction[[str], bytes]]) -> Iterator[bytes]:
    for one in tasks:
        yield one.enqueue("a").result()


with app.background_worker(["mail"], 2, lease_ms="20s") as worker:
    worker.stop()
    worker.end()  # wrong
app.worker(concurrency="2")  # wrong
app.worker(lease_ms="20s", drain_ms=timedelta(seconds=5)).run()
"""
"""A program with right calls, and with wrong ones, which are marked."""


@pytest.mark.long
def test_arguments_and_options_are_checked(tmp_path: Path) -> None:
    """Each wrong call is reported, and no other."""
    path = tmp_path / "shop.py"
    path.write_text(SOURCE)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    wrong = {number for number, line in enumerate(SOURCE.splitlines(), 1) if line.endswith("# wrong")}
    assert len(wrong) >= 30 and len(re.findall(r"^(?!.*# wrong$).*\w\(.*", SOURCE, re.MULTILINE)) >= 30
    assert {int(line) for line in re.findall(r"shop\.py:(\d+): error", found.stdout)} == wrong, found.stdout


def test_type_checkers_find_an_editable_install(tmp_path: Path) -> None:
    """It is a path in a ``.pth`` file. They cannot follow the other kind, an import hook."""
    for package in ("onyxq", "log_entries", "simulation"):
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text('__version__ = "1"\n')
    for name in ("setup.cfg", "pyproject.toml", "README.rst", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    build = "from setuptools.build_meta import build_editable; print(build_editable('.'))"
    subprocess.run([sys.executable, "-c", build], cwd=tmp_path, capture_output=True, check=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as content:
        (path,) = (name for name in content.namelist() if name.endswith(".pth"))
        assert content.read(path).decode().strip() == str(tmp_path)
