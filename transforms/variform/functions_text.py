"""Text and topic functions. Lengths and slices count characters as readers see them (grapheme clusters)."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Any

import regex

from broker.core.topic import levels_match
from transforms.variform.errors import badarg
from transforms.variform.registry import function
from transforms.variform.values import MISSING, bounded, integer, joined, sequence, text, to_text

# Characters that ``trim`` removes: no-break and ideographic space are not among them.
BLANKS = " \t\n\v\f\r\x85\u200e\u200f\u2028\u2029"

_clusters = regex.compile(r"\X").findall
# Characters by the letter of their escape.
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a"} | {
    c: c for c in "\\'\"?"
}
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]+)|(.))", re.DOTALL)
_DIRECTIVE = re.compile(
    r"~(?:(-?[0-9]{1,4})?(?:\.([0-9]{1,4}))?(?:\.(.))?)(t?)([a-zA-Z~])?", re.DOTALL
)


def _check_option(function: str, option: str, known: Sequence[str]) -> None:
    if option not in known:
        raise badarg(function, f"unknown option {option!r}")


def characters(value: str) -> str | list[str]:
    """The characters of a string: the text itself where each is one code point."""
    return value if value.isascii() and "\r\n" not in value else _clusters(value)


@function("lower")
def lower(value: str) -> str:
    """The text in lower case, by the full Unicode mapping."""
    return value.lower()


@function("upper")
def upper(value: str) -> str:
    """The text in upper case, by the full Unicode mapping."""
    return value.upper()


@function("trim")
def trim(value: str, chars: str = BLANKS) -> str:
    """The text without blanks, or the characters given, at both ends."""
    return value.strip(chars or "\0")


@function("ltrim")
def ltrim(value: str, chars: str = BLANKS) -> str:
    """The text without blanks, or the characters given, at its beginning."""
    return value.lstrip(chars or "\0")


@function("rtrim")
def rtrim(value: str, chars: str = BLANKS) -> str:
    """The text without blanks, or the characters given, at its end."""
    return value.rstrip(chars or "\0")


@function("reverse")
def reverse(value: str) -> str:
    """The characters in reverse order."""
    return "".join(reversed(characters(value)))


@function("strlen")
def strlen(value: str) -> int:
    """The number of characters of the text."""
    return len(characters(value))


@function("substr")
def substr(value: str, start: int, length: int = sys.maxsize) -> str:
    """The characters from ``start`` (from 0) on, ``length`` of them; past the end the empty text."""
    if start < 0 or length < 0:
        raise badarg("substr", "start and length must not be negative")
    return "".join(characters(value)[start : start + length])


@function("rm_prefix")
def rm_prefix(value: str, prefix: str) -> str:
    """The text without the prefix, once; unchanged when it does not begin with it."""
    return value.removeprefix(prefix)


@function("split")
def split(value: str, separator: str, option: str = "") -> list[str]:
    """Parts between separators, empty ones dropped; ``notrim``, ``leading``, ``trailing`` (one cut), ``*_notrim``."""
    _check_option(
        "split", option, ("", "notrim", "leading", "trailing", "leading_notrim", "trailing_notrim")
    )
    bounded("split", value.count(separator) if separator else 0)
    if not separator:
        parts = [value]
    elif option.startswith("trailing"):
        parts = value.rsplit(separator, 1)
    else:
        parts = value.split(separator, 1 if option.startswith("leading") else -1)
    return parts if option.endswith("notrim") else [part for part in parts if part]


@function("tokens")
def tokens(value: str, separators: str, option: str = "") -> list[str]:
    """Parts between any of the separator characters, empty ones dropped; ``nocrlf`` also cuts at CR and LF."""
    _check_option("tokens", option, ("", "nocrlf"))
    cuts = separators + ("\r\n" if option else "")
    if not cuts:
        return [value] if value else []
    parts = [part for part in re.split("[" + re.escape(cuts) + "]", value) if part]
    bounded("tokens", len(parts))
    return parts


@function("concat")
def concat(first: Any, second: Any = MISSING) -> str:
    """The texts of the items of a list, or of two values, one after the other; anything is converted."""
    return joined("concat", "", sequence("concat", first) if second is MISSING else [first, second])


@function("join_to_string")
def join_to_string(first: Any, items: Any = MISSING) -> str:
    """``join_to_string(separator, list)``, or of a list with ``", "`` between its items."""
    separator, listed = (
        (", ", first) if items is MISSING else (text("join_to_string", first), items)
    )
    return joined("join_to_string", separator, sequence("join_to_string", listed))


@function("any_to_str")
def any_to_str(value: Any) -> str:
    """The text of any value."""
    return joined("any_to_str", "", [value])


@function("pad")
def pad(value: str, length: int, where: str = "trailing", fill: str = " ") -> str:
    """The text brought to ``length`` characters: ``trailing``, ``leading`` or ``both``, with a fill character."""
    if len(characters(fill)) != 1:
        raise badarg("pad", "expected one fill character")
    _check_option("pad", where, ("trailing", "leading", "both"))
    missing = max(0, length - len(characters(value)))
    bounded("pad", len(value) + missing * len(fill))
    left = {"trailing": 0, "leading": missing, "both": missing // 2}[where]
    return fill * left + value + fill * (missing - left)


@function("replace")
def replace(value: str, old: str, new: str, which: str = "all") -> str:
    """The text with ``old`` replaced: ``all``, ``leading`` (the first) or ``trailing`` (the last)."""
    _check_option("replace", which, ("all", "leading", "trailing"))
    if not old or old not in value:
        return value
    bounded(
        "replace",
        len(value) + (value.count(old) if which == "all" else 1) * max(0, len(new) - len(old)),
    )
    if which == "trailing":
        return new.join(value.rsplit(old, 1))
    return value.replace(old, new, -1 if which == "all" else 1)


@function("find")
def find(value: str, part: str, where: str = "leading") -> str:
    """The rest of the text from the first match on (``trailing``: the last), "" when there is none."""
    _check_option("find", where, ("leading", "trailing"))
    at = value.find(part) if where == "leading" or not part else value.rfind(part)
    return "" if at < 0 else value[at:]


@function("ascii")
def ascii_code(value: str) -> int:
    """The first byte of the text."""
    data = value.encode()
    if not data:
        raise badarg("ascii", "the text is empty")
    return data[0]


@function("unescape")
def unescape(value: str) -> str:
    r"""The text with ``\n \t \r \b \f \v \a \\ \' \" \?`` and ``\xHH`` (all hex digits that follow) put in place."""
    return _ESCAPE.sub(_escaped, value)


