"""The verbs a person has for schemas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from broker.core import jsontext, wire
from broker.core.errors import InUse, Invalid, NotFound, Problem
from broker.core.feature import Services
from broker.core.objects import ObjectSection, Spec
from broker.core.ordered import OrderedObjects
from broker.core.schema import SchemaError
from schema_validation.registry import Registry
from schema_validation.schemas import (
    Schema,
    check_body,
    compile_source,
    first_version,
    next_version,
    restored,
    source_of,
)
from schema_validation.serdes.base import DataRefused, Misfit, SchemaSerde
from schema_validation.serdes.json_schema import JsonSchemaSerde

Answer = dict[str, Any]


class SchemaService:
    """A ``broker.core.objects.ObjectService`` for schemas, and calls that try one without storing it."""

    kind = "schema"

    def __init__(self, services: Services, section: ObjectSection) -> None:
        self._services = services
        self._objects: OrderedObjects[Schema] = OrderedObjects(self.kind, section, Schema.as_spec)
        self.registry = Registry(self._objects.find, self._objects.names)

    def load(self, specs: Sequence[Spec]) -> list[str]:
        """Take the schemas of the configuration; gives a sentence for each that cannot be used."""
        problems: list[str] = []
        for spec in specs:
            try:
                made = restored(spec)
                self._objects.check_free(made.name)
                self._objects.adopt(made.name, made)
            except (Invalid, ValueError) as error:
                problems.append(self._objects.refusal(spec, error))
        return problems

    def list(self) -> Sequence[Spec]:
        return [self._shown(schema) for schema in self._objects]

    def get(self, name: str) -> Spec:
        return self._shown(self._objects.get(name))

    def create(self, spec: Spec) -> Spec:
        made = first_version(spec)
        self._objects.check_free(made.name)
        return self._put(made)

    def replace(self, name: str, spec: Spec) -> Spec:
        """Add a version and use it. The same source as the version in use makes none."""
        self._objects.check_changeable(name)
        given = {**spec, "name": spec.get("name", name)}
        if given["name"] != name:
            raise Invalid("a schema keeps its name", [Problem(f"expected {name!r}", "/name")])
        return self._put(next_version(self._objects.get(name), given))

    def use(self, name: str, version: int) -> Spec:
        """Code payloads by another version of the schema, as to take a change back."""
        self._objects.check_changeable(name)
        schema = self._objects.get(name)
        if version not in [known.number for known in schema.versions]:
            raise NotFound("version of schema " + repr(name), str(version))
        return self._put(replace(schema, in_use=version))

    def delete(self, name: str) -> None:
        self._objects.check_changeable(name)
        users = [user for ask in self._services.users_of_schema for user in ask(name)]
        if users:
            raise InUse(self.kind, name, users)
        self._objects.remove(name)
        self._services.plans.invalidate()

    def check(self, body: Mapping[str, Any]) -> Answer:
        """Compile a schema without storing it; what was found in it. Raises ``Invalid``."""
        serde = _serde(body)
        return {"type": serde.kind, **serde.facts()}

    def decode(self, body: Mapping[str, Any]) -> Answer:
        """Decode ``payload`` by a schema. Raises ``Invalid`` when either cannot be used."""
        serde, message_type = _serde(body), _message_type(body)
        data = wire.payload_from_wire(body.get("payload", ""), "/payload")
        try:
            return {"value": wire.to_wire(serde.decode(data, message_type))}
        except SchemaError as error:
            raise _unfit("the payload does not decode", error, "/payload") from None

    def encode(self, body: Mapping[str, Any]) -> Answer:
        """Encode ``value`` by a schema. Raises ``Invalid`` when either cannot be used."""
        serde, message_type = _serde(body), _message_type(body)
        try:
            data = serde.encode(wire.from_wire(body.get("value")), message_type)
        except SchemaError as error:
            raise _unfit("the value does not encode", error, "/value") from None
        return {"payload": wire.payload_to_wire(data)}

    def validate(self, body: Mapping[str, Any]) -> Answer:
        """Whether a ``value`` or a ``payload`` fits a schema, and why not. A schema that is unusable fits nothing."""
        try:
            serde = _serde(body)
        except Invalid as error:
            return {"valid": False, "errors": [problem.as_dict() for problem in error.problems]}
        found = _misfits(serde, body)
        return {"valid": not found, "errors": [{"path": misfit.path, "message": misfit.detail} for misfit in found]}

    def _put(self, schema: Schema) -> Spec:
        self._objects.put(schema.name, schema)
        self._services.plans.invalidate()
        return self._shown(schema)

    def _shown(self, schema: Schema) -> Spec:
        return {**schema.as_spec(), "facts": schema.current.serde.facts()}


def _serde(body: Mapping[str, Any]) -> SchemaSerde:
    if problems := check_body(body):
        raise Invalid("the schema cannot be used", problems)
    return compile_source(body["type"], source_of(body), "")


def _message_type(body: Mapping[str, Any]) -> str | None:
    found = body.get("message_type")
    if found is not None and not isinstance(found, str):
        raise Invalid("the message type cannot be used", [Problem("a text is wanted", "/message_type")])
    return found


def _unfit(what: str, error: SchemaError, pointer: str) -> Invalid:
    return Invalid(what, [Problem(str(error), pointer)])


def _misfits(serde: SchemaSerde, body: Mapping[str, Any]) -> list[Misfit]:
    """What is wrong: of a JSON value everything, else the first thing."""
    message_type = _message_type(body)
    if "payload" in body:
        data = wire.payload_from_wire(body["payload"], "/payload")
        if isinstance(serde, JsonSchemaSerde):
            try:
                return serde.errors(jsontext.decode(data))
            except jsontext.JsonError as error:
                return [Misfit("payload", f"not JSON: {error}")]
        found = serde.misfit(data, message_type)
        return [found] if found else []
    value = wire.from_wire(body.get("value"))
    if isinstance(serde, JsonSchemaSerde):
        return serde.errors(value)
    try:
        serde.encode(value, message_type)
    except DataRefused as error:
        return [error.misfit]
    return []
