"""``sprintf`` with the control sequences of Erlang's ``io:format``."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

from rules.functions.registry import Items, Kind, Literals, failure, function
from rules.sql.limits import MAX_WIDTH
from rules.sql.values import UNDEFINED, check_size, integer_text, string, type_name
from rules.sql.work import spend

_CONTROL = re.compile(r"~(-?\d+|\*)?(?:\.(-?\d+|\*)?(?:\.(.))?)?[tlk]*(.)?", re.DOTALL)
_KNOWN = frozenset("~nspwbBfegci")
_MAX_TEMPLATES = 256
_MAX_BASE = 36
_PRINTABLE = bytes(
    c for c in range(256) if chr(c) in "\n\r\t\v\b\f\x1b" or 0x20 <= c <= 0x7E or c >= 0xA0
)
_LETTERS = {2: "b", 8: "o", 16: "x"}


class _Control(NamedTuple):
    """A control sequence; a width or precision of ``*`` is taken from the arguments."""

    letter: str
    width: int | str | None
    precision: int | str | None
    padding: str

    @property
    def arguments(self) -> int:
        """Number of arguments that it takes."""
        return int(self.width == "*") + int(self.precision == "*") + int(self.letter not in "~n")


_Template = tuple["str | _Control", ...]


@lru_cache(maxsize=_MAX_TEMPLATES)
def _parsed(text: str) -> _Template:
    parts: list[str | _Control] = []
    at = 0
    for match in _CONTROL.finditer(text):
        parts.append(text[at : match.start()])
        at = match.end()
        width, precision, padding, letter = match.groups()
        if letter is None or letter not in _KNOWN:
            raise ValueError(
                f"a format; there is no control sequence {match[0][:20]} (a tilde is written ~~)"
            )
        control = _Control(letter, _bounded(width), _bounded(precision), padding or " ")
        if (
            letter in "bB"
            and type(control.precision) is int
            and not 2 <= control.precision <= _MAX_BASE
        ):
            raise ValueError(f"a format; the base of {match[0][:20]} is not from 2 to {_MAX_BASE}")
        parts.append(control)
    parts.append(text[at:])
    return tuple(part for part in parts if part != "")


def _bounded(text: str | None) -> int | str | None:
    if text is None or text == "*":
        return text
    if len(text) > len(str(MAX_WIDTH)) + 1 or abs(int(text)) > MAX_WIDTH:
        raise ValueError(f"a format with widths of at most {MAX_WIDTH}")
    return int(text)


def _template(value: Any) -> _Template:
    if type(value) is not str:
        raise ValueError(f"a format, not {type_name(value)}")
    if len(value) > MAX_WIDTH:
        raise ValueError(f"a format of at most {MAX_WIDTH} characters")
    return _parsed(value)


Format = Annotated[Any, Kind("format", "False", _template)]


def _count(values: Literals) -> tuple[int, str] | None:
    """A format that asks for another number of arguments than the call has."""
    if type(values[0]) is not str:
        return None
    wanted = sum(part.arguments for part in _parsed(values[0]) if isinstance(part, _Control))
    argument_count = len(values) - 1
    return (
        None
        if wanted == argument_count
        else (0, f"the format asks for {wanted} arguments, there are {argument_count}")
    )


@function(returns="string", usage="(format, args...)", check=_count)
def sprintf(template: Format, *values: Any) -> str | bytes:
    """Text by a format: ~s text, ~p value, ~b integer, ~.16b to a base, ~.2f ~e ~g float, ~c character, ~n line, ~~."""
    return _filled("sprintf", template, values)


@function(returns="string", usage="(format, list)")
def sprintf_s(template: Format, values: Items) -> str | bytes:
    """``sprintf`` with the arguments as an array."""
    return _filled("sprintf_s", template, values)


def _filled(name: str, template: _Template, values: Any) -> str | bytes:
    pending = list(reversed(values))

    def take() -> Any:
        if not pending:
            raise failure(name, "there are fewer arguments than the format asks for")
        return pending.pop()

    text = "".join([part if isinstance(part, str) else _one(part, take) for part in template])
    if pending:
        raise failure(name, "there are more arguments than the format asks for")
    check_size(len(text))
    has_bytes = any(type(value) is bytes for value in values)
    return string(text.encode(errors="surrogateescape")) if has_bytes else text


def _one(control: _Control, take: Callable[[], Any]) -> str:
    if control.letter == "~":
        return "~"
    if control.letter == "n":
        return "\n"
    width = _number(control.width, take)
    precision = _number(control.precision, take)
    return _formatted(control.letter, width, precision, control.padding, take())


def _number(width: int | str | None, take: Callable[[], Any]) -> int | None:
    if not isinstance(width, str):
        return width
    value = take()
    if type(value) is not int:
        raise failure("sprintf", "'*' needs an integer argument")
    if abs(value) > MAX_WIDTH:
        raise failure("sprintf", f"widths are at most {MAX_WIDTH}")
    return value


def _formatted(
    control: str, width: int | None, precision: int | None, padding: str, value: Any
) -> str:
    if control == "i":
        return ""
    if control == "s":
        text = _text(value)
        if precision is not None:
            text = text[: abs(precision)]
        return _justified(text if width is None else text[: abs(width)], width, padding)
    if control in "pw":
        return _justified(erlang_term(value, as_codes=control == "w"), width, padding)
    if control in "bB":
        return _fitted(
            _in_base(_need(value, int, "an integer", control), precision or 10, control),
            width,
            padding,
        )
    if control in "feg":
        return _fitted(
            _float(_need(value, float, "a float", control), control, precision), width, padding
        )
    code = _need(value, int, "a character code", control)
    if not 0 <= code <= 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise failure("sprintf", "~c needs a character code")
    return _justified(chr(code) * abs(precision or width or 1), width, padding)


def _need(value: Any, kind: type, what: str, control: str) -> Any:
    if type(value) is not kind:
        raise failure("sprintf", f"~{control} needs {what}")
    return value


def _text(value: Any) -> str:
    if type(value) is str:
        return value
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is bytes:
        return value.decode(errors="surrogateescape")
    if value is None or value is UNDEFINED:
        return "null" if value is None else "undefined"
    raise failure("sprintf", "~s needs a string")


def _in_base(value: int, base: int, control: str) -> str:
    if not 2 <= base <= _MAX_BASE:
        raise failure("sprintf", f"a base is from 2 to {_MAX_BASE}")
    text = ("-" if value < 0 else "") + _digits(abs(value), base)
    return text.upper() if control == "B" else text


def _digits(value: int, base: int) -> str:
    if base == 10:
        return integer_text(value)
    if base in _LETTERS:
        return f"{value:{_LETTERS[base]}}"
    if value.bit_length() > MAX_WIDTH:
        raise failure("sprintf", "the integer has too many digits to be written")
    digits: list[str] = []
    while value or not digits:
        value, digit = divmod(value, base)
        digits.append("0123456789abcdefghijklmnopqrstuvwxyz"[digit])
    return "".join(reversed(digits))


def _float(value: float, control: str, precision: int | None) -> str:
    if control == "g":
        control = "f" if 0.1 <= abs(value) < 10000.0 else "e"
        if control == "f" and precision is None:
            whole = len(str(int(abs(value))))
            precision = max(6 - whole, 1)
    if control == "f":
        return f"{value:.{6 if precision is None else max(precision, 1)}f}"
    mantissa, _, exponent = f"{value:.{max((precision or 6) - 1, 1)}e}".partition("e")
    return f"{mantissa}e{int(exponent):+d}"


def _justified(text: str, width: int | None, padding: str) -> str:
    if width is None:
        return text
    fill = padding * (abs(width) - len(text))
    return text + fill if width < 0 else fill + text


def _fitted(text: str, width: int | None, padding: str) -> str:
    return (
        "*" * abs(width)
        if width is not None and len(text) > abs(width)
        else _justified(text, width, padding)
    )


def erlang_term(value: Any, *, as_codes: bool = False) -> str:
    """A value as Erlang prints it."""
    if type(value) is float:
        mantissa, exponent_mark, exponent = repr(value).partition("e")
        point = "" if "." in mantissa else ".0"
        return mantissa + point + (f"e{int(exponent)}" if exponent_mark else "")
    if type(value) in (str, bytes):
        return _erlang_binary(value.encode() if type(value) is str else value, as_codes=as_codes)
    if type(value) is list:
        spend(len(value), 500)
        return "[" + ",".join(erlang_term(item, as_codes=as_codes) for item in value) + "]"
    if type(value) is dict:
        spend(len(value), 1000)
        members = (
            f"{erlang_term(key, as_codes=as_codes)} => {erlang_term(value[key], as_codes=as_codes)}"
            for key in sorted(value)
        )
        return "#{" + ",".join(members) + "}"
    if value is None or value is UNDEFINED:
        return "null" if value is None else "undefined"
    if type(value) is int:
        return integer_text(value)
    if type(value) is bool:
        return "true" if value else "false"
    raise failure("sprintf", f"{type_name(value)} cannot be written")


def _erlang_binary(data: bytes, *, as_codes: bool) -> str:
    text = data.decode("latin-1")
    if as_codes or data.translate(None, _PRINTABLE):
        spend(len(data), 120)
        return "<<" + ",".join(map(str, data)) + ">>"
    escaped = (
        text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    )
    return '<<"' + escaped.replace("\t", "\\t") + '">>'
