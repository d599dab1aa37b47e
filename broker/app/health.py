"""Health of the node: readiness, status, and reactions to overload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from broker.core import reason
from broker.core.kinds import counted
from broker.core.times import rfc3339
from broker.net.server import Server
from broker.observe.alarms import Alarms
from broker.observe.overload import Overload
from broker.storage.writer import Writer
from broker.streams.service import StreamService


class NodeHealth:
    """The health of a node; ``react`` applies the overload steps of the settings. ``is_open`` returns whether it
    accepts clients, ``lost_rows`` the rows lost by action."""

    def __init__(
        self,
        *,
        server: Server,
        overload: Overload,
        streams: StreamService,
        writer: Writer,
        alarms: Alarms,
        is_open: Callable[[], bool],
        lost_rows: Callable[[], Mapping[str, int]],
    ) -> None:
        self._server = server
        self._overload = overload
        self._streams = streams
        self._writer = writer
        self._alarms = alarms
        self._is_open = is_open
        self._lost_rows = lost_rows

    def react(self) -> None:
        """Apply the reactions to overload that the settings enable; existing connections are never affected."""
        overload = self._overload
        hub = self._server.hub
        settings = overload.settings
        streams = self._streams
        code = (
            reason.SERVER_BUSY if settings.server_reference is None else reason.USE_ANOTHER_SERVER
        )
        hub.context.admission.server_reference = settings.server_reference

        def changed(is_overloaded: bool) -> None:
            hub.context.admission.refused_with = (
                code if is_overloaded and settings.refuse_connections else 0
            )
            hub.context.admission.drops_qos0 = is_overloaded and settings.drop_qos0
            streams.put_off_sealing(put_off=is_overloaded and settings.defer_work)

        overload.on_change.connect(changed)

    def defers_work(self) -> bool:
        """True if deferrable work must wait now."""
        return self._overload.is_active and self._overload.settings.defer_work

    def not_ready(self) -> str | None:
        """Reason why the node should get no traffic now, or None."""
        if self._server.hub.context.is_stopping:
            return "stopping"
        place = self._server.hub.context.place
        if self._server.is_parting or (place is not None and place.is_parting):
            return "its clients are moving to another machine"
        if not self._server.is_loaded:
            return "the store is being loaded"
        if not self._is_open():
            return "starting"
        if self._writer.failure is not None:
            return f"the store cannot be written: {self._writer.failure}"
        if self._overload.is_active and self._overload.settings.health == "unavailable":
            return self._overloaded()
        return None

    def has_started(self) -> bool:
        """True once the node has served clients, whether or not it should get more of them now."""
        return self._server.is_loaded and self._is_open()

    def remark(self) -> str:
        """Remark about a node that is ready."""
        if self._overload.is_active:
            return f"degraded: {self._overloaded()}"
        alarms = len(self._alarms.active())
        return f"degraded: {counted(alarms, 'alarm')}" if alarms else "ok"

    def status(self) -> dict[str, Any]:
        """Health in the form of ``GET /status``."""
        overload = self._overload
        why_not = self.not_ready()
        return {
            "ready": why_not is None,
            "says": why_not or self.remark(),
            "overloaded": overload.is_active,
            "overloaded_since": rfc3339(overload.since_ns) if overload.is_active else None,
            "overloaded_because": list(overload.because) if overload.is_active else [],
            "alarms": [alarm.name for alarm in self._alarms.active()],
            "lost_rows": sum(self._lost_rows().values()),
            **overload.figures(),
        }

    def _overloaded(self) -> str:
        return f"overloaded: {', '.join(self._overload.reasons) or 'recovering'}"
