"""Calls that try a schema and store nothing: check, decode, encode, validate, infer."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NotRequired, cast

from typing_extensions import TypedDict

from broker.core import json_values, jsontext
from broker.core.errors import Invalid, Problem
from broker.core.feature import Services
from broker.core.marks import marked
from broker.core.objects import Reference
from broker.core.schema import SchemaEffect, SchemaError
from schema_validation.compatibility.verdict import ChangeView, FieldView, Mode, VerdictView
from schema_validation.recent import Binding, Recent, Sample
from schema_validation.registry import Registry
from schema_validation.schemas import check_members
from schema_validation.serdes.base import (
    DataRefused,
    InferredSchema,
    Misfit,
    SchemaFacts,
    SchemaSerde,
)
from schema_validation.versions import Schema, SchemaVersion, candidate_of, verdict_on


class SchemaImpact(TypedDict):
    """An object that a new version of a schema would touch, whether it would break, and why."""

    user: str
    breaks: bool
    why: str


class ReplayReason(TypedDict):
    """Reason why the new version refuses messages: the place in the payload, how many messages, and the topic of
    one."""

    path: str
    reason: str
    count: int
    topic: str


class ReplayedMessages(TypedDict):
    """Number of recent messages tried on the version in use and the new one, and how many fit each."""

    tried: int
    fit_both: int
    newly_refused: int
    newly_accepted: int
    fit_neither: int
    reasons: list[ReplayReason]


class SchemaChange(TypedDict, total=False):
    """Effects of saving a schema: the number of its version, what changes, whether the compatibility mode allows it,
    the objects that it would affect, and the result for recent messages (null if there are none)."""

    version: int
    is_new_version: bool
    changes: list[ChangeView]
    compatibility: VerdictView
    impact: list[SchemaImpact]
    messages: ReplayedMessages | None


class SchemaCheck(SchemaFacts, SchemaChange):
    """Facts about a schema that compiles. With a ``name`` also the effects of saving it: the number of its
    version, what changes, whether the compatibility mode allows it, the objects that it would touch, and what recent
    messages would have done (null without recent messages)."""

    type: str
    name: NotRequired[str]
    fingerprints: NotRequired[dict[str, str]]
    fields: NotRequired[list[FieldView]]


class DecodedValue(TypedDict):
    """Content of a payload; bytes are ``{"$base64": text}``."""

    value: Any


class EncodedValue(TypedDict):
    """The payload that a value is encoded to."""

    payload: json_values.WirePayload


class FitError(TypedDict):
    """Reason why a value or payload does not fit a schema, or the schema cannot be used: ``path`` is a place in the
    value, ``pointer``, ``line`` and ``column`` one in the schema."""

    message: str
    path: NotRequired[str]
    pointer: NotRequired[str]
    line: NotRequired[int]
    column: NotRequired[int]
    suggestion: NotRequired[str]


class Fit(TypedDict):
    """Result of checking a value or payload against a schema, with reasons."""

    valid: bool
    errors: list[FitError]


# Longest try of a new version on recent messages.
REPLAY_S = 1.0
_MOST_SHOWN = 10


class SchemaTrials(ABC):
    """The verbs that try a schema. ``recent`` has messages to try one on."""

    def __init__(self, services: Services, registry: Registry, recent: Recent) -> None:
        self._services = services
        self.registry = registry
        self._recent = recent

    @abstractmethod
    def mode_of(self, name: str | None) -> Mode:
        """The active compatibility mode of a schema, or without a name the registry's."""

    def impact_of(self, schema: Schema) -> list[SchemaEffect]:
        """Objects that the schema would affect once registered, those it would break first.

        These are rules, validations and transformations, and the tables that their rows go to.
        """
        trial = self.registry.trial({schema.name: schema})
        effects: list[SchemaEffect] = []
        for contributor in self._services.contributors:
            effects += contributor.effects_of_schema(schema.name, trial)
        effects += self._impact_on_tables(effects)
        return sorted(effects, key=lambda effect: not effect.breaks)

    def _impact_on_tables(self, effects: Sequence[SchemaEffect]) -> list[SchemaEffect]:
        """The tables that follow a stream whose rows change their columns."""
        by_user: dict[Reference, SchemaEffect] = {}
        for effect in effects:
            for stream in effect.streams:
                for user in self._services.contributors.users_of("stream", stream):
                    if user.kind == "lake table":
                        reason = (
                            f"rows of stream {stream!r} change with {effect.user}: {effect.why}"
                        )
                        by_user[user] = SchemaEffect(user, effect.breaks, reason)
        return list(by_user.values())

    def check(self, body: Mapping[str, Any]) -> SchemaCheck:
        """Compile a schema; with ``name`` also what saving it would change, break and refuse. Raises ``Invalid``."""
        if "name" not in body:
            serde = self.serde(body)
            return cast(SchemaCheck, {"type": serde.kind, **serde.facts()})
        return self.prepare_check(body)()

    def prepare_check(self, body: Mapping[str, Any]) -> Callable[[], SchemaCheck]:
        """``check`` of a named schema; call on the event loop, and what it gives anywhere, since it takes a while."""
        base = self.registry.find(body["name"]) if isinstance(body.get("name"), str) else None
        spec = body if base is None or "type" in body else {**body, "type": base.kind}
        bindings = self._recent.bindings(base.name) if base is not None else ()
        samples = self._recent.samples([binding.topic_filter for binding in bindings])
        return lambda: self._checked(spec, base, bindings, samples)

    def _checked(
        self,
        spec: Mapping[str, Any],
        base: Schema | None,
        bindings: Sequence[Binding],
        samples: Sequence[Sample],
    ) -> SchemaCheck:
        from schema_validation.diff import fields_of

        check_members(spec)
        number = 1 if base is None else base.versions[-1].number + 1
        candidate = candidate_of(spec, self.registry.resolve, number)
        if base is not None and candidate.serde.kind != base.kind:
            raise Invalid(
                "a schema keeps its type",
                [Problem(f"the type of {base.name!r} is {base.kind}", "/type")],
            )
        facts = {
            "name": spec["name"],
            "type": candidate.serde.kind,
            **candidate.serde.facts(),
            "fingerprints": dict(candidate.fingerprints),
            "fields": fields_of(candidate.serde.kind, candidate.flat),
            **(
                self._first(spec["name"])
                if base is None
                else self._against(base, candidate, bindings, samples)
            ),
        }
        return cast(SchemaCheck, facts)

    def _first(self, name: str) -> SchemaChange:
        mode = self.mode_of(name).value
        return {
            "version": 1,
            "is_new_version": True,
            "changes": [],
            "compatibility": {
                "mode": mode,
                "compatible": True,
                "against": [],
                "reasons": [],
                "warnings": [],
            },
            "impact": [],
            "messages": None,
        }

    def _against(
        self,
        base: Schema,
        candidate: SchemaVersion,
        bindings: Sequence[Binding],
        samples: Sequence[Sample],
    ) -> SchemaChange:
        from schema_validation.diff import difference

        same = next(
            (version for version in base.live if version.identity == candidate.identity), None
        )
        changed = Schema(
            base.name, base.kind, (*base.versions, candidate), candidate.number, base.compatibility
        )
        effects = self.impact_of(changed)
        compatibility = verdict_on(base, candidate, self.mode_of(base.name)).view()
        return {
            "version": candidate.number if same is None else same.number,
            "is_new_version": same is None,
            "changes": [
                change.view() for change in difference(base.kind, base.current.flat, candidate.flat)
            ],
            "compatibility": compatibility
            if same is None
            else {**compatibility, "compatible": True, "reasons": []},
            "impact": [
                {"user": str(item.user), "breaks": item.breaks, "why": item.why} for item in effects
            ],
            "messages": replayed(base.current.serde, candidate.serde, bindings, samples),
        }

    def serde(self, body: Mapping[str, Any]) -> SchemaSerde:
        """The schema that a body holds, or the registered one that it names."""
        if isinstance(body.get("name"), str) and "source" not in body and "files" not in body:
            number = body.get("version")
            if isinstance(number, int):
                return self.registry.schema(body["name"]).version(number).serde
            return self.registry.serde(body["name"])
        return candidate_of(body, self.registry.resolve).serde

    def decode(self, body: Mapping[str, Any]) -> DecodedValue:
        """Decode ``payload``. Raises ``Invalid``."""
        serde = self.serde(body)
        message_type = _message_type(body)
        data = json_values.payload_from_wire(body.get("payload", ""), "/payload")
        try:
            return {"value": marked(serde.decode(data, message_type))}
        except SchemaError as error:
            raise _unfit("the payload does not decode", error, "/payload") from None

    def encode(self, body: Mapping[str, Any]) -> EncodedValue:
        """Encode ``value``. Raises ``Invalid``."""
        serde = self.serde(body)
        message_type = _message_type(body)
        try:
            data = serde.encode(json_values.from_wire(body.get("value")), message_type)
        except SchemaError as error:
            raise _unfit("the value does not encode", error, "/value") from None
        return {"payload": json_values.payload_to_wire(data)}

    def validate(self, body: Mapping[str, Any]) -> Fit:
        """Check whether a ``value`` or a ``payload`` fits, with reasons. An unusable schema fits nothing."""
        try:
            serde = self.serde(body)
        except Invalid as error:
            problems = [json_values.problem_to_wire(problem) for problem in error.problems]
            return {"valid": False, "errors": [cast(FitError, problem) for problem in problems]}
        misfits = _misfits(serde, body)
        return {
            "valid": not misfits,
            "errors": [{"path": misfit.path, "message": misfit.detail} for misfit in misfits],
        }

    def infer(self, body: Mapping[str, Any]) -> InferredSchema:
        """A schema that messages fit. Raises ``Invalid``."""
        return self.prepare_infer(body)()

    def prepare_infer(self, body: Mapping[str, Any]) -> Callable[[], InferredSchema]:
        """``infer``; call on the event loop, and what it gives anywhere, since it takes a while."""
        from schema_validation.inference import infer_schema

        kind = body.get("type", "json")
        if kind not in ("json", "avro"):
            raise Invalid(
                "no schema can be inferred", [Problem("expected the type json or avro", "/type")]
            )
        sources = [name for name in ("samples", "topic", "stream") if name in body]
        if len(sources) != 1:
            raise Invalid(
                "no schema can be inferred",
                [Problem("expected one of samples, topic and stream", "")],
            )
        payloads = self._payloads(sources[0], body[sources[0]])
        name = body.get("name", "Message")
        return lambda: infer_schema(
            kind, payloads, name if isinstance(name, str) else "Message", f"/{sources[0]}"
        )

    def _payloads(self, source: str, value: Any) -> Sequence[bytes]:
        if source == "samples":
            if not isinstance(value, list):
                raise Invalid(
                    "no schema can be inferred",
                    [Problem("expected a list of messages", "/samples")],
                )
            return [_sample(item, f"/samples/{index}") for index, item in enumerate(value)]
        if not isinstance(value, str):
            raise Invalid("no schema can be inferred", [Problem("expected a string", f"/{source}")])
        samples = (
            self._recent.of_stream(value) if source == "stream" else self._recent.of_topic(value)
        )
        return [sample.payload for sample in samples]


