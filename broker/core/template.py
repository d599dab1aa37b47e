"""``${a.b}`` placeholders in text, compiled to a callable.

``${a.b}`` and ``${.a.b}`` stand for the value at that path of a row, ``${.}`` and ``${}`` for the whole row as JSON,
``${$}`` for a plain ``$``. Letters, digits, ``.`` and ``_`` are allowed inside; anything else is literal text. What is
missing renders ``undefined``, unless the template was given something else to do. One JSON text on the way is decoded;
array elements cannot be addressed. Rendering fails only above ``MAX_RENDERED``, and where the text had to be JSON.

A template that is JSON around its placeholders gives JSON: a value in quotes is escaped, any other is a JSON
value, ``null`` where it is missing, and a string that is JSON itself goes in as it is. Several such texts may follow
each other, one a line. ``${raw:a.b}`` is the text of the value as it is; such a template's result is checked instead.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from broker.core import jsontext
from broker.core.errors import Invalid
from broker.core.marks import text_of_bytes
from broker.core.placeholders import ROW_PLACEHOLDER

# Longest rendered text, in bytes or characters: a template may repeat a large value any number of times.
MAX_RENDERED: Final = 16 * 1024 * 1024

# The text of a value, as the language that made the row gives it.
TextOf = Callable[[Any], "str | bytes"]

# The JSON of a value; a string that is JSON itself as it is.
JsonOf = Callable[[Any], bytes]

# The text of a path whose value is not there, given as ``a.b``; may raise, and that leaves the template.
WhenUndefined = Callable[[str], str]

_MISSING: Any = object()


class TemplateTooLong(Invalid):
    """The text of a template for a row is longer than ``MAX_RENDERED``."""

    def __init__(self) -> None:
        super().__init__(f"the template's text for this row is longer than {MAX_RENDERED:,} bytes")


class TemplateNotJson(Invalid):
    """A template that is JSON does not give JSON for a row."""

    def __init__(self, text: str) -> None:
        super().__init__(f"the template: expected JSON for this row, got {text[:_SHOWN]!r}")


# Characters of a result shown in a message.
_SHOWN: Final = 60


def as_undefined(_path: str) -> str:
    """The word ``undefined``."""
    return "undefined"


class Template:
    """A compiled template.

    ``paths`` are the paths named, without those for the whole row, for which ``names_row`` is true; ``is_constant``
    means that there is neither. ``render`` gives the text for a row, where bytes that are not UTF-8 are their mark
    as JSON; ``render_bytes`` gives it in UTF-8, where strings that are not UTF-8 go through as they are. Both are
    made for the kind of template: a constant, one placeholder, or pieces to be joined.

    Args:
        text: the template.
        text_of: gives the text of a value.
        undefined: a value that means an absent one, in addition to missing keys.
        when_undefined: what to write then.
        json_of: gives the JSON of a value; without it, no template is JSON.
    """

    __slots__ = (
        "is_constant",
        "names_row",
        "only",
        "paths",
        "render",
        "render_bytes",
        "text",
        "value",
    )

    only: tuple[str, ...] | None
    """The path, where the template is one placeholder with a path and nothing else."""

    render: Callable[[Mapping[str, Any]], str]
    render_bytes: Callable[[Mapping[str, Any]], bytes]
    value: Callable[[Mapping[str, Any]], Any]
    """The value itself where the template is one placeholder, None when that is missing; else the text."""

    def __init__(
        self,
        text: str,
        text_of: TextOf,
        *,
        undefined: Any = _MISSING,
        when_undefined: WhenUndefined = as_undefined,
        json_of: JsonOf | None = None,
    ) -> None:
        self.text = text
        pieces = _pieces(text)
        places = [piece for piece in pieces if isinstance(piece, _Place)]
        self.paths = [place.path for place in places if place.path]
        self.names_row = len(self.paths) < len(places)
        self.is_constant = not places
        self.only = self.paths[0] if len(pieces) == 1 and self.paths else None
        forms: list[_Form] = [(text_of, when_undefined)] * len(places)
        is_json = json_of is not None and bool(places) and _is_json_around(pieces)
        if json_of is not None and is_json:
            forms = _json_forms(pieces, text_of, json_of, when_undefined)
        of_places = iter(
            [_part(place.path, *form, undefined) for place, form in zip(places, forms, strict=True)]
        )
        self.render, self.render_bytes = _renderers(
            [piece if isinstance(piece, str) else next(of_places) for piece in pieces]
        )
        if is_json and not _is_always_json(pieces):
            self.render, self.render_bytes = _checked(self.render)
        if self.only is not None and len(self.only) == 1:
            self.render_bytes = _column_reader(self.only[0], self.render_bytes)
        self.value = self.render if self.only is None else _value_reader(self.only)


class _Place(NamedTuple):
    """A placeholder: a path, empty for the whole row."""

    path: tuple[str, ...]
    is_raw: bool


def _pieces(text: str) -> list[str | _Place]:
    pieces: list[str | _Place] = []
    at = 0
    for match in ROW_PLACEHOLDER.finditer(text):
        _add_text(pieces, text[at : match.start()])
        at = match.end()
        name = match[1].removeprefix("raw:").removeprefix(".")
        if name == "$":
            _add_text(pieces, "$")
        else:
            pieces.append(
                _Place(tuple(name.split(".")) if name else (), match[1].startswith("raw:"))
            )
    _add_text(pieces, text[at:])
    return pieces


def _add_text(pieces: list[str | _Place], text: str) -> None:
    if text and pieces and isinstance(pieces[-1], str):
        pieces[-1] += text
    elif text:
        pieces.append(text)


# Templates that are JSON. Values are tried in the place of placeholders: a letter in quotes, which is also wrong after
# a backslash; outside a value of each kind, as a string may be a name and a digit a part of a number.

_SAMPLES: Final = ("null", '""', "1")
_RAW_SAMPLES: Final = (*_SAMPLES, "", '"":""', ',"":""', ',""')
_QUOTES: Final = re.compile(r'\\.|(")', re.DOTALL)


def _is_json_around(pieces: Sequence[str | _Place]) -> bool:
    if (
        not pieces
        or not isinstance(pieces[0], str)
        or not pieces[0].lstrip().startswith(("{", "[", '"'))
    ):
        return False
    raws = _RAW_SAMPLES if _has_raw(pieces) else ("",)
    return any(_is_json(_sample(pieces, value, raw)) for value in _SAMPLES for raw in raws)


def _has_raw(pieces: Sequence[str | _Place]) -> bool:
    return any(isinstance(piece, _Place) and piece.is_raw for piece in pieces)


def _is_always_json(pieces: Sequence[str | _Place]) -> bool:
    """True if each placeholder is in the place of a value, or in quotes and escaped: names and digits may be wrong."""
    return not _has_raw(pieces) and all(
        _is_json(_sample(pieces, value, "")) for value in _SAMPLES[:2]
    )


def _sample(pieces: Sequence[str | _Place], value: str, raw: str) -> str:
    quoted = iter(_quoted(pieces))
    return "".join(
        [
            piece
            if isinstance(piece, str)
            else "x"
            if next(quoted)
            else raw
            if piece.is_raw
            else value
            for piece in pieces
        ]
    )


def _quoted(pieces: Sequence[str | _Place]) -> list[bool]:
    """For each placeholder, True if it is in quotes."""
    quoted = []
    quotes = 0
    for piece in pieces:
        if isinstance(piece, str):
            quotes += sum(1 for match in _QUOTES.finditer(piece) if match[1])
        else:
            quoted.append(quotes % 2 == 1)
    return quoted


def _is_json(text: str) -> bool:
    """True if the text is JSON, or has JSON on each line."""
    return jsontext.is_json(text) or (
        "\n" in text and all(_is_json(line) for line in text.split("\n") if line.strip())
    )


# Function that writes a value, and function that writes a missing value.
_Form = tuple["TextOf", "Callable[[str], str | bytes]"]


def _json_forms(
    pieces: Sequence[str | _Place], text_of: TextOf, json_of: JsonOf, when_undefined: WhenUndefined
) -> list[_Form]:
    def null(path: str) -> bytes:
        when_undefined(path)  # which may raise
        return b"null"

    raw: _Form = (text_of, when_undefined)
    in_quotes: _Form = (
        lambda value: _escaped(text_of(value)),
        lambda path: _escaped(when_undefined(path)),
    )
    places = [piece for piece in pieces if isinstance(piece, _Place)]
    return [
        raw if place.is_raw else in_quotes if is_quoted else (json_of, null)
        for place, is_quoted in zip(places, _quoted(pieces), strict=True)
    ]


def _escaped(text: str | bytes) -> bytes:
    return jsontext.encode(text if isinstance(text, str) else text_of_bytes(text))[1:-1]


def _checked(render: Callable[[Mapping[str, Any]], str]) -> _Renderers:
    def checked(row: Mapping[str, Any]) -> str:
        text = render(row)
        if not _is_json(text):
            raise TemplateNotJson(text)
        return text

    return checked, lambda row: checked(row).encode()


_Renderers = tuple[Callable[[Mapping[str, Any]], str], Callable[[Mapping[str, Any]], bytes]]
_Part = Callable[[Mapping[str, Any]], "str | bytes"]


def _renderers(parts: list[str | _Part]) -> _Renderers:
    if not parts or (len(parts) == 1 and isinstance(parts[0], str)):
        text = parts[0] if parts else ""
        assert isinstance(text, str)
        encoded = text.encode()
        return lambda row: text, lambda row: encoded
    if len(parts) == 1:
        read = parts[0]
        assert not isinstance(read, str)

        def render_one(row: Mapping[str, Any]) -> str:
            value = read(row)
            return value if isinstance(value, str) else text_of_bytes(value)

        def render_one_bytes(row: Mapping[str, Any]) -> bytes:
            value = read(row)
            return value.encode() if isinstance(value, str) else value

        return render_one, render_one_bytes
    return _joiner(parts)


def _joiner(parts: list[str | _Part]) -> _Renderers:
    steps = [
        (part, part.encode(), None) if isinstance(part, str) else ("", b"", part) for part in parts
    ]

    def render(row: Mapping[str, Any]) -> str:
        texts = []
        size = 0
        for text, _, read in steps:
            piece = text if read is None else read(row)
            size += len(piece)
            if size > MAX_RENDERED:
                raise TemplateTooLong
            texts.append(piece if isinstance(piece, str) else text_of_bytes(piece))
        return "".join(texts)

    def render_bytes(row: Mapping[str, Any]) -> bytes:
        texts = []
        size = 0
        for _, data, read in steps:
            piece = data if read is None else read(row)
            size += len(piece)
            if size > MAX_RENDERED:
                raise TemplateTooLong
            texts.append(piece.encode() if isinstance(piece, str) else piece)
        return b"".join(texts)

    return render, render_bytes


def _part(
    path: tuple[str, ...], write: TextOf, missing: Callable[[str], str | bytes], undefined: Any
) -> _Part:
    if not path:
        return lambda row: write(dict(row))
    name = ".".join(path)
    if len(path) == 1:

        def read_column(row: Mapping[str, Any]) -> str | bytes:
            value = row.get(name, _MISSING)
            return missing(name) if value is _MISSING or value is undefined else write(value)

        return read_column

    def read(row: Mapping[str, Any]) -> str | bytes:
        value = _at(row, path)
        return missing(name) if value is _MISSING or value is undefined else write(value)

    return read


def _column_reader(
    name: str, render: Callable[[Mapping[str, Any]], bytes]
) -> Callable[[Mapping[str, Any]], bytes]:
    """A column that is a string already, as ``${payload}`` most often is, goes through: 0.2 µs less."""

    def read(row: Mapping[str, Any]) -> bytes:
        value = row.get(name)
        if type(value) is bytes:
            return value
        return value.encode() if type(value) is str else render(row)

    return read


def _value_reader(path: tuple[str, ...]) -> Callable[[Mapping[str, Any]], Any]:
    if len(path) == 1:
        name = path[0]
        return lambda row: row.get(name)

    def read(row: Mapping[str, Any]) -> Any:
        value = _at(row, path)
        return None if value is _MISSING else value

    return read


def _at(row: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = row
    may_decode = True
    for key in path:
        if may_decode and isinstance(value, (str, bytes)):
            may_decode = False
            try:
                value = jsontext.decode(value)
            except jsontext.JsonError:
                return _MISSING
        value = value.get(key, _MISSING) if isinstance(value, Mapping) else _MISSING
        if value is _MISSING:
            return _MISSING
    return value
