"""Settings: a flag has precedence over the environment, then the file, then the default."""

from __future__ import annotations

import json
import sys
import textwrap
from argparse import Namespace
from pathlib import Path

import pytest

from onyxq import AsyncClient
from onyxq.client.connection_settings import ConnectionSettings
from onyxq.errors import BadRequest
from onyxq.interfaces.cli.context import Context
from onyxq.interfaces.cli.main import run
from onyxq.interfaces.cli.output import Output
from onyxq.interfaces.cli.processes.daemons import spark_conf, spark_defaults, spark_of
from onyxq.system.settings import SETTINGS, Config, load, misspelt


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, tuple[object, str]]:
    assert run(["config", "show", "--json", *arguments]) == 0
    return {one["setting"]: (one["value"], one["source"]) for one in json.loads(capsys.readouterr().out)["settings"]}


def test_defaults_are_promised(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without settings, the documented defaults are shown and used."""
    shown = _shown(capsys)
    assert shown["connect"] == ("127.0.0.1:7400", "default")
    assert shown["http"] == ("127.0.0.1:7480", "default")
    assert set(shown) == set(SETTINGS)


def test_the_file_wins_over_the_default(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``onyxq.toml`` in the current directory is read."""
    (here / "onyxq.toml").write_text('zone = "a"\nslots = 4\n')
    shown = _shown(capsys)
    assert shown["zone"] == ("a", "onyxq.toml")
    assert shown["slots"] == (4, "onyxq.toml")


def test_the_environment_wins_over_the_file(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``ONYXQ_ZONE`` is taken before the file."""
    (here / "onyxq.toml").write_text('zone = "a"\n')
    monkeypatch.setenv("ONYXQ_ZONE", "b")
    monkeypatch.setenv("ONYXQ_SLOTS", "7")
    shown = _shown(capsys)
    assert shown["zone"] == ("b", "ONYXQ_ZONE")
    assert shown["slots"] == (7, "ONYXQ_SLOTS")


def test_the_flag_wins_over_all(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command line comes first."""
    (here / "onyxq.toml").write_text('zone = "a"\n')
    monkeypatch.setenv("ONYXQ_ZONE", "b")
    assert _shown(capsys, "--zone", "c")["zone"] == ("c", "--zone")


def test_a_file_can_be_named(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """``--config`` and ``ONYXQ_CONFIG`` name another file, in this order."""
    one, two = tmp_path / "one.toml", tmp_path / "two.toml"
    one.write_text('cluster = "one"\n')
    two.write_text('cluster = "two"\n')
    monkeypatch.setenv("ONYXQ_CONFIG", str(one))
    assert _shown(capsys)["cluster"] == ("one", str(one))
    assert _shown(capsys, "--config", str(two))["cluster"] == ("two", str(two))


def test_a_token_is_not_shown(here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """``config show`` shows that there is a token, but not its value."""
    monkeypatch.setenv("ONYXQ_TOKEN", "s3cret")
    assert _shown(capsys)["token"] == ("(hidden)", "ONYXQ_TOKEN")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ('zoned = "a"', "did you mean zone?"),
        ("slots = 'many'", "must be a number"),
        ("zone = 3", "must be a string, not 3"),
        ("token = 3", "must be a string\n"),
        ("[onyxq]\nzone = 'a'", "without [onyxq]"),
        ("zone = ", "onyxq.toml"),
    ],
)
def test_a_wrong_file_is_refused(here: Path, capsys: pytest.CaptureFixture[str], content: str, says: str) -> None:
    """Unknown settings, wrong types and broken TOML are usage errors that name the place."""
    (here / "onyxq.toml").write_text(content)
    assert run(["config", "show"]) == 2
    assert says in capsys.readouterr().err


def test_a_number_in_the_environment_must_be_one(here: Path) -> None:
    """``ONYXQ_SLOTS=x`` is refused with the variable's name."""
    with pytest.raises(BadRequest, match="ONYXQ_SLOTS"):
        load({"ONYXQ_SLOTS": "x"}).setting("slots")


def test_given_tells_a_default_from_a_choice(here: Path) -> None:
    """A setting without a choice is None, whatever its default."""
    assert load({}).given("data") is None
    assert load({"ONYXQ_DATA": "d"}).given("data") == "d"


@pytest.mark.parametrize(("said", "value"), [("1", True), ("yes", True), ("TRUE", True), ("off", False), ("0", False)])
def test_a_switch_is_on_or_off(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, said: str, value: bool
) -> None:
    """It is a word in the environment, true or false in the file; the flag has a form for both."""
    (here / "onyxq.toml").write_text(f"spark = {str(value).lower()}\n")
    assert _shown(capsys)["spark"] == (value, "onyxq.toml")
    monkeypatch.setenv("ONYXQ_SPARK", said)
    assert _shown(capsys)["spark"] == (value, "ONYXQ_SPARK")
    assert _shown(capsys, "--spark")["spark"] == (True, "--spark")
    assert _shown(capsys, "--no-spark")["spark"] == (False, "--spark")


def test_a_switch_that_is_neither_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A number, or any other word, is refused."""
    for said in ('"maybe"', "7", '""'):
        (here / "onyxq.toml").write_text(f"spark = {said}\n")
        assert run(["config", "show"]) == 2
        assert "spark must be true or false" in capsys.readouterr().err


def test_sparks_own_settings_are_read_as_spark_reads_them(here: Path) -> None:
    """Each line has a name and a value, separated by spaces or ``=``; comments and empty lines are ignored."""
    (here / "spark.conf").write_text(
        "# executors\n\nspark.executor.memory   2g\nspark.ui.port=4040\nspark.executor.extraJavaOptions -Da=b -Dc=d\n"
    )
    assert spark_conf("spark.conf") == {
        "spark.executor.memory": "2g",
        "spark.ui.port": "4040",
        "spark.executor.extraJavaOptions": "-Da=b -Dc=d",
    }
    assert spark_conf("") == {}


def test_sparks_own_defaults_are_found_where_spark_looks(here: Path) -> None:
    """``SPARK_CONF_DIR`` wins over the folder of ``SPARK_HOME``; without a file there are none."""
    for folder in ("home/conf", "own"):
        (here / folder).mkdir(parents=True)
    assert spark_defaults({"SPARK_HOME": "home"}) == spark_defaults({}) == ""
    (here / "home/conf/spark-defaults.conf").write_text("spark.driver.memory 3g\n")
    assert spark_defaults({"SPARK_HOME": "home"}) == "home/conf/spark-defaults.conf"
    assert spark_defaults({"SPARK_HOME": "home", "SPARK_CONF_DIR": "own"}) == ""
    (here / "own/spark-defaults.conf").write_text("spark.driver.memory 4g\n")
    assert spark_conf(spark_defaults({"SPARK_CONF_DIR": "own"})) == {"spark.driver.memory": "4g"}


def test_a_peer_with_spark_has_sparks_defaults_below_its_own_file(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A setting of ``--spark-conf`` replaces the default's; what jobs depend on does not come from the defaults."""
    ours = "spark.master yarn\nspark.sql.session.timeZone CET\nspark.sql.streaming.minBatchesToRetain 1\n"
    foreign = "hive.metastore.uris=thrift://h\nspark.some.password hidden\n"
    (here / "spark-defaults.conf").write_text(f"spark.driver.memory 4g\nspark.ui.port 4040\n{ours}{foreign}")
    (here / "own.conf").write_text("spark.driver.memory 5g\n")
    monkeypatch.setenv("SPARK_CONF_DIR", str(here))
    own = {"spark.driver.memory": "5g"}
    for spark, wanted in (("true", {**own, "spark.ui.port": "4040", "spark.some.password": "hidden"}), ("false", own)):
        said = {"ONYXQ_SPARK_CONF": "own.conf", "ONYXQ_SPARK": spark, "ONYXQ_SPARK_QUICK_START": "true"}
        found = spark_of(
            Context(args=Namespace(), config=Config(said, {}, ""), out=Output(as_json=True, environment={}))
        )
        assert (found["spark_conf"], found["spark_quick_start"]) == (wanted, True)


@pytest.mark.parametrize(("line", "says"), [("executor.memory 2g", "line 1"), ("spark.executor.memory", "line 1")])
def test_a_wrong_file_of_sparks_settings_is_refused(
    here: Path, capsys: pytest.CaptureFixture[str], line: str, says: str
) -> None:
    """The error has the line; a missing file is refused too."""
    (here / "spark.conf").write_text(f"{line}\n")
    assert run(["dev", "--spark-conf", "spark.conf"]) == 2
    assert says in capsys.readouterr().err
    assert run(["peer", "start", "--spark-conf", "missing.conf"]) == 2
    assert "missing.conf" in capsys.readouterr().err


def test_a_misspelt_variable_is_reported() -> None:
    """Other variables that begin like settings are not."""
    said = misspelt({"ONYXQ_CONECT": "a:1", "ONYXQ_CONNECT": "a:1", "ONYXQ_TEST_TASKS": "5", "ONYXQ_CONFIG": "x"})
    assert said == ["ONYXQ_CONECT is not a setting; did you mean ONYXQ_CONNECT?"]


def test_a_call_takes_the_limits_of_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nobody: str
) -> None:
    """The application of the function uses them, and the files of TLS."""
    shop = "from onyxq import App\napp = App()\n\n\n@app.task(queue='q')\ndef send() -> None: ...\n"
    (tmp_path / "limited_shop.py").write_text(shop, "utf-8")
    monkeypatch.chdir(tmp_path)
    for name in ("REQUEST_TIMEOUT_MS", "CONNECT_TIMEOUT_MS", "TLS_CA"):
        monkeypatch.setenv(f"ONYXQ_{name}", "")  # so that they are as before after this test
    call = ["task", "call", "limited_shop:send", "--connect", nobody]
    assert run([*call, "--request-timeout-ms", "1234", "--connect-timeout-ms", "50"]) == 5
    app = sys.modules["limited_shop"].app
    found = app._settings()
    assert (found.timeout_ms, found.connect_timeout_ms) == (1_234, 50)
    app.close()
    assert run([*call, "--tls-ca", "missing.pem"]) == 2


def test_a_worker_takes_the_limits_of_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nobody: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """So do the calls that its functions make."""
    shop = """
        from onyxq import App
        from onyxq.errors import BadRequest

        app = App()


        @app.task(queue="q")
        def send() -> None: ...


        @app.resource
        def ended():
            calls = app._settings()
            raise BadRequest(f"calls have {calls.timeout_ms} and {calls.connect_timeout_ms} ms")
            yield
    """
    (tmp_path / "stopping_shop.py").write_text(textwrap.dedent(shop), "utf-8")
    monkeypatch.chdir(tmp_path)
    for name in ("REQUEST_TIMEOUT_MS", "CONNECT_TIMEOUT_MS"):
        monkeypatch.setenv(f"ONYXQ_{name}", "")  # so that they are as before after this test
    opened: list[tuple[int, int | None]] = []

    def noted(connection: ConnectionSettings) -> AsyncClient:
        opened.append((connection.timeout_ms, connection.connect_timeout_ms))
        return AsyncClient(connection.address)

    monkeypatch.setattr(ConnectionSettings, "asynchronous_client", noted)
    start = ["worker", "start", "stopping_shop:app", "--connect", nobody]
    assert run([*start, "--request-timeout-ms", "1234", "--connect-timeout-ms", "50"]) == 2
    assert "calls have 1234 and 50 ms" in capsys.readouterr().err
    assert opened == [(1_234, 50)]
