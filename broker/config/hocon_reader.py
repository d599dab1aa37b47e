"""HOCON text to a tree of nodes.

Written for this product, since it must report the place of each key (``sluice.conf line 4``), read all of JSON, and
fetch nothing from anywhere; pyhocon does none of the three, reads 32 KB a second and turns ``7d`` into a date
object. It stays the reference that the tests compare with. Kept stricter than the specification
(https://github.com/lightbend/config/blob/main/HOCON.md) where that is silent about mistakes: a missing include is an
error, and so is ``//`` inside an unquoted word, which would cut ``http://host`` short. More lenient in one thing:
``:`` and wildcards may are in unquoted values, as in ``127.0.0.1:1883`` or ``t/+/x``.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable
from typing import NoReturn

from broker.config.hocon_tree import Array, Concatenation, Node, Object, Place, Substitution, Text

# Deepest nesting of objects and arrays accepted.
MAX_DEPTH = 64

_SPACE = re.compile(r"[^\S\n]*")
_LAYOUT = re.compile(r"(?:\s|\ufeff|(?:#|//)[^\n]*)*")
_SEPARATORS = re.compile(r"(?:[\s,]|(?:#|//)[^\n]*)*")
_UNQUOTED_KEY = re.compile(r"""[^\s"$\[\]{}:=,+#`^?!@*&\\.]+""")
_UNQUOTED_VALUE = re.compile(r"""(?:(?!//)[^\s"$\[\]{}=,#`^\\])+""")
_QUOTED = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_TRIPLE = re.compile(r'"""(.*?)("{3,})', re.DOTALL)
_INCLUDE = re.compile(r'include(?=["\s])[^\S\n]*(?:(required|file|url|classpath|package)\()?')
_SIMPLE_ESCAPES = {
    '"': '"',
    "\\": "\\",
    "/": "/",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
}

# Reads an included file: its name as written, and the place of that.
Include = Callable[[str, Place], Object]


class HoconError(ValueError):
    """Text that is not HOCON; the message names file, line and column. ``where`` is the place in the text without
    anything of it, for readers who may not see the text."""

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(message)
        self.where = where


