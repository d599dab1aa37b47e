"""Trying things without saving them: rules, templates, expressions, transformations, validations, schemas.

Whatever is sent, the answer is 200 or 422 and comes within the deadline: the calls run on threads of their own (see
``ui.api.deadline``), and one that raises an unexpected error is answered with 422.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from pydantic import BaseModel
from starlette.responses import Response

from broker.admin.pipeline import PipelineTrial
from broker.admin.rewrites import RewriteTrial, RewrittenTopic
from broker.core import jsontext
from broker.core.errors import Invalid, Problem, SluiceError
from broker.core.objects import Spec
from rules.service import FormattedSql
from rules.trials.cases import CasesReport
from rules.trials.explain import Explanation
from rules.trials.tester import RenderedTemplate, RuleOutcome, RuleOutcomes
from rules.type_check import InputFields, RuleTypes
from schema_validation.trials import DecodedValue, EncodedValue, Fit, SchemaCheck
from schema_validation.validation_service import ValidationsTrial
from transforms.service import TransformsTrial, VariformValue
from ui.api.bodies import Json, plain
from ui.api.deadline import BoundedCalls
from ui.api.models.gates import PipelinePreview, TransformPreview, ValidationTest, VariformEval
from ui.api.models.rules import RuleCheck, RuleExplain, RuleSources, RuleTest, RuleTests, SqlText, TemplateRender
from ui.api.models.schemas import SchemaDecode, SchemaEncode, SchemaSource, SchemaValidate
from ui.api.operation import Operations
from ui.api.problems import log

# Longest answer: a few words of SQL may make rows without end, and sending those would hold the event loop.
MAX_ANSWER_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Verb:
    """A method of the service of a kind, which is found by ``kind``, its path. ``text`` is the summary, then more."""

    path: str
    operation_id: str
    kind: str
    method: str
    body: type[BaseModel]
    answer: type[Any]
    text: str


VERBS: Sequence[Verb] = (
    Verb("/rules:test", "testRule", "rules", "test", RuleTest, RuleOutcome,
         "Run SQL on one event. Returns the rows, `no_result` where FROM or WHERE does not match, or the error."
         " The event is taken as the rule sees it: validations and transformations do not run before, nor actions"
         " after it. `POST /pipeline:preview` runs all stages on a message."),
    Verb("/rules:test-many", "testRuleOnEvents", "rules", "test_many", RuleTests, RuleOutcomes,
         "Run SQL on several events. Returns an outcome for each, in order, and how many have rows."
         " Events are taken as the rule sees them, as by `POST /rules:test`."),
    Verb("/rules:test-cases", "testRuleCases", "rules", "test_cases", RuleCheck, CasesReport,
         "Run test cases on a rule. Returns for each case whether it passed, and else the difference."),
    Verb("/rules:check", "checkRule", "rules", "check", RuleCheck, RuleTypes,
         "Check a rule. Returns the types of the rows, the event columns that each reads, and warnings."),
    Verb("/rules:fields", "listRuleFields", "rules", "fields", RuleSources, InputFields,
         "List what a rule can read. Returns the columns of its sources, and the fields of payloads that have a schema,"
         " with their types."),
    Verb("/rules:format", "formatRule", "rules", "format", SqlText, FormattedSql,
         "Format SQL. Returns the same statement in the usual layout, with its comments."),
    Verb("/rules:explain", "explainRule", "rules", "explain", RuleExplain, Explanation,
         "Run SQL or a rule on one event, step by step. Returns the value of every sub-expression."
         " The event is taken as the rule sees it, as by `POST /rules:test`."),
    Verb("/templates:render", "renderTemplate", "rules", "render", TemplateRender, RenderedTemplate,
         "Fill a template from a row. Placeholders are filled as actions fill them."),
    Verb("/variform:eval", "evaluateVariform", "transforms", "evaluate", VariformEval, VariformValue,
         "Evaluate a variform expression. The value is text, or with `raw` a value of its type."),
    Verb("/transforms:preview", "previewTransforms", "transforms", "preview", TransformPreview, TransformsTrial,
         "Run transformations on one message. Returns the message that comes out, the failures, and the message"
         " after each step."),
    Verb("/validations:test", "testValidations", "validations", "test", ValidationTest, ValidationsTrial,
         "Run validations on one message. Returns whether the message passes, and the result of every check."),
    Verb("/rewrites:test", "testRewrites", "rewrites", "test", RewriteTrial, RewrittenTopic,
         "Rewrite a topic. Returns what a topic or filter that a client names is rewritten to, and by which rewrite."),
    Verb("/schemas:check", "checkSchema", "schemas", "check", SchemaSource, SchemaCheck,
         "Check a schema. Compiles the schema. Status 422 says why it cannot be saved."),
    Verb("/schemas:decode", "decodeWithSchema", "schemas", "decode", SchemaDecode, DecodedValue,
         "Decode a payload. The schema is part of the body and is not saved."),
    Verb("/schemas:encode", "encodeWithSchema", "schemas", "encode", SchemaEncode, EncodedValue,
         "Encode a value. The schema is part of the body and is not saved."),
    Verb("/schemas:validate", "validateWithSchema", "schemas", "validate", SchemaValidate, Fit,
         "Validate a value or payload. The schema is part of the body and is not saved."),
)  # fmt: skip


# Verb of the pipeline, which is not a kind.
PREVIEW = Verb(
    "/pipeline:preview", "previewPipeline", "pipeline", "preview", PipelinePreview, PipelineTrial,
    "Run the whole pipeline on one message. Validations, transformations and rules as configured, with drafts in place"
    " of saved ones. Nothing is delivered, and no action runs.",
)  # fmt: skip


def add_verb(router: APIRouter, verb: Verb, service: object, calls: BoundedCalls) -> None:
    """Add the route of a verb."""
    summary, _, text = verb.text.partition(". ")

    @Operations(router, "Try").post(
        verb.path,
        verb.operation_id,
        summary,
        description=f"{text} Nothing is saved. The call has a deadline of 2 seconds.",
        body=verb.body,
        answer=verb.answer,
    )
    async def run_verb(body: Spec) -> Response:
        return Json(await calls.run(verb.path[1:], lambda: _evaluate(service, verb, body)))


def _evaluate(service: object, verb: Verb, body: Spec) -> bytes:
    try:
        answer = jsontext.encode(plain(getattr(service, verb.method)(body)))
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
