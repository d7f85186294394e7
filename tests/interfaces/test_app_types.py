"""The errors of a type checker in calls that are enqueued."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

SOURCE = """
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
send.options(delay_ms="x")  # wrong
send.s("a", 7)  # wrong
nightly.enqueue(1)  # wrong
app.chain(send.s("a", "b"), nightly.s()).enqueue()
"""


def test_arguments_and_options_are_checked(tmp_path: Path) -> None:
    """Each wrong call is reported, and no other."""
    path = tmp_path / "shop.py"
    path.write_text(SOURCE)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(path)]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    wrong = {number for number, line in enumerate(SOURCE.splitlines(), 1) if line.endswith("# wrong")}
    assert {int(line) for line in re.findall(r"shop\.py:(\d+): error", found.stdout)} == wrong, found.stdout