class Reader:
    """Reads one text. ``include`` is called for each include directive and returns what to put in its place."""

    def __init__(self, text: str, file: str, include: Include) -> None:
        self._text = text
        self._file = file
        self._include = include
        self._at = 0
        self._depth = 0
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def read(self) -> Object:
        """The root object; braces around it may be left out.

        Raises:
            HoconError: the first thing that cannot be read.
        """
        root = Object(self._place(0))
        self._skip(_LAYOUT)
        if self._peek() == "{":
            self._braced_fields(root)
        elif self._peek() == "[":
            self._fail("a configuration holds settings by name, not a list")
        else:
            self._fields(root, closing="")
        self._skip(_LAYOUT)
        if self._at < len(self._text):
            self._fail(f"expected the end of the file, found {self._found()}")
        return root

    def read_value(self) -> Node:
        """One value and nothing after it, as an environment variable holds."""
        self._skip(_LAYOUT)
        value = self._value()
        self._skip(_LAYOUT)
        if self._at < len(self._text):
            self._fail(f"expected the end of the value, found {self._found()}")
        return value

    def _braced_fields(self, target: Object) -> None:
        opening = self._at
        self._enter()
        self._fields(target, closing="}")
        if self._peek() != "}":
            self._fail(
                f"expected '}}' for the '{{' of line {self._place(opening).line}, found {self._found()}"
            )
        self._leave()

    def _fields(self, target: Object, closing: str) -> None:
        self._skip(_SEPARATORS)
        while self._at < len(self._text) and self._peek() != closing:
            if not self._included(target):
                self._field(target)
            before = self._at
            self._skip(_SEPARATORS)
            if self._peek() not in ("", closing) and "\n" not in self._text[before : self._at]:
                self._expect_separator(before)

    def _expect_separator(self, before: int) -> None:
        if "," not in self._text[before : self._at]:
            self._fail(f"expected a new line or a comma before the next key, found {self._found()}")

    def _field(self, target: Object) -> None:
        place = self._place(self._at)
        path = self._path()
        self._depth += len(path) - 1  # a.b.c nests as a { b { c does
        self._check_depth()
        target.assign(path, self._assigned(path, place), place)
        self._depth -= len(path) - 1

    def _assigned(self, path: tuple[str, ...], place: Place) -> Node:
        """Parse the value of a key."""
        self._skip(_SPACE)
        following = self._peek()
        if following == "{":
            return self._value()
        is_appended = self._text.startswith("+=", self._at)
        if not is_appended and following not in ("=", ":"):
            self._fail(
                f"expected '=', ':' or '{{' after the key {'.'.join(path)!r}, found {self._found()}"
            )
        self._at += 2 if is_appended else 1
        self._skip(_LAYOUT)
        value = self._value()
        if is_appended:
            earlier = Substitution(path, True, place)
            value = Concatenation((earlier, Array([value], place)), ("", ""), place)
        return value

    def _path(self) -> tuple[str, ...]:
        parts = [self._key()]
        while self._peek() == ".":
            self._at += 1
            parts.append(self._key())
        return tuple(parts)

    def _key(self) -> str:
        if self._peek() == '"':
            return self._quoted().text
        match = _UNQUOTED_KEY.match(self._text, self._at)
        if match is None:
            self._fail(
                f"expected a key, found {self._found()}; keys with other signs than letters are put in quotes"
            )
        self._at = match.end()
        return match[0]

    def _included(self, target: Object) -> bool:
        match = _INCLUDE.match(self._text, self._at)
        if match is None:
            return False
        place = self._place(self._at)
        end = match.end()
        if match[1] is None and self._text[end : end + 1] != '"':
            return False  # a key that is called include
        if match[1] not in (None, "required", "file"):
            self._fail(
                f"include {match[1]}(...) is not supported; include a file by its relative name"
            )
        self._at = end
        if match[1] == "required" and self._text.startswith("file(", self._at):
            self._at += len("file(")
        self._skip(_SPACE)
        if self._peek() != '"':
            self._fail(
                f"expected the name of a file in quotes after include, found {self._found()}"
            )
        name = self._quoted().text
        if match[1]:
            while self._peek() == ")":
                self._at += 1
        target.absorb(self._include(name, place))
        return True

    def _value(self) -> Node:
        place = self._place(self._at)
        parts: list[Node] = []
        blanks: list[str] = []
        blank = ""
        while (part := self._part()) is not None:
            parts.append(part)
            blanks.append(blank)
            start = self._at
            self._skip(_SPACE)
            blank = self._text[start : self._at]
        if not parts:
            self._fail(f"expected a value, found {self._found()}")
        if len(parts) == 1:
            return parts[0]
        return Concatenation(tuple(parts), tuple(blanks), place)

    def _part(self) -> Node | None:
        """The next piece of a value, or None where the value ends."""
        place = self._place(self._at)
        sign = self._peek()
        if sign == "{":
            inner = Object(place)
            self._braced_fields(inner)
            return inner
        if sign == "[":
            return self._array(place)
        if sign == '"':
            return self._quoted()
        if self._text.startswith("${", self._at):
            return self._substitution(place)
        match = _UNQUOTED_VALUE.match(self._text, self._at)
        if match is None:
            if sign in ("$", "\\", "^", "`", "="):
                self._fail(f"found {self._found()} outside quotes; put the text in quotes")
            return None
        self._at = match.end()
        if self._text.startswith("//", self._at) or self._peek() == "#":
            self._fail(
                f"'{match[0]}' is followed by a comment sign; put texts that hold '#' or '//' in quotes, "
                "or set a blank before the comment"
            )
        return Text(match[0], False, place)

    def _array(self, place: Place) -> Array:
        opening = self._at
        array = Array([], place)
        self._enter()
        self._skip(_SEPARATORS)
        while self._peek() not in ("", "]", "}"):
            array.items.append(self._value())
            before = self._at
            self._skip(_SEPARATORS)
            between = self._text[before : self._at]
            if self._peek() not in ("", "]", "}") and "," not in between and "\n" not in between:
                self._fail(f"expected ',' or ']', found {self._found()}")
        if self._peek() != "]":
            self._fail(
                f"expected ']' for the '[' of line {self._place(opening).line}, found {self._found()}"
            )
        self._leave()
        return array

    def _quoted(self) -> Text:
        place = self._place(self._at)
        if self._text.startswith('"""', self._at):
            return self._triple(place)
        match = _QUOTED.match(self._text, self._at)
        if match is None:
            self._fail(
                "expected a closing quote on this line; a string of several lines is written in three quotes"
            )
        self._at = match.end()
        text = _ESCAPE.sub(lambda escape: self._unescaped(escape[1], match.start()), match[1])
        text = _SURROGATE_PAIR.sub(_join_surrogates, text)
        if _SURROGATE.search(text):
            self._at = match.start()
            self._fail("half of a surrogate pair is not a character")
        return Text(text, True, place)

    def _triple(self, place: Place) -> Text:
        match = _TRIPLE.match(self._text, self._at)
        if match is None:
            self._fail('expected """ at the end of the text that begins here')
        self._at = match.end()
        # of more than three closing quotes the first belong to it
        return Text(match[1] + match[2][3:], True, place)

    def _unescaped(self, code: str, start: int) -> str:
        if code[0] == "u" and len(code) == 5:
            return chr(int(code[1:], 16))
        if code not in _SIMPLE_ESCAPES:
            self._at = start
            self._fail(
                f'\\{code} is not an escape; write \\\\ for a backslash, or put the text in """three quotes"""'
            )
        return _SIMPLE_ESCAPES[code]

    def _substitution(self, place: Place) -> Substitution:
        self._at += 2
        is_optional = self._peek() == "?"
        if is_optional:
            self._at += 1
        self._skip(_SPACE)
        path = self._path()
        self._skip(_SPACE)
        if self._peek() != "}":
            self._fail(f"expected '}}' at the end of the substitution, found {self._found()}")
        self._at += 1
        return Substitution(path, is_optional, place)

    def _enter(self) -> None:
        self._depth += 1
        self._check_depth()
        self._at += 1

    def _check_depth(self) -> None:
        if self._depth > MAX_DEPTH:
            self._fail(f"nested deeper than {MAX_DEPTH} levels")

    def _leave(self) -> None:
        self._at += 1
        self._depth -= 1

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self._text, self._at)
        if match is not None:
            self._at = match.end()

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _found(self) -> str:
        sign = self._peek()
        if not sign:
            return "the end of the text"
        return "the end of the line" if sign == "\n" else repr(sign)

    def _place(self, at: int) -> Place:
        line = bisect_right(self._line_starts, at)
        return Place(self._file, line, at - self._line_starts[line - 1] + 1)

    def _fail(self, message: str) -> NoReturn:
        place = self._place(self._at)
        where = f"line {place.line}, column {place.column}"
        raise HoconError(f"{place.file} {where}: {message}", where)


def _join_surrogates(pair: re.Match[str]) -> str:
    high = ord(pair[0][0])
    low = ord(pair[0][1])
    return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00))
