"""Publishing a message through the API, on the way that a client's message takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request

from broker.admin.access import AccessCheck
from broker.core import reason
from broker.core.client import Client
from broker.core.errors import Invalid, Problem
from broker.core.message import Message
from broker.core.objects import Spec
from broker.core.stage import Refusal
from broker.core.topic import check_topic_name
from broker.core.wire import payload_from_wire
from ui.api.context import ApiContext
from ui.api.models.messages import Published, PublishRequest
from ui.api.operation import Operations
from ui.api.problems import ApiProblem

_PROPERTIES: Mapping[str, tuple[str, type]] = {
    "content_type": ("Content-Type", str),
    "response_topic": ("Response-Topic", str),
    "correlation_data": ("Correlation-Data", str),
    "message_expiry_interval": ("Message-Expiry-Interval", int),
    "payload_format_indicator": ("Payload-Format-Indicator", int),
}
"""Properties of MQTT 5 by their member, with their name there and what they are here."""
_MOST = {"Message-Expiry-Interval": 0xFFFFFFFF, "Payload-Format-Indicator": 1}
_MEMBERS = frozenset({"topic", "payload", "qos", "retain", "user_properties", "check_acl", *_PROPERTIES})


def add_publishing(router: APIRouter, context: ApiContext) -> None:
    """Add ``POST /messages:publish``."""

    @Operations(router, "Messages").post(
        "/messages:publish", "publishMessage", "Publish a message", body=PublishRequest, answer=Published
    )
    async def publish(request: Request, body: Spec) -> Spec:
        """Runs the message through the whole pipeline, as if a client had published it. With QoS 1 and 2 the answer
        comes once it is stored.
        """
        message = _message(body, _client(request), context.clock.now_ns())
        if body.get("check_acl"):
            await _check_rules(context, message)
        outcome = await context.publisher.publish_and_wait(message)
        if outcome.refusal is not None:
            raise _refused(outcome.refusal)
        if context.traffic is not None and (message.qos or message.retain):
            await context.traffic.stored()
        became = "delivered" if outcome.receivers else "no_subscribers"
        is_kept = message.retain and len(message.payload) > 0
        return {"receivers": outcome.receivers, "outcome": became, "retained": is_kept}


async def _check_rules(context: ApiContext, message: Message) -> None:
    client = {"clientid": message.client.client_id, "peerhost": message.client.peer_host, "listener": "api"}
    members = {"topic": message.topic, "qos": message.qos, "retain": message.retain}
    asked = AccessCheck.model_validate({"client": client, "action": "publish", **members})
    if context.access is not None and not (await context.access.check(asked))["allowed"]:
        text = f"access rules do not allow client 'sluice-api' to publish to {message.topic!r}"
        raise _refused(Refusal("authorization", "authorization", "not_authorized", reason.NOT_AUTHORIZED, text))


def _client(request: Request) -> Client:
    host, port = (request.client.host, request.client.port) if request.client else (None, None)
    return Client("sluice-api", peer_host=host, peer_port=port, listener="api")


def _message(body: dict[str, Any], client: Client, now_ns: int) -> Message:
    problems = [Problem("there is no such member", f"/{member}") for member in body if member not in _MEMBERS]
    topic, qos, retain = body.get("topic"), body.get("qos", 0), body.get("retain", False)
    pairs = body.get("user_properties", [])
    if not isinstance(topic, str):
        problems.append(Problem("expected a topic, a string", "/topic"))
    if type(qos) is not int or qos not in (0, 1, 2):
        problems.append(Problem("expected 0, 1 or 2", "/qos"))
    if not isinstance(retain, bool):
        problems.append(Problem("expected true or false", "/retain"))
    if not isinstance(body.get("check_acl", False), bool):
        problems.append(Problem("expected true or false", "/check_acl"))
    if not isinstance(pairs, list) or not all(_is_pair(pair) for pair in pairs):
        problems.append(Problem("expected pairs of strings: [[name, value], ...]", "/user_properties"))
    properties, wrong = _properties(body)
    problems += wrong
    if problems or not isinstance(topic, str):
        raise Invalid("the message cannot be published", problems)
    check_topic_name(topic)
    payload = payload_from_wire(body.get("payload", ""), "/payload")
    if pairs:
        properties["User-Property"] = [(name, value) for name, value in pairs]
    return Message(topic, payload, qos, retain, client, now_ns, properties or None)


def _properties(body: dict[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    found: dict[str, Any] = {}
    problems = []
    for member, (name, kind) in _PROPERTIES.items():
        value: Any = body.get(member)
        if value is None:
            continue
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if not (isinstance(value, str) if kind is str else is_number and 0 <= value <= _MOST[name]):
            wanted = "a string" if kind is str else f"a whole number up to {_MOST[name]}"
            problems.append(Problem(f"expected {wanted}", f"/{member}"))
        elif name == "Correlation-Data":
            found[name] = value.encode()
        else:
            found[name] = value
    return found, problems


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, list) and len(pair) == 2 and all(isinstance(text, str) for text in pair)


def _refused(refusal: Refusal) -> ApiProblem:
    detail = f"{refusal.stage} {refusal.name!r} stopped the message ({refusal.reason}): {refusal.text}"
    return ApiProblem(422, "message_refused", detail, [Problem(refusal.text)])
