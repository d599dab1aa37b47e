"""The lines of a function that is being written: values that have names, blocks, constants, places in the SQL."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from rules.sql.compiler import columns as column_source
from rules.sql.syntax.printer import text_of_tree
from rules.sql.syntax.tree import Tree, place_of

_RESERVED: Final = (
    frozenset(keyword.kwlist)
    | frozenset(dir(builtins))
    | {"message", "client", "event", "columns", "rows"}
)

# A line of Python and the place in the SQL it came from.
Line = tuple[str, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Value:
    """Python source of a value: a variable or literal, so that it can be named twice.

    ``kind`` is what is known of its type: ``int``, ``float``, ``number``, ``string``, ``boolean``, ``undefined``,
    ``any``; or it is ``test``: then this is the source of a boolean to be used once, at once. ``is_payload`` marks the
    payload column as it came.
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
    argument = "event"
    star = "dict(columns)"
    size = "_payload_size(columns)"

    def is_large(self, most: int) -> str:
        """Test whether a column may be of more bytes."""
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
    """One function of Python, line by line."""

    def __init__(self) -> None:
        self.lines: list[Line] = []
        self.place = (1, 1)
        self.namespace: dict[str, Any] = {}
        """The globals of the function."""
        self.constants: dict[str, str] = {}
        """The text of each global that is a value."""
        self.known: dict[str, Value] = {}
        """Values read in this block or in one around it."""
        self._indent = 1
        self._taken: set[str] = set(_RESERVED)
        self._numbers: dict[str, int] = {}
        """The next number for names that are taken."""

    def emit(self, text: str) -> None:
        self.lines.append(("    " * self._indent + text, self.place))

    def let(self, wanted: str, source: str, kind: str = "any") -> Value:
        name = self.fresh(wanted)
        self.emit(f"{name} = {source}")
        return Value(name, kind)

    def variable(self, value: Value, wanted: str) -> Value:
        return self.let(wanted, value.code, value.kind) if value.is_literal else value

    def fresh(self, wanted: str) -> str:
        base = re.sub(r"\W", "_", wanted, flags=re.ASCII).lstrip("_")[:40] or "v"
        base = f"v{base}" if base[0].isdigit() else base
        name = base
        number = self._numbers.get(base, 2)
        while name in self._taken or name.startswith("fn_"):
            name = f"{base.removeprefix('fn_') or 'v'}_{number}"
            number = number + 1
        self._numbers[base] = number
        self._taken.add(name)
        return name

    def hoisted(self, wanted: str, constant: Any, node: Tree) -> str:
        """The global name of a value made once, when the rule is compiled; nothing changes it afterwards."""
        name = self.fresh(wanted)
        self.namespace[name] = constant
        text = " ".join(text_of_tree(node).split())
        self.constants[name] = "".join(sign if sign.isprintable() else "\ufffd" for sign in text)
        return name

    @contextmanager
    def block(self) -> Iterator[None]:
        """An indented block; what is first read in it is not known after it."""
        outer_known = dict(self.known)
        self._indent += 1
        yield
        self._indent -= 1
        self.known = outer_known

    def at(self, node: Tree) -> None:
        if node.meta:
            self.place = place_of(node)
