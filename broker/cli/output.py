"""Output of commands: tables for terminals, JSON for programs.

Data goes to standard output, everything else to standard error.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from broker.core.kinds import kinds
from broker.core.times import MILLISECONDS, rfc3339

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# Members that are milliseconds since 1970, which users see as times.
_TIMES = ("time_ms", "ts_ms")
_WIDE = 100_000  # columns of an output that is not a terminal: nothing is cut or wrapped there


def print_json(data: Any) -> None:
    """Data as the API sent it."""
    print(json.dumps(data, indent=2, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Rows under their headings; what is longer than the terminal wraps."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(value)) for value in row))
    _print(table)


def print_columns(
    items: Iterable[Mapping[str, Any]], columns: Sequence[str] | Mapping[str, str]
) -> None:
    """A table of some members of objects: those of these names, or by heading; ``metrics/rate`` is a member of a
    member. Lists are words, actions their types."""
    members = list(columns.values()) if isinstance(columns, Mapping) else columns
    print_table(
        list(columns), [[_cell(item, *member.split("/")) for member in members] for item in items]
    )


def _cell(item: Mapping[str, Any], member: str, *inner: str) -> Any:
    value = item.get(member)
    if inner:
        return _cell(value or {}, *inner)
    if isinstance(value, list):
        return ", ".join(
            str(item.get("type", "…") if isinstance(item, dict) else item) for item in value
        )
    return value


def print_members(members: Mapping[str, Any]) -> None:
    """One object, a member a line; members of members and entries of lists on lines below, indented."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in _lines(members, ""):
        table.add_row(Text(name), Text(_printable(text)))
    _print(table)


def _lines(members: Mapping[str, Any], indent: str) -> Iterator[tuple[str, str]]:
    for name, value in members.items():
        if name in _TIMES and isinstance(value, int):
            yield f"{indent}{name.removesuffix('_ms')}", rfc3339(value * MILLISECONDS)
        elif isinstance(value, Mapping) and value:
            yield f"{indent}{name}", ""
            yield from _lines(value, f"{indent}  ")
        elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
            for number, item in enumerate(value, 1):
                yield from _lines({f"{name} {number}": item}, indent)
        elif isinstance(value, str) and "\n" in value:
            yield f"{indent}{name}", value
        elif isinstance(value, list | Mapping):
            yield f"{indent}{name}", ", ".join(map(shown, value)) or "–"
        else:
            yield f"{indent}{name}", shown(value)


def print_line(text: str, *, style: str = "") -> None:
    """One line of data."""
    from rich.text import Text

    console().print(Text(_printable(text), style=style), soft_wrap=True)


_WOULD: Final = {
    "create": "created",
    "replace": "changed",
    "delete": "removed",
    "none": "left as it is",
}


def print_effect(path: str, effect: Mapping[str, Any]) -> None:
    """Print what a write at a path of the API would change."""
    before = effect["before"] or {}
    after = effect["after"] or {}
    kind = next((kind for kind in kinds() if path.removeprefix("/").startswith(kind.path)), None)
    named = None if kind is None else ({**before, **after}).get(kind.named_by)
    if kind is None or (named is None and kind.section is None):  # which has no saved form
        print_line(f"dry run: {effect['summary']}")
    else:
        name = kind.many if named is None else f"{kind.short} {named}"
        version = (
            f"version {before['version']} of "
            if "/versions/" in path and "version" in before
            else ""
        )
        subject = f"the order of {kind.many}" if "order" in after else f"{version}{name}"
        print_line(f"dry run: {subject} would be {_WOULD[effect['change']]}")
    for member in (
        dict.fromkeys((*before, *after)) if effect["change"] == "replace" or named is None else ()
    ):
        if before.get(member) != after.get(member):
            print_line(f"  {member}: {shown(before.get(member))} → {shown(after.get(member))}")
    for line in effect_lines(effect):
        print_line(line)
    for warning in effect["warnings"]:
        say(f"warning: {problem_text(warning)}")


def effect_lines(effect: Mapping[str, Any]) -> list[str]:
    """Lines about the objects that a change affects, and about messages, rows and files."""
    affected = [
        f"  affects {row['kind']} {row['name']}: {row['how']}" for row in effect["affected"]
    ]
    return affected + [f"  {sentence}" for sentence in effect["consequences"]]


def problem_text(problem: Mapping[str, Any]) -> str:
    """An entry of ``warnings`` or ``errors`` as a sentence that begins with its place."""
    place = (
        f"line {problem['line']}, column {problem['column']}: "
        if "line" in problem
        else f"{problem['pointer']}: "
    )
    tail = f"; {problem['suggestion']}" if "suggestion" in problem else ""
    return f"{place}{problem['message']}{tail}"


def say(text: str) -> None:
    """A remark that is not data, to standard error."""
    print(text, file=sys.stderr)


def console() -> Console:
    """The terminal, in colour unless ``NO_COLOR`` is set; plain and of any width where it is none."""
    from rich.console import Console

    is_terminal = sys.stdout.isatty()
    return Console(
        file=sys.stdout,
        width=None if is_terminal else _WIDE,
        highlight=False,
        markup=False,
        emoji=False,
    )


def _print(table: Table) -> None:
    """A table, without the spaces that would fill its last column."""
    terminal = console()
    if terminal.is_terminal:
        terminal.print(table)
        return
    with terminal.capture() as captured:
        terminal.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip())


def shown(value: Any) -> str:
    """A value in a cell: texts as they are, absent ones as a dash, structures as compact JSON."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str):
        return _printable(" ".join(value.split()) if "\n" in value else value)
    if isinstance(value, float):
        return (
            str(int(value))
            if value.is_integer()
            else f"{value:.1f}"
            if abs(value) >= 0.05
            else f"{value:.3g}"
        )
    if isinstance(value, int):
        return str(value)
    return _printable(json.dumps(value, ensure_ascii=False))


def _printable(text: str) -> str:
    """Without what would steer a terminal: payloads and names come from clients."""
    return "".join(
        sign if sign.isprintable() or sign == "\n" else f"\\x{ord(sign):02x}" for sign in text
    )
