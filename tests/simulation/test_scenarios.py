"""Scenario files: each plays as it was reviewed, and mistakes in them are named with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulation.scenario import OWN, ScenarioError, files, main, play
from simulation.scenarios.expect import EXPECTATIONS
from simulation.search.cluster import ACTIONS
from tests.tidy.rules import ROOT

HEAD = "cluster partitions=1 replicas=1\n"


@pytest.mark.parametrize("path", files(), ids=lambda path: path.stem)
def test_a_scenario_plays_as_reviewed(path: Path) -> None:
    """Run ``python -m simulation.scenario --regenerate`` and read the difference."""
    text = path.read_text("utf-8")
    assert play(path.name, text) == text


def test_what_a_scenario_printed_is_written_anew(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without ``--regenerate`` the difference is shown and the command fails; with it the file is replaced."""
    path = tmp_path / "one.txt"
    path.write_text(HEAD + "join a\n    7 z: something else\n# after\n", "utf-8")
    assert main([str(path)]) == 1
    assert "-    7 z: something else" in capsys.readouterr().out
    assert main([str(path), "--regenerate"]) == 0
    text = path.read_text("utf-8")
    assert "1 a: prepare_join_cluster a a - -: applied" in text and "something else" not in text
    assert text.endswith("# after\n")
    assert main([str(path)]) == 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("trun a", "did you mean turn?"),
        ("grant a zero 0 1 10", "PARTITION must be a whole number"),
        ("grant a", "grant takes PEER_ID PARTITION"),
        ("settle a", "settle takes nothing"),
        ("cluster size=3", "NAME=NUMBER expected"),
        ("expect sunshine", "expect one of ring"),
        ("expect state a", "takes PEER STATE"),
        ("expect ring a b", "found: a"),
        ("expect watches a b", "found: ['nobody']"),
        ("expect verdict refused", "found: applied"),
        ("join a", "the last peer of a still runs"),
        ("show everything", "'everything' is none of partitions"),
    ],
)
def test_a_mistake_is_named_with_file_and_line(line: str, said: str) -> None:
    """The message says where, which line, and what is wrong."""
    with pytest.raises(ScenarioError) as caught:
        play("broken.txt", f"{HEAD}join a\n# a comment\n{line}\n")
    assert str(caught.value).startswith(f"broken.txt:4: {line}: ")
    assert said in str(caught.value)


def test_a_broken_property_names_the_line_that_broke_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenarios are checked like the search: here no peer watches another, and dead peers stay."""
    monkeypatch.setattr("simulation.search.peer.watches", lambda replica, me: ())
    with pytest.raises(ScenarioError, match=r"^x.txt:6: calm: liveness: members are"):
        play("x.txt", HEAD + "join a\njoin b\nsettle\nkill b # dies\ncalm\n")


def test_every_command_is_in_the_language_reference() -> None:
    """``docs/scenarios.rst`` has a row for each action, command and expectation."""
    page = (ROOT / "docs/scenarios.rst").read_text("utf-8")
    for word in [*ACTIONS, *OWN, "cluster", "expect", "given"]:
        assert f"\n``{word}``" in page or f"\n``{word} " in page, word
    for word in EXPECTATIONS:
        assert f"``expect {word}" in page, word