def replayed(
    before: SchemaSerde, after: SchemaSerde, bindings: Sequence[Binding], samples: Sequence[Sample]
) -> ReplayedMessages | None:
    """Result for recent messages: how many of them each version takes, and why the new one refuses others."""
    if not samples:
        return None
    types = {binding.topic_filter: binding.message_type for binding in bindings}
    counts = dict.fromkeys(_OUTCOMES.values(), 0)
    reasons: dict[str, ReplayReason] = {}
    until = time.monotonic() + REPLAY_S
    for sample in samples:
        if time.monotonic() > until:
            break
        message_type = types.get(sample.topic_filter)
        old = before.misfit(sample.payload, message_type)
        new = after.misfit(sample.payload, message_type)
        counts[_OUTCOMES[(old is None, new is None)]] += 1
        if new is not None and old is None and (str(new) in reasons or len(reasons) < _MOST_SHOWN):
            entry = reasons.setdefault(
                str(new),
                {"path": new.path, "reason": new.detail, "count": 0, "topic": sample.topic},
            )
            entry["count"] += 1
    result = {"tried": sum(counts.values()), **counts, "reasons": list(reasons.values())}
    return cast(ReplayedMessages, result)


_OUTCOMES = {
    (True, True): "fit_both",
    (True, False): "newly_refused",
    (False, True): "newly_accepted",
    (False, False): "fit_neither",
}


