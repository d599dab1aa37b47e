"""The verbs of subscriptions that the broker makes for clients: those of every object."""

from __future__ import annotations

from broker.admin.spec_objects import SpecObjects
from broker.core.objects import ObjectSection
from broker.routing.automatic import AutoSubscriptions, AutoSubscriptionSpec


class AutoSubscriptionService(SpecObjects[AutoSubscriptionSpec]):
    """Subscriptions of every client that connects, in their order."""

    def __init__(self, section: ObjectSection, subscriptions: AutoSubscriptions) -> None:
        super().__init__("auto-subscription", section, AutoSubscriptionSpec, subscriptions.use)
