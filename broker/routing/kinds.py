"""Rewrites of topics, and subscriptions made for clients."""

from __future__ import annotations

from broker.core.kinds import ORDERED, Kind
from broker.core.resources import Resource, trial

KINDS = (
    Kind(
        name="rewrite",
        topics="named",
        area="authoring",
        path="rewrites",
        section="rewrites",
        models=("broker.routing.rewrite:RewriteSpec",),
        about="Rewrites topics that clients name. The first one whose `source_topic` matches is used.",
        tag="Topics",
        columns={
            "name": "name",
            "action": "action",
            "source": "source_topic",
            "re": "re",
            "destination": "dest_topic",
            "enabled": "enable",
        },
        abilities=ORDERED,
        menu="Administration",
    ),
    Kind(
        name="auto-subscription",
        topics="named",
        area="authoring",
        path="auto-subscriptions",
        section="auto_subscriptions",
        models=("broker.routing.automatic:AutoSubscriptionSpec",),
        about="A subscription made for every client that connects.",
        tag="Topics",
        columns={"name": "name", "topic": "topic", "qos": "qos", "enabled": "enable"},
        menu="Administration",
        abilities=ORDERED,
    ),
)
RESOURCES = (
    Resource(
        name="rewrite",
        topics="named",
        path="/rewrites",
        tag="Try",
        service="services.rewrites",
        commands="",
        verbs=(
            trial(
                "testRewrites",
                ":test",
                "test",
                "broker.admin.rewrites:RewriteTrial",
                "broker.admin.rewrites:RewrittenTopic",
                "Rewrite a topic. Returns what a topic or filter that a client names is rewritten to, and by which "
                "rewrite.",
            ),
        ),
    ),
)
