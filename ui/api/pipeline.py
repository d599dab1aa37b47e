"""What acts on a topic, and what happens to a message there."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from broker.admin.pipeline import PipelineTrial, PipelineView, TopicPipeline
from ui.api.deadline import BoundedCalls
from ui.api.models.gates import PipelinePreview
from ui.api.operation import Operations
from ui.api.verbs import Verb, add_verb

_PREVIEW = Verb(
    "/pipeline:preview",
    "previewPipeline",
    "pipeline",
    "preview",
    PipelinePreview,
    PipelineTrial,
    "Run the whole pipeline on one message. Validations, transformations and rules as configured, with drafts in place "
    "of saved ones. Nothing is delivered, and no action runs.",
)


def add_pipeline(router: APIRouter, pipeline: PipelineView, calls: BoundedCalls) -> None:
    """Add ``GET /pipeline`` and ``POST /pipeline:preview``."""

    @Operations(router, "Pipeline").get("/pipeline", "getPipeline", "Show what acts on a topic", answer=TopicPipeline)
    def of_topic(topic: Annotated[str, Query(description="A topic name, without wildcards.")]) -> TopicPipeline:
        """Returns validations, transformations, rules and streams that act on the topic, in order."""
        return pipeline.of_topic(topic)

    add_verb(router, _PREVIEW, pipeline, calls)
