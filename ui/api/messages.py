"""Publishing a message through the API, on the way that a client's message takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request

from broker.admin.access import AccessCheck
from broker.core import reason
from broker.core.client import Client
from broker.core.errors import Problem
from broker.core.json_values import payload_from_wire
from broker.core.message import Message
from broker.core.objects import Spec
from broker.core.stage import Refusal
from broker.core.topic import check_topic_name
from ui.api.context import ApiContext
from ui.api.models.messages import Published, PublishRequest
from ui.api.operation import Operations
from ui.api.problems import ApiProblem

# Properties of MQTT 5 by their member.
_PROPERTIES: Mapping[str, str] = {
    "content_type": "Content-Type",
    "response_topic": "Response-Topic",
    "message_expiry_interval": "Message-Expiry-Interval",
    "payload_format_indicator": "Payload-Format-Indicator",
}


def add_publishing(router: APIRouter, context: ApiContext) -> None:
    """Add ``POST /messages:publish``."""

    @Operations(router, "Messages", "message", "required").post(
        "/messages:publish", "publishMessage", "Publish a message", answer=Published, takes_key=True
    )
    async def publish(request: Request, body: PublishRequest) -> Spec:
        """Runs the message through the whole pipeline, as if a client had published it. With QoS 1 and 2 the answer
        comes once it is stored; that of a refusal, once the message is in its quarantine.
        """
        message = _message(body, _client(request), context.clock.now_ns())
        if body.check_acl:
            await _check_rules(context, message)
        outcome = await context.publisher.publish_and_wait(message)
        if context.traffic is not None and (message.qos or message.retain or outcome.is_stored):
            await context.traffic.stored()
        if outcome.refusal is not None:
            raise _refused(outcome.refusal)
        became = "delivered" if outcome.receivers else "no_subscribers"
        is_kept = message.retain and len(message.payload) > 0
        return {"receivers": outcome.receivers, "outcome": became, "retained": is_kept}


async def _check_rules(context: ApiContext, message: Message) -> None:
    client = {
        "clientid": message.client.client_id,
        "peerhost": message.client.peer_host,
        "listener": "api",
    }
    members = {"topic": message.topic, "qos": message.qos, "retain": message.retain}
    asked = AccessCheck.model_validate({"client": client, "action": "publish", **members})
    if context.access is not None and not (await context.access.check(asked))["allowed"]:
        text = f"access rules do not allow client 'sluice-api' to publish to {message.topic!r}"
        raise _refused(
            Refusal("authorization", "authorization", "not_authorized", reason.NOT_AUTHORIZED, text)
        )


def _client(request: Request) -> Client:
    host, port = (request.client.host, request.client.port) if request.client else (None, None)
    return Client("sluice-api", peer_host=host, peer_port=port, listener="api")


def _message(body: PublishRequest, client: Client, now_ns: int) -> Message:
    check_topic_name(body.topic)
    payload = payload_from_wire(body.payload, "/payload")
    sent_properties = body.model_dump(include=set(_PROPERTIES), exclude_none=True)
    properties: dict[str, Any] = {
        _PROPERTIES[member]: value for member, value in sent_properties.items()
    }
    if body.correlation_data is not None:
        properties["Correlation-Data"] = body.correlation_data.encode()
    if body.user_properties:
        properties["User-Property"] = [(name, value) for name, value in body.user_properties]
    return Message(body.topic, payload, body.qos, body.retain, client, now_ns, properties or None)


def _refused(refusal: Refusal) -> ApiProblem:
    detail = (
        f"{refusal.stage} {refusal.name!r} stopped the message ({refusal.reason}): {refusal.text}"
    )
    return ApiProblem(422, "message_refused", detail, [Problem(refusal.text)])
