"""Suggestions of similar names: one rule for settings, members, functions, objects and keywords."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from broker.core.errors import closest, did_you_mean

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("uper", ["lower", "upper"], "upper"),
        ("UPPER", ["lower", "upper"], "upper"),
        ("Temp", ["TEMP", "temp", "Tem"], "Tem"),
        ("TEMPP", ["temp", "humidity"], "temp"),
        ("context", ["event", "sql"], None),
        ("x", [], None),
        ("a" * 300, ["a" * 300], None),
    ],
)
def test_the_most_similar_name_is_suggested(
    name: str, known: list[str], expected: str | None
) -> None:
    assert closest(name, known) == expected
    assert did_you_mean(name, known) == (expected and f"did you mean {expected!r}?")


def test_no_other_module_compares_names() -> None:
    packages = (
        "broker",
        "rules",
        "schema_validation",
        "transforms",
        "bridges",
        "ui",
        "pyspark_sluice",
    )
    modules = [module for package in packages for module in (ROOT / package).rglob("*.py")]
    names = {
        str(module.relative_to(ROOT))
        for module in modules
        if "get_close_matches" in (text := module.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Name | ast.Attribute | ast.alias)
        and "get_close_matches"
        in (getattr(node, "id", ""), getattr(node, "attr", ""), getattr(node, "name", ""))
    }
    assert names == {"broker/core/errors.py"}
