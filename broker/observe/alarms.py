"""Alarms: active ones with their start times, and the history.

Anyone who notices that something is wrong activates an alarm by name, and deactivates it when it is well again; doing
either twice changes nothing. Each change is one log line, one event for rules and one count. Used on the event loop.

The part of a name before ``:`` is the type of the alarm (``ALARM_TYPES``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, get_args
from urllib.parse import quote

from broker.core import jsontext
from broker.core.clock import Clock
from broker.core.errors import NotFound, did_you_mean
from broker.core.events import Events
from broker.core.signals import Signal
from broker.core.values import Values
from broker.observe.log import get_logger
from broker.observe.metrics import Metrics
from broker.observe.settings import AlarmSettings

_log = get_logger(__name__)

_NS_PER_MS: Final = 1_000_000
_NS_PER_S: Final = 1_000_000_000

# Maximum size of a stored alarm, in bytes; a longer one is stored without its details, its message cut.
_MOST_ALARM_BYTES: Final = 8 * 1024
_CUT_MESSAGE: Final = 1000
# Maximum size of the stored history, in bytes; the oldest alarms go first.
MOST_HISTORY_BYTES: Final = 16 * 1024 * 1024
# Seconds between two writes. Of an alarm that ends several times within them, the last time is stored.
_WRITE_EVERY_S: Final = 1.0
# Seconds after a start within which an alarm that was active before is the same one when it is active again.
RESUME_S: Final = 600

# In rising order. ``critical``: messages or rows are refused or lost.
Severity = Literal["warning", "critical"]
SEVERITIES: Final[Sequence[Severity]] = get_args(Severity)


# Calls a function after a number of seconds.
Later = Callable[[float, Callable[[], None]], asyncio.TimerHandle]


@dataclass(frozen=True, slots=True)
class AlarmType:
    """The severity of alarms of a type, what to do about them, and the page of the dashboard with the object that they
    are about, whose names are details of the alarm."""

    severity: Severity
    advice: str
    page: str = ""


_UNKNOWN_TYPE: Final = AlarmType("warning", "See the message and the details.")
ALARM_TYPES: Final[Mapping[str, AlarmType]] = {
    "cell_away": AlarmType(
        "critical",
        "The log says why the process ended. One that hangs can be killed: the supervisor starts it again.",
        "/cells",
    ),
    "cell_restarting": AlarmType(
        "critical", "The log says why the process ended; report what it shows.", "/cells"
    ),
    "cell_without_copy": AlarmType(
        "critical",
        "If the machine of this cell is lost now, its store is too. Start the other machines, and look at their logs.",
        "/cells",
    ),
    "clock_differs": AlarmType(
        "warning",
        "Set the clocks by NTP. Times of messages and rows, and when sessions, wills and delayed messages are due, are "
        "those of the machine that runs the cell.",
        "/cluster/machines",
    ),
    "configuration_differs": AlarmType(
        "warning",
        "Messages of its clients are checked and routed otherwise. Give all machines the same configuration files, but "
        "for the addresses and paths of each, and run: sluice config reload.",
        "/cells",
    ),
    "releases_differ": AlarmType(
        "warning",
        "Upgrade the other machines too, one after the other. Until then, links use the older protocol.",
        "/cluster/machines",
    ),
    "cell_log_filling": AlarmType(
        "critical",
        "A machine that keeps a copy does not follow. It is left behind, and copies the store when it is back. Where "
        "no machine follows, the cell stops to acknowledge when its log is full.",
        "/cells",
    ),
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
    "telemetry_metrics_collector": AlarmType(
        "warning",
        "Check that the collector runs and accepts the address of telemetry.metrics.endpoint, by default that of "
        "telemetry.endpoint.",
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
        self._over: dict[int, Alarm] = {}  # by number, oldest first
        self._number = 0
        self._record = _AlarmRecord(Values(), None)
        self._interrupted: dict[str, int] = {}
        self._resumes_until_ns = 0
        self.on_change = Signal[Alarm]()
        """An alarm became active, ended, or was acknowledged."""
        metrics.gauge("alarms_active", lambda: len(self._active), "alarms that are active now")
        self._activated = metrics.counter("alarms_activated", "times that an alarm became active")
        self._deactivated = metrics.counter("alarms_deactivated", "times that an alarm was over")

    def load(self, values: Values, later: Later) -> None:
        """Take what an earlier run left in the store, and store each change from now on.

        What was active when it stopped is over, until it is active again within ``RESUME_S``.
        """
        self._resumes_until_ns = self._clock.now_ns() + RESUME_S * _NS_PER_S
        self._record = _AlarmRecord(values, later)
        self._over = self._record.past()
        self._number = max(self._over, default=0)
        for alarm in self._record.active():
            self._interrupted[alarm.name] = self._end(alarm)
        self._trim()
        self._record.changed()

    def activate(self, name: str, message: str, **details: Any) -> None:
        """Say that something is wrong: ``message`` in one sentence, ``details`` in numbers.

        Where the alarm is active already, it keeps its time, and shows the new sentence and details.
        """
        active = self._active.get(name)
        if active is not None:
            self._active[name] = replace(active, message=message, details=details)
            return
        now_ns = self._clock.now_ns()
        alarm = Alarm(name, message, now_ns, details)
        number = self._interrupted.pop(name, 0)
        if number in self._over and now_ns < self._resumes_until_ns:
            before = self._over.pop(number)
            self._record.forget(number)
            alarm = replace(before, message=message, details=details, deactivated_ns=0)
        self._active[name] = alarm
        self._record.put_active(alarm)
        self._record.changed()
        self._activated.value += 1
        _log.error("alarm.activated", alarm=name, text=message, **details)
        self._tell("alarm.activated", alarm)

    def deactivate(self, name: str) -> None:
        """Say that it is well again."""
        alarm = self._active.pop(name, None)
        if alarm is None:
            return
        number = self._end(alarm)
        alarm = self._over[number]
        self._trim()
        self._record.changed()
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
        self._record.put_active(alarm)
        self._record.write()  # someone waits for it
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
        self._trim()
        self._record.changed()
        return list(reversed(self._over.values()))

    def forget_history(self) -> int:
        """Forget what is over; returns how many alarms that were."""
        count = len(self._over)
        for number in self._over:
            self._record.forget(number)
        self._record.write()
        self._over.clear()
        return count

    def stop(self) -> None:
        """Write what waits, and store nothing more: an alarm that ends since the broker stops is not over."""
        self._record.write()
        self._record.stop()
        self._record = _AlarmRecord(Values(), None)

    def _end(self, alarm: Alarm) -> int:
        """Add an alarm to the history; its number there."""
        self._number += 1
        ended_ns = max(self._clock.now_ns(), alarm.activated_ns + 1)
        ended = self._over[self._number] = replace(alarm, deactivated_ns=ended_ns)
        self._record.end(self._number, ended)
        return self._number

    def _trim(self) -> None:
        """Forget the oldest alarms, beyond the bounds."""
        oldest_ns = self._clock.now_ns() - int(self._settings.history_age * _NS_PER_S)
        while self._over:
            number, alarm = next(iter(self._over.items()))
            if (
                len(self._over) <= self._settings.history
                and alarm.deactivated_ns >= oldest_ns
                and self._record.size_bytes <= MOST_HISTORY_BYTES
            ):
                return
            del self._over[number]
            self._record.forget(number)

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


_ACTIVE: Final = "alarms/active/"
_PAST: Final = "alarms/past/"


class _AlarmRecord:
    """Alarms in the store: the active ones by name, and those that are over by number.

    ::

        alarms/active/NAME      an alarm, as JSON
        alarms/past/NUMBER      the same, the number as 16 hexadecimal digits

    Changes gather until ``changed``. They are written at once, those within the second behind them together: of an
    alarm that ended several times, the last one.
    """

    def __init__(self, values: Values, later: Later | None) -> None:
        self._values = values
        self._later = later
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: dict[str, bytes | None] = {}
        self._last_of: dict[str, str] = {}  # key of the past alarm of a name that waits
        self._sizes: dict[str, int] = {}
        self.size_bytes = 0
        """Bytes of the alarms that are over."""

    def active(self) -> list[Alarm]:
        """The active alarms as they are stored."""
        return [alarm for _, alarm in self._stored(_ACTIVE)]

    def past(self) -> dict[int, Alarm]:
        """The alarms that are over as they are stored, oldest first."""
        return {int(key.removeprefix(_PAST), 16): alarm for key, alarm in self._stored(_PAST)}

    def _stored(self, prefix: str) -> Iterator[tuple[str, Alarm]]:
        for key in self._values.names(prefix):
            data = self._values.get(key) or b"{}"
            try:
                alarm = _decoded(data)
            except (jsontext.JsonError, KeyError, TypeError):
                self._waiting[key] = None  # of another release
                continue
            if prefix == _PAST:
                self._resize(key, len(data))
            yield key, alarm

    def put_active(self, alarm: Alarm) -> None:
        """Store an active alarm."""
        self._waiting[_ACTIVE + alarm.name] = _encoded(alarm)

    def end(self, number: int, alarm: Alarm) -> None:
        """Store an alarm that is over, in place of one of its name that waits to be written."""
        self._waiting[_ACTIVE + alarm.name] = None
        if (earlier := self._last_of.get(alarm.name)) is not None:
            del self._waiting[earlier]
            self._resize(earlier, 0)
        key = self._last_of[alarm.name] = f"{_PAST}{number:016x}"
        data = self._waiting[key] = _encoded(alarm)
        self._resize(key, len(data))

    def forget(self, number: int) -> None:
        """Delete an alarm that is over; one that was not stored is ignored."""
        key = f"{_PAST}{number:016x}"
        if key not in self._sizes:
            return
        self._resize(key, 0)
        if self._waiting.pop(key, None) is None:
            self._waiting[key] = None
        else:
            self._last_of = {name: last for name, last in self._last_of.items() if last != key}

    def _resize(self, key: str, size: int) -> None:
        self.size_bytes += size - self._sizes.pop(key, 0)
        if size:
            self._sizes[key] = size

    def changed(self) -> None:
        """Write the changes, at once or when their second is over."""
        if self._waiting and self._timer is None:
            self.write()

    def write(self) -> None:
        """Put what waits into the commit group that is gathering."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._waiting:
            return
        for key, value in self._waiting.items():
            self._values.put(key, value)
        self._waiting.clear()
        self._last_of.clear()
        if self._later is not None:
            self._timer = self._later(_WRITE_EVERY_S, self.write)

    def stop(self) -> None:
        """Write nothing more."""
        if self._timer is not None:
            self._timer.cancel()


def _encoded(alarm: Alarm) -> bytes:
    acknowledgement = alarm.acknowledgement
    stored = {
        "name": alarm.name,
        "message": alarm.message,
        "activated_ns": alarm.activated_ns,
        "deactivated_ns": alarm.deactivated_ns,
        "details": dict(alarm.details),
        "acknowledgement": None
        if acknowledgement is None
        else [acknowledgement.by, acknowledgement.note, acknowledgement.at_ns],
    }
    data = jsontext.encode(stored)
    if len(data) > _MOST_ALARM_BYTES:
        data = jsontext.encode(stored | {"details": {}, "message": alarm.message[:_CUT_MESSAGE]})
    return data


def _decoded(data: bytes) -> Alarm:
    stored = jsontext.decode(data)
    acknowledgement = stored["acknowledgement"]
    return Alarm(
        stored["name"],
        stored["message"],
        stored["activated_ns"],
        stored["details"],
        stored["deactivated_ns"],
        None if acknowledgement is None else Acknowledgement(*acknowledgement),
    )
