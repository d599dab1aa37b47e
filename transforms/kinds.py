"""Transformations."""

from __future__ import annotations

from broker.core.kinds import ENABLE, OF_GATES, PAGE_OF_GATES, Abilities, Kind
from broker.core.resources import Resource, trial

KINDS = (
    Kind(
        name="transformation",
        topics="named",
        area="authoring",
        path="transforms",
        section="message_transformation.transformations",
        models=("transforms.messages.spec:TransformationSpec",),
        about="Changes to messages on topics. All operations take effect, or none.",
        tag="Transforms",
        columns=OF_GATES,
        menu="Data",
        page_columns=PAGE_OF_GATES,
        reads_at="running",
        read_only="broker.observe.gate_counters:GateReadOnly",
        abilities=Abilities(
            can_patch=True,
            can_reorder=True,
            metrics="broker.observe.gate_counters:GateMetrics",
            switches=ENABLE,
        ),
        word="transform",
    ),
)
RESOURCES = (
    Resource(
        name="transformation",
        topics="named",
        path="",
        tag="Try",
        service="services.transforms",
        commands="",
        verbs=(
            trial(
                "evaluateVariform",
                "/variform:eval",
                "evaluate",
                "ui.api.models.gates:VariformEval",
                "transforms.service:VariformValue",
                "Evaluate a variform expression. The value is text, or with `raw` a value of its type.",
            ),
            trial(
                "previewTransforms",
                "/transforms:preview",
                "preview",
                "ui.api.models.gates:TransformPreview",
                "transforms.service:TransformsTrial",
                "Run transformations on one message. Returns the message that comes out, the failures, and the "
                "message after each step.",
            ),
        ),
    ),
)
