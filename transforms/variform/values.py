"""Conversion of values to text and back, and the arguments that each function accepts.

Values are null, booleans, integers of any size, floats, text, lists, maps with text keys, and bytes where text is not
UTF-8.
"""

from __future__ import annotations

from typing import Any

from broker.core import jsontext
from broker.core.jsontext import float_text
from transforms.variform.errors import EvalError, badarg

# The default of an argument that was not given.
MISSING: Any = object()
# Longest result of one function call: characters of a string, items of a list.
MAX_RESULT = 1024 * 1024


def to_text(value: Any) -> str:
    """The text of any value: lists and maps as compact JSON, null as the empty text."""
    kind = value.__class__
    if kind is str:
        return str(value)
    if kind is int:
        return str(value)
    if kind is float:
        return float_text(value)
    if value is None:
        return ""
    if kind is bool:
        return "true" if value else "false"
    if kind is bytes:
        return decoded(value)
    return json_text(value)


def render(value: Any) -> str:
    """The result of an expression where text is expected: an empty list is "", other lists and maps are refused."""
    if value.__class__ is str:
        return value
    if value.__class__ in (list, dict):
        if value == []:
            return ""
        got = "a list" if value.__class__ is list else "a map"
        raise EvalError("bad_return", f"expected text, got {got}", expected="string", got=value)
    return to_text(value)


def decoded(data: bytes) -> str:
    """Bytes as UTF-8 text, or ``EvalError``."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise EvalError("badarg", "the bytes are not UTF-8 text") from None


def text_or_bytes(data: bytes) -> str | bytes:
    """Text when the bytes are UTF-8, else the bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def text(function: str, value: Any) -> str:
    """An argument that must be text; booleans count as text, numbers do not."""
    if type(value) is str:
        return value
    kind = value.__class__
    if kind is bool:
        return "true" if value else "false"
    if kind is bytes:
        return decoded(value)
    raise badarg(function, f"expected text, got {name_of(value)}")


def binary(function: str, value: Any) -> bytes:
    """An argument that must be text or bytes, as bytes."""
    return (
        value
        if value.__class__ is bytes
        else text(function, value).encode("utf-8", "surrogatepass")
    )


def integer(function: str, value: Any) -> int:
    """An argument that must be an integer."""
    if value.__class__ is int:
        return value
    raise badarg(function, f"expected an integer, got {name_of(value)}")


def number(function: str, value: Any) -> int | float:
    """An argument that must be an integer or a float."""
    if value.__class__ is int or value.__class__ is float:
        return value
    raise badarg(function, f"expected a number, got {name_of(value)}")


def sequence(function: str, value: Any) -> list[Any]:
    """An argument that must be a list."""
    if value.__class__ is list:
        return value
    raise badarg(function, f"expected a list, got {name_of(value)}")


def mapping(function: str, value: Any) -> dict[str, Any]:
    """An argument that must be a map."""
    if value.__class__ is dict:
        return value
    raise badarg(function, f"expected a map, got {name_of(value)}")


def is_empty(value: Any) -> bool:
    """True if a value is "", null or []. 0, false, a blank and {} are not."""
    return value is None or value == "" or value == []


def bounded(function: str, size: int) -> None:
    """Refuse a result that would be longer than ``MAX_RESULT``."""
    if size > MAX_RESULT:
        raise badarg(function, f"the result is longer than {MAX_RESULT}")


def joined(function: str, separator: str, items: list[Any]) -> str:
    """The texts of the items with the separator between them, bounded before it is built."""
    texts = [to_text(item) for item in items]
    bounded(function, sum(map(len, texts)) + len(separator) * len(texts))
    return separator.join(texts)


def json_text(value: Any) -> str:
    """Compact JSON in the order of the value, bytes and numbers that are not finite as marks."""
    try:
        return jsontext.encode_any(value).decode()
    except jsontext.JsonError as error:
        raise EvalError("badarg", str(error)) from None


def json_value(data: str | bytes) -> Any:
    """The value of strict JSON.

    Raises:
        ValueError: it is not JSON.
    """
    return jsontext.decode(data)


def name_of(value: Any) -> str:
    """Name of a value's kind, for messages."""
    if value is None:
        return "null"
    return {
        str: "text", bool: "a boolean", int: "an integer", float: "a float", list: "a list", dict: "a map",
        bytes: "bytes",
    }.get(type(value), "something else")  # fmt: skip
