"""Streams."""

from __future__ import annotations

from broker.core.kinds import Kind

KINDS = (
    Kind(
        name="stream",
        topics="named",
        area="authoring",
        path="streams",
        section="streams",
        models=("broker.streams.settings:StreamSpec",),
        read_only="broker.streams.service:StreamReadOnly",
        about="A durable log. With `topics` it captures messages that match; without, it holds rows that rules write.",
        tag="Streams",
        columns={"name": "name", "kind": "kind", "topics": "topics", "records": "records"},
        reads_at="shards",
        menu="Delivery",
        page_columns={
            "Captures": "topics",
            "Records": "records",
            "Size": "bytes",
            "Rate": "records_per_s",
            "Oldest": "oldest",
            "Newest": "newest",
        },
    ),
)
