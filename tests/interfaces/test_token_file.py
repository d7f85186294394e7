"""A command reads a credential from a file or from standard input, where no other user sees it."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from onyxq.errors import BadRequest
from onyxq.interfaces.cli.main import run
from onyxq.interfaces.cli.processes.daemons import spark_conf


@pytest.mark.parametrize("content", ["the-token-of-a-test", "the-token-of-a-test\n", "  the-token-of-a-test \n\n"])
def test_a_token_is_read_from_a_private_file(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for standard input too; the command then sends it, here to no peer."""
    file = tmp_path / "token"
    file.write_text(content)
    file.chmod(0o600)
    for path in (str(file), "-"):
        monkeypatch.setattr("sys.stdin", io.StringIO(content))
        assert run(["config", "show"]) == 0
        assert run(["cluster", "show", "--connect", "127.0.0.1:1", "--token-file", path]) != 0
        said = capsys.readouterr().err
        assert "127.0.0.1:1" in said and "the-token" not in said and "other users" not in said


@pytest.mark.parametrize(("content", "mode"), [("", 0o600), ("two tokens", 0o600), ("a-token-of-a-test", 0o644)])
def test_a_file_without_a_token_or_open_to_others_is_refused(
    content: str, mode: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the file, not its contents."""
    file = tmp_path / "token"
    file.write_text(content)
    file.chmod(mode)
    assert run(["cluster", "show", "--connect", "127.0.0.1:1", "--token-file", str(file)]) == 2
    said = capsys.readouterr().err
    assert str(file) in said and (not content or content not in said)


def test_a_token_among_the_arguments_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    """It is used; the warning does not repeat it."""
    run(["cluster", "show", "--connect", "127.0.0.1:1", "--token", "a-token-of-a-test"])
    said = capsys.readouterr().err
    assert "--token-file" in said and "a-token-of-a-test" not in said


@pytest.mark.parametrize("name", ["spark.hadoop.fs.s3a.secret.key", "spark.ssl.keyPassword", "spark.my.TOKEN"])
def test_a_file_of_spark_s_settings_with_secrets_must_be_private(name: str, tmp_path: Path) -> None:
    """A file without secrets may be readable by all."""
    file = tmp_path / "spark.conf"
    file.write_text(f"spark.driver.memory 2g\n{name} hush\n")
    file.chmod(0o644)
    with pytest.raises(BadRequest, match="holds secrets"):
        spark_conf(str(file))
    file.chmod(0o640)
    assert spark_conf(str(file))[name] == "hush"
    file.write_text("spark.driver.memory 2g\n")
    file.chmod(0o644)
    assert spark_conf(str(file)) == {"spark.driver.memory": "2g"}
