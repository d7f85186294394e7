"""The examples of docs/workers.rst work, and its table of options is complete."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onyxq.testing import open_cluster
from onyxq.worker.options import DEFAULTS, OF_FUNCTION, Changes

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/workers.rst").read_text("utf-8")
BLOCK = re.compile(r"\.\. code-block:: python\n   :caption: (\S+)\n\n((?:   .*\n|\n)+)")


def code(caption: str) -> str:
    """Return all code that the page shows of a file."""
    return "\n".join(textwrap.dedent(text) for name, text in BLOCK.findall(PAGE) if name == caption)


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The application of the page."""
    module = types.ModuleType("shop")
    monkeypatch.setitem(sys.modules, "shop", module)
    exec(compile(code("shop.py"), "shop.py", "exec"), module.__dict__)
    yield module


def test_what_the_page_shows_runs(shop: Any) -> None:
    """There are calls, checkpoints, transactions and flows."""
    with open_cluster(peers=1, seed=1) as cluster:
        cluster.use(shop.app)
        found: dict[str, Any] = dict(shop.__dict__)
        exec(compile(code("calls.py"), "calls.py", "exec"), found)
        shop.pay.enqueue("order 7", "cid")
        delivered = shop.deliver.enqueue("order 7")
        cluster.drain(reach_s=10_800)
        others = ["bob: later", "cid: order 7 is paid", "dan: hello", "eve: hello"]
        assert sorted(shop.sent) == ["ann: your order is on its way", *others]
        assert max(shop.arrive.result(task_id) for task_id in found["arrived"]) == 7
        assert shop.failures == {"index": 2, "deliver": 3, "recall": 2}
        errors = [cluster.client().get(task_id).error for task_id in found["recalled"]]
        assert errors == ["PermissionError: the depot refuses", "GiveUp: lamp is not an order"]
        assert shop.deliver.result(delivered) == "order 7 in attempt 2"
        exec(compile(code("results.py"), "results.py", "exec"), found)
        assert found["copies"] == 1 and shop.send.result(found["task"]) == 1
        assert found["shipped"].result() == shop.Order(customer="Ann", amounts={"tea": 2})
        assert [shop.index.result(task_id) for task_id in found["flow"].ids[:2]] == [2, 2]
        assert found["published"].result() == 4
        assert found["ended"]["counts"] == {"completed": 3}
        assert shop.index.progress(found["flow"].ids[0]).done == 5
        assert {"paid": "order 7"} in [task.result for task in cluster.tasks("orders")]
        assert [one["name"] for one in cluster.client().periodics()] == ["close_the_books"]


def test_an_application_needs_no_server(tmp_path: Path) -> None:
    """The program of the page runs on its own."""
    (tmp_path / "alone.py").write_text(code("alone.py"))
    free = {"ONYXQ_LISTEN": "127.0.0.1:0", "ONYXQ_HTTP": "127.0.0.1:0", "PYTHONPATH": str(ROOT)}
    found = subprocess.run(
        [sys.executable, "alone.py"], cwd=tmp_path, env=os.environ | free, capture_output=True, text=True, check=False
    )
    assert found.stdout == "CAT.JPG\n", found.stderr


def test_every_option_is_told() -> None:
    """Options of a task are in the table, those of a call beside it."""
    table = PAGE.split("\noption ", 1)[1].split("\n\n", 1)[0]
    told = set(re.findall(r"^``(\w+)``", table, re.MULTILINE)) - {"name"}
    assert told <= set(DEFAULTS)
    beside = PAGE.split("with other options for one call", 1)[1].split("In async code", 1)[0]
    assert told | set(re.findall(r"``(\w+)``", beside)) == set(DEFAULTS)
    assert set(Changes.__annotations__) == set(DEFAULTS) - set(OF_FUNCTION)
