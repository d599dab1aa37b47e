"""Trying things without saving them: rules, templates, expressions, transformations, validations, schemas.

Whatever is sent, the answer is 200 or 422 and comes within the deadline: the calls run on threads of their own (see
``ui.api.deadline``), and one that fails in a way nobody foresaw could not be evaluated, which is what 422 says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from broker.core import jsontext
from broker.core.errors import Invalid, SluiceError
from broker.core.objects import ObjectService, Spec
from ui.api import models
from ui.api.deadline import BoundedCalls
from ui.api.operation import described
from ui.api.problems import log
from ui.api.wire import Json, plain, read_object, revive


@dataclass(frozen=True, slots=True)
class Verb:
    """A method of a service under a path.

    ``values`` are the members of the body in which ``{"$base64": text}`` means bytes; a payload in its own encoding
    inside them is left to the service.
    """

    path: str
    operation_id: str
    kind: str
    method: str
    summary: str
    body: type[BaseModel]
    values: tuple[str, ...] = ()


VERBS: Sequence[Verb] = (
    Verb("/rules:test", "testRule", "rules", "test", "Run SQL on one event", models.RuleTest, ("event",)),
    Verb(
        "/templates:render",
        "renderTemplate",
        "rules",
        "render",
        "Fill a template from a row",
        models.TemplateRender,
        ("row",),
    ),
    Verb(
        "/variform:eval",
        "evaluateVariform",
        "transforms",
        "evaluate",
        "Evaluate a variform expression",
        models.VariformEval,
        ("bindings",),
    ),
    Verb(
        "/transforms:preview",
        "previewTransforms",
        "transforms",
        "preview",
        "Run transformations on one message",
        models.TransformPreview,
        ("message",),
    ),
    Verb(
        "/validations:test",
        "testValidations",
        "validations",
        "test",
        "Run validations on one message",
        models.ValidationTest,
        ("message",),
    ),
    Verb("/schemas:check", "checkSchema", "schemas", "check", "Whether a schema can be saved", models.SchemaSource),
    Verb("/schemas:decode", "decodeWithSchema", "schemas", "decode", "Decode a payload", models.SchemaDecode),
    Verb("/schemas:encode", "encodeWithSchema", "schemas", "encode", "Encode a value", models.SchemaEncode, ("value",)),
    Verb(
        "/schemas:validate",
        "validateWithSchema",
        "schemas",
        "validate",
        "Hold a value or payload against a schema",
        models.SchemaValidate,
        ("value",),
    ),
)


def add_verb(router: APIRouter, verb: Verb, service: ObjectService, calls: BoundedCalls) -> None:
    """Add the route of a verb, when the service has the method."""
    method: Callable[[Spec], Any] | None = getattr(service, verb.method, None)
    if method is None:
        return

    @router.post(
        verb.path,
        operation_id=verb.operation_id,
        tags=["Try"],
        summary=verb.summary,
        **described(body=verb.body, answer=models.Anything),
    )
    async def run_verb(request: Request) -> Response:
        body = await read_object(request)
        return Json(await calls.run(verb.path[1:], lambda: _evaluate(method, verb, body)))


def _evaluate(method: Callable[[Spec], Any], verb: Verb, body: Spec) -> bytes:
    for member in verb.values:
        if member in body:
            body[member] = _revive(body[member], f"/{member}")
    try:
        return jsontext.encode(plain(method(body)))
    except (SluiceError, jsontext.JsonError):
        raise
    except Exception as error:
        log.exception("api.evaluation_failed", extra={"operation": verb.operation_id})
        sentence = f"{verb.path[1:]} could not evaluate this: {type(error).__name__}"
        raise Invalid(sentence, code="evaluation_failed") from error


def _revive(value: Any, pointer: str) -> Any:
    """Bytes for ``$base64``, except inside a payload that says its encoding itself."""
    if not isinstance(value, dict):
        return revive(value, pointer)
    payload = value.get("payload")
    if not isinstance(payload, dict) or "encoding" not in payload:
        return revive(value, pointer)
    others = {key: item for key, item in value.items() if key != "payload"}
    return {**revive(others, pointer), "payload": payload}
