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
from broker.core.errors import Invalid, Problem, SluiceError
from broker.core.objects import Spec
from ui.api.deadline import BoundedCalls
from ui.api.models.gates import TransformPreview, ValidationTest, VariformEval
from ui.api.models.messages import RewriteTest
from ui.api.models.rules import RuleCheck, RuleExplain, RuleTest, TemplateRender
from ui.api.models.schemas import SchemaDecode, SchemaEncode, SchemaSource, SchemaValidate
from ui.api.models.shapes import Anything
from ui.api.operation import described
from ui.api.problems import log
from ui.api.wire import Json, plain, read_object

MAX_ANSWER_BYTES = 64 * 1024 * 1024
"""Longest answer: a few words of SQL may make rows without end, and sending those would hold the event loop."""


@dataclass(frozen=True, slots=True)
class Verb:
    """A method of a service under a path."""

    path: str
    operation_id: str
    kind: str
    method: str
    summary: str
    body: type[BaseModel]


VERBS: Sequence[Verb] = (
    Verb("/rules:test", "testRule", "rules", "test", "Run SQL on one event", RuleTest),
    Verb("/rules:check", "checkRule", "rules", "check", "Types and lineage of a rule's rows", RuleCheck),
    Verb(
        "/rules:explain",
        "explainRule",
        "rules",
        "explain",
        "Run SQL or a rule on one event, step by step, with the value of every sub-expression",
        RuleExplain,
    ),
    Verb("/templates:render", "renderTemplate", "rules", "render", "Fill a template from a row", TemplateRender),
    Verb(
        "/variform:eval",
        "evaluateVariform",
        "transforms",
        "evaluate",
        "Evaluate a variform expression",
        VariformEval,
    ),
    Verb(
        "/transforms:preview",
        "previewTransforms",
        "transforms",
        "preview",
        "Run transformations on one message",
        TransformPreview,
    ),
    Verb(
        "/validations:test",
        "testValidations",
        "validations",
        "test",
        "Run validations on one message",
        ValidationTest,
    ),
    Verb(
        "/rewrites:test",
        "testRewrites",
        "rewrites",
        "test",
        "What a topic or filter that a client names is rewritten to",
        RewriteTest,
    ),
    Verb("/schemas:check", "checkSchema", "schemas", "check", "Whether a schema can be saved", SchemaSource),
    Verb("/schemas:decode", "decodeWithSchema", "schemas", "decode", "Decode a payload", SchemaDecode),
    Verb("/schemas:encode", "encodeWithSchema", "schemas", "encode", "Encode a value", SchemaEncode),
    Verb(
        "/schemas:validate",
        "validateWithSchema",
        "schemas",
        "validate",
        "Hold a value or payload against a schema",
        SchemaValidate,
    ),
)


def add_verb(router: APIRouter, verb: Verb, service: object, calls: BoundedCalls) -> None:
    """Add the route of a verb, when the service has the method."""
    method: Callable[[Spec], Any] | None = getattr(service, verb.method, None)
    if method is None:
        return

    @router.post(
        verb.path,
        operation_id=verb.operation_id,
        tags=["Try"],
        summary=verb.summary,
        **described(body=verb.body, answer=Anything),
    )
    async def run_verb(request: Request) -> Response:
        body = await read_object(request)
        return Json(await calls.run(verb.path[1:], lambda: _evaluate(method, verb, body)))


def _evaluate(method: Callable[[Spec], Any], verb: Verb, body: Spec) -> bytes:
    try:
        answer = jsontext.encode(plain(method(body)))
        if len(answer) > MAX_ANSWER_BYTES:
            problem = Problem(f"its answer would be longer than {MAX_ANSWER_BYTES:,} bytes")
            raise Invalid(f"{verb.path[1:]} cannot be answered", [problem], code="answer_too_large")
        return answer
    except (SluiceError, jsontext.JsonError):
        raise
    except Exception as error:
        log.exception("api.evaluation_failed", extra={"operation": verb.operation_id})
        sentence = f"{verb.path[1:]} could not evaluate this: {type(error).__name__}"
        raise Invalid(sentence, code="evaluation_failed") from error
