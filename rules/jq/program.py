"""A jq program: compiled once, kept in a bounded cache, with the size of input up to which it may run in the broker.

Two things are put around a program. Its outputs become the text of one array inside jq, since the library hands
numbers over as doubles while jq's own text keeps the digits that came in. And where it looks at ``$ENV`` or ``env``,
those are the variables of the rule, never those of the process.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any, Final

import jq
import msgspec

from rules.jq.bounds import INLINE_BUDGET_US, Unbounded, inline_bytes
from rules.jq.lexer import Token, Unreadable, tokens

# Longest program that is compiled in the broker: jq may take the square of the length, 40 ms here.
MAX_CHARACTERS: Final = 4_000

_FORBIDDEN: Final = {
    "halt": "would end the process",
    "halt_error": "would end the process",
    "import": "reads files",
    "include": "reads files",
    "modulemeta": "reads files",
    "get_search_list": "reveals the server's files",
    "get_jq_origin": "reveals the server's files",
    "get_prog_origin": "reveals the server's files",
}
_FORBIDDEN_WORDS: Final = re.compile(rf"(?<![.$\w])(?:{'|'.join(_FORBIDDEN)})\b")
_PLACE: Final = re.compile(r" at <top-level>(?:, line (\d+)(?:, column (\d+))?)?:?")
_ENVIRONMENT: Final = re.compile(r"\bENV\b|\benv\b")
_decode: Final = msgspec.json.Decoder().decode


class JqError(ValueError):
    """A program that does not compile, or that failed on an input; one line of text."""


class ProgramError(JqError):
    """A program that does not compile: ``sentence`` at ``line`` and ``column``, which count from 1 inside of it."""

    def __init__(self, text: str, line: int = 1, column: int = 1) -> None:
        self.sentence = text
        self.line = line
        self.column = column
        super().__init__(f"{text}, at line {line}, column {column} of the program")


class Program:
    """A compiled program. Made by ``program_of``; may be run on any thread, by one at a time."""

    def __init__(self, text: str) -> None:
        """Compile, where that takes no longer than the broker can wait; a worker compiles the others (``check``).

        Raises:
            ProgramError: jq does not take it, or it uses what rules must not.
        """
        self.text = text
        _check_words(text)
        self.reads_variables = _ENVIRONMENT.search(text) is not None
        self.inline_bytes, self.why_not_inline = _inline(text)
        """Maximum bytes of inputs that may run in the broker, 0 when none may; and why larger ones may not."""
        self.is_checked = self.inline_bytes > 0 or (
            len(text) <= MAX_CHARACTERS and not _may_multiply_text(text)
        )
        """True if it is known to compile."""
        if self.is_checked:
            self.check()

    def check(self) -> None:
        """Compile, however long that takes. Raises ``ProgramError``."""
        _compile(self.text)
        self._program  # noqa: B018 - compiled when it is first asked for

    @cached_property
    def _program(self) -> Any:
        head = ". as [$ENV, $__input] | def env: $ENV; $__input | " if self.reads_variables else ""
        return _compile(f"{head}[{self.text}\n\n] | tojson")

    def run(self, text: str) -> str:
        """All outputs for an input, as the JSON text of an array. Takes as long as it takes.

        Raises:
            JqError: the program failed.
        """
        try:
            return str(self._program.input_text(text).first())
        except ValueError as error:
            raise JqError(_one_line(str(error))) from None
        except StopIteration:
            raise JqError("the program ended early") from None


def _inline(text: str) -> tuple[int, str]:
    if len(text) > MAX_CHARACTERS:
        return 0, "it takes long to compile"
    try:
        size = inline_bytes(text)
    except Unbounded as error:
        return 0, str(error)
    return size, f"it may take longer than {INLINE_BUDGET_US / 1000:g} ms on more than {size} bytes"


def _may_multiply_text(text: str) -> bool:
    """True if jq may compute a long text while it compiles, as for ``"a" * 2000000000``: it folds constants."""
    return "*" in text and '"' in text


def outputs(text: str) -> list[Any]:
    """The values in the result of ``Program.run``.

    Raises:
        JqError: they nest deeper than can be read, or hold a number beyond the range of floats.
    """
    try:
        values: list[Any] = _decode(text)
    except RecursionError:
        raise JqError("the outputs nest too deep") from None
    except ValueError as error:
        raise JqError(f"the outputs cannot be read: {error}") from None
    return values


def parse_error(text: str) -> str | None:
    """jq's error for a JSON text, with line and column; None when it accepts it."""
    try:
        _IDENTITY.input_text(text).all()
    except ValueError as error:
        return _one_line(str(error)).removeprefix("parse error: ")
    return None


_IDENTITY: Final = jq.compile("empty")


@lru_cache(maxsize=512)
def program_of(text: str) -> Program:
    """The program of a string, compiled once while it is used now and then.

    Raises:
        ProgramError: it does not compile.
    """
    return Program(text)


def _compile(text: str) -> Any:
    try:
        return jq.compile(text)
    except ValueError as error:
        raise _program_error(str(error)) from None


def _program_error(text: str) -> ProgramError:
    """jq's report as one sentence: ``jq: error: X at <top-level>, line 1, column 5:`` and the line with a mark."""
    first = next(
        (line for line in text.splitlines() if line.startswith("jq: error")),
        text.strip() or "unknown error",
    )
    place = _PLACE.search(first)
    sentence = (
        (first if place is None else first[: place.start()]).removeprefix("jq: error").lstrip(": ")
    )
    if place is None or place.group(1) is None:
        return ProgramError(sentence)
    return ProgramError(sentence, int(place.group(1)), int(place.group(2) or 1))


def _one_line(text: str) -> str:
    return " ".join(text.split()) or "failed without a message"


def _check_words(text: str) -> None:
    """Refuse what reaches for files or ends the process."""
    if _FORBIDDEN_WORDS.search(text) is None:
        return
    try:
        forbidden = _forbidden(tokens(text))
    except Unreadable:
        match = _FORBIDDEN_WORDS.search(text)
        forbidden = None if match is None else (match.group(), match.start())
    if forbidden is not None:
        word, at = forbidden
        line = text.count("\n", 0, at) + 1
        column = at - (text.rfind("\n", 0, at) + 1) + 1
        raise ProgramError(f"{word} cannot be used in a rule: it {_FORBIDDEN[word]}", line, column)


def _forbidden(words: Sequence[Token]) -> tuple[str, int] | None:
    for word, following in pairwise(words):
        if word.kind == "name" and word.text in _FORBIDDEN and following.text != ":":
            return word.text, word.at
    return None
