"""``${a.b}`` placeholders in text, compiled to a callable.

``${a.b}`` and ``${.a.b}`` stand for the value at that path of a row, ``${.}`` and ``${}`` for the whole row as JSON,
``${$}`` for a plain ``$``. Letters, digits, ``.`` and ``_`` are allowed inside; anything else is literal text. What is
missing renders ``undefined``. One JSON text on the way is decoded; array elements cannot be addressed. Rendering never
fails.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from broker.core import jsontext

TextOf = Callable[[Any], "str | bytes"]
"""The text of a value, as the language that made the row gives it."""

_PLACEHOLDER = re.compile(r"\$\{([A-Za-z0-9._]*|\$)\}")
_MISSING: Any = object()


class Template:
    """A compiled template.

    ``paths`` are the paths named, without those for the whole row; ``is_constant`` tells that there are none.
    """

    __slots__ = ("_parts", "paths", "text")

    def __init__(self, text: str, text_of: TextOf) -> None:
        self.text = text
        self.paths: list[tuple[str, ...]] = []
        self._parts: list[str | Callable[[Mapping[str, Any]], str | bytes]] = []
        at = 0
        for match in _PLACEHOLDER.finditer(text):
            self._literal(text[at : match.start()])
            at = match.end()
            self._placeholder(match[1], text_of)
        self._literal(text[at:])

    @property
    def is_constant(self) -> bool:
        """Whether the text is the same for every row."""
        return all(isinstance(part, str) for part in self._parts)

    def render(self, row: Mapping[str, Any]) -> str:
        """The text for a row; bytes that are not UTF-8 become replacement characters."""
        return "".join(part if isinstance(part, str) else part.decode(errors="replace") for part in self._rendered(row))

    def render_bytes(self, row: Mapping[str, Any]) -> bytes:
        """The text for a row in UTF-8; strings that are not UTF-8 go through as they are."""
        return b"".join(part.encode() if isinstance(part, str) else part for part in self._rendered(row))

    def value(self, row: Mapping[str, Any]) -> Any:
        """The value itself where the template is one placeholder, None when that is missing; else the text."""
        if len(self._parts) == 1 and len(self.paths) == 1:
            found = _at(row, self.paths[0])
            return None if found is _MISSING else found
        return self.render(row)

    def _rendered(self, row: Mapping[str, Any]) -> list[str | bytes]:
        return [part if isinstance(part, str) else part(row) for part in self._parts]

    def _literal(self, text: str) -> None:
        if text:
            self._parts.append(text)

    def _placeholder(self, inside: str, text_of: TextOf) -> None:
        if inside == "$":
            self._parts.append("$")
            return
        path = tuple(inside.removeprefix(".").split("."))
        if path == ("",):
            self._parts.append(lambda row: text_of(dict(row)))
            return
        self.paths.append(path)
        self._parts.append(_reader(path, text_of))


def _reader(path: tuple[str, ...], text_of: TextOf) -> Callable[[Mapping[str, Any]], str | bytes]:
    def read(row: Mapping[str, Any]) -> str | bytes:
        value = _at(row, path)
        return "undefined" if value is _MISSING else text_of(value)

    return read


def _at(row: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = row
    may_decode = True
    for key in path:
        if may_decode and isinstance(value, str):
            may_decode = False
            try:
                value = jsontext.decode(value)
            except jsontext.JsonError:
                return _MISSING
        value = value.get(key, _MISSING) if isinstance(value, Mapping) else _MISSING
        if value is _MISSING:
            return _MISSING
    return value
