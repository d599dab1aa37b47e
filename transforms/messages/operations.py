"""Operations, each compiled to a function that changes a ``Run``.

Keys: ``topic``, ``qos``, ``retain``, ``payload``, ``payload.a.b``, ``user_property.NAME``, and the properties of
MQTT 5 that a publisher may set: ``content_type``, ``response_topic``, ``correlation_data``,
``message_expiry_interval``. An empty text takes such a property away. The decoded payload that
comes in is never changed: the maps along a written path are copied once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from broker.core.errors import PeerError
from broker.core.topic import check_topic_name
from transforms.messages.failure import TransformationFailed
from transforms.variform.compiler import Evaluate, Expression, compile_expression

# Maximum values in a list or map that an operation may write: copies of copies grow without bound.
MAX_NODES = 200_000
# Maximum characters of the strings in a payload; one that several members share is written for each.
MAX_CHARACTERS = 16 * 1024 * 1024
MAX_DEPTH = 128
# Longest text MQTT can carry, in UTF-8.
MAX_TEXT_BYTES = 65_535

_MISSING: Any = object()
_TEXT: Final = frozenset({str, bytes})
_MAX_EXPIRY_S = 0xFFFF_FFFF


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
    properties: dict[str, Any] = msgspec.field(default_factory=dict)
    """Properties written, by their MQTT name; None takes one away."""
    is_timed: bool = False
    """True if it may take long, and has a limit."""
    written_characters: int = 0
    """Characters of the strings that became members of the payload, where it may take long."""


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
    """Reason why this is not a key of an operation, or None."""
    parts = key.split(".")
    if "" in parts:
        return f"key {key!r} has an empty part"
    if parts[0] == "payload":
        return None if len(parts) <= MAX_DEPTH else f"a payload path has at most {MAX_DEPTH} parts"
    if parts[0] == "user_property":
        return None if len(parts) == 2 else "a user property is written user_property.NAME"
    if key in _HEAD or key in _PROPERTIES:
        return None
    writable = ", ".join((*_HEAD, "payload", "payload.PATH", "user_property.NAME", *_PROPERTIES))
    return f"key {key!r} cannot be written; these can: {writable}"


def compile_operation(key: str, value: str) -> Operation:
    """Compile one operation whose key was checked.

    Raises:
        transforms.variform.errors.CompileError: the value is not an expression.
    """
    root, _, rest = key.partition(".")
    expression = compile_expression(value, raw=root == "payload", in_transformations=True)
    return Operation(key, value, root, _writer(root, rest, expression.evaluate), expression)


def _writer(root: str, rest: str, evaluate: Evaluate) -> Apply:
    if root == "payload":
        return _write_path(rest, evaluate) if rest else _write_payload(evaluate)
    if root == "user_property":
        return _write_user_property(rest, evaluate)
    if root in _PROPERTIES:
        return _write_property(*_PROPERTIES[root], evaluate)
    return _HEAD[root](evaluate)


def _write_topic(evaluate: Evaluate) -> Apply:
    def apply(run: Run) -> None:
        topic = evaluate(run.bindings)
        try:
            check_topic_name(topic)
        except PeerError as error:
            raise _refused("bad_topic_value", str(error)) from None
        run.topic = run.bindings["topic"] = topic

    return apply


def _write_choice(
    name: str, choices: Mapping[str, Any], wanted: str
) -> Callable[[Evaluate], Apply]:
    """Writes one of few values, each with its text."""

    def compiled(evaluate: Evaluate) -> Apply:
        def apply(run: Run) -> None:
            text = evaluate(run.bindings)
            value = choices.get(text)
            if value is None:
                raise _refused(f"bad_{name}_value", f"{wanted}, not {_short(text)}")
            setattr(run, name, value)
            run.bindings[name] = value

        return apply

    return compiled


def _write_user_property(name: str, evaluate: Evaluate) -> Apply:
    def apply(run: Run) -> None:
        text = evaluate(run.bindings)
        if len(text) * 4 > MAX_TEXT_BYTES and len(text.encode("utf-8", "replace")) > MAX_TEXT_BYTES:
            raise _refused(
                "bad_user_property_value", f"a user property has at most {MAX_TEXT_BYTES} bytes"
            )
        run.user = run.bindings["user_property"] = {**(run.user or {}), name: text}
        run.wrote_user = True

    return apply


def _text_property(text: str) -> str:
    _limited(text.encode("utf-8", "replace"))
    return text


def _response_topic(text: str) -> str:
    try:
        check_topic_name(text)
    except PeerError as error:
        raise ValueError(f"is a topic name: {error}") from None
    return text


def _correlation_data(text: str) -> bytes:
    return _limited(text.encode())


def _limited(data: bytes) -> bytes:
    if len(data) > MAX_TEXT_BYTES:
        raise ValueError(f"has at most {MAX_TEXT_BYTES} bytes")
    return data


def _expiry_s(text: str) -> int:
    if not (text.isascii() and text.isdecimal()) or int(text[:11]) > _MAX_EXPIRY_S:
        raise ValueError(f"is a number of seconds, 0 to {_MAX_EXPIRY_S}, not {_short(text)}")
    return int(text)


_HEAD: Mapping[str, Callable[[Evaluate], Apply]] = {
    "topic": _write_topic,
    "qos": _write_choice("qos", {"0": 0, "1": 1, "2": 2}, "QoS is 0, 1 or 2"),
    "retain": _write_choice("retain", {"true": True, "false": False}, "retain is true or false"),
}
# Keys of MQTT 5 properties, by the name in a message and what makes a value of the text written.
_PROPERTIES: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "content_type": ("Content-Type", _text_property),
    "response_topic": ("Response-Topic", _response_topic),
    "correlation_data": ("Correlation-Data", _correlation_data),
    "message_expiry_interval": ("Message-Expiry-Interval", _expiry_s),
}

PROPERTY_NAMES: Mapping[str, str] = {key: name for key, (name, _) in _PROPERTIES.items()}


def _write_property(name: str, value_of: Callable[[str], Any], evaluate: Evaluate) -> Apply:
    def apply(run: Run) -> None:
        text = evaluate(run.bindings)
        try:
            run.properties[name] = value_of(text) if text else None
        except (ValueError, UnicodeEncodeError) as error:
            raise _refused("bad_property_value", f"{name} {error}") from None

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
            raise _refused("bad_payload_path", f"payload.{path}: the payload is not a map")
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
                raise _refused(
                    "bad_payload_path", f"payload.{path}: {key!r} exists and is not a map"
                )
            elif id(inner) not in owned:
                inner = dict(inner)
                owned[id(inner)] = inner
            level[key] = inner
            level = inner
        level[last] = value
        run.wrote_payload = True
        if value.__class__ is dict or value.__class__ is list:
            # The value may now be reachable in two places: a writer must copy first.
            owned.clear()
            _check_size(run.payload)
        elif run.is_timed and value.__class__ in _TEXT:
            run.written_characters += len(value)
            if run.written_characters > MAX_CHARACTERS:
                raise _too_long()

    return apply


def _check_size(value: Any) -> None:
    """Refuse what is too large or too deep to be a payload; shared parts count each time they are met."""
    left = MAX_NODES
    depth = characters = 0
    level = [value]
    while level:
        inner: list[Any] = []
        for item in level:
            if item.__class__ is dict:
                inner.extend(item.values())
            elif item.__class__ is list:
                inner.extend(item)
            elif item.__class__ in _TEXT:
                characters += len(item)
            if len(inner) > left:
                raise _refused(
                    "payload_too_large", f"the payload would hold more than {MAX_NODES} values"
                )
        if characters > MAX_CHARACTERS:
            raise _too_long()
        left -= len(inner)
        depth += 1
        if depth > MAX_DEPTH + 1:
            raise _refused(
                "payload_too_deep", f"the payload would nest deeper than {MAX_DEPTH} levels"
            )
        level = inner


def _too_long() -> TransformationFailed:
    return _refused(
        "payload_too_large",
        f"the strings of the payload would have more than {MAX_CHARACTERS} characters",
    )


def _refused(reason: str, message: str) -> TransformationFailed:
    return TransformationFailed("transformation_eval_operation_failure", message, reason=reason)


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else text[:40] + "…")
