"""The command line without a cluster: help, suggestions, exit codes, output forms."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from onyxq import errors
from onyxq.errors import BadRequest
from onyxq.interfaces.cli.commands.all import COMMANDS, NOUNS, PEER_SECTIONS, PEER_SETTINGS
from onyxq.interfaces.cli.context import clock, moment, task_id
from onyxq.interfaces.cli.main import run
from onyxq.interfaces.cli.output import Output, cell
from onyxq.interfaces.cli.parser import Command, build
from onyxq.interfaces.cli.tasks import brief
from onyxq.system.durations import milliseconds

HELP_TIMES_MAX = 3.5
HELP_RUNS_MAX = 20
"""A machine that has other things to do shows the figure in one of them."""
SOME_ID = "00" * 20
VERBS_OF_QUEUE = ["list", "show", "pause", "resume", "set", "purge"]

PROMISED = """
    demo; dev; doctor; simulate; peer start; peer list; peer leave; cluster create; cluster show; cluster destroy;
    cluster protect; completion;
    zookeeper start; task enqueue; task get; task log; task list; task count; task claim; task complete;
    cluster backup; cluster restore; cluster recover;
    task fail; task renew; task cancel; task wait; task retry;
    task call; queue purge; top; queue list; queue show; queue pause; queue resume; queue set;
    dead list; dead show; dead requeue; dead discard; periodic list; periodic show; periodic add;
    periodic remove; periodic pause; periodic resume;
    flow make; flow list; flow get; flow wait; flow cancel; flow requeue;
    timer add; timer show; timer list; timer replace; timer cancel;
    job submit; job list; job show; job wait; job seal; job kill; job replay; job letters; job requeue;
    job savepoint; job savepoints; job savepoint-delete;
    archive log; history check; history stats; sql;
    ring show; partition list; partition show; partition force;
    log tail; log show; log gc; log dump; log replay; replica show; task explain; worker start;
    worker list; config show;
    outbox relay; outbox create; outbox list; outbox retry; outbox discard
"""


def test_every_promised_command_exists() -> None:
    """The names that scripts rely on are all there."""
    assert {name.strip() for name in PROMISED.split(";")} == {command.name for command in COMMANDS}


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_help_shows_an_example_of_the_command(command: Command, capsys: pytest.CaptureFixture[str]) -> None:
    """``--help`` of every command exits with 0 and shows how it is used."""
    with pytest.raises(SystemExit) as ended:
        run([*command.name.split(), "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert f"example: onyxq {command.name}" in shown
    assert "--json" in shown


def test_a_long_list_of_options_is_in_sections(capsys: pytest.CaptureFixture[str]) -> None:
    """The options for a first start come first, and the usage does not repeat all of them."""
    with pytest.raises(SystemExit):
        run(["dev", "--help"])
    first, *sections = capsys.readouterr().out.split("\n\ncredentials and TLS:\n")
    assert first.startswith("usage: onyxq dev [OPTION ...] [MODULE:APP]\n")
    found = re.findall(r"^  (--[a-z-]+)", first, re.MULTILINE)
    assert found == ["--reload", "--concurrency", "--import", "--peers", "--data", "--listen", "--http"]
    assert "\njobs on Spark:\n  --spark, --no-spark " in sections[0] and "ZooKeeper" not in sections[0]
    assert {name for names in PEER_SECTIONS.values() for name in names} < set(PEER_SETTINGS)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_the_example_parses(command: Command) -> None:
    """What the help shows can be typed."""
    import shlex

    args = build(COMMANDS, NOUNS).parse_args(shlex.split(command.example)[1:])
    assert args.command is command


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_a_command_that_waits_is_not_repeated(command: Command) -> None:
    """Its exit code would be lost."""
    flags = {flag for each in command.options() for flag in each[0]}
    assert not {"--timeout", "--watch"} <= flags


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_no_argument_hides_an_option(command: Command) -> None:
    """If both had one name, the value of the option would be lost."""
    named = [details.get("dest") or flags[0].strip("-").replace("-", "_") for flags, details in command.options()]
    assert sorted(named) == sorted(set(named))


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_the_body_exists(command: Command) -> None:
    """The function that a command names can be imported."""
    import importlib

    module, _, function = command.run.partition(":")
    assert callable(getattr(importlib.import_module(module), function))


@pytest.mark.parametrize("noun", NOUNS)
def test_help_of_a_noun_lists_its_verbs(noun: str, capsys: pytest.CaptureFixture[str]) -> None:
    """``onyxq NOUN --help`` shows every verb and an example."""
    with pytest.raises(SystemExit) as ended:
        run([noun, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert "example: onyxq" in shown
    assert all(command.name.split()[1] in shown for command in COMMANDS if command.name.startswith(noun + " "))


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["tsk"], "did you mean task?"),
        (["task", "enque", "q"], "did you mean enqueue"),
        (["task", "get", SOME_ID, "--jsn"], "did you mean --json"),
        (["dev", "--peeers=3"], "did you mean --peers"),
        (["task", "list", "--state", "redy"], "did you mean ready?"),
        (["status"], "did you mean top?"),
        (["queue", "get", "mail"], "did you mean show?"),
        (["queue", "delete", "mail"], "did you mean purge?"),
    ],
)
def test_a_slip_is_answered_with_what_was_meant(
    typed: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Unknown commands, flags and choices exit with 2 and suggest the nearest."""
    with pytest.raises(SystemExit) as ended:
        run(typed)
    assert ended.value.code == 2
    assert meant in capsys.readouterr().err


