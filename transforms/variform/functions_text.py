"""Text functions. Lengths and slices count characters as people see them (grapheme clusters)."""

from __future__ import annotations

import re
from typing import Any

import regex

from transforms.variform.errors import badarg
from transforms.variform.registry import function
from transforms.variform.values import (
    bounded,
    integer,
    joined,
    sequence,
    text,
    to_text,
)

BLANKS = " \t\n\v\f\r\x85\u200e\u200f\u2028\u2029"
"""What ``trim`` cuts: no-break and ideographic space are not among them."""

_clusters = regex.compile(r"\X").findall
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "a": "\a"} | {c: c for c in "\\'\"?"}
_ESCAPE = re.compile(r"\\(?:x([0-9A-Fa-f]+)|(.))", re.DOTALL)
_DIRECTIVE = re.compile(r"~(?:(-?[0-9]{1,4})?(?:\.([0-9]{1,4}))?(?:\.(.))?)(t?)([a-zA-Z~])?", re.DOTALL)


def characters(value: str) -> str | list[str]:
    """The characters of a text: the text itself where each is one code point."""
    return value if value.isascii() and "\r\n" not in value else _clusters(value)


@function("lower", 1)
def lower(value: Any) -> str:
    """The text in lower case, by the full Unicode mapping."""
    return text("lower", value).lower()


@function("upper", 1)
def upper(value: Any) -> str:
    """The text in upper case, by the full Unicode mapping."""
    return text("upper", value).upper()


@function("trim", 1, 2)
def trim(value: Any, chars: Any = BLANKS) -> str:
    """The text without blanks, or the characters given, at both ends."""
    return text("trim", value).strip(text("trim", chars) or "\0")


@function("ltrim", 1, 2)
def ltrim(value: Any, chars: Any = BLANKS) -> str:
    """The text without blanks, or the characters given, at its beginning."""
    return text("ltrim", value).lstrip(text("ltrim", chars) or "\0")


@function("rtrim", 1, 2)
def rtrim(value: Any, chars: Any = BLANKS) -> str:
    """The text without blanks, or the characters given, at its end."""
    return text("rtrim", value).rstrip(text("rtrim", chars) or "\0")


@function("reverse", 1)
def reverse(value: Any) -> str:
    """The characters in reverse order."""
    return "".join(reversed(characters(text("reverse", value))))


@function("strlen", 1)
def strlen(value: Any) -> int:
    """How many characters the text has."""
    return len(characters(text("strlen", value)))


@function("substr", 2, 3)
def substr(value: Any, start: Any, length: Any = None) -> str:
    """The characters from ``start`` (from 0) on, ``length`` of them; past the end the empty text."""
    whole = characters(text("substr", value))
    first = integer("substr", start)
    if first < 0 or (length is not None and integer("substr", length) < 0):
        raise badarg("substr", "start and length must not be negative")
    return "".join(whole[first:] if length is None else whole[first : first + length])


@function("rm_prefix", 2)
def rm_prefix(value: Any, prefix: Any) -> str:
    """The text without the prefix, once; unchanged when it does not begin with it."""
    return text("rm_prefix", value).removeprefix(text("rm_prefix", prefix))


@function("split", 2, 3)
def split(value: Any, separator: Any, option: Any = "") -> list[str]:
    """Parts between separators, empty ones dropped; ``notrim``, ``leading``, ``trailing`` (one cut), ``*_notrim``."""
    whole, cut, how = text("split", value), text("split", separator), text("split", option)
    if how not in ("", "notrim", "leading", "trailing", "leading_notrim", "trailing_notrim"):
        raise badarg("split", f"unknown option {how!r}")
    bounded("split", whole.count(cut) if cut else 0)
    if not cut:
        parts = [whole]
    elif how.startswith("leading"):
        parts = whole.split(cut, 1)
    elif how.startswith("trailing"):
        parts = whole.rsplit(cut, 1)
    else:
        parts = whole.split(cut)
    return parts if how.endswith("notrim") else [part for part in parts if part]


@function("tokens", 2, 3)
def tokens(value: Any, separators: Any, option: Any = None) -> list[str]:
    """Parts between any of the separator characters, empty ones dropped; ``nocrlf`` also cuts at CR and LF."""
    whole, cuts = text("tokens", value), text("tokens", separators)
    if option is not None:
        if option != "nocrlf":
            raise badarg("tokens", f"unknown option {option!r}")
        cuts += "\r\n"
    if not cuts:
        return [whole] if whole else []
    parts = [part for part in re.split("[" + re.escape(cuts) + "]", whole) if part]
    bounded("tokens", len(parts))
    return parts


@function("concat", 1, 2)
def concat(first: Any, *second: Any) -> str:
    """The texts of the items of a list, or of two values, one after the other; anything is converted."""
    return joined("concat", "", [first, *second] if second else sequence("concat", first))


