"""Regular expressions, by RE2: time is linear in the text whatever the pattern, so no rule can stall the broker.

What RE2 leaves out for that is refused with the reason: when the rule is saved where the pattern is a literal, when it
runs otherwise. Matching works on UTF-8 bytes through the engine's own object: the package's ``search`` puts 3 µs of
Python around a match of 0.7 µs.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Final

import re2

from rules.functions.registry import Kind, StrictText, Text, failure, function
from rules.sql.limits import (
    LARGE,
    MAX_PATTERN_BYTES,
    MAX_PATTERN_CHARACTERS,
    MAX_PATTERN_COUNTS,
    MAX_PATTERN_STEPS,
    MAX_PATTERNS,
    MAX_REPLACING_MS,
    MAX_TEXT,
)
from rules.sql.values import check_size, type_name
from rules.sql.work import spend, spend_any, spend_ns

Span = tuple[int, int]
_COUNTED = re.compile(r"\{([0-9]*)(?:,([0-9]*))?\}")
_ANYWHERE = re2._Anchor.UNANCHORED
_UNTIMED_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Expression:
    """A compiled regular expression. ``longest`` is the most bytes of a string it may be tried on."""

    match: Any
    groups: int
    longest: int

    def spans(self, name: str, text: bytes, start: int = 0) -> list[Span] | None:
        """The place of the first match from ``start`` and of its groups, in bytes; a group without a match is at -1."""
        if len(text) > self.longest:
            raise failure(
                name,
                f"the expression needs too many steps for {len(text)} bytes; it takes at most {self.longest} bytes",
            )
        spans: list[Span] = self.match(_ANYWHERE, text, start, len(text))
        return spans if spans[0][0] >= 0 else None

    def first(self, name: str, text: bytes) -> list[Span] | None:
        """The first match. On a long text the time it takes counts, which cannot be known beforehand."""
        if len(text) <= LARGE:
            return self.spans(name, text)
        began_ns = time.thread_time_ns()
        spans = self.spans(name, text)
        spend_ns(time.thread_time_ns() - began_ns)
        return spans


@lru_cache(maxsize=MAX_PATTERNS)
def _compiled(pattern: str, *, captures: bool) -> Expression:
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_PATTERN_BYTES
    options.never_capture = not captures
    expression = re2.compile(pattern.encode(), options=options)
    longest = MAX_PATTERN_STEPS // max(expression.programsize, 1)
    return Expression(expression._regexp.Match, expression.groups, longest)


def _expression(value: Any, *, captures: bool) -> Expression:
    if type(value) is not str:
        raise ValueError(f"a regular expression, not {type_name(value)}")
    if len(value) > MAX_PATTERN_CHARACTERS:
        raise ValueError(f"a regular expression of at most {MAX_PATTERN_CHARACTERS} characters")
    if (
        sum(
            max(int((digits or "1")[:6]) for digits in counts) for counts in _COUNTED.findall(value)
        )
        > MAX_PATTERN_COUNTS
    ):
        raise ValueError(f"a regular expression whose {{n}} sum up to at most {MAX_PATTERN_COUNTS}")
    try:
        return _compiled(value, captures=captures)
    except re2.error as error:
        reason = (
            error.args[0].decode(errors="replace")
            if isinstance(error.args[0], bytes)
            else str(error)
        )
        raise ValueError(f"a regular expression; {unsupported(value) or _reason(reason)}") from None


def _reason(why: str) -> str:
    if why.startswith("pattern too large"):
        return "this one is too large when compiled"
    return f"{why}; the end of the text is \\z" if why.endswith("\\Z") else why


Pattern = Annotated[
    Any, Kind("regular expression", "False", lambda value: _expression(value, captures=True))
]
# A pattern whose groups are not used.
Test = Annotated[
    Any, Kind("regular expression", "False", lambda value: _expression(value, captures=False))
]


@function(returns="boolean")
def regex_match(s: Text, pattern: Test) -> bool:
    """True if the regular expression matches anywhere in the text."""
    return pattern.first("regex_match", s.encode()) is not None


@function(returns="string")
def regex_replace(s: Text, pattern: Pattern, by: StrictText) -> str:
    r"""The text with all matches replaced; ``&`` stands for the match, ``\N`` for a group, ``\&`` for a plain ``&``."""
    text = s.encode()
    spend(len(by), 150)
    template = _template(by)
    pieces: list[bytes] = []
    at = size = 0
    for spans in _matches(pattern, text):
        start, end = spans[0]
        put = b"".join(
            [part if isinstance(part, bytes) else _group(text, spans, part) for part in template]
        )
        size += start - at + len(put)
        if size > MAX_TEXT:
            break
        pieces += (text[at:start], put)
        at = end
    check_size(size)
    spend(len(text), 2)
    pieces.append(text[at:])
    return b"".join(pieces).decode()


@function(returns="array")
def regex_extract(s: Text, pattern: Pattern) -> list[str]:
    """The groups of the first match; groups that took no part are empty, those at the end are left out."""
    text = s.encode()
    spans = pattern.first("regex_extract", text)
    if spans is None:
        return []
    groups = spans[1:]
    while groups and groups[-1][0] < 0:
        groups.pop()
    return [text[start:end].decode() if start >= 0 else "" for start, end in groups]


def _matches(pattern: Expression, text: bytes) -> Iterator[list[Span]]:
    """All matches one after another; after an empty one the search continues one character later.

    A match looks at no more than the rest of the text: below ``_UNTIMED_BYTES`` in total there is nothing to time.
    """
    start = 0
    length = len(text)
    seen = 0
    began_s = 0.0
    while (spans := pattern.spans("regex_replace", text, start)) is not None:
        yield spans
        seen += length - start
        if seen > _UNTIMED_BYTES:
            # by this thread's clock: others may have the processor for longer than the limit
            began_s = began_s or time.thread_time()
            if time.thread_time() - began_s > MAX_REPLACING_MS / 1000:
                raise failure("regex_replace", f"replacing took longer than {MAX_REPLACING_MS} ms")
        first, start = spans[0]
        if start == first:
            start += 1
            while start < length and text[start] & 0xC0 == 0x80:
                # inside a character of several bytes
                start += 1
            if start > length:
                break
    if began_s:
        spend_any(length, (time.thread_time() - began_s) * 1e9)


_REFERENCE = re.compile(r"&|\\([&\\])|\\([0-9]{1,2})")


@lru_cache(maxsize=MAX_PATTERNS)
def _template(template: str) -> tuple[bytes | int, ...]:
    """A replacement as literal pieces and group numbers, 0 for the whole match."""
    parts: list[bytes | int] = []
    at = 0
    for reference in _REFERENCE.finditer(template):
        parts.append(template[at : reference.start()].encode())
        at = reference.end()
        parts.append(reference[1].encode() if reference[1] else int(reference[2] or 0))
    parts.append(template[at:].encode())
    return tuple(part for part in parts if part != b"")


def _group(text: bytes, spans: list[Span], number: int) -> bytes:
    if number >= len(spans):
        return b""
    start, end = spans[number]
    return text[start:end] if start >= 0 else b""


# Constructs of other engines that a linear one cannot match

_CONSTRUCTS = (
    (re.compile(r"\(\?="), "the look-ahead"),
    (re.compile(r"\(\?!"), "the negative look-ahead"),
    (re.compile(r"\(\?<="), "the look-behind"),
    (re.compile(r"\(\?<!"), "the negative look-behind"),
    (re.compile(r"\(\?>"), "the atomic group"),
    (re.compile(r"\(\?\("), "the condition"),
    (re.compile(r"\(\?(?:R|[+-]?[0-9]+|&\w+)\)"), "the recursion"),
    (re.compile(r"\(\?P?[=>]\w+\)"), "the back-reference"),
    (re.compile(r"\\(?:[1-9]|g\{?-?\d|g\{\w|k[<{'])"), "the back-reference"),
    (re.compile(r"\\[KG]"), "the assertion"),
    (re.compile(r"[*+?}]\+"), "the possessive repetition"),
)
_TOKEN = re.compile(
    r"\\Q.*?(?:\\E|$)|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]?|(?P<escape>\\.)|.", re.DOTALL
)


def unsupported(pattern: str) -> str | None:
    """The part of a pattern that no engine matches in bounded time, as the end of a sentence, or None."""
    for token in _TOKEN.finditer(pattern):
        if len(token[0]) > 1 and token["escape"] is None:  # a class, or quoted text
            continue
        for construct, description in _CONSTRUCTS:
            match = construct.match(pattern, token.start())
            if match is not None:
                place = f"{description} {match[0]} at character {token.start() + 1}"
                return f"{place} cannot be matched in bounded time and is not supported"
    return None
