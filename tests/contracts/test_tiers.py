"""Markers of tests by what they start, and the tier that follows."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import tiers
from tests.support.kafka_server import Kafka
from tests.support.peers import Peer, mosquitto
from tests.support.starts import markers_of
from tests.support.tiers import SMOKE, TESTS, TIERS, TOGETHER, tier_of

ROOT = Path(__file__).parents[2]
TABLE = {"kafka": Kafka}


class Uses:
    def start(self) -> Any:
        return mosquitto

    @property
    def peer(self) -> Any:
        return Peer


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    def wrapper() -> Any:
        return function()

    return wrapper


def test_fails_alone() -> None:
    """Start nothing."""


def peer() -> Any:
    return mosquitto


def reads_an_attribute_of_that_name() -> Any:
    return SimpleNamespace(peer=1).peer


def imports_within() -> None:
    from playwright.sync_api import sync_playwright

    print(sync_playwright)


@pytest.mark.parametrize(
    ("function", "kinds"),
    [
        (test_fails_alone, set()),
        (lambda: TABLE["kafka"], {"kafka", "servers", "process"}),
        (lambda: Uses().start(), {"servers", "process"}),
        (decorated(lambda: subprocess.run), {"process"}),
        (imports_within, {"browser"}),
        (lambda: peer(), {"servers", "process"}),
        (reads_an_attribute_of_that_name, set()),
    ],
    ids=[
        "nothing",
        "by a table",
        "by a method",
        "behind a decorator",
        "imported within",
        "by a name",
        "by an attribute",
    ],
)
def test_what_the_code_reaches_is_marked(
    request: pytest.FixtureRequest, function: Callable[..., Any], kinds: set[str]
) -> None:
    item = pytest.Function.from_parent(
        request.node.parent, name="test_fails_alone", callobj=function
    )
    assert markers_of(item) == kinds


@pytest.fixture
def kafka() -> type[Kafka]:
    return Kafka


def test_a_fixture_marks_its_tests(request: pytest.FixtureRequest, kafka: type[Kafka]) -> None:
    assert request.node.get_closest_marker("kafka")
    assert tier_of(request.node) == "full"


def test_every_test_is_in_one_tier_and_names_of_files_are_right(
    request: pytest.FixtureRequest,
) -> None:
    assert tier_of(request.node) in TIERS
    files = [
        place.split("::")[0]
        for place in (*SMOKE, *(file for files in TOGETHER.values() for file in files))
    ]
    assert all((TESTS / file).exists() for file in files)


def test_a_process_that_no_marker_knows_fails_its_test() -> None:
    run = import_module("sub" + "process").run
    with pytest.raises(
        pytest.fail.Exception,
        match="test_a_process_that_no_marker_knows_fails_its_test starts a process",
    ):
        run(["true"])


@pytest.mark.parametrize(
    ("environ", "exit_code"), [({}, 0), ({"CI": "true"}, 1)], ids=["a newcomer", "CI"]
)
def test_a_skipped_test_is_counted_and_fails_ci(
    tmp_path: Path, environ: dict[str, str], exit_code: int
) -> None:
    (tmp_path / "test_some.py").write_text(
        "import pytest\ndef test_skips(): pytest.skip('no Chromium')\n"
    )
    plugins = ["-p", "tests.support.starts", "-p", "tests.support.tiers"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-ra",
            "-c",
            "/dev/null",
            "--rootdir",
            str(tmp_path),
            *plugins,
            "test_some.py",
        ],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == exit_code, done.stdout + done.stderr
    assert "no Chromium" in done.stdout
    assert "1 skipped" in done.stdout


def test_files_with_tests_of_a_tier_are_collected_although_a_quick_run_has_none_of_it(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of conformance run over several cells in ``full`` alone."""
    monkeypatch.setattr(tiers, "_files_with", lambda _tier: frozenset({"ui/test_x.py"}))
    monkeypatch.setattr(pytestconfig.option, "tier", "full")
    ignored = [
        tiers.pytest_ignore_collect(TESTS / name, pytestconfig)
        for name in ("ui/test_x.py", "conformance/test_wire.py", "ui/test_y.py")
    ]
    assert ignored == [None, None, True]