def _escaped(match: re.Match[str]) -> str:
    digits = match[1]
    letter = match[2]
    if digits is None:
        if letter not in ESCAPES:
            raise badarg("unescape", f"unknown escape \\{letter}")
        return ESCAPES[letter]
    code = int(digits, 16) if len(digits) <= 16 else 0x110000
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise badarg("unescape", f"\\x{digits[:16]} is not a character")
    return chr(code)


@function("sprintf_s")
def sprintf_s(template: str, arguments: list[Any]) -> str:
    """Text by Erlang's directives: ``~s`` text, ``~b`` integer, ``~p`` anything, ``~.2f`` float, ``~~``."""
    left = list(arguments)
    result = _DIRECTIVE.sub(lambda match: _directive(match, left), template)
    if left:
        raise badarg("sprintf_s", "there are more values than directives")
    bounded("sprintf_s", len(result))
    return result


def _directive(match: re.Match[str], left: list[Any]) -> str:
    width = match[1]
    precision = match[2]
    fill = match[3] or " "
    letter = match[5]
    if letter == "~":
        return "~"
    if letter == "n":
        return "\n"
    if not left:
        raise badarg("sprintf_s", "there are fewer values than directives")
    shown = _formatted(letter, precision, left.pop(0))
    if width is None:
        return shown
    return (
        shown.ljust(-int(width), fill) if width.startswith("-") else shown.rjust(int(width), fill)
    )


def _formatted(letter: str | None, precision: str | None, value: Any) -> str:
    if letter == "s":
        shown = text("sprintf_s", value)
        return shown if precision is None else shown[: int(precision)]
    if letter in ("b", "B", "d"):
        return str(integer("sprintf_s", value))
    if letter in ("f", "e", "g"):
        if value.__class__ is not float:
            raise badarg("sprintf_s", f"~{letter} takes a float")
        return format(value, f".{6 if precision is None else int(precision)}{letter}")
    if letter in ("p", "w"):
        return f'<<"{value}">>' if isinstance(value, str) else to_text(value)
    raise badarg("sprintf_s", f"unknown directive ~{letter or ''}")


# Topics


@function("topic_join")
def topic_join(first: Any, word: Any = MISSING) -> str:
    """The levels of a list with ``/`` between them, or a parent and a word; a parent's final ``/`` is not doubled."""
    if word is MISSING:
        return joined("topic_join", "/", sequence("topic_join", first))
    parent = to_text(first)
    if not parent:
        raise badarg("topic_join", "the parent is empty")
    return joined("topic_join", "", [parent, "" if parent.endswith("/") else "/", word])


@function("topic_split")
def topic_split(topic: Any) -> list[str]:
    """The levels of a topic, empty ones kept."""
    name = to_text(topic)
    bounded("topic_split", name.count("/"))
    return name.split("/")


@function("topic_match")
def topic_match(topic: str, topic_filter: str) -> bool:
    """True if the topic matches the filter, MQTT 5.0 section 4.7; ``a/#`` matches ``a`` too."""
    levels = tuple(topic_filter.split("/"))
    # with a # elsewhere it is not a filter
    return "#" not in levels[:-1] and levels_match(levels, topic)
