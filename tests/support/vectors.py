"""Comparing answers with what vectors expect: values keep their kind, bytes stand as ``{"$base64": ...}``."""

from __future__ import annotations

import base64
import json
import math
import re
from typing import Any


def same(want: Any, got: Any, *, loose: bool = False) -> bool:
    """Deep equality: true is no number, and 1 is not 1.0 unless ``loose``; key order is free."""
    if isinstance(want, dict):
        return _same_object(want, got, loose)
    if isinstance(want, list):
        return (
            isinstance(got, list)
            and len(want) == len(got)
            and all(same(w, g, loose=loose) for w, g in zip(want, got, strict=True))
        )
    if isinstance(want, bool) or isinstance(got, bool) or want is None or got is None:
        return want is got
    if isinstance(want, (int, float)) and isinstance(got, (int, float)):
        return want == got and (loose or type(want) is type(got))
    return type(want) is type(got) and bool(want == got)


def _same_object(want: dict[str, Any], got: Any, loose: bool) -> bool:
    if want.keys() == {"$base64"}:
        raw = base64.b64decode(want["$base64"])
        return got == want or (isinstance(got, str) and got.encode() == raw)
    if want.keys() == {"$float_approx"}:
        return isinstance(got, float) and math.isclose(got, want["$float_approx"], rel_tol=1e-9)
    if want.keys() == {"$regex"}:
        return isinstance(got, str) and re.fullmatch(want["$regex"], got, re.DOTALL) is not None
    return (
        isinstance(got, dict)
        and want.keys() == got.keys()
        and all(same(want[k], got[k], loose=loose) for k in want)
    )


def message_of(vector: dict[str, Any]) -> dict[str, Any]:
    """The message of a vector, as requests have it."""
    message = dict(vector.get("message", {"topic": "t/1"}))
    if "payload_base64" in message:
        message["payload"] = {"encoding": "base64", "data": message.pop("payload_base64")}
    message.setdefault("payload", "")
    return message


def payload_bytes(message: dict[str, Any]) -> bytes:
    """The payload of an answer."""
    payload = message["payload"]
    return (
        base64.b64decode(payload["data"])
        if payload["encoding"] == "base64"
        else payload["data"].encode()
    )


def message_fits(want: dict[str, Any], got: dict[str, Any]) -> bool:
    """Whether a message has the fields that are given."""
    for key, value in want.items():
        if key == "payload_json":
            fits = same(value, json.loads(payload_bytes(got)))
        elif key == "payload_base64":
            fits = payload_bytes(got) == base64.b64decode(value)
        elif key == "payload":
            fits = payload_bytes(got) == value.encode()
        else:
            fits = same(value, got.get(key))
        if not fits:
            return False
    return True
