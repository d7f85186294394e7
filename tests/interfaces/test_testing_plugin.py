"""The pytest plug-in in a user's project: discovery, options, failure messages, and the page that explains it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/testing.rst").read_text("utf-8")
PLUGIN = ("-p", "onyxq.testing.plugin", "-p", "no:cacheprovider")

TASKS = """
    from onyxq import App

    app = App()

    @app.task(queue="mail", retries=1)
    def send(to, body="hello"):
        if to == "nobody":
            raise LookupError("no such address")
        return to
"""


@pytest.fixture(autouse=True)
def only_what_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load only the named plug-ins, whether OnyxQ is installed or not."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """Return a user's project with an application, outside of this tree."""
    pytester.makepyfile(mailer=textwrap.dedent(TASKS))
    return pytester


def programs() -> dict[str, str]:
    """Return the files of the page, each assembled from its blocks."""
    files: dict[str, str] = {}
    pattern = r"\.\. code-block:: python\n   :caption: (\S+)\n\n((?:   .*\n|\n)+)"
    for name, block in re.findall(pattern, PAGE):
        files[name.removesuffix(".py")] = files.get(name.removesuffix(".py"), "") + textwrap.dedent(block)
    return files


@pytest.mark.long
def test_what_the_page_shows_passes(pytester: pytest.Pytester) -> None:
    """Every example of docs/testing.rst passes unchanged."""
    files = programs()
    assert set(files) == {"shop", "test_shop", "test_leases", "test_clients", "test_books"}
    pytester.makepyfile(**files)
    expected = sum(program.count("def test_") for program in files.values())
    pytester.runpytest_inprocess(*PLUGIN).assert_outcomes(passed=expected)
    assert expected >= 10


def test_every_call_of_a_cluster_is_on_the_page() -> None:
    """Everything public is explained, and both kinds of cluster have the same calls."""
    from onyxq.testing import AsyncCluster, Cluster

    calls = {name for name in dir(Cluster) if not name.startswith("_")}
    assert calls == {name for name in dir(AsyncCluster) if not name.startswith("_")} - {"blocking"}
    for name in calls - {"seed", "peers", "workers"}:
        assert re.search(rf"``{name}\b", PAGE), name


@pytest.mark.long
def test_an_installed_plug_in_is_found(project: pytest.Pytester) -> None:
    """With the metadata of setup.cfg, pytest finds the fixture."""
    made = [sys.executable, "-c", "import setuptools; setuptools.setup()", "egg_info", "--egg-base", "site"]
    tree = project.mkdir("tree")
    for name in ("setup.cfg", "pyproject.toml", "README.rst", "LICENSE"):
        tree.joinpath(name).write_bytes((ROOT / name).read_bytes())
    for name in ("onyxq", "log_entries", "simulation"):
        tree.joinpath(name).symlink_to(ROOT / name)
    tree.joinpath("site").mkdir()
    subprocess.run(made, cwd=tree, check=True, capture_output=True, timeout=60)
    project.makepyfile(
        test_it="""
        import mailer

        def test_it(onyxq_cluster):
            onyxq_cluster.use(mailer.app)
            mailer.send.enqueue("a")
            assert onyxq_cluster.drain().completed == 1
        """
    )
    path = [str(tree / "site"), str(project.path), *filter(None, sys.path)]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "test_it.py"],
        check=False,
        cwd=project.path,
        capture_output=True,
        text=True,
        timeout=60,
        env={name: value for name, value in os.environ.items() if name != "PYTEST_DISABLE_PLUGIN_AUTOLOAD"}
        | {"PYTHONPATH": os.pathsep.join(path)},
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "1 passed" in ended.stdout


def test_the_plug_in_costs_nothing_until_it_is_used() -> None:
    """Loading it imports neither the simulation nor an event loop."""
    program = (
        "import sys, pytest; known = set(sys.modules); import onyxq.testing.plugin; print(set(sys.modules) - known)"
    )
    ended = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert ast.literal_eval(ended.stdout) == {"onyxq", "onyxq.testing", "onyxq.testing.plugin", "zlib"} - {"zlib"}


