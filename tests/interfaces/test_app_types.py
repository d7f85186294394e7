"""The errors of a type checker in calls that are enqueued."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

SOURCE = """
from datetime import timedelta

from onyxq import App, context

app = App()


@app.periodic("0 3 * * *", zone="Europe/Berlin")
@app.task
def nightly() -> None: ...


@app.task(queue="mail", ordering_key=lambda to, body: str(to), timeout_s=3)
async def send(to: str, body: str) -> int:
    async with context().transaction("x") as tx:
        send.enqueue_in(tx, to, body)
        send.enqueue_in(tx, 5, body)  # wrong
    await send.enqueue_async("a", "b")
    await send.enqueue_async("a", 1)  # wrong
    return await send(to, body)


send.enqueue(to="a", body="b")
send.enqueue("a", "b")
send.enqueue(to=5, body="b")  # wrong
send.enqueue("a")  # wrong
send.options(delay_ms=5).enqueue("a", bodi="b")  # wrong
send.options(delay="x")  # wrong
send.options(delay_ms=[1])  # wrong
send.options(delay_ms="5s", timeout_s=timedelta(minutes=1)).enqueue("a", "b")
send.s("a", 7)  # wrong
nightly.enqueue(1)  # wrong
app.chain(send.s("a", "b"), nightly.s()).enqueue()


@app.task
def thumbnail(path: str) -> bytes:
    return b""


picture: bytes = thumbnail.enqueue("a").result(timeout="5s")
text: str = thumbnail.enqueue("a").result()  # wrong
direct: bytes = thumbnail("a")
number: int = send.enqueue("a", "b").result(timeout=5)
name: str = send.enqueue("a", "b").result()  # wrong
send.enqueue("a", "b").result(timeout=[5])  # wrong
send.enqueue("a", "b").cancel(True)  # wrong
thumbnail.handle("0" * 40).reslt()  # wrong
thumbnails: list[bytes] = [one.result() for one in thumbnail.enqueue_many([("a",), {"path": "b"}])]
thumbnail.enqueue_many(["a", "b"])  # wrong


async def later() -> None:
    number: int = await send.enqueue("a", "b")
    name: str = await send.enqueue("a", "b")  # wrong
    picture: bytes = await (await thumbnail.enqueue_async("a"))
    async for entry in thumbnail.enqueue("a").updates():
        print(entry.seq + 1, entry.sequence)  # wrong
"""


def test_arguments_and_options_are_checked(tmp_path: Path) -> None:
    """Each wrong call is reported, and no other."""
    path = tmp_path / "shop.py"
    path.write_text(SOURCE)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    wrong = {number for number, line in enumerate(SOURCE.splitlines(), 1) if line.endswith("# wrong")}
    assert {int(line) for line in re.findall(r"shop\.py:(\d+): error", found.stdout)} == wrong, found.stdout
