"""The page of every MQTT statement and the tests that hold it, read from the tests themselves.

The rules stand in ``tests/conformance/statements.toml``; a test says which it holds by
``@pytest.mark.statement("5:3.1.2-24", "3:3.1.2-5")``. The marks are read from the source, so nothing is imported.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
STATEMENTS: Final = ROOT / "tests" / "conformance" / "statements.toml"
_TITLE: Final = """# MQTT conformance

<!-- Written by 'python -m docs.generate' from the tests; change them there. -->

Every statement of MQTT 5.0 (`5:`) and MQTT 3.1.1 (`3:`) that binds a server, and the tests that hold it; MQTT 3.1 is
treated as 3.1.1 where the table says nothing else. `own:` names rules that have no statement number. (S): recommended
by the standard or expected by users. C, D: CONNACK, DISCONNECT with that reason code, then close; c: CONNACK with that
return code of 3.1.1, then close. Files are below `tests/`."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that a server must do, and the statements that say so."""

    ids: tuple[str, ...]
    must: str
    violation: str


@dataclass(frozen=True, slots=True)
class Section:
    """Rules about one packet or subject."""

    number: int
    title: str
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class Statements:
    """The whole list; ``excused`` holds the reason of each statement that needs no test."""

    sections: tuple[Section, ...]
    excused: dict[str, str]

    @property
    def ids(self) -> set[str]:
        """Every statement known, excused or not."""
        return {
            name for section in self.sections for rule in section.rules for name in rule.ids
        } | set(self.excused)


def load(path: Path = STATEMENTS) -> Statements:
    """The list of statements."""
    found = tomllib.loads(path.read_text())
    sections = tuple(
        Section(section["number"], section["title"], tuple(map(_rule, section["rule"])))
        for section in found["section"]
    )
    return Statements(sections, found["clients"] | found["not_applicable"])


def _rule(row: dict[str, Any]) -> Rule:
    ids = [f"5:{number}" for number in row.get("v5", ())] + [
        f"3:{number}" for number in row.get("v3", ())
    ]
    own = [f"own:{row['own']}"] if "own" in row else []
    return Rule((*ids, *own), row["must"], row.get("violation", ""))


def marked_tests(directory: Path = ROOT / "tests") -> dict[str, list[str]]:
    """The tests that name each statement, as ``file::test`` below ``directory``; a mark may stand on a class too."""
    found: dict[str, list[str]] = {}
    for path in sorted(directory.rglob("test_*.py")):
        source = path.read_text()
        if "mark.statement" not in source:
            continue
        for name, statement in _marks(ast.parse(source).body, ()):
            found.setdefault(statement, []).append(f"{path.relative_to(directory)}::{name}")
    return found


def _marks(body: list[ast.stmt], outer: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            named = (
                *outer,
                *(text for decorator in node.decorator_list for text in _statements_of(decorator)),
            )
            if isinstance(node, ast.ClassDef):
                yield from _marks(node.body, named)
            elif node.name.startswith("test_"):
                yield from ((node.name, statement) for statement in named)


def _statements_of(decorator: ast.expr) -> list[str]:
    """The arguments of ``pytest.mark.statement(...)``, also where it stands inside another mark."""
    calls = [node for node in ast.walk(decorator) if isinstance(node, ast.Call)]
    return [
        argument.value
        for call in calls
        if isinstance(call.func, ast.Attribute) and call.func.attr == "statement"
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str)
    ]


def page() -> str:
    """The page, in Markdown."""
    statements, tests = load(), marked_tests()
    parts = [_TITLE]
    for section in statements.sections:
        lines = [
            f"## {section.title}",
            "",
            "| statements | the server must | held by |",
            "| --- | --- | --- |",
        ]
        lines += [_row(rule, statements.excused, tests) for rule in section.rules]
        parts.append("\n".join(lines))
    excused = [f"| `{name}` | {why} |" for name, why in sorted(statements.excused.items())]
    parts.append(
        "\n".join(["## Without a test", "", "| statement | why |", "| --- | --- |", *excused])
    )
    return "\n\n".join(parts)


def _row(rule: Rule, excused: dict[str, str], tests: dict[str, list[str]]) -> str:
    holders = sorted({test for name in rule.ids for test in tests.get(name, ())})
    why = sorted({excused[name] for name in rule.ids if name in excused})
    held = "<br>".join([*(f"`{test}`" for test in holders), *why])
    must = f"{rule.must} ({rule.violation})" if rule.violation else rule.must
    ids = ", ".join(f"`{name}`" for name in rule.ids)
    return f"| {ids} | {must.replace('|', chr(92) + '|')} | {held} |"
