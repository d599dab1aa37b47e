"""Metrics that exist only once something happened, as the code names them: ``metrics.counter("name", "help", ...)``."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[2]
_PACKAGES: Final = ("broker", "rules", "schema_validation", "transforms", "bridges", "ui")
_KINDS: Final = {"counter": "counter", "total": "counter", "gauge": "gauge"}

Named = tuple[str, str, list[str], str]
"""Name, kind, labels, help."""


def named_in_code() -> Iterator[Named]:
    """Every metric that is named by a literal."""
    for package in _PACKAGES:
        for file in sorted((_ROOT / package).rglob("*.py")):
            yield from _in_module(ast.parse(file.read_text()))


def _in_module(module: ast.Module) -> Iterator[Named]:
    everywhere = _texts(module.body)
    for function in ast.walk(module):
        if isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _in_function(function, everywhere | _texts(ast.walk(function)))


def _in_function(function: ast.AST, texts: Mapping[str, object]) -> Iterator[Named]:
    for call in ast.walk(function):
        if (
            not isinstance(call, ast.Call)
            or not isinstance(call.func, ast.Attribute)
            or call.func.attr not in _KINDS
        ):
            continue
        match [_text(argument, texts) for argument in call.args]:
            case [str(name), *_, str(help)]:
                kind = _KINDS[call.func.attr]
                labels = sorted(word.arg for word in call.keywords if word.arg is not None)
                yield f"sluice_{name}" + ("_total" if kind == "counter" else ""), kind, labels, help


def _texts(nodes: Iterable[ast.AST]) -> dict[str, object]:
    """Names that stand for a literal."""
    return {
        target.id: node.value.value
        for node in nodes
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Constant)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }


def _text(argument: ast.expr, texts: Mapping[str, object]) -> object:
    return (
        texts.get(argument.id)
        if isinstance(argument, ast.Name)
        else getattr(argument, "value", None)
    )
