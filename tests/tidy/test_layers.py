"""The default layer of the tests has every kind of test, and reports cross from one process to another."""

from __future__ import annotations

import ast
import json

from tests.conftest import FIRST, TOGETHER, encodable
from tests.tidy.rules import Source, parse, sources

ALWAYS = {
    "tests/processes/test_kill.py": "a real cluster that is killed",
    "tests/processes/test_jobs.py": "a job that real peers run on Spark",
    "tests/dashboard/test_browser.py": "a browser",
    "tests/spark/test_columns.py": "Spark in the process of the test",
}
"""File -> the kind of test that the default layer has in it."""


def quick(source: Source) -> bool:
    """Return whether a file has a test of the default layer."""
    if any(isinstance(node, ast.Assign) and _long(node) for node in source.tree.body):
        return False
    tests = [
        node
        for node in ast.walk(source.tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_")
    ]
    return any(not any(map(_long, one.decorator_list)) for one in tests)


def _long(node: ast.AST) -> bool:
    return "pytest.mark.long" in ast.unparse(node)


def folder_of(path: str) -> str:
    """Return the folder of a file of tests, with a slash at the end."""
    return path.rpartition("/")[0] + "/"


def test_the_default_layer_has_every_kind_of_test() -> None:
    """Each folder of tests has some in it, and so has each file that represents a kind of test."""
    found = {source.path for source in sources() if source.test and quick(source)}
    assert {folder_of(source.path) for source in sources() if "/test_" in source.path and source.test} == {
        folder_of(path) for path in found
    }
    assert found >= ALWAYS.keys()


def test_a_file_of_long_tests_alone_is_found() -> None:
    """By its marker, or by those of all its tests."""
    head = "import pytest\n"
    whole = head + "pytestmark = [pytest.mark.long]\ndef test_a(): pass\n"
    single = head + "@pytest.mark.long\ndef test_a(): pass\n"
    assert not quick(parse("tests/a/test_a.py", whole))
    assert not quick(parse("tests/a/test_a.py", single))
    assert quick(parse("tests/a/test_a.py", single + "def test_b(): pass\n"))


def test_folders_that_the_scheduling_names_exist() -> None:
    """A folder that was renamed would be spread over all processes, or start last."""
    assert {*FIRST, *TOGETHER} <= {folder_of(source.path) for source in sources() if source.test}


def test_a_report_with_text_that_no_encoding_has_can_be_sent() -> None:
    """The report that is sent to another process has such text escaped everywhere."""
    report = {"sections": [("log", "a \ud800 b")], "duration": 1.5, "longrepr": None}
    sent = encodable(report)
    assert sent == {"sections": [("log", "a \\ud800 b")], "duration": 1.5, "longrepr": None}
    json.dumps(sent, ensure_ascii=False).encode("utf-8")
