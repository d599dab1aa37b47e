"""Alarms: active ones with their start times, and the history.

Anyone who notices that something is wrong activates an alarm by name, and deactivates it when it is well again; doing
either twice changes nothing. Each change is one log line, one event for rules and one count. Used on the event loop.

The part of a name before ``:`` is the type of the alarm (``ALARM_TYPES``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, get_args
from urllib.parse import quote

from broker.core.clock import Clock
from broker.core.errors import NotFound, did_you_mean
from broker.core.events import Events
from broker.core.signals import Signal
from broker.observe.log import get_logger
from broker.observe.metrics import Metrics
from broker.observe.settings import AlarmSettings

_log = get_logger(__name__)

_NS_PER_MS: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000

# In rising order. ``critical``: messages or rows are refused or lost.
Severity = Literal["warning", "critical"]
SEVERITIES: Final[Sequence[Severity]] = get_args(Severity)


@dataclass(frozen=True, slots=True)
class AlarmType:
    """The severity of alarms of a type, what to do about them, and the page of the dashboard with the object that they
    are about, whose names are details of the alarm."""

    severity: Severity
    advice: str
    page: str = ""


_UNKNOWN_TYPE: Final = AlarmType("warning", "See the message and the details.")
ALARM_TYPES: Final[Mapping[str, AlarmType]] = {
    "overload": AlarmType(
        "critical",
        "The saturation log has the tasks and connections that kept the broker busy. Reduce their load, or give the "
        "broker more processors or memory.",
        "/saturation",
    ),
    "store_not_writable": AlarmType(
        "critical", "Free the disk of the data directory, or repair it. The message has the error."
    ),
    "store_behind": AlarmType(
        "warning", "Use a faster disk, or publish less that must be stored: QoS 1 and 2, retained."
    ),
    "disk_nearly_full": AlarmType(
        "critical",
        "Free the disk of the data directory, or reduce the retention of streams.",
        "/streams",
    ),
    "action_disconnected": AlarmType(
        "critical",
        "Check that the external system runs and accepts the connector's address and credentials. Rows wait in the "
        "buffer.",
        "/actions/{action}",
    ),
    "source_disconnected": AlarmType(
        "critical",
        "Check that the external system runs and accepts the connector's address and credentials. Nothing is read "
        "until then.",
        "/sources/{source}",
    ),
    "action_dropping": AlarmType(
        "critical",
        "The message has the reasons. Enlarge the buffer or add a fallback; see the action's dead letters.",
        "/actions/{action}",
    ),
    "table_failed": AlarmType(
        "critical", "The message has the error. Records stay in the stream.", "/lake/tables/{table}"
    ),
    "table_late": AlarmType(
        "warning",
        "Check that a lake job runs and keeps up with the stream.",
        "/lake/tables/{table}",
    ),
    "table_held": AlarmType(
        "warning", "Retype the table: the message has the command.", "/lake/tables/{table}"
    ),
    "table_audit": AlarmType(
        "critical",
        "See the table's last audit; a replay of the range restores rows that are missing.",
        "/lake/tables/{table}",
    ),
    "table_dead_letters": AlarmType(
        "critical",
        "See the table's dead letters, then fix the rule or the columns.",
        "/lake/tables/{table}",
    ),
    "stream_unread": AlarmType(
        "critical",
        "Let the tables of the stream catch up, or raise its retention.bytes: beyond it unread records are deleted.",
        "/streams/{stream}",
    ),
    "tier_unread": AlarmType(
        "critical",
        "Let the tables of the stream catch up, or raise its tier.unread_bytes: beyond it unread records are deleted.",
        "/streams/{stream}",
    ),
    "tier_failing": AlarmType(
        "warning", "Check that the object store answers and accepts its keys.", "/streams/{stream}"
    ),
    "tier_losing": AlarmType(
        "critical",
        "Check that the object store answers: records were deleted before they were uploaded.",
        "/streams/{stream}",
    ),
    "logins_limited": AlarmType(
        "warning",
        "The failed logins have the addresses and names. Ban them, or fix the clients' passwords.",
        "/login-failures",
    ),
    "authenticator_unavailable": AlarmType(
        "critical",
        "Check that the service runs and accepts the broker's address and credentials.",
        "/authentication",
    ),
    "source_unavailable": AlarmType(
        "critical",
        "Check that the service runs and accepts the broker's address and credentials.",
        "/authorization/sources",
    ),
    "inbound_memory_full": AlarmType(
        "critical", "Raise mqtt.max_inbound_bytes_connected, or have clients send PUBREL sooner."
    ),
    "publishers_slowed": AlarmType(
        "warning",
        "Make the subscribers that the details name faster, or share their subscriptions.",
        "/clients",
    ),
    "subscriber_not_acknowledging": AlarmType(
        "critical",
        "Repair or disconnect the subscribers that the details name: those with a full queue lose messages.",
        "/clients",
    ),
    "session_queue_high": AlarmType(
        "warning",
        "Connect or clear the sessions that the details name, or set an expiry for their messages.",
        "/sessions",
    ),
    "telemetry_collector": AlarmType(
        "warning", "Check that the collector runs and accepts the address of telemetry.endpoint."
    ),
    "alarm_receiver_failing": AlarmType(
        "warning",
        "Test the receiver. Its page has the error; notifications wait until it works.",
        "/alarm-receivers/{alarm_receiver}",
    ),
}


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """A note that someone takes care of an active alarm, until it ends. The time is nanoseconds since 1970."""

    by: str
    note: str
    at_ns: int


@dataclass(frozen=True, slots=True)
class Alarm:
    """One thing that is wrong. Times are nanoseconds since 1970; ``deactivated_ns`` is 0 while it is active."""

    name: str
    message: str
    activated_ns: int
    details: Mapping[str, Any] = field(default_factory=dict)
    deactivated_ns: int = 0
    acknowledgement: Acknowledgement | None = None

    @property
    def is_active(self) -> bool:
        """True if the condition still holds."""
        return self.deactivated_ns == 0

    @property
    def type(self) -> AlarmType:
        """The severity of the alarm, and what to do about it."""
        return ALARM_TYPES.get(self.name.partition(":")[0], _UNKNOWN_TYPE)

    @property
    def page(self) -> str:
        """The page of the dashboard with the object that the alarm is about, or an empty string."""
        # an action and a source are named TYPE:NAME
        names = {
            name: quote(value.rpartition(":")[2], safe="")
            for name, value in self.details.items()
            if type(value) is str
        }
        try:
            return self.type.page.format_map(names)
        except KeyError:
            return ""


class Alarms:
    """All alarms of a node: active ones by name, and a bounded history of those that are over."""

    def __init__(
        self, clock: Clock, events: Events, metrics: Metrics, settings: AlarmSettings | None = None
    ) -> None:
        self._clock = clock
        self._events = events
        self._settings = settings or AlarmSettings()
        self._active: dict[str, Alarm] = {}
        self._over: deque[Alarm] = deque(maxlen=self._settings.history)
        self.on_change = Signal[Alarm]()
        """An alarm became active, ended, or was acknowledged."""
        metrics.gauge("alarms_active", lambda: len(self._active), "alarms that are active now")
        self._activated = metrics.counter("alarms_activated", "times that an alarm became active")
        self._deactivated = metrics.counter("alarms_deactivated", "times that an alarm was over")

    def activate(self, name: str, message: str, **details: Any) -> None:
        """Say that something is wrong: ``message`` in one sentence, ``details`` in numbers.

        Where the alarm is active already, it keeps its time, and shows the new sentence and details.
        """
        active = self._active.get(name)
        if active is not None:
            self._active[name] = replace(active, message=message, details=details)
            return
        alarm = self._active[name] = Alarm(name, message, self._clock.now_ns(), details)
        self._activated.value += 1
        _log.error("alarm.activated", alarm=name, text=message, **details)
        self._tell("alarm.activated", alarm)

    def deactivate(self, name: str) -> None:
        """Say that it is well again."""
        alarm = self._active.pop(name, None)
        if alarm is None:
            return
        alarm = replace(alarm, deactivated_ns=max(self._clock.now_ns(), alarm.activated_ns + 1))
        self._over.appendleft(alarm)
        self._deactivated.value += 1
        _log.info(
            "alarm.deactivated",
            alarm=name,
            lasted_s=(alarm.deactivated_ns - alarm.activated_ns) // _NS_PER_S,
        )
        self._tell("alarm.deactivated", alarm)

    def acknowledge(self, name: str, by: str, note: str = "") -> Alarm:
        """Note that someone takes care of an active alarm. It is no longer acknowledged once it was over.

        Raises:
            NotFound: it is not active.
        """
        return self._put(name, Acknowledgement(by, note, self._clock.now_ns()))

    def unacknowledge(self, name: str) -> Alarm:
        """Take the acknowledgement of an active alarm back. Raises ``NotFound``."""
        return self._put(name, None)

    def _put(self, name: str, acknowledgement: Acknowledgement | None) -> Alarm:
        alarm = self.get(name)
        if alarm.acknowledgement == acknowledgement:
            return alarm
        alarm = self._active[name] = replace(alarm, acknowledgement=acknowledgement)
        self.on_change(alarm)
        return alarm

    def get(self, name: str) -> Alarm:
        """The active alarm of that name; raises ``NotFound``."""
        alarm = self._active.get(name)
        if alarm is None:
            raise NotFound("active alarm", name, did_you_mean(name, self._active))
        return alarm

    def set(self, name: str, is_wrong: bool, message: str, **details: Any) -> None:
        """``activate`` or ``deactivate``, as ``is_wrong`` says."""
        if is_wrong:
            self.activate(name, message, **details)
        else:
            self.deactivate(name)

    def active(self) -> list[Alarm]:
        """Active alarms, newest first."""
        return sorted(self._active.values(), key=lambda alarm: alarm.activated_ns, reverse=True)

    def history(self) -> list[Alarm]:
        """Past alarms, newest first."""
        oldest_ns = self._clock.now_ns() - int(self._settings.history_age * _NS_PER_S)
        while self._over and self._over[-1].deactivated_ns < oldest_ns:
            self._over.pop()
        return list(self._over)

    def forget_history(self) -> int:
        """Forget what is over; returns how many alarms that were."""
        count = len(self._over)
        self._over.clear()
        return count

    def _tell(self, event: str, alarm: Alarm) -> None:
        self.on_change(alarm)
        if event not in self._events.wanted:
            return
        columns = {
            "name": alarm.name,
            "message": alarm.message,
            "details": dict(alarm.details),
            "activated_at": alarm.activated_ns // _NS_PER_MS,
        }
        if not alarm.is_active:
            columns["deactivated_at"] = alarm.deactivated_ns // _NS_PER_MS
        self._events.emit(event, columns)
