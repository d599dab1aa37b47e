"""The verbs a person has for transformations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typing_extensions import TypedDict

from broker.core.contributor import Drafts, Trial
from broker.core.errors import Invalid, PeerError, Problem
from broker.core.json_values import from_wire
from broker.core.marks import marked
from broker.core.message import Message
from broker.core.schema import FieldType, SchemaLookup
from broker.core.topic import TopicFilter, overlaps
from broker.observe.gate_objects import GateObjects
from transforms.messages.preview import TransformsTrial as TransformsTrial  # of the API too
from transforms.messages.preview import preview, try_on
from transforms.messages.transformation import Transformation, compile_transformation, type_after
from transforms.variform.compiler import compile_expression
from transforms.variform.errors import CompileError, EvalError


class VariformValue(TypedDict):
    """Result of an expression: a string, or with ``raw`` a value of its type."""

    value: Any


class TransformService(GateObjects[Transformation]):
    """A ``broker.core.objects.ObjectService`` for transformations, in their order."""

    kind = "transformation"
    many = "transformations"
    metric = "message_transformation"
    label = "transformation_name"
    acted = "transformed"
    follows_schema = "its payloads are coded by the new version"

    def payload_type_after(self, topic_filter: str, before: FieldType) -> FieldType | None:
        """The type of the payloads on a filter's topics after all transformations, given the type before them.

        Transformations that move messages to other topics are not followed.
        """
        try:
            levels = TopicFilter.parse(topic_filter).levels
        except PeerError:
            return None
        kind: FieldType | None = before
        for item in self._objects:
            if (
                kind is not None
                and item.spec.enable
                and any(overlaps(own.levels, levels) for own in item.filters)
            ):
                kind = type_after(item, kind)
        return kind

    def try_on(self, message: Message, drafts: Drafts) -> Trial:
        """Run the transformations on a message that no one published."""
        return try_on(self._with(drafts), message, self._services)

    def preview(self, body: Mapping[str, Any]) -> TransformsTrial:
        """Run transformations that need not be saved on a message that no one published.

        Raises:
            Invalid: the transformations, schemas or message cannot be used.
        """
        return preview(*self._for_trial(body), self._services)

    def evaluate(self, body: Mapping[str, Any]) -> VariformValue:
        """Evaluate a variform expression over bindings.

        Raises:
            Invalid: it does not compile, or fails.
        """
        source = body.get("expression")
        bindings = body.get("bindings", {})
        if not isinstance(source, str):
            raise Invalid(
                "the expression cannot be used", [Problem("expected a string", "/expression")]
            )
        if not isinstance(bindings, Mapping):
            raise Invalid(
                "the bindings cannot be used", [Problem("expected an object", "/bindings")]
            )
        try:
            expression = compile_expression(source, raw=bool(body.get("raw", False)))
            values = {name: from_wire(value) for name, value in bindings.items()}
            return {"value": marked(expression.evaluate(values))}
        except CompileError as error:
            problem = Problem(
                error.message, "/expression", error.line, error.column, error.suggestion
            )
            raise Invalid("the expression does not compile", [problem]) from None
        except EvalError as error:
            raise Invalid(
                "the expression fails", [Problem(str(error), "/expression")], code=error.reason
            ) from None

    def _compile(
        self, spec: Mapping[str, Any], pointer: str = "", schemas: SchemaLookup | None = None
    ) -> Transformation:
        return compile_transformation(spec, pointer)

    def _does(self, item: Transformation) -> str:
        codecs = f"{item.spec.payload_decoder.type} to {item.spec.payload_encoder.type}"
        return (
            "; ".join(f"{operation.key} = {operation.value}" for operation in item.operations)
            or codecs
        )
