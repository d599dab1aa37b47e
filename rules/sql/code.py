"""The lines of a function that is being written: values that have names, blocks, constants, places in the SQL.

A rule is compiled by four classes, one on the other, each an idea of the language: ``code.Code`` writes lines,
``reading.Reading`` reads columns and paths, ``expressions.Expressions`` and ``conditions.Conditions`` what is computed,
``compiler`` the statements.
"""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from broker.core.errors import Problem
from rules.functions.registry import Functions
from rules.sql import columns as column_source
from rules.sql.printer import text_of_tree
from rules.sql.tree import Tree, place_of

Trace = Callable[[str, Tree, Any], None]
"""Told what is evaluated: ``value`` with a sub-expression and what it gave; ``SELECT``, ``FOREACH``, ``DO``, ``WHERE``
and ``INCASE`` with the field or condition that is evaluated next; ``ITEM`` with the item that FOREACH goes on to."""

_RESERVED: Final = (
    frozenset(keyword.kwlist) | frozenset(dir(builtins)) | {"message", "client", "occurrence", "columns", "rows"}
)

Line = tuple[str, tuple[int, int]]
"""A line of Python and the place in the SQL it came from."""


@dataclass(frozen=True, slots=True)
class Value:
    """Python source of a value: a variable or literal, so that it can be named twice.

    ``kind`` is what is known of its type: ``int``, ``float``, ``number``, ``string``, ``boolean``, ``undefined``,
    ``any``. ``is_payload`` marks the payload column as it came.
    """

    code: str
    kind: str = "any"
    is_payload: bool = False

    @property
    def is_literal(self) -> bool:
        return not self.code.isidentifier()


NOTHING: Final = Value("_undefined", "undefined")


class MessageColumns:
    argument = "message"
    star = "_all_columns(message, _node, _metadata, _now_ms)"
    size = "len(message.payload)"

    def is_large(self, most: int) -> str:
        """Tests whether what it holds may be of more bytes."""
        return f"len(message.payload) > {most}"

    def source(self, name: str) -> str | None:
        return column_source.MESSAGE_COLUMNS.get(name)


class NamedColumns(MessageColumns):
    """``*`` stands for columns of these names only."""

    def __init__(self, names: frozenset[str]) -> None:
        sources = {**column_source.MESSAGE_COLUMNS, "payload": "message.payload"}
        members = [
            f"{name!r}: {re.sub(r'(?<![.])client[.]', 'message.client.', source)}"
            for name, source in sources.items()
            if name in names
        ]
        self.star = f"{{{', '.join(members)}}}"


class EventColumns:
    argument = "occurrence"
    star = "dict(columns)"
    size = "_size(columns)"

    def is_large(self, most: int) -> str:
        """The same."""
        return f"_may_exceed(columns, {most})"

    def source(self, name: str) -> str | None:
        return f"columns.get({name!r}, _undefined)"


@dataclass(slots=True)
class Scope:
    """Names selected so far in one list: each top-level name is one value, replaced as it is written to."""

    outer: Scope | None = None
    names: dict[str, Value] = field(default_factory=dict)
    keys: dict[str, None] = field(default_factory=dict)
    """Row members in order of first mention; ``*`` stands for all columns."""
    star: str | None = None

    def mention(self, key: str) -> None:
        self.keys[key] = None


class Code:
    """One function of Python, line by line. ``columns`` says what a name means that nothing in the rule has set."""

    def __init__(
        self, functions: Functions, columns: MessageColumns | EventColumns, trace: Trace | None = None
    ) -> None:
        self._functions = functions
        self._trace = trace
        self._columns = columns
        self._lines: list[Line] = []
        self._indent = 1
        self._place = (1, 1)
        self._taken: set[str] = set(_RESERVED)
        self._numbers: dict[str, int] = {}
        """Where to go on numbering names that are taken."""
        self._known: dict[str, Value] = {}
        self._uses_client = False
        self._has_many_calls = False
        self._namespace: dict[str, Any] = {}
        self._constants: dict[str, str] = {}
        self._problems: list[Problem] = []

    def _emit(self, text: str) -> None:
        self._lines.append(("    " * self._indent + text, self._place))

    def _tell(self, what: str, node: Tree, code: str = "None") -> None:
        """A line that tells the trace, where there is one."""
        if self._trace is None:
            return
        name = f"_node_{len(self._namespace)}"
        self._namespace |= {name: node, "_trace": self._trace}
        self._emit(f"_trace({what!r}, {name}, {code})")

    def _let(self, wanted: str, source: str, kind: str = "any") -> Value:
        name = self._fresh(wanted)
        self._emit(f"{name} = {source}")
        return Value(name, kind)

    def _variable(self, value: Value, wanted: str) -> Value:
        return self._let(wanted, value.code, value.kind) if value.is_literal else value

    def _fresh(self, wanted: str) -> str:
        base = re.sub(r"\W", "_", wanted, flags=re.ASCII).lstrip("_")[:40] or "v"
        base = f"v{base}" if base[0].isdigit() else base
        name, number = base, self._numbers.get(base, 2)
        while name in self._taken or name.startswith("fn_"):
            name, number = f"{base.removeprefix('fn_') or 'v'}_{number}", number + 1
        self._numbers[base] = number
        self._taken.add(name)
        return name

    def _hoisted(self, wanted: str, constant: Any, node: Tree) -> str:
        """The global name of a value made once, when the rule is compiled; nothing changes it afterwards."""
        name = self._fresh(wanted)
        self._namespace[name] = constant
        text = " ".join(text_of_tree(node).split())
        self._constants[name] = "".join(sign if sign.isprintable() else "\ufffd" for sign in text)
        return name

    @contextmanager
    def _block(self) -> Iterator[None]:
        """An indented block; what is first read in it is not known after it."""
        with self._hidden():
            self._indent += 1
            yield
            self._indent -= 1

    @contextmanager
    def _hidden(self) -> Iterator[None]:
        known = dict(self._known)
        yield
        self._known = known

    def _at(self, node: Tree) -> None:
        if node.meta:
            self._place = place_of(node)

    def _problem(self, node: Tree, message: str, suggestion: str | None = None) -> None:
        line, column = place_of(node)
        problem = Problem(message, "/sql", line, column, suggestion)
        if problem not in self._problems:
            self._problems.append(problem)