def _sample(item: Any, pointer: str) -> bytes:
    """A sample as a payload: a string, ``{"encoding", "data"}``, or any other JSON value as it is."""
    if isinstance(item, str) or (isinstance(item, Mapping) and item.keys() == {"encoding", "data"}):
        return json_values.payload_from_wire(item, pointer)
    return jsontext.encode(item)


def _message_type(body: Mapping[str, Any]) -> str | None:
    message_type = body.get("message_type")
    if message_type is not None and not isinstance(message_type, str):
        raise Invalid(
            "the message type cannot be used", [Problem("expected a string", "/message_type")]
        )
    return message_type


def _unfit(what: str, error: SchemaError, pointer: str) -> Invalid:
    return Invalid(what, [Problem(str(error), pointer)])


def _misfits(serde: SchemaSerde, body: Mapping[str, Any]) -> Sequence[Misfit]:
    """Reasons why it does not fit: every one for a JSON value, else the first."""
    from schema_validation.serdes.json_schema import JsonSchemaSerde

    message_type = _message_type(body)
    if "payload" in body:
        data = json_values.payload_from_wire(body["payload"], "/payload")
        if isinstance(serde, JsonSchemaSerde):
            try:
                return serde.errors(jsontext.decode(data))
            except jsontext.JsonError as error:
                return [Misfit("payload", f"not JSON: {error}")]
        problem = serde.misfit(data, message_type)
        return [problem] if problem else []
    value = json_values.from_wire(body.get("value"))
    if isinstance(serde, JsonSchemaSerde):
        return serde.errors(value)
    try:
        serde.encode(value, message_type)
    except DataRefused as error:
        return [error.misfit]
    return []
