"""What the management API is given of the node."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from broker.app import features
from broker.app.build import Node
from broker.app.settings import ApiSettings
from broker.app.status import NodeStatus
from broker.observe.prometheus import exposition


def api_server(node: Node) -> Any:
    """The HTTP server of the management API, not yet started. Leaves its context at ``node.api_context``."""
    context = features.load(features.API_CONTEXT)(
        token=node.token,
        services=node.object_services,
        publisher=node.server.publisher,
        status=NodeStatus(node).read,
        metrics_text=lambda: exposition(node.metrics),
        streams=node.streams,
        lake=node.lake.service,
        functions=lambda: [_function(function) for function in node.rules.functions],
        clock=node.clock,
        version=product_version(),
    )
    node.api_context = context
    host, port = node.config.get("api", ApiSettings).address
    return features.load(features.API_SERVER)(features.load(features.API_APPLICATION)(context), host, port)


def product_version() -> str:
    """The installed version, ``unknown`` when it runs from a tree that is not installed."""
    try:
        return version("sluicemq")
    except PackageNotFoundError:
        return "unknown"


def _function(function: Any) -> dict[str, Any]:
    return {"name": function.name, "signature": function.signature, "documentation": function.documentation}
