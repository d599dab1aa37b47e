"""Subscriptions that the broker makes for every client that connects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, field_validator

from broker.codec.packets import SubscriptionRequest
from broker.config.model import Settings
from broker.config.names import ObjectName
from broker.core.client import Client
from broker.core.errors import PeerError
from broker.core.placeholders import ANY_PLACEHOLDER
from broker.core.topic import TopicFilter
from broker.observe.log import get_logger
from broker.observe.metrics import Metrics
from broker.routing.rewrite import UnsafeName, name_of, name_problems

_log = get_logger(__name__)


class AutoSubscriptionSpec(Settings):
    """One automatic subscription; member names are those EMQX users know."""

    name: ObjectName
    topic: str = Field(
        min_length=1,
        description="The filter, with `${clientid}`, `${username}` and `${client_attrs.NAME}`.",
    )
    qos: Literal[0, 1, 2] = Field(default=0, description="The highest QoS in which messages come.")
    nl: bool = Field(
        default=False, description="No Local: not what the client itself publishes (MQTT 5)."
    )
    rap: bool = Field(
        default=False, description="Retain As Published: the retain flag stays as it was (MQTT 5)."
    )
    rh: Literal[0, 1, 2] = Field(
        default=0,
        description="Retained messages come always (0), with a new subscription (1), never (2).",
    )
    enable: bool = True
    description: str = ""

    @field_validator("topic")
    @classmethod
    def _check_topic(cls, value: str) -> str:
        if problem := name_problems(value):
            raise ValueError(problem)
        try:
            TopicFilter.parse(ANY_PLACEHOLDER.sub("x", value))
        except PeerError as error:
            raise ValueError(str(error)) from None
        return value


class AutoSubscriptions:
    """The active automatic subscriptions. A client whose names cannot be part of a filter goes without; that is
    counted."""

    def __init__(self, metrics: Metrics) -> None:
        self._specs: tuple[AutoSubscriptionSpec, ...] = ()
        self._skipped = metrics.counter(
            "auto_subscriptions_skipped",
            "subscriptions not made at connect since a client's names do not fit in",
        )

    def use(self, specs: Sequence[AutoSubscriptionSpec]) -> None:
        """Use these for clients that connect from now on; those that are not enabled are left out."""
        self._specs = tuple(spec for spec in specs if spec.enable)

    def requests_for(self, client: Client) -> list[SubscriptionRequest]:
        """Subscriptions for a client that has connected."""
        return [
            request for spec in self._specs if (request := self._request(spec, client)) is not None
        ]

    def _request(self, spec: AutoSubscriptionSpec, client: Client) -> SubscriptionRequest | None:
        try:
            topic_filter = filter_for(spec.topic, client)
        except UnsafeName as error:
            self._skipped.value += 1
            _log.warning(
                "auto_subscription.skipped",
                name=spec.name,
                client_id=client.client_id,
                reason=str(error),
            )
            return None
        return SubscriptionRequest(topic_filter, spec.qos, spec.nl, spec.rap, spec.rh)


def filter_for(template: str, client: Client) -> str:
    """The filter of an automatic subscription for a client. Raises ``UnsafeName``."""
    return ANY_PLACEHOLDER.sub(lambda match: name_of(client, match[1]), template)
