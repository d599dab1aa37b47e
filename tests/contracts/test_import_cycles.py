"""No circle of files in a package: each can be read, tested and replaced with what lies under it alone.

Imports for typing and imports inside functions count like all others.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Set
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]


def _imports(tree: ast.Module, modules: Set[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in modules)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in modules or node.module in modules:
                    yield inner if inner in modules else node.module


def import_graph(root: Path, package: str) -> dict[str, set[str]]:
    """Which modules of a package each of them imports."""
    files = {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (root / package).rglob("*.py")
    }
    return {
        name: {*_imports(ast.parse(path.read_text()), files.keys())} - {name}
        for name, path in files.items()
    }


def cycles(graph: Mapping[str, Set[str]]) -> list[list[str]]:
    """The strongly connected components of more than one module (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            component = stack[at:]
            del stack[at:]
            if len(component) > 1:
                found.append(sorted(component))

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return found


def test_cycles_are_found() -> None:
    graph = {"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set[str](), "e": {"a"}}
    assert cycles(graph) == [["b", "c"]]


@pytest.mark.parametrize(
    "package", ["bridges", "pyspark_sluice", "rules", "schema_validation", "transforms", "ui"]
)
def test_no_cycle_of_files_in_a_package(package: str) -> None:
    assert cycles(import_graph(ROOT, package)) == []


def test_no_cycle_of_files_in_the_broker() -> None:
    graph = import_graph(ROOT, "broker")
    assert graph["broker.net.server"] >= {"broker.connection.hub", "broker.net.listeners"}
    assert cycles(graph) == []
