"""``sprintf`` with the control sequences of Erlang's ``io:format``."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from rules.functions.registry import Items, Text, failure, function
from rules.sql.values import UNDEFINED, check_size

_CONTROL = re.compile(r"~(-?\d+|\*)?(?:\.(-?\d+|\*)?(?:\.(.))?)?[tlk]*(.)", re.DOTALL)
_MAX_WIDTH = 10_000


@function(returns="string", arity=(1, None))
def sprintf(*arguments: Any) -> str:
    """``sprintf(format, args...)``: ~s text, ~p value, ~b integer, ~f ~e ~g float, ~c character, ~n line, ~~ tilde."""
    template, *values = arguments
    if type(template) is not str:
        raise failure("sprintf", "the format must be a string")
    return _format(template, values)


@function(returns="string")
def sprintf_s(template: Text, values: Items) -> str:
    """``sprintf`` with the arguments as a list."""
    return _format(template, list(values))


def _format(template: str, values: list[Any]) -> str:
    pending = list(reversed(values))

    def take() -> Any:
        if not pending:
            raise failure("sprintf", "there are fewer arguments than the format asks for")
        return pending.pop()

    def one(match: re.Match[str]) -> str:
        width, precision, padding, control = match.groups()
        if control == "~":
            return "~"
        if control == "n":
            return "\n"
        return _formatted(control, _number(width, take), _number(precision, take), padding or " ", take())

    text = _CONTROL.sub(one, template)
    if pending:
        raise failure("sprintf", "there are more arguments than the format asks for")
    check_size(len(text))
    return text


def _number(text: str | None, take: Callable[[], Any]) -> int | None:
    value = take() if text == "*" else text
    if value is None:
        return None
    try:
        number = int(value)
    except (TypeError, ValueError):
        raise failure("sprintf", "'*' needs an integer argument") from None
    if abs(number) > _MAX_WIDTH:
        raise failure("sprintf", f"widths are at most {_MAX_WIDTH}")
    return number


def _formatted(control: str, width: int | None, precision: int | None, padding: str, value: Any) -> str:
    if control == "s":
        text = _text(value)
        if precision is not None:
            text = text[: abs(precision)]
        return _justified(text if width is None else text[: abs(width)], width, padding)
    if control in "pw":
        return _justified(erlang_term(value, as_codes=control == "w"), width, padding)
    if control in "bB":
        return _fitted(_in_base(_need(value, int, "an integer", control), precision or 10, control), width, padding)
    if control in "feg":
        return _fitted(_float(_need(value, float, "a float", control), control, precision), width, padding)
    if control == "c":
        code = _need(value, int, "a character code", control)
        if not 0 <= code <= 0x10FFFF:
            raise failure("sprintf", "~c needs a character code")
        character = chr(code)
        return _justified(character * (precision or abs(width or 1)), width, padding)
    raise failure("sprintf", f"there is no control sequence ~{control}")


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
        return value.decode("latin-1")
    if value is None or value is UNDEFINED:
        return "null" if value is None else "undefined"
    raise failure("sprintf", "~s needs a string")


def _in_base(value: int, base: int, control: str) -> str:
    if not 2 <= base <= 36:
        raise failure("sprintf", "a base is from 2 to 36")
    digits, rest = "", abs(value)
    while rest or not digits:
        rest, digit = divmod(rest, base)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    text = "-" + digits if value < 0 else digits
    return text.upper() if control == "B" else text


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
    return "*" * abs(width) if width is not None and len(text) > abs(width) else _justified(text, width, padding)


def erlang_term(value: Any, *, as_codes: bool = False) -> str:
    """A value as Erlang prints it."""
    if type(value) is float:
        mantissa, exponent_mark, exponent = repr(value).partition("e")
        point = "" if "." in mantissa else ".0"
        return mantissa + point + (f"e{int(exponent)}" if exponent_mark else "")
    if type(value) in (str, bytes):
        return _erlang_binary(value.encode() if type(value) is str else value, as_codes=as_codes)
    if type(value) is list:
        return "[" + ",".join(erlang_term(item, as_codes=as_codes) for item in value) + "]"
    if type(value) is dict:
        members = (
            f"{erlang_term(key, as_codes=as_codes)} => {erlang_term(value[key], as_codes=as_codes)}"
            for key in sorted(value)
        )
        return "#{" + ",".join(members) + "}"
    if value is None or value is UNDEFINED:
        return "null" if value is None else "undefined"
    return ("true" if value else "false") if type(value) is bool else str(value)


def _erlang_binary(data: bytes, *, as_codes: bool) -> str:
    text = data.decode("latin-1")
    is_printable = all(c in "\n\r\t\v\b\f\x1b" or " " <= c <= "~" or c >= "\xa0" for c in text)
    if as_codes or not is_printable:
        return "<<" + ",".join(map(str, data)) + ">>"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\r", "\\r")
    return '<<"' + escaped.replace("\t", "\\t") + '">>'
