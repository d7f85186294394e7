"""Logs of daemons and workers: lines of text or JSON, with the running task, without secrets."""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from onyxq.interfaces.cli import logs
from onyxq.interfaces.cli.context import Context
from onyxq.interfaces.cli.main import run
from onyxq.interfaces.cli.output import Output
from onyxq.system.settings import Config

SECRETS = {
    "ONYXQ_TOKEN": 'a-token-with-"quotes"',
    "ONYXQ_TOKENS": "first-token-of-some=read second-token-of-some=admin",
    "ONYXQ_PEER_SECRET": "what-peers-show-each-other",
    "ONYXQ_ZOOKEEPER_AUTH": "digest:user:passes-words",
}
WORDS = ('a-token-with-"quotes"', "first-token-of-some", "second-token-of-some", "what-peers-show", "passes-words")


def context(**settings: str) -> Context:
    """Return the context of a command with these settings."""
    environment = SECRETS | {f"ONYXQ_{name.upper()}": value for name, value in settings.items()}
    return Context(argparse.Namespace(), Config(environment, {}, ""), Output(as_json=False, environment={}))


@contextmanager
def own_logging(**settings: str) -> Iterator[logging.Logger]:
    """Set up logging by the settings, instead of pytest's; restore it afterwards."""
    root, factory = logging.getLogger(), logging.getLogRecordFactory()
    handlers, level = list(root.handlers), root.level
    root.handlers[:] = []
    logging.setLogRecordFactory(logging.LogRecord)
    try:
        logs.set_up(context(**settings))
        yield logging.getLogger("onyxq.test")
    finally:
        logging.setLogRecordFactory(factory)
        root.handlers[:] = handlers
        root.setLevel(level)


def leaking(logger: logging.Logger) -> None:
    """Log all secrets in the text, in an argument, and in a traceback."""
    logger.warning("settings: %s %r", "; ".join(SECRETS.values()), SECRETS)
    try:
        raise ValueError(*SECRETS.values())
    except ValueError:
        logger.exception("it failed")


@pytest.mark.parametrize("form", logs.FORMATS)
def test_no_secret_is_logged(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No form of it is logged, also not that of JSON or Python; other text is."""
    with own_logging(log_format=form) as logger:
        leaking(logger)
    said = capsys.readouterr().err
    assert "it failed" in said and "ValueError" in said and logs.HIDDEN in said
    for word in WORDS:
        assert word not in said and json.dumps(word)[1:-1] not in said


def test_a_line_of_json_tells_what_it_is_about(capsys: pytest.CaptureFixture[str]) -> None:
    """Each line is an object, with the fields that a worker adds while a task runs."""
    about = {"task_id": "ab", "task_name": "-", "task_queue": "mail", "task_attempt": 2}
    with own_logging(log_format="json", log_level="info") as logger:
        logger.info("two\nlines", extra=about)
        logger.debug("too small")
    (line,) = capsys.readouterr().err.splitlines()
    found = json.loads(line)
    assert found.pop("time").endswith("+00:00")
    assert found == {
        "level": "info",
        "logger": "onyxq.test",
        "message": "two\nlines",
        "process": os.getpid(),
        "task_id": "ab",
        "task_queue": "mail",
        "task_attempt": 2,
    }


@pytest.mark.parametrize("arguments", [["--log-format", "xml"], ["--log-level", "loud"]])
def test_what_there_is_not_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The error names it, and the existing ones."""
    assert run(["dev", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", *arguments]) == 2
    said = capsys.readouterr().err
    assert arguments[0][2:].replace("-", "_") in said and ("json" in said or "debug" in said)


def test_a_worker_logs_json(tmp_path: Any) -> None:
    """A worker process that cannot reach its cluster reports that in JSON."""
    (tmp_path / "shop.py").write_text(
        "import logging, onyxq\n"
        "app = onyxq.App('127.0.0.1:1')\n"
        "@app.task\n"
        "def nothing() -> None: ...\n"
        "class Early(onyxq.App):\n"
        "    def worker(self, *args, **more):\n"
        "        logging.getLogger('shop').warning('the token is %s', self.token)\n"
        "        raise SystemExit(3)\n"
        "app.__class__ = Early\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "onyxq", "worker", "start", "shop:app", "--log-format", "json"],
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"ONYXQ_TOKEN": "what-nobody-may-read"},
    )
    assert ended.returncode == 3, ended.stderr
    (line,) = [json.loads(line) for line in ended.stderr.splitlines() if line.startswith("{")]
    assert (line["logger"], line["message"]) == ("shop", "the token is (hidden)")


def test_no_message_begins_a_line_that_looks_like_another() -> None:
    """Line breaks and cursor controls are escaped; an error's lines are indented."""
    formatter = logs.TextLines("%(levelname)s %(message)s")
    forged = "path\r\nERROR forged\x1b[2J\u2028ERROR too"
    record = logging.LogRecord("a", logging.INFO, "", 0, "a request to %s failed", (forged,), None)
    assert formatter.format(record) == "INFO a request to path\\r\\nERROR forged\\x1b[2J\\u2028ERROR too failed"
    try:
        raise ValueError("wrong\nERROR forged\x1b[2J")
    except ValueError:
        record = logging.LogRecord("a", logging.INFO, "", 0, "failed", (), sys.exc_info())
    first, *rest = formatter.format(record).splitlines()
    assert first == "INFO failed" and rest and all(line.startswith("  ") and line.isprintable() for line in rest)
    record = logging.LogRecord("a", logging.INFO, "", 0, "%s", ("\u009b2J\u202e",), None)
    assert logs.JsonLines().format(record).isprintable()
