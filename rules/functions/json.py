"""JSON and jq."""

from __future__ import annotations

import base64
from typing import Annotated, Any

from broker.core import jsontext
from rules.functions.registry import Kind, StrictText, failure, function
from rules.jq.blocking import check
from rules.jq.evaluation import run
from rules.jq.program import JqError, ProgramError, parse_error
from rules.sql.paths import decoded, from_json
from rules.sql.values import JSON_NS, UNDEFINED, check_size, json_text, type_name
from rules.sql.work import spend


def _json_path(value: Any) -> str:
    if type(value) is str:
        raise ValueError("a path of keys that is not empty")
    raise ValueError(f"a path of keys, not {type_name(value)}")


JsonPath = Annotated[str, Kind("string", "type({v}) is str and {v} != ''", _json_path)]


@function(returns="string")
def json_encode(x: Any) -> str:
    """Compact JSON text of a value; undefined gives null, bytes that are not UTF-8 a mark."""
    text = json_text(None if x is UNDEFINED else x)
    check_size(len(text))
    spend(len(text), JSON_NS)
    return text


@function()
def json_decode(text: Any) -> Any:
    """The value of a JSON text."""
    if type(text) is not str:
        raise failure("json_decode", f"argument 1 must be JSON text, not {type_name(text)}")
    try:
        return from_json(text)
    except jsontext.JsonError as error:
        raise failure("json_decode", str(error)) from None


@function()
def json_or_text(x: Any) -> Any:
    """The value of a JSON text; any other text or value as it is."""
    if type(x) is not str and type(x) is not bytes:
        return x
    try:
        return from_json(x)
    except jsontext.JsonError:
        return x


def _jq_program(value: Any) -> str:
    if type(value) is not str:
        raise ValueError(f"a jq program, not {type_name(value)}")
    try:
        check(value)
    except ProgramError as error:
        raise ValueError(f"a jq program; {error}") from None
    return value


def _milliseconds(value: Any) -> int:
    raise ValueError(
        "an integer above zero" if type(value) is int else f"an integer, not {type_name(value)}"
    )


# A literal is checked when a rule is saved, any other by its process when it runs.
JqProgram = Annotated[
    str, Kind("jq program", "type({v}) is str", _jq_program, checks_literals=True)
]
Milliseconds = Annotated[int, Kind("milliseconds", "type({v}) is int and {v} > 0", _milliseconds)]


@function(name="jq", returns="array", is_pure=False)
def jq_(program: JqProgram, value: Any, timeout_ms: Milliseconds | None = None) -> Any:
    """All outputs of a jq program on JSON text or a value, as a list; the last argument limits a worker's time in
    milliseconds."""
    if type(value) is str:
        try:
            value = from_json(value)
        except jsontext.JsonError as error:
            raise failure("jq", f"argument 2 is not JSON: {parse_error(value) or error}") from None
    try:
        return run(program, json_text, value, None if timeout_ms is None else timeout_ms / 1000)
    except JqError as error:
        raise failure("jq", str(error)) from None


@function()
def json_value(text: Any, path: JsonPath) -> Any:
    """The value in JSON text at a path of keys such as a.b; undefined where it is absent or the text is not JSON."""
    return _at(decoded(text), path)


@function()
def jwt_value(token: StrictText, path: JsonPath) -> Any:
    """A claim of a JSON web token at a path of keys. The signature is NOT checked."""
    parts = token.split(".")
    if len(parts) != 3:
        raise failure("jwt_value", "a token has three parts with points between")
    claims = parts[1].encode().rstrip(b"=")
    try:
        value = from_json(
            base64.b64decode(claims + b"=" * (-len(claims) % 4), b"-_", validate=True)
        )
    except ValueError:
        raise failure("jwt_value", "the claims of the token are not the base64 of JSON") from None
    return _at(value, path)


def _at(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = value.get(name, UNDEFINED) if type(value) is dict else UNDEFINED
    return value