@function("join_to_string", 1, 2)
def join_to_string(first: Any, *items: Any) -> str:
    """``join_to_string(separator, list)``, or of a list with ``", "`` between its items."""
    if not items:
        return joined("join_to_string", ", ", sequence("join_to_string", first))
    return joined("join_to_string", text("join_to_string", first), sequence("join_to_string", items[0]))


@function("any_to_str", 1)
def any_to_str(value: Any) -> str:
    """The text of any value."""
    return joined("any_to_str", "", [value])


@function("pad", 2, 4)
def pad(value: Any, length: Any, where: Any = "trailing", fill: Any = " ") -> str:
    """The text brought to ``length`` characters: ``trailing``, ``leading`` or ``both``, with a fill character."""
    whole, wanted = text("pad", value), integer("pad", length)
    filler, side = text("pad", fill), text("pad", where)
    if len(characters(filler)) != 1:
        raise badarg("pad", "the fill is one character")
    if side not in ("trailing", "leading", "both"):
        raise badarg("pad", f"unknown option {side!r}")
    missing = max(0, wanted - len(characters(whole)))
    bounded("pad", len(whole) + missing * len(filler))
    left = {"trailing": 0, "leading": missing, "both": missing // 2}[side]
    return filler * left + whole + filler * (missing - left)


@function("replace", 3, 4)
def replace(value: Any, old: Any, new: Any, which: Any = "all") -> str:
    """The text with ``old`` replaced: ``all``, ``leading`` (the first) or ``trailing`` (the last)."""
    whole, out, into, how = (text("replace", v) for v in (value, old, new, which))
    if how not in ("all", "leading", "trailing"):
        raise badarg("replace", f"unknown option {how!r}")
    if not out or out not in whole:
        return whole
    if how == "trailing":
        head, _, tail = whole.rpartition(out)
        return head + into + tail
    bounded("replace", len(whole) + (whole.count(out) if how == "all" else 1) * max(0, len(into) - len(out)))
    return whole.replace(out, into, -1 if how == "all" else 1)


@function("find", 2, 3)
def find(value: Any, part: Any, where: Any = "leading") -> str:
    """The rest of the text from the first match on (``trailing``: the last), "" when there is none."""
    whole, wanted, how = text("find", value), text("find", part), text("find", where)
    if how not in ("leading", "trailing"):
        raise badarg("find", f"unknown option {how!r}")
    at = whole.find(wanted) if how == "leading" or not wanted else whole.rfind(wanted)
    return "" if at < 0 else whole[at:]


@function("ascii", 1)
def ascii_code(value: Any) -> int:
    """The first byte of the text."""
    data = text("ascii", value).encode()
    if not data:
        raise badarg("ascii", "the text is empty")
    return data[0]


@function("unescape", 1)
def unescape(value: Any) -> str:
    r"""The text with ``\n \t \r \b \f \v \a \\ \' \" \?`` and ``\xHH`` (all hex digits that follow) put in place."""
    return _ESCAPE.sub(_escaped, text("unescape", value))


def _escaped(match: re.Match[str]) -> str:
    digits, letter = match[1], match[2]
    if digits is None:
        if letter not in _ESCAPES:
            raise badarg("unescape", f"unknown escape \\{letter}")
        return _ESCAPES[letter]
    code = int(digits, 16) if len(digits) <= 16 else 0x110000
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise badarg("unescape", f"\\x{digits[:16]} is no character")
    return chr(code)


@function("sprintf_s", 2)
def sprintf_s(template: Any, arguments: Any) -> str:
    """Text by Erlang's directives: ``~s`` text, ``~b`` integer, ``~p`` anything, ``~.2f`` float, ``~~``."""
    left = list(sequence("sprintf_s", arguments))
    source = text("sprintf_s", template)
    result = _DIRECTIVE.sub(lambda match: _directive(match, left), source)
    if left:
        raise badarg("sprintf_s", "there are more values than directives")
    bounded("sprintf_s", len(result))
    return result


def _directive(match: re.Match[str], left: list[Any]) -> str:
    width, precision, fill, letter = match[1], match[2], match[3] or " ", match[5]
    if letter == "~":
        return "~"
    if letter == "n":
        return "\n"
    if not left:
        raise badarg("sprintf_s", "there are fewer values than directives")
    shown = _formatted(letter, precision, left.pop(0))
    if width is None:
        return shown
    return shown.ljust(-int(width), fill) if width.startswith("-") else shown.rjust(int(width), fill)


def _formatted(letter: str | None, precision: str | None, value: Any) -> str:
    if letter == "s":
        shown = text("sprintf_s", value)
        return shown if precision is None else shown[: int(precision)]
    if letter in ("b", "B", "d"):
        return str(integer("sprintf_s", value))
    if letter in ("f", "e", "g"):
        if value.__class__ is not float:
            raise badarg("sprintf_s", f"~{letter} wants a float")
        return format(value, f".{6 if precision is None else int(precision)}{letter}")
    if letter in ("p", "w"):
        return f'<<"{value}">>' if isinstance(value, str) else to_text(value)
    raise badarg("sprintf_s", f"unknown directive ~{letter or ''}")
