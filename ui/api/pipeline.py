"""What acts on a topic, and what would become of a message."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from ui.api.context import Pipeline
from ui.api.deadline import BoundedCalls
from ui.api.models.gates import PipelinePreview
from ui.api.models.shapes import Anything
from ui.api.operation import described
from ui.api.verbs import Verb, add_verb
from ui.api.wire import answer

_PREVIEW = Verb(
    "/pipeline:preview",
    "previewPipeline",
    "pipeline",
    "Run the whole pipeline on one message",
    "Validations, transformations and rules as configured. Nothing is delivered, and no action runs.",
    PipelinePreview,
    lambda service, body: service.preview(body),
)


def add_pipeline(router: APIRouter, pipeline: Pipeline, calls: BoundedCalls) -> None:
    """Add ``GET /pipeline`` and ``POST /pipeline:preview``."""

    @router.get(
        "/pipeline",
        operation_id="getPipeline",
        tags=["Pipeline"],
        summary="Show what acts on a topic",
        **described(answer=Anything, problems=(422,)),
    )
    async def of_topic(topic: Annotated[str, Query(description="A topic name, without wildcards.")]) -> Response:
        """Returns validations, transformations, rules and streams that act on the topic, in order."""
        return answer(pipeline.of_topic(topic))

    add_verb(router, _PREVIEW, pipeline, calls)
