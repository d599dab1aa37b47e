"""What the management API is given of the node."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from broker.admin.alarms import AlarmDesk
from broker.admin.groups import GroupDesk
from broker.admin.listeners import ListenerDesk
from broker.admin.traffic import Traffic
from broker.app import features
from broker.app.api_logins import ApiLogins
from broker.app.build import Node, named_of
from broker.app.reload import ConfigReload
from broker.app.status import NodeStatus
from broker.app.version import product_version
from broker.observe.prometheus import exposition
from broker.streams.ranges_process import TICKET_LIFE_S


def api_server(node: Node, reload: ConfigReload) -> Any:
    """The HTTP server of the management API, not yet started. Leaves its context at ``node.api_context``."""
    context = features.load(features.API_CONTEXT)(
        token=node.token,
        services=node.object_services,
        publisher=node.server.publisher,
        status=NodeStatus(node).read,
        metrics_text=lambda: exposition(node.metrics),
        streams=StreamsOfNode(node),
        lake=node.lake.service,
        quarantine=node.quarantine,
        groups=GroupDesk(node.server.hub.shares),
        access=node.access,
        logins=ApiLogins(node.access.limits),
        delayed=node.delayed,
        traffic=Traffic(node.server.hub),
        receivers=node.services.receivers,
        listeners=ListenerDesk(node.server.listeners, reload, named_of),
        reload=reload.reload,
        alarms=AlarmDesk(node.alarms, node.clock),
        not_ready=node.health.not_ready,
        ready_remark=node.health.remark,
        defers_work=node.health.defers_work,
        pipeline=node.pipeline,
        functions=lambda: [function.as_dict() for function in node.rules.functions],
        plugins=lambda: [plugin.as_dict() for plugin in node.rules.plugins],
        clock=node.clock,
        settings=node.api_settings,
        metrics=node.metrics,
        version=product_version(),
    )
    node.api_context = context
    host, port = node.api_settings.address
    return features.load(features.API_SERVER)(features.load(features.API_APPLICATION)(context), host, port)


class StreamsOfNode:
    """Where streams stand and how they are read; ``ui.api.context.Streams``."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def positions(self, name: str, at_us: int | None) -> dict[str, Any]:
        """Kind, and begin and end of every shard."""
        found = self._node.streams.positions(name, at_us)
        return {"kind": found["kind"], "shards": found["shards"]}

    def stream_ranges(self, name: str) -> dict[str, Any]:
        """The address of the range server with a new ticket for this stream."""
        found = self._node.streams.positions(name)
        expires = datetime.fromtimestamp(self._node.clock.now_ns() // 1_000_000_000 + TICKET_LIFE_S, UTC)
        return {
            "ranges_url": found["ranges_url"],
            "ticket": found["ticket"],
            "expires_at": expires.isoformat().replace("+00:00", "Z"),
            "epoch": found["epoch"],
            "log": found["log"],
        }
