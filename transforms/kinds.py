"""Transformations."""

from __future__ import annotations

from broker.core.kinds import ENABLE, OF_GATES, Abilities, Kind

KINDS = (
    Kind(
        name="transformation",
        path="transforms",
        section="message_transformation.transformations",
        models=("transforms.messages.spec:TransformationSpec",),
        about="Changes to messages on topics. All operations take effect, or none.",
        tag="Transforms",
        columns=OF_GATES,
        read_only="broker.observe.gate_counters:GateReadOnly",
        abilities=Abilities(
            can_patch=True,
            can_reorder=True,
            has_etag=True,
            metrics="broker.observe.gate_counters:GateMetrics",
            switches=ENABLE,
        ),
        word="transform",
    ),
)
