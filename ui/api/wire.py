"""JSON in and out of the API, exact: big integers, 1 beside 1.0, bytes as ``{"$base64": text}``."""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, date, datetime
from typing import Any

from fastapi import Request
from starlette.responses import Response

from broker.core import jsontext
from broker.core.errors import Invalid, Problem
from ui.api.problems import ApiProblem

MAX_BODY_BYTES = 16 * 1024 * 1024
_DRAIN_BYTES = 4 * MAX_BODY_BYTES
BYTES_KEY = "$base64"


class Json(Response):
    """An answer in JSON that is encoded already."""

    media_type = "application/json"


def answer(value: Any, status: int = 200) -> Json:
    """An answer with a value, bytes and times made plain."""
    return Json(jsontext.encode(plain(value)), status)


async def read_object(request: Request) -> dict[str, Any]:
    """The body as a JSON object.

    Raises:
        ApiProblem: 413 when the body is too large, 400 when it is not JSON.
        broker.core.errors.Invalid: it is JSON, but no object.
    """
    try:
        body = jsontext.decode(await _read(request))
    except jsontext.JsonError as error:
        raise ApiProblem(400, "malformed_json", f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise Invalid(f"the body must be a JSON object, and is {_kind(body)}")
    return body


async def _read(request: Request) -> bytes:
    """The body, whole. One that is too large is read on for a while and thrown away, so that the answer arrives."""
    chunks, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size <= MAX_BODY_BYTES:
            chunks.append(chunk)
        elif size > _DRAIN_BYTES:
            break
    if size > MAX_BODY_BYTES:
        raise ApiProblem(413, "too_large", f"the body is larger than {MAX_BODY_BYTES} bytes (16 MiB)")
    return b"".join(chunks)


def plain(value: Any) -> Any:
    """The value with bytes as ``{"$base64": text}`` and times as RFC 3339 text in UTC."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else _key(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {BYTES_KEY: base64.b64encode(value).decode()}
    if isinstance(value, datetime):
        return _rfc3339(value)
    if isinstance(value, date):
        return value.isoformat()
    return value


def revive(value: Any, pointer: str) -> Any:
    """The value with ``{"$base64": text}`` as bytes; ``pointer`` says where it stands in the body.

    Raises:
        broker.core.errors.Invalid: the text is not base64.
    """
    if isinstance(value, list):
        return [revive(item, f"{pointer}/{index}") for index, item in enumerate(value)]
    if not isinstance(value, dict):
        return value
    if len(value) == 1 and isinstance(value.get(BYTES_KEY), str):
        return _bytes(value[BYTES_KEY], f"{pointer}/{BYTES_KEY}")
    return {key: revive(item, f"{pointer}/{key}") for key, item in value.items()}


def payload_bytes(payload: Any, pointer: str) -> bytes:
    """The bytes of a payload: a text, or ``{"encoding": "utf8" | "base64" | "json", "data": ...}``.

    Raises:
        broker.core.errors.Invalid: it is neither.
    """
    if isinstance(payload, str):
        return _utf8(payload, pointer)
    if not isinstance(payload, dict) or "data" not in payload:
        raise _wrong(pointer, 'expected a text or {"encoding": "utf8" | "base64" | "json", "data": ...}')
    encoding, data = payload.get("encoding", "utf8"), payload["data"]
    if encoding == "json":
        return jsontext.encode(data)
    if encoding not in ("utf8", "base64"):
        raise _wrong(f"{pointer}/encoding", f"expected 'utf8', 'base64' or 'json', got {encoding!r}")
    if not isinstance(data, str):
        raise _wrong(f"{pointer}/data", f"expected a text, got {_kind(data)}")
    return _bytes(data, f"{pointer}/data") if encoding == "base64" else _utf8(data, f"{pointer}/data")


def _bytes(text: str, pointer: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise _wrong(pointer, f"not base64: {error}") from None


def _utf8(text: str, pointer: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise _wrong(pointer, "the text holds half a surrogate pair, which UTF-8 cannot say") from None


def _wrong(pointer: str, message: str) -> Invalid:
    return Invalid("the request cannot be used", [Problem(message, pointer)])


def _key(key: Any) -> str:
    return key.decode(errors="replace") if isinstance(key, bytes) else str(key)


def _rfc3339(moment: datetime) -> str:
    in_utc = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    return in_utc.isoformat().replace("+00:00", "Z")


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "an array", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