def test_a_failure_says_how_to_repeat_it(project: pytest.Pytester) -> None:
    """The seed with the command, the simulated time, and the runs of handlers with their errors."""
    project.makepyfile(
        test_it="""
        from mailer import app, send

        def test_it(onyxq_cluster):
            onyxq_cluster.use(app)
            send.enqueue("nobody", body="x")
            assert onyxq_cluster.drain().failed == 0
        """
    )
    found = project.runpytest_inprocess(*PLUGIN)
    found.assert_outcomes(failed=1)
    found.stdout.re_match_lines(
        [
            r"E .*Drained\(completed=0, failed=1, runs=2, left=0, seconds=\d.*",
            r"-+ onyxq -+",
            r"seed (\d+); again with: pytest 'test_it.py::test_it' --onyxq-seed=\1",
            r"\d+\.\d+ simulated seconds had passed",
            r"  at 0\.\d+ s worker-1 ran send\('nobody', body='x'\): raised: LookupError\('no such address'\)",
            r"  at [1-9]?\d\.\d+ s worker-1 ran send\('nobody', body='x'\): raised: LookupError.*",
        ],
        consecutive=False,
    )


def test_a_failed_call_is_shown_where_the_test_made_it(project: pytest.Pytester) -> None:
    """The traceback ends in the test's line, not in the test kit."""
    project.makepyfile(
        test_it="""
        def test_it(onyxq_cluster):
            onyxq_cluster.client().enqueue("mail", b"letter")
            onyxq_cluster.drain()
        """
    )
    found = project.runpytest_inprocess(*PLUGIN)
    found.stdout.fnmatch_lines(["*NotDrained: not drained after * simulated seconds: no worker serves queue 'mail'*"])
    assert [line for line in found.outlines if re.match(r"\S+\.py:\d+:", line)] == ["test_it.py:3: NotDrained"]
    assert "draining.py" not in found.stdout.str()


def test_seeds_come_from_the_line_the_marker_or_the_name(project: pytest.Pytester) -> None:
    """In this order; a name's seed is the same each time."""
    project.makepyfile(
        test_it="""
        import pytest

        def test_name(onyxq_cluster):
            print("name", onyxq_cluster.seed)

        @pytest.mark.onyxq(seed=77, peers=1)
        def test_marker(onyxq_cluster):
            print("marker", onyxq_cluster.seed, len(onyxq_cluster.peers))
        """
    )
    said = [project.runpytest_inprocess(*PLUGIN, "-s", *more).stdout.str() for more in ((), (), ("--onyxq-seed=5",))]
    seeds = [re.findall(r"name (\d+)|marker (\d+) 1", text) for text in said]
    assert seeds[0] == seeds[1] != seeds[2]
    assert seeds[0][1] == ("", "77")
    assert seeds[2] == [("5", ""), ("", "5")]


@pytest.mark.parametrize(
    ("marker", "said"),
    [
        ("onyxq(sed=1)", "the marker is onyxq(seed=None, peers=3, backend='asyncio')"),
        ("onyxq(peers=0)", "0 peers; 1 to 9"),
        ("onyxq(backend='curio')", "'curio' is not one of asyncio, trio"),
    ],
)
def test_a_wrong_marker_is_an_error(project: pytest.Pytester, marker: str, said: str) -> None:
    """The error says what is right."""
    project.makepyfile(
        test_it=f"""
        import pytest

        @pytest.mark.{marker}
        def test_it(onyxq_cluster): ...
        """
    )
    found = project.runpytest_inprocess(*PLUGIN, "--strict-markers")
    found.assert_outcomes(errors=1)
    assert said in found.stdout.str()


