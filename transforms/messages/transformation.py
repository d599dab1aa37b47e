"""One transformation: compiled when it is saved, bound to schemas when a topic's plan is made, run per message."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from broker.config.schema_use import ExternalHttpUse, SchemaUse
from broker.core import jsontext
from broker.core.clock import Clock
from broker.core.errors import Invalid, Problem
from broker.core.message import Message
from broker.core.schema import UNKNOWN, FieldType, SchemaLookup
from broker.core.topic import TopicFilter
from broker.core.waiting import settled
from broker.observe.gate_objects import GateObject
from transforms.messages.failure import TransformationFailed
from transforms.messages.operations import Operation, Run, check_key, compile_operation
from transforms.messages.payload import UNTOUCHED, PayloadCodec, payload_codec
from transforms.messages.spec import (
    JsonCodec,
    NoCodec,
    OperationSpec,
    TransformationSpec,
    parse_spec,
)
from transforms.variform.compiler import Evaluate
from transforms.variform.errors import CompileError, EvalError
from transforms.variform.time_limit import FEW, LARGE, check_time, ends_ns, time_limit
from transforms.variform.values import text_or_bytes


@dataclass(frozen=True, slots=True)
class Transformation(GateObject):
    """A checked and compiled transformation."""

    spec: TransformationSpec
    operations: tuple[Operation, ...]
    roots: frozenset[str]

    @property
    def waits(self) -> bool:
        """True if it asks another process to decode or encode: then ``BoundTransformation.run_waiting`` runs it."""
        return any(isinstance(codec, ExternalHttpUse) for _, codec in self.schema_uses())

    def schema_uses(self) -> Iterator[tuple[str, SchemaUse]]:
        """The codecs that name a schema, by their pointers."""
        for member in ("payload_decoder", "payload_encoder"):
            codec = getattr(self.spec, member)
            if isinstance(codec, SchemaUse):
                yield f"/{member}", codec


def compile_transformation(spec: Mapping[str, Any], pointer: str = "") -> Transformation:
    """Check and compile what was sent.

    Raises:
        Invalid: with every problem; for an expression line, column and suggestion.
    """
    checked = parse_spec(spec, pointer)
    operations: list[Operation] = []
    problems: list[Problem] = []
    for index, operation in enumerate(checked.operations):
        problem, compiled = _operation(operation, f"{pointer}/operations/{index}")
        problems += problem
        operations += compiled
    if problems:
        raise Invalid(f"transformation {checked.name!r} cannot be saved", problems)
    roots: frozenset[str] = frozenset().union(
        *(operation.expression.roots for operation in operations)
    )
    return Transformation(
        checked,
        tuple(TopicFilter.parse(topic) for topic in checked.topics),
        tuple(operations),
        roots,
    )


def _operation(operation: OperationSpec, pointer: str) -> tuple[list[Problem], list[Operation]]:
    if problem := check_key(operation.key):
        return [Problem(problem, f"{pointer}/key")], []
    try:
        return [], [compile_operation(operation.key, operation.value)]
    except CompileError as error:
        return [
            Problem(error.message, f"{pointer}/value", error.line, error.column, error.suggestion)
        ], []


class BoundTransformation:
    """A transformation with the schemas of this moment. ``begin``, each operation, ``finish``: one message."""

    __slots__ = (
        "_adopts_json", "_codec", "_fixed", "_members", "_needs_payload", "_reads_head", "_reads_user",
        "_untimed_bytes", "operations", "transformation",
    )  # fmt: skip

    def __init__(
        self, transformation: Transformation, schemas: SchemaLookup, node: str, clock: Clock
    ) -> None:
        self.transformation = transformation
        self.operations = tuple(operation.apply for operation in transformation.operations)
        self._untimed_bytes = LARGE if len(self.operations) <= FEW else -1
        roots = transformation.roots
        written = {operation.root for operation in transformation.operations}
        self._codec = _codec_of(transformation, schemas)
        self._adopts_json = self._codec.gives_json and not self._codec.may_hold_bytes
        self._fixed = fixed_readers(roots, node, clock)
        self._reads_head = not roots.isdisjoint(("topic", "qos", "retain"))
        self._reads_user = "user_property" in roots or "user_property" in written
        is_raw = isinstance(transformation.spec.payload_decoder, NoCodec) and self._codec.is_same
        self._needs_payload = not is_raw or "payload" in roots or "payload" in written
        self._members = (
            _members_written(transformation) if self._adopts_json and not self._reads_user else ()
        )

    def run(self, message: Message, left: Any, entered: Message) -> tuple[Message, Any]:
        """Transform a message.

        Args:
            message: as the transformation before left it. It is not changed.
            left: a decoded payload that the transformation before left, or ``UNTOUCHED``.
            entered: the message as it entered all transformations.

        Returns:
            The message after it and what is left decoded, or ``UNTOUCHED``.

        Raises:
            TransformationFailed: nothing was done.
        """
        is_short = len(message.payload) <= self._untimed_bytes
        if self._members and is_short and left is UNTOUCHED:
            changed = self._write_members(message, entered)
            if changed is not None:
                return changed, UNTOUCHED
        run = self.begin(message, left, entered)
        self.operate(run)
        return self.finish(run, message, left)

    async def run_waiting(
        self, message: Message, left: Any, entered: Message
    ) -> tuple[Message, Any]:
        """Same as ``run``, for payloads that another process decodes or encodes. The operations are done once."""
        run = await settled(partial(self.begin, message, left, entered))
        self.operate(run)
        return await settled(partial(self.finish, run, message, left))

    def _write_members(self, message: Message, entered: Message) -> Message | None:
        """The short way, 1 µs less, where only members of a JSON object are written and every value is a scalar. None
        when that turns out otherwise or something fails: then all is done again the long way, which says what."""
        try:
            payload = message.json()
            if payload.__class__ is not dict:
                return None
            payload = payload.copy()
            bindings: dict[str, Any] = {"payload": payload}
            if self._reads_head:
                bindings["topic"], bindings["qos"], bindings["retain"] = (
                    message.topic,
                    message.qos,
                    message.retain,
                )
            for name, read in self._fixed:
                bindings[name] = read(entered)
            for member, evaluate in self._members:
                value = evaluate(bindings)
                if value.__class__ is dict or value.__class__ is list:
                    return None
                payload[member] = value
            encoded = jsontext.encode(payload)
        except (EvalError, jsontext.JsonError):
            return None
        changed = message.changed(
            message.topic, encoded, message.qos, message.retain, message.properties
        )
        changed.adopt_json(payload)
        return changed

    def begin(self, message: Message, left: Any, entered: Message) -> Run:
        """Decode the payload and gather what expressions read."""
        bindings: dict[str, Any] = {}
        if self._reads_head:
            bindings["topic"], bindings["qos"], bindings["retain"] = (
                message.topic,
                message.qos,
                message.retain,
            )
        payload: Any = UNTOUCHED
        if self._needs_payload:
            payload = bindings["payload"] = self._codec.decode(message, left)
        for name, read in self._fixed:
            bindings[name] = read(entered)
        run = Run(message.topic, message.qos, message.retain, payload, bindings)
        if len(message.payload) > self._untimed_bytes:
            run.is_timed = True
        if self._reads_user:
            run.user = bindings["user_property"] = user_properties(message)
        return run

    def operate(self, run: Run, note: Callable[[int], None] | None = None) -> None:
        """Do the operations, in order; ``note`` hears of each that is done. Raises ``TransformationFailed``."""
        if run.is_timed and not ends_ns():
            with time_limit():
                return self.operate(run, note)
        at = 0
        try:
            for operation in self.operations:
                if run.is_timed:
                    check_time()
                operation(run)
                if note is not None:
                    note(at)
                at += 1
        except EvalError as error:
            details: dict[str, Any] = {
                k: value for k, value in error.details.items() if isinstance(value, (str, int))
            }
            details["reason"] = error.reason
            kind = "transformation_eval_operation_failure"
            raise TransformationFailed(kind, str(error), operation=at, **details) from error
        except TransformationFailed as error:
            error.operation = at
            raise

    def finish(self, run: Run, message: Message, left: Any) -> tuple[Message, Any]:
        """Encode the payload where that is needed and make the new message."""
        codec = self._codec
        if codec.is_same and not run.wrote_payload:
            if codec.check_encode and codec.encode is not None:
                codec.encode(run.payload)
            if left is UNTOUCHED or codec.encode is None:
                return self._message(run, message, message.payload), left
        if codec.encode is None:
            return self._message(run, message, message.payload), run.payload
        changed = self._message(run, message, codec.encode(run.payload))
        if self._adopts_json:
            changed.adopt_json(run.payload)
        return changed, UNTOUCHED

    def _message(self, run: Run, message: Message, payload: bytes) -> Message:
        properties = message.properties
        if run.wrote_user and run.user is not None:
            properties = {**(properties or {}), "User-Property": sorted(run.user.items())}
        if run.properties:
            merged = {**(properties or {}), **run.properties}
            properties = {
                name: value for name, value in merged.items() if value is not None
            } or None
        return message.changed(run.topic, payload, run.qos, run.retain, properties)


def _members_written(transformation: Transformation) -> tuple[tuple[str, Evaluate], ...]:
    """The members that a transformation from JSON to JSON writes; none when it writes anything else as well."""
    spec = transformation.spec
    keys = [operation.key.split(".") for operation in transformation.operations]
    if not isinstance(spec.payload_decoder, JsonCodec) or any(
        len(key) != 2 or key[0] != "payload" for key in keys
    ):
        return ()
    evaluates = [operation.expression.evaluate for operation in transformation.operations]
    return tuple((key[1], evaluate) for key, evaluate in zip(keys, evaluates, strict=True))


def _codec_of(transformation: Transformation, schemas: SchemaLookup) -> PayloadCodec:
    spec = transformation.spec
    gives_bytes = any(
        operation.expression.may_give_bytes for operation in transformation.operations
    )
    may_hold_bytes = gives_bytes or "pub_props" in transformation.roots
    return payload_codec(
        spec.payload_decoder, spec.payload_encoder, schemas, may_hold_bytes=may_hold_bytes
    )


def type_after(transformation: Transformation, before: FieldType) -> FieldType | None:
    """The type of payloads after a transformation, for the type checker of rules; None when nothing is known of it."""
    spec = transformation.spec
    if spec.mode == "shadow":
        return before
    written = [
        operation.key for operation in transformation.operations if operation.root == "payload"
    ]
    if spec.payload_decoder != spec.payload_encoder and spec.payload_encoder.type != "json":
        return None
    if spec.payload_encoder.type == "json":
        if before.coding != "json" and not spec.stops:
            return None  # what could not be decoded passes as it was
        before = replace(before, coding="json")
    if not written:
        return before
    if "payload" in written or before.name != "struct":
        return None
    fields = dict(before.fields)
    for key in written:
        fields[key.split(".")[1]] = UNKNOWN
    return replace(before, fields=fields)


# Names that expressions may read: one dictionary per run, with the names that are used and no others.


Read = Callable[[Message], Any]


def user_properties(message: Message) -> dict[str, str]:
    """User properties as a map; of a repeated name the last one wins."""
    properties = message.properties
    return dict(properties["User-Property"]) if properties and "User-Property" in properties else {}


def _publish_properties(message: Message) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for name, value in (message.properties or {}).items():
        shown[name] = text_or_bytes(value) if isinstance(value, bytes) else value
    return shown | ({"User-Property": user_properties(message)} if "User-Property" in shown else {})


# Names whose value does not change while transformations run: they show the message as it was received.
READERS: Mapping[str, Read] = {
    "clientid": lambda message: message.client.client_id,
    "username": lambda message: message.client.username or "",
    "peername": lambda message: message.client.peer_name or "",
    "peerhost": lambda message: message.client.peer_host or "",
    "client_attrs": lambda message: dict(message.client.attributes),
    "id": lambda message: message.id,
    "publish_received_at": lambda message: message.received_ns // 1_000_000,
    "flags": lambda message: {"retain": message.retain, "dup": message.dup},
    "pub_props": _publish_properties,
}


def fixed_readers(roots: frozenset[str], node: str, clock: Clock) -> tuple[tuple[str, Read], ...]:
    """The readers for those of the names that are not writable; unknown names stay unbound."""
    readers = {
        **READERS,
        "node": lambda message: node,
        "timestamp": lambda message: clock.now_ns() // 1_000_000,
    }
    return tuple((name, readers[name]) for name in sorted(roots) if name in readers)
