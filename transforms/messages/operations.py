"""Operations, each compiled to a function that changes a ``Run``.

Keys: ``topic``, ``qos``, ``retain``, ``payload``, ``payload.a.b``, ``user_property.NAME``. The decoded payload that
comes in is never changed: the maps along a written path are copied once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from broker.core.errors import PeerError
from broker.core.topic import check_topic_name
from transforms.messages.failure import TransformationFailed
from transforms.variform.compiler import Evaluate, Expression, compile_expression

MAX_NODES = 200_000
"""Most values in a list or map that an operation may write: copies of copies grow without bound."""
MAX_DEPTH = 128
MAX_TEXT_BYTES = 65_535
"""Longest text MQTT can carry, in UTF-8."""

_QOS = {"0": 0, "1": 1, "2": 2}
_RETAIN = {"true": True, "false": False}
_MISSING: Any = object()


class Run(msgspec.Struct):
    """One transformation of one message while it runs. ``bindings`` is what expressions read.

    ``owned`` holds the maps made in this run by their identity: these may be changed. Being kept there, no other map
    can get the same identity.
    """

    topic: str
    qos: int
    retain: bool
    payload: Any
    bindings: dict[str, Any]
    user: dict[str, str] | None = None
    wrote_payload: bool = False
    wrote_user: bool = False
    owned: dict[int, Any] = msgspec.field(default_factory=dict)


Apply = Callable[[Run], None]


@dataclass(frozen=True, slots=True)
class Operation:
    """A compiled operation; ``root`` is the first part of its key."""

    key: str
    value: str
    root: str
    apply: Apply
    expression: Expression


def check_key(key: str) -> str | None:
    """Why this is no key of an operation, or None when it is one."""
    parts = key.split(".")
    if "" in parts:
        return f"key {key!r} has an empty part"
    if parts[0] == "payload":
        return None if len(parts) <= MAX_DEPTH else f"a payload path has at most {MAX_DEPTH} parts"
    if parts[0] == "user_property":
        return None if len(parts) == 2 else "a user property is written user_property.NAME"
    if key in ("topic", "qos", "retain"):
        return None
    return f"key {key!r} cannot be written; write topic, qos, retain, payload, payload.PATH or user_property.NAME"


def compile_operation(key: str, value: str) -> Operation:
    """Compile one operation whose key was checked.

    Raises:
        transforms.variform.errors.CompileError: the value is no expression.
    """
    root, _, rest = key.partition(".")
    expression = compile_expression(value, raw=root == "payload", in_transformations=True)
    return Operation(key, value, root, _writer(root, rest, expression.evaluate), expression)


def _writer(root: str, rest: str, evaluate: Evaluate) -> Apply:
    if root == "payload":
        return _write_path(rest, evaluate) if rest else _write_payload(evaluate)
    if root == "user_property":
        return _write_user_property(rest, evaluate)
    return {"topic": _write_topic, "qos": _write_qos, "retain": _write_retain}[root](evaluate)


def _write_topic(evaluate: Evaluate) -> Apply:
    def apply(run: Run) -> None:
        topic = evaluate(run.bindings)
        try:
            check_topic_name(topic)
        except PeerError as error:
            raise _refused("bad_topic_value", str(error)) from None
        run.topic = run.bindings["topic"] = topic

    return apply


def _write_qos(evaluate: Evaluate) -> Apply:
    def apply(run: Run) -> None:
        text = evaluate(run.bindings)
        qos = _QOS.get(text)
        if qos is None:
            raise _refused("bad_qos_value", f"QoS is 0, 1 or 2, not {_short(text)}")
        run.qos = run.bindings["qos"] = qos

    return apply


def _write_retain(evaluate: Evaluate) -> Apply:
    def apply(run: Run) -> None:
        text = evaluate(run.bindings)
        retain = _RETAIN.get(text)
        if retain is None:
            raise _refused("bad_retain_value", f"retain is true or false, not {_short(text)}")
        run.retain = run.bindings["retain"] = retain

    return apply


def _write_user_property(name: str, evaluate: Evaluate) -> Apply:
    def apply(run: Run) -> None:
        text = evaluate(run.bindings)
        if len(text) * 4 > MAX_TEXT_BYTES and len(text.encode("utf-8", "replace")) > MAX_TEXT_BYTES:
            raise _refused("bad_user_property_value", f"a user property has at most {MAX_TEXT_BYTES} bytes")
        run.user = run.bindings["user_property"] = {**(run.user or {}), name: text}
        run.wrote_user = True

    return apply


def _write_payload(evaluate: Evaluate) -> Apply:
    def apply(run: Run) -> None:
        value = evaluate(run.bindings)
        if value.__class__ is dict or value.__class__ is list:
            _check_size(value)
            run.owned.clear()
        run.payload = run.bindings["payload"] = value
        run.wrote_payload = True

    return apply


def _write_path(path: str, evaluate: Evaluate) -> Apply:
    *levels, last = path.split(".")

    def apply(run: Run) -> None:
        value = evaluate(run.bindings)
        level = run.payload
        if level.__class__ is not dict:
            raise _refused("bad_payload_path", f"payload.{path}: the payload is no map")
        owned = run.owned
        if id(level) not in owned:
            level = dict(level)
            owned[id(level)] = level
            run.payload = run.bindings["payload"] = level
        for key in levels:
            inner = level.get(key, _MISSING)
            if inner is _MISSING:
                inner = {}
                owned[id(inner)] = inner
            elif inner.__class__ is not dict:
                raise _refused("bad_payload_path", f"payload.{path}: {key!r} is there and is no map")
            elif id(inner) not in owned:
                inner = dict(inner)
                owned[id(inner)] = inner
            level[key] = inner
            level = inner
        level[last] = value
        run.wrote_payload = True
        if value.__class__ is dict or value.__class__ is list:
            # The value may now be reachable in two places: whoever writes to one must copy first.
            owned.clear()
            _check_size(run.payload)

    return apply


def _check_size(value: Any) -> None:
    """Refuse what is too large or too deep to be a payload; shared parts count each time they are met."""
    left, depth, level = MAX_NODES, 0, [value]
    while level:
        inner: list[Any] = []
        for item in level:
            if item.__class__ is dict:
                inner.extend(item.values())
            elif item.__class__ is list:
                inner.extend(item)
            if len(inner) > left:
                raise _refused("payload_too_large", f"the payload would hold more than {MAX_NODES} values")
        left -= len(inner)
        depth += 1
        if depth > MAX_DEPTH + 1:
            raise _refused("payload_too_deep", f"the payload would nest deeper than {MAX_DEPTH} levels")
        level = inner


def _refused(reason: str, message: str) -> TransformationFailed:
    return TransformationFailed("transformation_eval_operation_failure", message, reason=reason)


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "…")
