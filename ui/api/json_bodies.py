"""JSON in and out of the API, exact: big integers, 1 distinct from 1.0, bytes as ``{"$base64": text}``."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

from fastapi import Request
from starlette.responses import Response

from broker.admin.named_files import check_files, names_files
from broker.core import jsontext
from broker.core.errors import Invalid
from broker.core.marks import marked
from broker.core.objects import Listed
from broker.core.times import rfc3339_of
from ui.api.problems import ApiProblem

MAX_BODY_BYTES = 16 * 1024 * 1024
# Maximum size of a JSON body: a larger one would hold the event loop (``broker.core.jsontext``).
MAX_JSON_BYTES = 2 * 1024 * 1024


class Json(Response):
    """An answer in JSON that is encoded already."""

    media_type = "application/json"


def answer(value: Any, status: int = 200) -> Json:
    """An answer with a value, bytes and times as JSON has them."""
    return Json(jsontext.encode(plain(value)), status)


async def read_object(
    request: Request, most_bytes: int = MAX_JSON_BYTES, *, may_name_files: bool = False
) -> dict[str, Any]:
    """The body as a JSON object.

    Raises:
        ApiProblem: 413 when the body is too large, 400 when it is not JSON.
        broker.core.errors.Invalid: it is not an object, or names files that objects may not.
    """
    text = await read_bytes(request, most_bytes)
    try:
        body = jsontext.decode(text)
    except jsontext.JsonError as error:
        raise ApiProblem(400, "malformed_json", f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise Invalid(f"the body must be a JSON object, and is {_kind(body)}")
    if not may_name_files and names_files(text):
        check_files(body)
    return body


async def read_bytes(request: Request, most_bytes: int = MAX_BODY_BYTES) -> bytes:
    """The body, whole; read once.

    Raises:
        ApiProblem: 413 when it is larger; the server then discards the rest, so that the answer arrives.
    """
    data: bytes | None = getattr(request.state, "bytes_of_body", None)
    if data is not None:
        return data
    announced = request.headers.get("content-length", "")
    size = int(announced) if announced.isdecimal() else 0
    chunks = []
    if size <= most_bytes:
        size = 0
        async for chunk in request.stream():
            size += len(chunk)
            if size > most_bytes:
                break
            chunks.append(chunk)
    if size > most_bytes:
        raise ApiProblem(413, "too_large", f"the body is larger than {most_bytes} bytes")
    data = b"".join(chunks)
    request.state.bytes_of_body = data
    return data


def plain(value: Any) -> Any:
    """The value with bytes as ``{"$base64": text}`` and times as RFC 3339 text in UTC."""
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else _key(key): plain(item) for key, item in value.items()
        }
    if isinstance(value, (list, tuple, set, frozenset, Listed)):
        return [plain(item) for item in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return marked(bytes(value))
    if isinstance(value, datetime):
        return rfc3339_of(value)
    if isinstance(value, date):
        return value.isoformat()
    return value


def _key(key: Any) -> str:
    return key.decode(errors="replace") if isinstance(key, bytes) else str(key)


def _kind(value: Any) -> str:
    names = {
        dict: "an object",
        list: "an array",
        str: "a string",
        bool: "true or false",
        type(None): "null",
    }
    return names.get(type(value), "a number")
