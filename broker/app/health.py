"""Whether the node is well: what the readiness endpoint and the status say of it, and what it does under overload."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from broker.core import reason

if TYPE_CHECKING:
    from broker.app.build import Node


class NodeHealth:
    """The health of a node; ``react`` makes it do under overload what the settings say."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def react(self) -> None:
        """Have the reactions to overload that the settings switch on; existing connections are left alone by all."""
        overload, hub = self._node.overload, self._node.server.hub
        settings, streams = overload.settings, self._node.streams
        code = reason.SERVER_BUSY if settings.server_reference is None else reason.USE_ANOTHER_SERVER
        hub.admission.server_reference = settings.server_reference

        def changed(is_overloaded: bool) -> None:
            hub.admission.refused_with = code if is_overloaded and settings.refuse_connections else 0
            hub.admission.drops_qos0 = is_overloaded and settings.drop_qos0
            streams.put_off_sealing(put_off=is_overloaded and settings.defer_work)

        overload.on_change(changed)

    def defers_work(self) -> bool:
        """Whether what can wait is to wait now."""
        return self._node.overload.is_active and self._node.overload.settings.defer_work

    def not_ready(self) -> str | None:
        """Why the node should get no traffic now, None when it may."""
        node = self._node
        if node.server.hub.is_stopping:
            return "stopping"
        if not node.server.is_loaded:
            return "the store is being loaded"
        if not node.mqtt_address:
            return "starting"
        if node.writer.failure is not None:
            return f"the store cannot be written: {node.writer.failure}"
        if node.overload.is_active and node.overload.settings.health == "unavailable":
            return self._overloaded()
        return None

    def remark(self) -> str:
        """What a node that is ready says of itself."""
        if self._node.overload.is_active:
            return f"degraded: {self._overloaded()}"
        alarms = len(self._node.alarms.active())
        return f"degraded: {alarms} alarm{'s' if alarms > 1 else ''}" if alarms else "ok"

    def status(self) -> dict[str, Any]:
        """As ``GET /status`` shows it."""
        node, overload = self._node, self._node.overload
        why_not = self.not_ready()
        return {
            "ready": why_not is None,
            "says": why_not or self.remark(),
            "overloaded": overload.is_active,
            "alarms": [alarm.name for alarm in node.alarms.active()],
            "lost_rows": sum(node.bridges.lost_rows().values()),
            **overload.figures(),
        }

    def _overloaded(self) -> str:
        return f"overloaded: {', '.join(self._node.overload.reasons) or 'recovering'}"
