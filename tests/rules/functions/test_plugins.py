"""Functions of plugins: found by entry point, called by name, and what becomes of broken ones."""

from __future__ import annotations

import ensurepip
import json
import os
import re
import subprocess
import sys
import types
from collections.abc import Callable
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from typing import Any

import pytest

from rules.functions import plugin as plugin_module
from rules.functions.library import standard
from rules.functions.plugin import Int, Refusal, Text, function
from rules.functions.plugin_loading import GROUP, Plugin, load_plugins, standard_with_plugins
from rules.functions.registry import Functions
from rules.sql.values import EvaluationError
from tests.support.calls import evaluate, refused
from tests.support.node import TOKEN, running

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "docs" / "examples" / "meters-plugin"


def pip() -> list[str]:
    """A pip: the environment's, or the one that comes with Python."""
    if (
        subprocess.run(
            [sys.executable, "-m", "pip", "--version"], capture_output=True, check=False
        ).returncode
        == 0
    ):
        return [sys.executable, "-m", "pip"]
    (wheel,) = (Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl")
    return [sys.executable, f"{wheel}/pip"]


@pytest.fixture(scope="module")
def installed_example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example package, installed with pip into a folder of its own, without network."""
    target = tmp_path_factory.mktemp("site")
    options = [
        "--no-index",
        "--no-deps",
        "--no-build-isolation",
        "--quiet",
        "--target",
        str(target),
    ]
    done = subprocess.run(
        [*pip(), "install", *options, str(EXAMPLE)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> Callable[..., EntryPoint]:
    """Makes plugins of functions, without packages."""

    def make(name: str, *functions: Any, module: str = "") -> EntryPoint:
        module = module or f"plugin_of_test_{name}"
        made = types.ModuleType(module)
        for one in functions:
            setattr(made, one.__name__, one)
        monkeypatch.setitem(sys.modules, module, made)
        return EntryPoint(name, module, GROUP)

    return make


def loaded(*entry_points: EntryPoint) -> tuple[Functions, list[Plugin]]:
    functions = standard()
    return functions, load_plugins(functions, entry_points)


@function(returns="string")
def twice(s: Text) -> str:
    """The text twice."""
    return s + s


@function(returns="string", name="upper")
def my_upper(s: Text) -> str:
    """Not the upper of Sluice."""
    return "mine:" + s


@function()
def broken(n: Int) -> Any:
    """Fails."""
    return 1 // n


@function()
def picky(n: Int) -> Any:
    """Refuses."""
    raise Refusal(f"{n} is not what I like")


@function()
def odd(n: Int) -> Any:
    """Gives what is not a value of rules."""
    return {
        1: {1, 2},
        2: object(),
        3: float("nan"),
        4: [float("inf")],
        5: {1: 2},
        6: b"\xff",
        7: b"a",
    }[n]


def test_the_example_is_found_where_it_is_installed(
    installed_example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(installed_example))
    found = [
        entry_point
        for package in distributions(path=[str(installed_example)])
        for entry_point in package.entry_points
        if entry_point.group == GROUP
    ]
    functions, (plugin,) = loaded(*found)
    assert plugin.as_dict() == {
        "name": "meters",
        "package": "sluice-meters",
        "version": "1.0.0",
        "functions": ["meters.fahrenheit", "meters.dew_point", "meters.deltas", "meters.serial"],
        "problems": [],
    }
    assert evaluate("fahrenheit(payload.t)", functions, payload={"t": 100}) == 212.0
    assert evaluate("meters.fahrenheit(payload.t)", functions, payload={"t": 100}) == 212.0
    assert evaluate("round(dew_point(20, 50) * 10)", functions) == 93
    assert evaluate("deltas([1, 4, 9])", functions) == [3, 5]
    assert evaluate("serial(12)", functions) == "0000012-3"
    fahrenheit = functions.get("fahrenheit")
    assert fahrenheit is not None
    assert (fahrenheit.origin, fahrenheit.returns.name, len(fahrenheit.spark)) == (
        "meters",
        "double",
        1,
    )
    with pytest.raises(EvaluationError, match="dew_point: a relative humidity is above 0"):
        evaluate("dew_point(20, payload.h)", functions, payload={"h": 0})
    (problem,) = refused("dew_point(payload.t, 50, 'rankine')", functions)
    assert (
        problem.message == "dew_point: argument 3 must be one of 'celsius', 'kelvin', not 'rankine'"
    )


def test_rules_outside_a_node_call_it_too(
    installed_example: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(installed_example))
    assert evaluate("meters.fahrenheit(10)", standard_with_plugins()) == 50.0


def test_a_broker_lists_it_and_its_rules_call_it(installed_example: Path, tmp_path: Path) -> None:
    environ = {"PYTHONPATH": f"{installed_example}{os.pathsep}{ROOT}"}
    with running(tmp_path / "data", environ=environ) as node:
        event = {"topic": "t", "payload": {"encoding": "json", "data": {"t": 10}}}
        sql = 'SELECT meters.fahrenheit(payload.t) AS f FROM "t"'
        answer = node.call("POST", "/rules:test", {"sql": sql, "event": event})
        assert answer == {"outcome": "rows", "rows": [{"f": 50.0}]}
        (plugin,) = node.call("GET", "/functions")["plugins"]
        assert (plugin["name"], plugin["package"], plugin["problems"]) == (
            "meters",
            "sluice-meters",
            [],
        )
        command = [sys.executable, "-m", "broker.cli.main", "functions", "--url", node.url]
        shown = _output([*command, "--origin", "meters", "--json"])
        assert len(json.loads(shown)["items"]) == 8
        assert "plugin meters (sluice-meters 1.0.0) brought 4 functions" in _output(
            [*command, "fahrenheit"]
        )


def _output(command: list[str]) -> str:
    environ = os.environ | {"SLUICE_API_TOKEN": TOKEN}
    done = subprocess.run(
        command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_function_goes_by_its_name_and_by_the_plugins(modules: Callable[..., EntryPoint]) -> None:
    functions, (plugin,) = loaded(modules("mine", twice))
    assert evaluate("twice('ab')", functions) == "abab"
    assert evaluate("mine.twice('ab')", functions) == "abab"
    assert (plugin.functions, plugin.problems) == (["mine.twice"], [])
    (problem,) = refused("mine.twise('a')", functions)
    assert (problem.message, problem.suggestion) == (
        "no function 'mine.twise'",
        "did you mean 'mine.twice'?",
    )


def test_a_name_that_is_taken_stays_with_its_owner(modules: Callable[..., EntryPoint]) -> None:
    functions, (mine, other) = loaded(modules("mine", my_upper, twice), modules("other", twice))
    assert evaluate("upper('a')", functions) == "A"
    assert evaluate("mine.upper('a')", functions) == "mine:a"
    assert mine.problems == [
        "plugin 'mine': the name 'upper' belongs to a function of Sluice; call it as mine.upper"
    ]
    assert other.problems == [
        "plugin 'other': the name 'twice' belongs to plugin 'mine'; call it as other.twice"
    ]
    assert evaluate("other.twice('a')", functions) == "aa"


def test_two_functions_of_one_name_do_not_mix_in_a_rule(modules: Callable[..., EntryPoint]) -> None:
    functions, _ = loaded(modules("mine", my_upper))
    assert evaluate("concat(upper('a'), mine.upper('a'))", functions) == "Amine:a"


@pytest.mark.parametrize(
    ("entry_point", "problem"),
    [
        (
            EntryPoint("gone", "no_such_module", GROUP),
            "no_such_module cannot be loaded: ModuleNotFoundError: No module",
        ),
        (
            EntryPoint("value", "json:dumps", GROUP),
            "json:dumps cannot be loaded: TypeError: the entry point must name a",
        ),
        (EntryPoint("empty", "json", GROUP), "plugin 'empty': json has no function with @function"),
        (
            EntryPoint("a-b", "json", GROUP),
            "plugin 'a-b': its name cannot be used in a rule; letters, digits and _ can",
        ),
    ],
)
def test_a_plugin_that_cannot_be_used_is_one_sentence(
    entry_point: EntryPoint, problem: str
) -> None:
    functions, (plugin,) = loaded(entry_point)
    (sentence,) = plugin.problems
    assert problem in sentence
    assert "\n" not in sentence
    assert evaluate("upper('a')", functions) == "A"


def test_an_import_that_exits_does_not_end_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "exits_on_import.py").write_text("raise SystemExit('bye')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    _, (plugin,) = loaded(EntryPoint("exits", "exits_on_import", GROUP))
    assert plugin.problems == ["plugin 'exits': exits_on_import cannot be loaded: SystemExit: bye"]


def test_two_plugins_of_one_name(modules: Callable[..., EntryPoint]) -> None:
    _, (_, second) = loaded(
        modules("mine", twice), modules("mine", my_upper, module="another_module")
    )
    assert second.problems == ["plugin 'mine': another plugin has that name; remove one of them"]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (
            "broken(payload.n)",
            "broken: the plugin failed with ZeroDivisionError: integer division or modulo by zero",
        ),
        ("picky(payload.n)", "picky: 0 is not what I like"),
        ("broken(payload.q)", "broken: argument 1 must be an integer, not undefined"),
        ("odd(1 + payload.n)", "odd: the plugin gave a set, which is not a value that rules have"),
        (
            "odd(2 + payload.n)",
            "odd: the plugin gave a object, which is not a value that rules have",
        ),
        ("odd(3 + payload.n)", "odd: the plugin gave a number that is not finite"),
        ("odd(4 + payload.n)", "odd: the plugin gave a number that is not finite"),
        ("odd(5 + payload.n)", "odd: the plugin gave a dict, which is not a value that rules have"),
    ],
)
def test_what_a_function_does_wrong_costs_its_own_message(
    modules: Callable[..., EntryPoint], expression: str, message: str
) -> None:
    functions, _ = loaded(modules("mine", broken, picky, odd))
    with pytest.raises(EvaluationError) as caught:
        evaluate(expression, functions, payload={"n": 0})
    assert message in str(caught.value)


def test_bytes_are_strings(modules: Callable[..., EntryPoint]) -> None:
    functions, _ = loaded(modules("mine", odd))
    assert evaluate("odd(6)", functions) == b"\xff"
    assert evaluate("odd(7)", functions) == "a"


def test_the_page_shows_what_the_example_has() -> None:
    page = (ROOT / "docs" / "how-to" / "add-functions.md").read_text()
    code = (EXAMPLE / "sluice_meters" / "__init__.py").read_text()
    shown = re.findall(r"```(?:python|toml)\n(.*?)```", page, re.DOTALL)
    assert len(shown) == 2
    _, function_shown = shown[0].split("\n\n\n")
    assert function_shown in code
    assert shown[1] in (EXAMPLE / "pyproject.toml").read_text()


def test_the_page_names_all_that_authors_may_use() -> None:
    page = (ROOT / "docs" / "how-to" / "add-functions.md").read_text()
    assert [name for name in plugin_module.__all__ if name not in page] == []