@pytest.mark.parametrize(
    "typed",
    [
        [],
        ["task"],
        ["task", "get"],
        ["task", "complete", SOME_ID],
        ["zookeeper", "start", "--servers", "2"],
        ["partition", "show", "seven"],
        ["--js", "demo"],
    ],
)
def test_misuse_exits_with_2(typed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Missing and malformed arguments are usage errors, with a hint."""
    with pytest.raises(SystemExit) as ended:
        run(typed)
    assert ended.value.code == 2
    assert "--help" in capsys.readouterr().err


@pytest.mark.parametrize(
    "typed",
    [
        ["task", "get", "xyz"],
        ["task", "enqueue", "q", "--data", "{", "--json"],
        ["task", "enqueue", "q", "--data", "1", "--file", "x"],
        ["cluster", "destroy", "main", "--zookeeper", "127.0.0.1:1"],
        ["cluster", "create", "main"],
        ["dev", "--peers", "0"],
        ["dev", "--listen", "nowhere"],
        ["demo", "--peers", "0"],
        ["config", "show", "--config", "/does/not/exist.toml"],
    ],
)
def test_bad_arguments_exit_with_2(typed: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Arguments that parse but make no sense are refused before anything is done."""
    assert run(typed) == 2
    assert capsys.readouterr().err


@pytest.mark.parametrize(
    "typed",
    [["task", "count"], ["queue", "list"], ["cluster", "show"], ["log", "gc"], ["task", "enqueue", "q"]],
    ids=" ".join,
)
def test_nobody_listening_exits_with_5(typed: list[str], nobody: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A peer that cannot be reached is `unavailable`, told without a traceback."""
    assert run([*typed, "--connect", nobody]) == 5
    shown = capsys.readouterr()
    assert shown.out == ""
    assert nobody in shown.err
    assert "hint:" in shown.err


def test_errors_are_json_where_json_is_asked_for(nobody: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With ``--json`` an error is one JSON document on stderr, with its stable code."""
    assert run(["task", "count", "--json", "--connect", nobody]) == 5
    assert json.loads(capsys.readouterr().err)["code"] == "unavailable"


def test_a_missing_input_directory_exits_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    """What is named but not there is `not found`."""
    assert run(["demo", "--input", "/does/not/exist"]) == 3
    assert "/does/not/exist" in capsys.readouterr().err


def test_every_error_has_a_documented_exit_code() -> None:
    """No error leaves the command line with a code that the help does not list."""
    assert {cls.exit_code for cls in errors.BY_CODE.values()} <= {1, 2, 3, 4, 5, 6}


def test_a_shell_can_complete_commands(capsys: pytest.CaptureFixture[str]) -> None:
    """The script that is printed is one that bash reads, and completes nouns, verbs and options."""
    assert run(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    ask = 'COMP_WORDS=(onyxq queue ""); COMP_CWORD=2; _shtab_onyxq; echo "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", f"{script}\n{ask}"], check=True, capture_output=True, text=True)
    assert done.stdout.split() == VERBS_OF_QUEUE
    assert run(["completion", "zsh"]) == 0
    assert capsys.readouterr().out.startswith("#compdef onyxq")


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_can_complete_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The script is one that fish reads, and completes verbs and the values of an option."""
    assert run(["completion", "fish"]) == 0
    script = tmp_path / "onyxq.fish"
    script.write_text(capsys.readouterr().out)

    def completed(line: str) -> list[str]:
        ask = f"source {script}; complete -C '{line}'"
        done = subprocess.run(["fish", "--no-config", "-c", ask], check=True, capture_output=True, text=True)
        return sorted(one.partition("\t")[0] for one in done.stdout.splitlines())

    assert completed("onyxq queue ") == sorted(VERBS_OF_QUEUE)
    assert completed("onyxq task list --state c") == ["cancelled", "claimed", "completed"]
    assert completed("onyxq completion ") == ["bash", "fish", "zsh"]


def test_help_is_light() -> None:
    """``onyxq --help`` loads neither the event loop nor the network, store or web parts."""
    loaded = subprocess.run(
        [sys.executable, "-c", _HELP_AND_MODULES], capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()[-1]
    assert not {"trio", "anyio", "msgpack", "lmdb", "kazoo", "fastapi", "starlette", "pyrsistent", "rich"} & set(
        loaded.split()
    )


_HELP_AND_MODULES = """
import sys
import textwrap
from onyxq.interfaces.cli.main import run
try:
    run(["--help"])
except SystemExit:
    print(*sys.modules)
"""


def test_help_is_fast() -> None:
    """``onyxq --help`` takes few times what Python and the libraries of its arguments take, by processor time."""
    help_seconds, least_seconds = float("inf"), float("inf")
    for _ in range(HELP_RUNS_MAX):
        help_seconds = min(help_seconds, _processor_seconds("-m", "onyxq", "--help"))
        least_seconds = min(least_seconds, _processor_seconds("-c", "import argparse, attrs, msgspec"))
        if help_seconds < HELP_TIMES_MAX * least_seconds:
            return
    pytest.fail(f"help took {help_seconds:.3f} s, the libraries {least_seconds:.3f} s")


def _processor_seconds(*arguments: str) -> float:
    before = os.times()
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True, timeout=60)
    after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


# --- arguments ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ms"),
    [("10s", 10_000), ("500ms", 500), ("5m", 300_000), ("2h", 7_200_000), ("1d", 86_400_000), ("1.5", 1_500)],
)
def test_durations_have_units(text: str, ms: int) -> None:
    """A duration is a number with a unit, or seconds."""
    assert milliseconds(text, field="delay") == ms


@pytest.mark.parametrize("text", ["", "s", "-1s", "1w", "ten"])
def test_a_malformed_duration_names_its_field(text: str) -> None:
    """An invalid duration is refused under the option's name."""
    with pytest.raises(BadRequest) as refused:
        milliseconds(text, field="delay")
    assert refused.value.field == "delay"


def test_a_time_is_iso_or_milliseconds() -> None:
    """``--at`` takes both forms, and the first with a zone."""
    assert moment("1700000000000", field="at") == 1_700_000_000_000
    assert moment("2023-11-14T22:13:20+00:00", field="at") == 1_700_000_000_000


@pytest.mark.parametrize("text", ["", "00", "zz" * 20, "0" * 39])
def test_an_id_is_40_hex_digits(text: str) -> None:
    """Anything else is refused before a peer is asked."""
    with pytest.raises(BadRequest):
        task_id(text)


# --- output ---------------------------------------------------------------------


class Terminal(io.StringIO):
    """A stream that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


def _table_on(stream: io.StringIO, environment: dict[str, str]) -> str:
    out = Output(as_json=False, environment=environment, stdout=stream, stderr=io.StringIO())
    out.table(None, [{"queue": "mail", "ready": 12}], ("queue", "ready"))
    return stream.getvalue()


def test_colours_are_for_terminals() -> None:
    """Escape codes appear on a terminal and nowhere else."""
    assert "\x1b[" in _table_on(Terminal(), {})
    assert "\x1b[" not in _table_on(io.StringIO(), {})


@pytest.mark.parametrize(
    ("ago_ms", "text"),
    [
        (0, "now"),
        (1_500, "1 s ago"),
        (125_000, "2 min ago"),
        (7_300_000, "2 h ago"),
        (3 * 86_400_000, "3 d ago"),
        (-90_500, "in 1 min"),
    ],
)
def test_times_are_relative_on_a_terminal_only(ago_ms: int, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A person wants the age; a program that reads a pipe wants the time."""
    now_ms = 1_800_000_000_000
    monkeypatch.setattr("onyxq.interfaces.cli.context.time.time", lambda: now_ms / 1000)
    for stream in (Terminal(), io.StringIO()):
        out = Output(as_json=False, environment={"NO_COLOR": "1"}, stdout=stream)
        out.table(None, [{"at": clock(now_ms - ago_ms)}], ("at",))
        shown = stream.getvalue().splitlines()[1]
        assert shown == (text if isinstance(stream, Terminal) else str(clock(now_ms - ago_ms)))
        if not isinstance(stream, Terminal):
            found = datetime.fromisoformat(shown)
            assert found.timestamp() == (now_ms - ago_ms) // 1000
            assert found.utcoffset() is not None, "the time does not name its zone"


def test_no_color_is_heeded() -> None:
    """``NO_COLOR`` set to anything takes the colours off a terminal."""
    assert "\x1b[" not in _table_on(Terminal(), {"NO_COLOR": "1"})


def test_numbers_stand_to_the_right() -> None:
    """A table's numeric columns are aligned by their last digit, the same on a terminal and in a pipe."""
    rows = [{"queue": "a", "ready": 5}, {"queue": "bb", "ready": 12}]
    for stream in (Terminal(), io.StringIO()):
        out = Output(as_json=False, environment={"NO_COLOR": "1"}, stdout=stream)
        out.table(None, rows, ("queue", "ready"))
        assert stream.getvalue().splitlines() == ["queue  ready", "a          5", "bb        12"]


def _on_terminal(monkeypatch: pytest.MonkeyPatch, columns: int, about: str, **environment: str) -> str:
    """A table with a task id and a text, on a terminal of that width."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    rows = [{"id": TASK, "state": "failed", "about": about}]
    Output(as_json=False, environment=environment, stdout=stream).table(None, rows, ("id", "state", "about"))
    return stream.getvalue()


TASK = "0196f0c5a1b20007d4c3b2a19080706000000000"


def test_a_table_fits_the_terminal_and_breaks_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text continues in the next line of its column; an id stays whole, so that it can be copied."""
    lines = _on_terminal(monkeypatch, 70, "the host of the mailbox is unknown", NO_COLOR="1").splitlines()
    assert [line.split()[0] for line in lines] == ["id", TASK, "mailbox"]
    assert max(map(len, lines)) <= 70 and lines[2].startswith(" " * 48)


def test_a_table_that_is_too_wide_shows_one_thing_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row becomes lines of a name and a value."""
    shown = _on_terminal(monkeypatch, 50, "lost", NO_COLOR="1")
    assert shown == f"id     {TASK}\nstate  failed\nabout  lost\n\n"


def test_states_have_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed task is red on a terminal."""
    assert "\x1b[1;31mfailed" in _on_terminal(monkeypatch, 100, "failed")


def test_progress_leaves_no_trace_on_a_terminal() -> None:
    """A bar is drawn in one line, which is empty again and has its cursor when the result is printed."""
    stream = Terminal()
    out = Output(as_json=False, environment={}, stdout=stream, stderr=stream)
    out.progress("3 of 4 runs", 3, 4)
    assert "3 of 4 runs" in stream.getvalue()
    out.result(None, "done")
    assert "\x1b[?25h" in stream.getvalue() and stream.getvalue().endswith("\x1b[2Kdone\n")


def test_json_leaves_out_the_table() -> None:
    """With ``--json`` stdout is exactly one document."""
    stream = io.StringIO()
    Output(as_json=True, environment={}, stdout=stream, stderr=stream).table({"tasks": []}, [], ("id",))
    assert json.loads(stream.getvalue()) == {"tasks": []}


@pytest.mark.parametrize(
    ("value", "text"), [(None, "-"), (True, "yes"), ([], "-"), ({"a": 1}, "a=1"), (["x", 2], "x,2")]
)
def test_cells_are_readable(value: object, text: str) -> None:
    """Values of every kind have a short form."""
    assert cell(value) == text


FORGED = "a\x1b]0;owned\x07\x1b[2J\u009b31m\u202egpj\u2066\u2028\x7f\ud800"
"""Sets a terminal's title, clears it, turns text around, and cannot be encoded."""


def _printed(said: io.StringIO, *, as_json: bool) -> str:
    """What every kind of output makes of hostile values."""
    out = Output(as_json=as_json, environment={}, stdout=said, stderr=said)
    error = BadRequest(FORGED, field=FORGED, hint=FORGED)
    value = {FORGED: [FORGED, {FORGED: FORGED}]}
    out.document(value)
    out.line(value, FORGED)
    out.result(value, FORGED)
    out.table(value, [{"a": FORGED, "b": [FORGED], "c": {FORGED: FORGED}}], ("a", "b", "c"))
    out.table([], [], ("a",), empty=FORGED)
    out.fields({"name": FORGED, "list": [FORGED]})
    out.progress(FORGED)
    out.note(FORGED)
    out.error(error)
    return said.getvalue()


@pytest.mark.parametrize("as_json", [False, True])
def test_nothing_that_a_stranger_wrote_reaches_the_terminal_as_a_command(as_json: bool) -> None:
    """Signs that move the cursor or turn text around are shown as escapes, in tables, lines, JSON and errors."""
    said = _printed(io.StringIO(), as_json=as_json)
    assert said.replace("\n", "").isprintable()
    assert ("\\u001b]0;owned" if as_json else "\\x1b]0;owned") in said and "\\u202e" in said


def test_a_terminal_gets_no_commands_but_ours() -> None:
    """Colours and the bar of progress are the only commands: none comes from a value, and none is taken for markup."""
    stream = Terminal()
    said = _printed(stream, as_json=False)
    Output(as_json=False, environment={}, stdout=stream).table(None, [{"queue": "[bold]:smile:"}], ("queue",))
    plain = OURS.sub("", said)
    assert plain.replace("\n", "").replace("\r", "").isprintable() and "\\x1b]0;owned" in plain
    assert "[bold]:smile:" in stream.getvalue()


OURS = re.compile(r"\x1b\[(?:[\d;]+m|\?25[hl]|2K|1A)")
"""Colours; a hidden cursor and a shown one; an empty line; the line above."""


def test_escaped_json_is_the_same_value() -> None:
    """Programs read what is there."""
    said = io.StringIO()
    Output(as_json=True, environment={}, stdout=said).document({FORGED: "ünï 😀"})
    assert json.loads(said.getvalue()) == {FORGED: "ünï 😀"} and "ünï 😀" in said.getvalue()


def test_a_line_break_in_a_value_makes_no_row_of_its_own() -> None:
    """In a table it is an escape; the further lines of a field are indented."""
    said = io.StringIO()
    out = Output(as_json=False, environment={}, stdout=said)
    out.table(None, [{"queue": "mail\nforged"}], ("queue",))
    out.fields({"error": "first\nforged"})
    assert "\nforged" not in said.getvalue() and "mail\\nforged" in said.getvalue()


@pytest.mark.parametrize(
    ("shown", "said"),
    [({"data_base64": ""}, ""), ({"data_base64": "eA=="}, "base64:eA=="), ({"data": ""}, '""')],
)
def test_a_cell_shows_no_bytes_as_nothing(shown: dict[str, str], said: str) -> None:
    """A periodic task without data has an empty cell; JSON is shown as it is."""
    assert brief(shown) == said


def test_a_wrong_address_is_named_as_the_setting(capsys: pytest.CaptureFixture[str]) -> None:
    """The error names ``connect``, which is the flag, the variable and the setting."""
    assert run(["task", "count", "--connect", "example.org:x"]) == 2
    assert capsys.readouterr().err.startswith("error: connect must be HOST:PORT, not 'example.org:x'\n")


def test_data_without_its_option_gets_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    """The hint has the quotes that JSON and the shell need."""
    with pytest.raises(SystemExit):
        run(["task", "enqueue", "mail", "hello"])
    assert """write data as --data '"hello"'""" in capsys.readouterr().err


def test_a_negative_duration_is_the_value_of_its_option() -> None:
    """The command can then refuse it and show it."""
    args = build(COMMANDS, NOUNS).parse_args(["task", "enqueue", "mail", "--delay", "-5s"])
    with pytest.raises(BadRequest, match="not '-5s'"):
        milliseconds(args.delay, field="delay")


def test_an_error_in_json_has_no_empty_advice(capsys: pytest.CaptureFixture[str]) -> None:
    """A hint is there only if it helps."""
    out = Output(as_json=True, environment={})
    out.error(BadRequest("a must be 1, not 2", field="a"))
    out.error(BadRequest("b must be 1, not 2", field="b", hint="Give 1."))
    assert [json.loads(line)["hint"] for line in capsys.readouterr().err.splitlines()] == [None, "Give 1."]


@pytest.mark.parametrize(
    ("code", "ends"), [("def f(:", "SyntaxError: invalid syntax"), ("import nothere", "No module named 'nothere'")]
)
def test_an_error_in_the_users_module_begins_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: str, ends: str
) -> None:
    """No frame of OnyxQ or of the import is before it."""
    (tmp_path / "broken_shop.py").write_text(code, "utf-8")
    monkeypatch.chdir(tmp_path)
    assert run(["task", "call", "broken_shop:send"]) == 1
    lines = [one for one in capsys.readouterr().err.splitlines() if not one.startswith("Traceback")]
    assert re.match(r' *File ".*broken_shop.py", line 1', lines[0]) and lines[-1].endswith(ends)