@pytest.mark.long
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_async_tests_and_settings_of_the_project(project: pytest.Pytester, backend: str) -> None:
    """``async def`` tests run in the chosen event loop; applications can be named once for all tests."""
    project.makeini(f"[pytest]\nonyxq_backend = {backend}\nonyxq_apps = mailer:app\n")
    project.makepyfile(
        test_it=f"""
        import asyncio, trio, anyio, pytest
        from mailer import send

        @pytest.fixture
        def letter(onyxq_cluster):
            assert onyxq_cluster.blocking.client().count() == {{}}
            return send.enqueue("early")

        class TestIt:
            @pytest.mark.parametrize("number", [1, 2])
            async def test_it(self, onyxq_cluster, letter, number, tmp_path):
                if {backend == "trio"}:
                    async with trio.open_nursery() as nursery:
                        nursery.start_soon(trio.sleep, 100)
                else:
                    await asyncio.gather(asyncio.sleep(100), anyio.sleep(50))
                await send.enqueue_async("a")
                async with onyxq_cluster.client() as client:
                    assert (await client.count())["mail"]["total"] == 2
                async def some_done():
                    return await onyxq_cluster.tasks("mail", "completed")
                worker = await onyxq_cluster.start_worker()
                await onyxq_cluster.until(some_done)
                await onyxq_cluster.stop_worker(worker)
                await onyxq_cluster.lose_answers()
                await onyxq_cluster.drain()
                await onyxq_cluster.advance(3_600)
                assert [task.result for task in await onyxq_cluster.tasks("mail")] == ["early", "a"]

        async def test_that_fails(onyxq_cluster):
            await anyio.sleep(1)
            with pytest.raises(RuntimeError, match="a blocking call from async code"):
                send.enqueue("a")
            assert not onyxq_cluster.now
        """
    )
    found = project.runpytest_inprocess(*PLUGIN)
    found.assert_outcomes(passed=2, failed=1)
    found.stdout.fnmatch_lines(["*assert not onyxq_cluster.now*", "*again with: pytest 'test_it.py::test_that_fails'*"])


def test_an_async_test_that_another_plugin_has_wrapped_runs_in_the_cluster(project: pytest.Pytester) -> None:
    """pytest-asyncio in its mode ``auto`` replaces each async test by a plain function."""
    project.makeconftest(
        """
        import functools, pytest

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_runtest_call(item):
            test = item.obj

            @functools.wraps(test)
            def plain(*args, **kwargs):
                raise AssertionError("run in another event loop")

            item.obj = plain
            return (yield)
        """
    )
    project.makepyfile(
        """
        from mailer import app, send

        async def test_it(onyxq_cluster):
            onyxq_cluster.use(app)
            await send.enqueue_async("a")
            await onyxq_cluster.drain()
            [task] = await onyxq_cluster.tasks("mail", "completed")
            assert task.result == "a"
        """
    )
    project.runpytest_inprocess(*PLUGIN).assert_outcomes(passed=1)


def test_the_decorators_of_an_async_test_are_in_effect(project: pytest.Pytester) -> None:
    """Mocks patch what they name; their arguments come before those of fixtures, also in a class."""
    project.makepyfile(
        """
        from unittest import mock

        import mailer

        @mock.patch("mailer.address", "patched", create=True)
        async def test_a_value(onyxq_cluster):
            assert mailer.address == "patched"

        class TestIt:
            @mock.patch("mailer.address", create=True)
            async def test_an_argument(self, address, onyxq_cluster):
                assert mailer.address is address
                assert await onyxq_cluster.counts() == {}
        """
    )
    project.runpytest_inprocess(*PLUGIN).assert_outcomes(passed=2)


def test_tests_without_a_cluster_are_left_alone(project: pytest.Pytester) -> None:
    """Plain and async tests of other code are not changed."""
    project.makepyfile(
        test_it="""
        import pytest

        def test_plain(): ...

        @pytest.mark.anyio
        async def test_async(): ...

        @pytest.fixture
        def anyio_backend(): return "asyncio"
        """
    )
    project.runpytest_inprocess(*PLUGIN, "-p", "anyio.pytest_plugin").assert_outcomes(passed=2)
