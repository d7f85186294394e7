"""Answers of commands that would be wrong, or a traceback, for unusual data, limits and readers."""

from __future__ import annotations

import base64
import io
import json
import os
import subprocess
import sys
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from onyxq.core.limits import TIME_MS_MAX
from onyxq.core.queue_settings import Queue
from onyxq.errors import TimedOut, Unavailable
from onyxq.interfaces.cli.commands.all import COMMANDS, SECTIONS
from onyxq.interfaces.cli.context import Context, clock
from onyxq.interfaces.cli.main import run
from onyxq.interfaces.cli.output import Output
from onyxq.interfaces.cli.tasks import member, payload_given
from onyxq.operations.table.operation import plain
from onyxq.operations.table.queue import STILL_AFTER_MS, Depth, QueueNow, shown_settings
from onyxq.operations.table.task import ClaimOfTask, TaskView

NOWHERE = ("--connect", "127.0.0.1:1")


@pytest.mark.parametrize(
    "data",
    [b"[" * 100_000 + b"]" * 100_000, b"[" * 500 + b"]" * 500, b'{"x": NaN}', b"-Infinity", b"1e999", b"1\x002\x00"],
    ids=["too deep to be read", "too deep to be printed", "NaN", "infinity", "too large a number", "UTF-16"],
)
def test_data_that_json_cannot_show_is_printed_as_base64(data: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    """Strangers enqueue it, and workers return it: a command prints it, and prints nothing that is not JSON."""
    out = Output(as_json=True, environment={})
    out.document({"claims": [{"task": member("data", data, "json")}]})
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found == {"claims": [{"task": {"data_base64": base64.b64encode(data).decode()}}]}


@pytest.mark.parametrize("more", [[], ["--all"]], ids=["document", "lines"])
@pytest.mark.parametrize("data", [b"1e999", b"[" * 500 + b"]" * 500], ids=["too large a number", "too deep"])
def test_lists_print_data_that_json_cannot_show_as_base64(
    data: bytes, more: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One such task, or result, must not spoil the list that it is in."""
    about: dict[str, Any] = dict.fromkeys(one.name for one in msgspec.structs.fields(TaskView))
    about |= {"id": bytes(20), "queue": "q", "state": "completed", "format": "json", "data": data, "result": data}
    about |= dict.fromkeys(("priority", "at_ms", "created_ms", "attempts", "claims_left_out", "updates"), 0)
    page = {"tasks": [about | {"depends": [], "claims": []}], "after": None}
    monkeypatch.setattr(Context, "client", lambda _: nullcontext(SimpleNamespace(call=lambda *_: page)))
    assert run(["task", "list", "--json", *more]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    task = found if more else found["tasks"][0]
    encoded = base64.b64encode(data).decode()
    assert (task["data_base64"], task["result_base64"]) == (encoded, encoded)


class Screen(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def _task(task_id: str, data: bytes, **about: object) -> dict[str, object]:
    none: dict[str, object] = dict.fromkeys(one.name for one in msgspec.structs.fields(TaskView))
    none |= dict.fromkeys(("priority", "at_ms", "attempts", "claims_left_out", "updates"), 0)
    none |= {"queue": "mail", "format": "json", "depends": [], "claims": [], "created_ms": 1_800_000_000_000}
    return none | {"id": bytes.fromhex(task_id), "data": data} | about


def test_a_terminal_shows_each_task_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line has the function and the error, which ends where the terminal does. Ids have the digits they need."""
    retried = dict.fromkeys(one.name for one in msgspec.structs.fields(ClaimOfTask)) | {"given_up": False}
    retried |= {"token": 7, "attempt": 1, "worker": "w", "outcome": "failed", "error": "ValueError: " + "no host " * 20}
    tasks = [
        _task("01a220d807ff001d" + "0" * 24, b"[1]", state="ready"),
        _task("01a220d807ff001d4" + "0" * 23, b'{"task": "send"}', state="scheduled", claims=[retried], attempts_max=3),
    ]
    monkeypatch.setattr(
        Context, "client", lambda _: nullcontext(SimpleNamespace(call=lambda *_: {"tasks": tasks, "after": None}))
    )
    monkeypatch.setattr("onyxq.interfaces.cli.context.time.time", lambda: 1_800_000_120)
    for name, text in {"COLUMNS": "100", "TERM": "xterm", "NO_COLOR": "1"}.items():
        monkeypatch.setenv(name, text)
    monkeypatch.setattr(sys, "stdout", screen := Screen())
    assert run(["task", "list"]) == 0
    head, raw, call = screen.getvalue().splitlines()
    assert head.split() == ["id", "function", "queue", "state", "created", "attempt", "last", "error"]
    assert raw.split() == ["01a220d807ff001d0", "-", "mail", "ready", "2", "min", "ago", "0", "-"]
    assert call.startswith(
        "01a220d807ff001d4  send      mail   scheduled  2 min ago  1 of 3   ValueError: no host no h"
    )
    assert len(call) == 100 and call.endswith("…")


def test_a_wait_outlasts_a_restart_of_the_peers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Once it has seen the task. Before, it reports that no peer answers."""
    task = _task("01" * 20, b"[1]", state="ready")
    answers: list[Any] = [task, Unavailable("gone"), Unavailable("gone"), task | {"state": "completed"}]

    def call(*_: object) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Unavailable):
            raise answer
        return answer

    monkeypatch.setattr(Context, "client", lambda _: nullcontext(SimpleNamespace(call=call)))
    clock = SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _: None)
    monkeypatch.setattr("onyxq.interfaces.cli.live.time", clock)
    assert run(["task", "wait", "01" * 20]) == 0
    assert capsys.readouterr().out == f"{'01' * 20} completed\n"
    answers.append(Unavailable("gone"))
    assert run(["task", "wait", "01" * 20]) == Unavailable.exit_code


def test_a_wait_without_an_answer_ends_at_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time that a call takes to fail counts."""
    now, asked = [0.0], list[float]()

    def call(*_: object) -> Any:
        asked.append(now[0])
        if len(asked) > 1:
            now[0] += 30
            raise Unavailable("gone")
        return _task("01" * 20, b"[1]", state="ready")

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(Context, "client", lambda _: nullcontext(SimpleNamespace(call=call)))
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr("onyxq.interfaces.cli.live.time", clock)
    assert run(["task", "wait", "01" * 20, "--timeout", "10s"]) == Unavailable.exit_code
    assert len(asked) == 2


def test_a_wait_shows_each_failed_attempt(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Also if no peer answers just then with the time of the retry."""
    retried = _task("01" * 20, b"[1]", state="ready", attempts=1)
    answers, times = [retried, retried, retried, retried | {"state": "completed"}], [Unavailable("gone"), None]

    def now_ms() -> int:
        if error := times.pop(0):
            raise error
        return 0

    client = SimpleNamespace(call=lambda *_: answers.pop(0), now_ms=now_ms)
    monkeypatch.setattr(Context, "client", lambda _: nullcontext(client))
    monkeypatch.setattr("onyxq.interfaces.cli.live.time", SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda _: None))
    assert run(["task", "wait", "01" * 20]) == 0
    assert capsys.readouterr().err.count("attempt 1 failed") == 1


def test_queues_that_lack_a_worker_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A note tells what to do. JSON is for programs, which read the depths. A new task may only wait for a claim."""

    def queue(name: str, oldest_ready_ms: int | None = STILL_AFTER_MS, **depth: int) -> dict[str, Any]:
        depths = Depth(**{**dict.fromkeys(Depth.__struct_fields__, 0), **depth})
        settings = shown_settings(Queue())
        now = QueueNow(
            queue=name, depth=depths, oldest_ready_ms=oldest_ready_ms, settings=settings, running=0, position=1
        )
        return cast(dict[str, Any], plain(now))

    answers = {
        "queues": {
            "queues": [
                queue("mail", ready=3),
                queue("index", ready=3),
                queue("new", STILL_AFTER_MS - 1, ready=3),
                queue("busy", ready=3, claimed=1),
                queue("idle", None),
            ]
        },
        "queue.get": queue("mail", ready=3),
        "workers": {"silent": [], "all": 1, "workers": [{"waits_for": ["index"]}]},
    }
    client = SimpleNamespace(call=lambda method, *_: answers[method])
    monkeypatch.setattr(Context, "client", lambda _: nullcontext(client))
    for command in (["queue", "list"], ["queue", "show", "mail"]):
        assert run(command) == 0
        said = "no worker asks for queue 'mail'. Start one with: onyxq worker start MODULE:APP\n"
        assert capsys.readouterr().err == said
        assert run([*command, "--json"]) == 0
        assert capsys.readouterr().err == ""


def test_a_terminal_tells_busy_workers_from_idle_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows how many tasks a worker has, and not how many further ones it asks for."""
    about = {"next_deadline_in_ms": None, "newest_token": None, "waits": 1, "free": 11, "waits_for": ["mail"]}
    busy = about | {"worker": "a:1", "claimed": 2, "waits": 0, "free": 0, "waits_for": [], "next_deadline_in_ms": 9_500}
    found = {"workers": [busy, about | {"worker": "a:2", "claimed": 0}], "all": 2, "silent": []}
    monkeypatch.setattr(Context, "call", lambda *_: found)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stdout", screen := Screen())
    assert run(["worker", "list"]) == 0
    assert [line.split() for line in screen.getvalue().splitlines()] == [
        ["worker", "state", "tasks", "waits", "for", "next", "lease", "ends", "in"],
        ["a:1", "busy", "2", "-", "9", "s"],
        ["a:2", "idle", "0", "mail", "-"],
    ]


@pytest.mark.parametrize(
    ("typed", "answer", "people", "piped"),
    [
        ("periodic remove nightly", {}, "removed nightly", "removed"),
        (
            f"task retry {'0a' * 20}",
            {"count": 1, "results": [{"id": b"\n" * 20, "ok": True}]},
            f"requeued task {'0a' * 20}",
            "requeued: 1",
        ),
        ("dead requeue --queue mail", {"count": 1}, "requeued 1 dead letter", "requeued: 1"),
        ("queue purge mail --yes", {"count": 2, "more": False}, "cancelled 2 tasks of mail", "cancelled: 2"),
        (f"task cancel {'0a' * 20}", {"results": [None]}, f"cancelled task {'0a' * 20}", "done"),
    ],
)
def test_a_terminal_names_what_was_changed(
    typed: str, answer: dict[str, object], people: str, piped: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scripts get the words that they know."""
    monkeypatch.setattr(Context, "client", lambda _: nullcontext(SimpleNamespace(call=lambda *_: answer)))
    monkeypatch.setenv("NO_COLOR", "1")
    for stream, said in ((Screen(), people), (io.StringIO(), piped)):
        monkeypatch.setattr(sys, "stdout", stream)
        assert run(typed.split()) == 0
        assert stream.getvalue() == f"{said}\n"


def test_one_task_is_no_tasks(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A purge tells what it would cancel, in good grammar."""
    answer = {"depth": {"ready": 1, "scheduled": 0, "waiting": 0}}
    monkeypatch.setattr(Context, "client", lambda _: nullcontext(SimpleNamespace(call=lambda *_: answer)))
    assert run(["queue", "purge", "mail"]) == 2
    assert "this would cancel 1 task of mail (1 ready, 0 scheduled, 0 waiting)" in capsys.readouterr().err


@pytest.mark.parametrize(
    "data", [b"[" * 200 + b"]" * 200, b'{"x": [0.5, null, "\xc3\xa4"]}', b"12"], ids=["deep", "mixed", "number"]
)
def test_data_that_is_json_is_printed_as_its_value(data: bytes) -> None:
    """It may be nested."""
    assert member("data", data, "json") == {"data": json.loads(data)}


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, "NaN", "[1e999]", "ann", '"\udce4"'],
    ids=["too deep", "NaN", "too large", "word", "no UTF-8"],
)
@pytest.mark.parametrize(
    "words", [("task", "enqueue", "q", "--data"), ("timer", "add", "--in", "1s", "--uri", "http://a/", "--data")]
)
def test_data_that_is_not_json_exits_with_2(words: tuple[str, ...], text: str) -> None:
    """It is refused before a peer is asked."""
    assert run([*words, text, *NOWHERE]) == 2


def test_half_a_surrogate_pair_is_kept_as_an_escape() -> None:
    """JSON allows it as an escape, and only so."""
    context = cast(Context, SimpleNamespace(args=SimpleNamespace(data='["\\ud83d", "ä"]', file=None)))
    data, form = payload_given(context)
    assert json.loads(data.decode()) == ["\ud83d", "ä"] and form == "json"
    assert member("data", data, form) == {"data": ["\ud83d", "ä"]}


@pytest.mark.parametrize("ms", [253_402_300_800_000, TIME_MS_MAX])
def test_a_time_that_no_calendar_here_has_is_printed_in_milliseconds(ms: int) -> None:
    """A task may be due, or expire, after the year 9999. It must not end the list that it is in."""
    assert clock(ms) == f"{ms} ms"


def test_dead_letters_that_may_be_left_are_told_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One request changes a limited number, although the command says all."""
    monkeypatch.setattr(Context, "call", lambda *_: {"count": 100_000, "more": True})
    assert run(["dead", "requeue", "--all"]) == 0
    said = capsys.readouterr()
    assert said.out == "requeued: 100000\n" and "repeat the command" in said.err
    assert run(["dead", "discard", "--all", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"count": 100_000, "more": True}


@pytest.mark.parametrize(("ends_s", "code"), [(1.95, 0), (2.1, 6)])
def test_a_wait_lasts_as_long_as_its_limit(ends_s: float, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pauses between two looks at the task grow. The last one ends at the limit, neither after nor before it."""
    now = [0.0]

    class Peer:
        def call(self, *_: object) -> dict[str, object]:
            state = "completed" if now[0] >= ends_s else "claimed"
            about = {"id": bytes(20), "queue": "q", "state": state, "error": None, "updates": 0, "depends": []}
            about |= {"priority": 0, "at_ms": 0, "attempts": 0, "claims": []}
            return about | {"data": b"1", "format": "json", "result": None, "callback": None}

        def late(self, *_: object, field: str) -> TimedOut:
            return TimedOut("it is claimed", field=field)

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(Context, "client", lambda _: nullcontext(Peer()))
    clocks = SimpleNamespace(monotonic=lambda: now[0], sleep=sleep)
    monkeypatch.setattr("onyxq.interfaces.cli.live.time", clocks)
    assert run(["task", "wait", "00" * 20, "--timeout", "2s"]) == code
    assert now[0] <= 2


@pytest.mark.parametrize("text", ["30000.0", "1.5"])
def test_a_fraction_without_a_unit_is_no_number_of_milliseconds(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Whole numbers are milliseconds, so a fraction is not a number of seconds."""
    assert run(["queue", "set", "mail", f"lease_ms={text}", *NOWHERE]) == 2
    assert "lease_ms must be a whole number of milliseconds or a time like 30s" in capsys.readouterr().err


def test_a_wrong_number_of_retries_is_answered_with_what_is_possible(capsys: pytest.CaptureFixture[str]) -> None:
    """No limit is possible, and a number below 0 is not."""
    assert run(["queue", "set", "mail", "retries=five", *NOWHERE]) == 2
    assert "retries must be an integer, or none, not 'five'" in capsys.readouterr().err
    assert run(["task", "enqueue", "mail", "--retries", "-1", *NOWHERE]) == 2
    assert "retries must be a whole number from 0, or none for no limit, not '-1'" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "since_ms"), [("1h", 1_799_996_400_000), ("1800000000000", 1_800_000_000_000)])
def test_a_list_begins_at_a_time_or_that_long_ago(text: str, since_ms: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """``--since 1h`` is read as ``--delay 1h`` is, into the past."""
    asked = []

    def call(_: str, args: dict[str, object]) -> dict[str, object]:
        asked.append(args)
        return {"tasks": [], "after": None}

    monkeypatch.setattr(Context, "client", lambda _: nullcontext(SimpleNamespace(call=call)))
    monkeypatch.setattr("onyxq.interfaces.cli.operations.time.time", lambda: 1_800_000_000)
    assert run(["task", "list", "--since", text]) == 0
    assert asked[0]["since_ms"] == since_ms


@pytest.mark.parametrize(("text", "said"), [("noon", "since: a time looks like"), ("1.5", "since needs a unit: 1.5s")])
def test_a_time_that_cannot_be_read_names_its_option(text: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Not the field since_ms, which no option has."""
    assert run(["task", "list", "--since", text, *NOWHERE]) == 2
    assert said in capsys.readouterr().err


def test_a_pipe_that_nobody_reads_ends_a_command_quietly() -> None:
    """Also if the output is so short that it is written at the end."""
    reader, writer = os.pipe()
    os.close(reader)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "-m", "onyxq", "config", "show"]
    with os.fdopen(writer, "wb") as stdout:
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, env=environment, check=False)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_command_without_a_stdout_succeeds() -> None:
    """A script or a daemon may close it."""
    command = ["sh", "-c", '"$0" -m onyxq completion bash >&-', sys.executable]
    done = subprocess.run(command, stderr=subprocess.PIPE, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize(
    "typed", [["dead", "list", "--limit", "0"], ["task", "list", "--limit", "-1"], ["log", "tail", "--limit", "0"]]
)
def test_a_limit_that_allows_nothing_is_refused(typed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """An empty list would say that there is nothing."""
    assert run([*typed, *NOWHERE]) == 2
    assert "limit must be at least 1" in capsys.readouterr().err


@pytest.mark.parametrize("limit", ["0", "-1"])
def test_a_limit_that_allows_no_row_of_an_outbox_is_refused(limit: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before the database is asked."""
    assert run(["outbox", "list", "--database", "postgresql://127.0.0.1:1/none", "--limit", limit]) == 2
    assert "limit must be at least 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "first", "last"),
    [(["--limit", "2"], 29, 30), (["--limit", "25"], 11, 35), (["--from", "29", "--limit", "3"], 29, 31)],
    ids=["newest only", "newest and new", "from a position"],
)
def test_a_followed_log_ends_after_as_many_records_as_the_limit_allows(
    options: list[str], first: int, last: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those that were there before count too. At most 20 of them are printed, so a larger limit has new ones."""
    end = [30]

    class Peer:
        def call(self, _: str, args: dict[str, Any]) -> dict[str, Any]:
            start = end[0] + 1 - args["limit"] if args["from"] is None else args["from"]
            found = [
                {"position": one, "at_ms": 1, "peer": "a", "problem": None, "entries": []}
                for one in range(start, end[0] + 1)
            ]
            answer = {"position": end[0], "records": found}
            end[0] += 1
            return answer

    monkeypatch.setattr(Context, "client", lambda _: nullcontext(Peer()))
    monkeypatch.setattr("onyxq.interfaces.cli.past.tail.TAIL_PAUSE_S", 0)
    assert run(["log", "tail", "--follow", "--json", *options]) == 0
    found = [json.loads(line)["position"] for line in capsys.readouterr().out.splitlines()]
    assert found == list(range(first, last + 1))


@pytest.mark.parametrize(
    ("typed", "code"),
    [([], 2), (["help"], 0), (["task"], 2), (["help", "task"], 0), (["help", "task", "get"], 0)],
    ids=lambda one: " ".join(one) if isinstance(one, list) else "",
)
def test_without_a_command_the_help_is_printed(typed: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    """It lists what can be typed. ``onyxq help`` is asked for, a missing command is misuse."""
    with pytest.raises(SystemExit) as ended:
        run(typed)
    said = capsys.readouterr()
    words = [one for one in typed if one != "help"]
    assert ended.value.code == code and " ".join(["usage: onyxq", *words]) in (said.err if code else said.out)


def test_the_list_of_commands_has_sections(capsys: pytest.CaptureFixture[str]) -> None:
    """Every command is in one of them. What a new user needs is in the first one."""
    names = [name for names in SECTIONS.values() for name in names]
    assert sorted(names) == sorted({command.name.split()[0] for command in COMMANDS})
    with pytest.raises(SystemExit):
        run(["--help"])
    shown = capsys.readouterr().out
    first = shown[shown.index("everyday:") : shown.index("more kinds of work:")]
    assert [line.split()[0] for line in first.splitlines()[1:] if line[2:3].strip()] == list(SECTIONS["everyday"])
