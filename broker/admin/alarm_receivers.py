"""Receivers of alarms: where notifications go when an alarm becomes active, stays so or ends.

A receiver sends to a webhook, publishes on a topic, or sends e-mail. Each has a queue with the latest notification of
each alarm, so that an alarm that comes and goes while the target is away is one notification.
"""

from __future__ import annotations

import asyncio
import re
import smtplib
import socket
import ssl
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formatdate, make_msgid
from fnmatch import fnmatchcase
from functools import partial
from time import perf_counter
from typing import Annotated, Any, Final, Literal, NamedTuple
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, field_validator
from typing_extensions import TypedDict

from broker.admin.alarms import shown_alarm
from broker.config.model import Settings
from broker.config.names import ObjectName
from broker.config.outgoing import ClientTls, call
from broker.config.secret_text import (
    ADDRESS,
    REFERENCES,
    SecretText,
    SecretUnreadable,
    SecretUrl,
    check_moved,
    misplaced_references,
    reference_problems,
    secrets_in,
    with_stored,
)
from broker.config.secrets import MASK, Secret
from broker.config.spec_problems import parsed
from broker.config.ssrf import AddressGuard
from broker.config.units import Duration
from broker.core import jsontext
from broker.core.client import Client
from broker.core.clock import Clock
from broker.core.contributor import Change, Contributor
from broker.core.errors import ConfigError, Invalid, PeerError, Problem, SluiceError
from broker.core.kinds import are
from broker.core.message import Message
from broker.core.objects import ObjectSection, Spec
from broker.core.ordered import ObjectVerbs
from broker.core.placeholders import NOT_PLACEHOLDER, SECRET_REFERENCE
from broker.core.stage import Publisher
from broker.core.template import Template
from broker.core.times import rfc3339
from broker.core.topic import check_topic_name, is_reserved
from broker.observe.alarms import SEVERITIES, Alarm, Alarms, Severity
from broker.observe.log import get_logger
from broker.observe.metrics import Metrics

_log = get_logger(__name__)

MAX_RECEIVERS: Final = 100
# Type of the alarm of a receiver that cannot deliver. No receiver is notified of its own.
FAILING: Final = "alarm_receiver_failing"
# Seconds until a failed notification is sent again: doubled each time, up to the maximum.
_RETRY_S: Final = 1.0
_MAX_RETRY_S: Final = 60.0
# Bytes of a webhook's answer that are read; it is not used.
_ANSWER_BYTES: Final = 64 * 1024
# Statuses below 500 after which a webhook is called again: a timeout, a conflict, too early, too many requests.
_TRY_AGAIN: Final = (408, 409, 425, 429)
# Threads that send e-mail, of all receivers.
_MAIL_THREADS: Final = 4
_LONGEST_ERROR: Final = 500
_MAX_TEMPLATE: Final = 64 * 1024
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_ADDRESS: Final = re.compile(r"[^\s@<>,;:\"()\[\]\\]+@[^\s@<>,;:\"()\[\]\\]+")
_MEMBERS: Final = (
    "`${event}` (`activated`, `deactivated`, `repeated` or `test`), `${text}`, `${node}`, `${name}`, `${severity}`, "
    "`${message}`, `${advice}`, `${page}`, `${details}`, `${activated_at}`, `${deactivated_at}`, `${lasted_s}`"
)

Event = Literal["activated", "deactivated", "repeated", "test"]
_HAPPENED: Final = {
    "activated": "is active",
    "deactivated": "is over",
    "repeated": "is still active",
    "test": "is a test",
}


def _text_of(value: Any) -> str:
    return value if isinstance(value, str) else jsontext.encode(value).decode()


def _template(text: str) -> str:
    if (wrong := NOT_PLACEHOLDER.search(text)) is not None:
        raise ValueError(
            f"expected a placeholder as ${{name}}, got {wrong[0][:40]!r}. Try: one of {_MEMBERS.replace('`', '')}"
        )
    return text


def _email_address(text: str) -> str:
    if not _ADDRESS.fullmatch(text):
        raise ValueError(f"expected an e-mail address, got {text!r}. Try: ann@example.com")
    return text


def _header(name: str) -> str:
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError(f"expected the name of a header, got {name!r}. Try: letters, digits and -")
    return name


EmailAddress = Annotated[str, AfterValidator(_email_address)]
TemplateText = Annotated[str, Field(max_length=_MAX_TEMPLATE), AfterValidator(_template)]
HeaderName = Annotated[str, AfterValidator(_header)]


class NotSent(SluiceError):
    """A notification was not delivered; says why. ``is_final`` means that another attempt would end the same way."""

    code = "not_sent"

    def __init__(self, text: str, *, is_final: bool = False) -> None:
        super().__init__(text)
        self.is_final = is_final


class Notification(NamedTuple):
    """An event of an alarm, and the members that templates name."""

    event: Event
    alarm: Alarm
    members: dict[str, Any]

    @property
    def json(self) -> bytes:
        """All members as a JSON object."""
        return jsontext.encode(self.members)


class Ways(NamedTuple):
    """The parts of the broker that receivers send with."""

    guard: AddressGuard
    publisher: Publisher
    clock: Clock
    mail_threads: ThreadPoolExecutor


class WebhookUrl(SecretUrl):
    """A URL, or a reference to a secret that is one: chat services have a secret in the path."""

    __slots__ = ()

    @property
    def is_reference(self) -> bool:
        """True if it refers to a secret."""
        return SECRET_REFERENCE.fullmatch(self._text) is not None

    def reveal(self) -> str:
        """The URL. Raises ``SecretUnreadable``."""
        return SecretText.reveal(self) if self.is_reference else self._text

    @property
    def why_not_allowed(self) -> str:
        """See ``SecretText``."""
        return SecretText(self._text).why_not_allowed

    @property
    def hidden(self) -> Sequence[str]:
        """See ``SecretUrl``; of a reference the whole URL."""
        return SecretText(self._text).hidden if self.is_reference else super().hidden

    @classmethod
    def _validated(cls, value: object) -> Secret:
        is_reference = isinstance(value, str) and SECRET_REFERENCE.fullmatch(value) is not None
        return cls(value) if isinstance(value, str) and is_reference else super()._validated(value)


class ReceiverSpec(Settings):
    """Members that all receivers have."""

    name: ObjectName
    type: str
    enable: bool = Field(default=True, description="Whether notifications are sent.")
    description: str = Field(default="", max_length=1000, description="Who receives them.")
    alarms: list[Annotated[str, Field(min_length=1, max_length=256)]] = Field(
        default_factory=lambda: ["*"],
        max_length=100,
        description="Names of the alarms, or patterns with `*`, `?` and `[abc]`, such as `action_*`.",
    )
    min_severity: Severity = Field(
        default="warning", description="The least severity that is sent: `warning` or `critical`."
    )
    send_resolved: bool = Field(
        default=True, description="Whether the end of an alarm is sent as well."
    )
    repeat_interval: Duration = Field(
        default=4 * 3600,
        ge=0,
        description="Seconds after which an alarm is sent again that is still active and that no one has "
        "acknowledged, at least 1; 0 is never.",
    )
    max_queue: int = Field(
        default=100,
        ge=1,
        le=10_000,
        description="Maximum number of notifications that wait, the latest of each alarm. Beyond it the oldest are "
        "dropped and counted.",
    )
    max_attempts: int = Field(
        default=10,
        ge=1,
        le=1000,
        description="Attempts to send a notification, 1 to 60 seconds apart, before it is dropped and counted.",
    )
    timeout: Duration = Field(
        default=10, gt=0, le=120, description="Seconds that an attempt may take."
    )

    @field_validator("repeat_interval")
    @classmethod
    def _check_interval(cls, seconds: float) -> float:
        if 0 < seconds < 1:
            raise ValueError(f"expected 0 or at least 1 second, got {seconds:g}")
        return seconds

    def accepts(self, alarm: Alarm) -> bool:
        """True if the receiver is notified of such alarms."""
        return (
            self.enable
            and alarm.name != f"{FAILING}:{self.name}"
            and SEVERITIES.index(alarm.type.severity) >= SEVERITIES.index(self.min_severity)
            and any(fnmatchcase(alarm.name, pattern) for pattern in self.alarms)
        )

    @abstractmethod
    def steps(
        self, notification: Notification, ways: Ways
    ) -> Sequence[tuple[str, Callable[[], Awaitable[str]]]]:
        """The steps of sending, each with its name and a function that gives what it found or raises ``NotSent``."""


class WebhookReceiver(ReceiverSpec):
    """Sends each notification as a POST request."""

    type: Literal["webhook"]
    url: Annotated[WebhookUrl, ADDRESS, REFERENCES] = Field(
        description="Address of the service, or `${secret:NAME}` of a secret that is one. Values of the query show as "
        "stars."
    )
    headers: dict[HeaderName, SecretText] = Field(
        default_factory=dict,
        max_length=64,
        description="Headers, such as `authorization`; shown as stars unless they are `${secret:NAME}`, `${env:NAME}` "
        "or `${file:PATH}`.",
    )
    body: TemplateText | None = Field(
        default=None,
        description='Template of the body, such as `{"text": "${text}"}`, with '
        + _MEMBERS
        + ". Without it, a JSON "
        "object with all of them.",
    )
    ssl: ClientTls = Field(default_factory=ClientTls, description="TLS of an https address.")

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: WebhookUrl) -> WebhookUrl:
        if url.is_reference:
            return url
        text = url.reveal()
        try:
            parts = urlsplit(text)
            _ = parts.port
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("expected an address. Try: https://host/path")
        if parts.username is not None:
            raise ValueError("expected an address without a user. Try: a header authorization")
        return url

    def steps(
        self, notification: Notification, ways: Ways
    ) -> Sequence[tuple[str, Callable[[], Awaitable[str]]]]:
        """See ``ReceiverSpec``."""
        return [("request", partial(self._request, notification, ways))]

    async def _request(self, notification: Notification, ways: Ways) -> str:
        body = notification.json if self.body is None else _rendered(self.body, notification)
        headers = {"content-type": "application/json"} | {
            name.lower(): value.reveal() for name, value in self.headers.items()
        }
        is_tls = self.url.reveal().lower().startswith("https:")
        context = await asyncio.to_thread(self.ssl.context) if is_tls else None
        status, _ = await call(
            "POST",
            self.url.reveal(),
            ways.guard,
            context,
            timeout_s=self.timeout,
            most_bytes=_ANSWER_BYTES,
            server_name=self.ssl.server_name_indication,
            headers=list(headers.items()),
            content=body,
        )
        if not 200 <= status < 300:
            is_final = status < 500 and status not in _TRY_AGAIN
            raise NotSent(f"the service answered with status {status}", is_final=is_final)
        return f"the service answered with status {status}"


class TopicReceiver(ReceiverSpec):
    """Publishes each notification on a topic, in the name of the broker."""

    type: Literal["topic"]
    topic: TemplateText = Field(
        min_length=1,
        description="Topic, which may have placeholders: `alarms/${name}`. A `/`, `+` or `#` in a value becomes `_`.",
    )
    payload: TemplateText | None = Field(
        default=None,
        description="Template of the payload, as `body` of a webhook. Without it, a JSON object with all members.",
    )
    qos: Literal[0, 1, 2] = Field(default=1, description="Quality of service.")
    retain: bool = Field(
        default=False, description="Whether it is retained, so that later subscribers receive it."
    )

    @field_validator("topic")
    @classmethod
    def _check_topic(cls, text: str) -> str:
        try:
            check_topic_name(text)
        except PeerError as error:
            raise ValueError(str(error)) from None
        if is_reserved(text):
            raise ValueError(f"expected a topic that clients may use, got {text!r}")
        return text

    def steps(
        self, notification: Notification, ways: Ways
    ) -> Sequence[tuple[str, Callable[[], Awaitable[str]]]]:
        """See ``ReceiverSpec``."""
        return [("publish", partial(self._publish, notification, ways))]

    async def _publish(self, notification: Notification, ways: Ways) -> str:
        topic = Template(self.topic, lambda value: re.sub("[/+#]", "_", _text_of(value))).render(
            notification.members
        )
        payload = (
            notification.json if self.payload is None else _rendered(self.payload, notification)
        )
        try:
            check_topic_name(topic)
            outcome = ways.publisher.publish(
                Message(topic, payload, self.qos, self.retain, _BROKER, ways.clock.now_ns())
            )
            if outcome.is_waiting:
                async with asyncio.timeout(self.timeout):
                    outcome = await ways.publisher.decided(topic)
        except PeerError as error:
            raise NotSent(str(error), is_final=True) from None
        if outcome.refusal is not None:
            raise NotSent(
                f"{outcome.refusal.stage} {outcome.refusal.name} refused it: {outcome.refusal.text}"
            )
        return f"published on {topic}, for {outcome.receivers} receivers"


class EmailReceiver(ReceiverSpec):
    """Sends each notification as an e-mail, by an SMTP server."""

    type: Literal["email"]
    host: Annotated[str, ADDRESS] = Field(
        min_length=1, max_length=253, description="Name or address of the SMTP server."
    )
    port: Annotated[int, ADDRESS] = Field(default=587, ge=1, le=65535, description="Its port.")
    encryption: Literal["starttls", "tls", "none"] = Field(
        default="starttls",
        description="`starttls` encrypts after the greeting (port 587), `tls` from the start (port 465).",
    )
    ssl: ClientTls = Field(default_factory=ClientTls, description="TLS of the server.")
    username: str | None = Field(default=None, min_length=1, description="User name, where needed.")
    password: SecretText | None = Field(default=None, description="Password of the user.")
    sender: EmailAddress = Field(description="Address in From.")
    to: list[EmailAddress] = Field(min_length=1, max_length=100, description="Addresses in To.")

    @field_validator("password")
    @classmethod
    def _check_password(cls, password: SecretText | None, info: Any) -> SecretText | None:
        if password is not None and info.data.get("username") is None:
            raise ValueError("expected a username beside it")
        if password is not None and info.data.get("encryption") == "none":
            raise ValueError(
                "expected encryption, since the password would be readable. Try: encryption = starttls"
            )
        return password

    def steps(
        self, notification: Notification, ways: Ways
    ) -> Sequence[tuple[str, Callable[[], Awaitable[str]]]]:
        """See ``ReceiverSpec``."""
        addresses: list[str] = []

        async def resolve() -> str:
            addresses.extend(await ways.guard.addresses(self.host, self.port))
            return f"{self.host} is {', '.join(addresses)}"

        async def send() -> str:
            sockets = _Sockets()
            mail = _email(self, notification)
            work = partial(_send_email, self, mail, addresses[0], sockets)
            try:
                async with asyncio.timeout(self.timeout):
                    await asyncio.get_running_loop().run_in_executor(ways.mail_threads, work)
            finally:
                sockets.close()
            return f"{self.host}:{self.port} accepted it for {', '.join(self.to)}"

        return [("resolve", resolve), ("send", send)]


_TYPES: Final[dict[str, type[ReceiverSpec]]] = {
    "webhook": WebhookReceiver,
    "topic": TopicReceiver,
    "email": EmailReceiver,
}
_BROKER: Final = Client("alarms")


class _Sockets:
    """The sockets of a thread that another one may end; none is opened once they were closed."""

    def __init__(self) -> None:
        self._opened: list[socket.socket] = []
        self._is_closed = False

    def add(self, opened: socket.socket) -> None:
        """Close a socket with the others."""
        self._opened.append(opened)
        if self._is_closed:
            self.close()
            raise NotSent("it was canceled")

    def close(self) -> None:
        """Close them; a thread that reads or writes gets an error."""
        self._is_closed = True
        for opened in self._opened:
            with suppress(OSError):
                opened.shutdown(socket.SHUT_RDWR)


class _Smtp(smtplib.SMTP):
    """A connection to an address that was checked; TLS checks the name of the host."""

    def __init__(
        self, spec: EmailReceiver, address: str, context: ssl.SSLContext | None, sockets: _Sockets
    ) -> None:
        self._checked_address = address
        self._sockets = sockets
        self._tls = context if spec.encryption == "tls" else None
        self._server_name = spec.ssl.server_name_indication or spec.host
        super().__init__(spec.host, spec.port, local_hostname="localhost", timeout=spec.timeout)
        # what STARTTLS checks
        self._host = self._server_name

    def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
        """Called by ``smtplib`` to connect; the hook that ``SMTP_SSL`` uses as well."""
        opened = socket.create_connection((self._checked_address, port), timeout)
        try:
            self._sockets.add(opened)
            if self._tls is not None:
                return self._tls.wrap_socket(opened, server_hostname=self._server_name)
        except BaseException:
            opened.close()
            raise
        return opened


def _send_email(spec: EmailReceiver, mail: EmailMessage, address: str, sockets: _Sockets) -> None:
    """Send an e-mail. Blocks."""
    context = None if spec.encryption == "none" else spec.ssl.context()
    with _Smtp(spec, address, context, sockets) as smtp:
        if spec.encryption == "starttls":
            smtp.starttls(context=context)
        if spec.username is not None:
            smtp.login(spec.username, "" if spec.password is None else spec.password.reveal())
        smtp.send_message(mail)


def _email(spec: EmailReceiver, notification: Notification) -> EmailMessage:
    members = notification.members
    mail = EmailMessage()
    happened = _HAPPENED[notification.event]
    mail["Subject"] = f"[{members['node']}] {members['severity']}: {members['name']} {happened}"
    mail["From"] = spec.sender
    mail["To"] = ", ".join(spec.to)
    mail["Date"] = formatdate()
    mail["Message-ID"] = make_msgid(domain=spec.sender.partition("@")[2])
    names = ("node", "severity", "activated_at", "deactivated_at", "lasted_s", "page")
    lines = [f"{name}: {members[name]}" for name in names if members[name] is not None]
    details = [f"{name}: {_text_of(value)}" for name, value in members["details"].items()]
    mail.set_content("\n".join([members["text"], "", members["advice"], "", *lines, *details, ""]))
    return mail


def _rendered(text: str, notification: Notification) -> bytes:
    return Template(text, _text_of, json_of=jsontext.encode).render_bytes(notification.members)


def _reason(error: Exception, spec: ReceiverSpec) -> str:
    """The reason why a step failed, without the secrets of the receiver."""
    if isinstance(error, SluiceError):
        text = str(error)
    elif isinstance(error, TimeoutError):
        text = f"no answer within {spec.timeout:g} s"
    elif isinstance(error, smtplib.SMTPResponseException):
        answer = error.smtp_error
        answer = answer.decode(errors="replace") if isinstance(answer, bytes) else answer
        text = f"the server answered {error.smtp_code} {answer}"
    elif isinstance(error, OSError):
        text = (error.strerror or str(error) or type(error).__name__).lower()
    else:
        text = str(error) or type(error).__name__
    for secret in secrets_in(spec):
        with suppress(SecretUnreadable):
            for hidden in secret.hidden:
                text = text.replace(hidden, MASK)
    return text[:_LONGEST_ERROR]


class ReceiverReadOnly(TypedDict):
    """The state of an alarm receiver. `state` is `idle`, `sending`, `retrying` or `disabled`; `waiting` is the number
    of notifications in its queue. `sent`, `failed` attempts and `dropped` are counted since the broker started."""

    state: Literal["idle", "sending", "retrying", "disabled"]
    reason: str | None
    waiting: int
    sent: int
    failed: int
    dropped: int
    last_sent_at: str | None
    last_error: str | None
    last_error_at: str | None


class _Metrics:
    """The counters of all receivers."""

    def __init__(self, metrics: Metrics) -> None:
        self.sent = metrics.counter("alarm_notifications_sent", "notifications of alarms delivered")
        self.failed = metrics.counter(
            "alarm_notifications_failed",
            "attempts to deliver a notification of an alarm that failed",
        )
        self.dropped = metrics.counter(
            "alarm_notifications_dropped",
            "notifications of alarms dropped: the queue was full, or no attempt succeeded",
        )


class _Receiver:
    """A receiver at work: its queue, and the task that sends from it."""

    def __init__(self, alarms: Alarms, ways: Ways, node: str, metrics: _Metrics) -> None:
        self._alarms = alarms
        self._ways = ways
        self._node = node
        self._metrics = metrics
        self._spec: ReceiverSpec
        self._pending: dict[str, Notification] = {}
        # Monotonic time of the last notification of each active alarm, in seconds.
        self._notified_s: dict[str, float] = {}
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._attempts = self._sent = self._failed = self._dropped = 0
        self._sent_at: str | None = None
        self._error: str | None = None
        self._error_at: str | None = None
        self._is_sending = False

    def use(self, spec: ReceiverSpec) -> None:
        """Send by these settings from now on. Active alarms that it was not notified of are sent."""
        self._spec = spec
        self._end_task()
        self._attempts = 0
        self._pending = {
            name: pending for name, pending in self._pending.items() if spec.accepts(pending.alarm)
        }
        if not spec.enable:
            self._notified_s.clear()
            self._alarms.deactivate(f"{FAILING}:{spec.name}")
            return
        for alarm in self._alarms.active():
            if alarm.name not in self._notified_s:
                self.note(alarm)
        self._task = asyncio.create_task(self._run(), name=f"alarm receiver {spec.name}")

    def close(self) -> None:
        """End it."""
        self._end_task()

    def delete(self) -> None:
        """End it, with its alarm."""
        self._end_task()
        self._alarms.deactivate(f"{FAILING}:{self._spec.name}")

    def _end_task(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self._is_sending = False

    def note(self, alarm: Alarm) -> None:
        """Queue the notification of a change of an alarm."""
        if alarm.is_active and (alarm.acknowledgement or alarm.name in self._notified_s):
            return
        if not alarm.is_active and (
            self._notified_s.pop(alarm.name, None) is None or not self._spec.send_resolved
        ):
            return
        if self._spec.accepts(alarm):
            self._add("activated" if alarm.is_active else "deactivated", alarm)

    def _add(self, event: Event, alarm: Alarm) -> None:
        if alarm.is_active:
            self._notified_s[alarm.name] = self._ways.clock.monotonic_s()
        self._pending.pop(alarm.name, None)  # to the end, with the latest
        if len(self._pending) >= self._spec.max_queue:
            self._drop(next(iter(self._pending)))
        self._pending[alarm.name] = notification(event, alarm, self._node, self._ways.clock)
        self._wake.set()

    def _drop(self, name: str) -> None:
        del self._pending[name]
        self._dropped += 1
        self._metrics.dropped.value += 1

    async def _run(self) -> None:
        while True:
            while self._pending:
                await self._send_first()
            self._wake.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(self._until_repeat_s()):
                    await self._wake.wait()
            self._repeat()

    def _until_repeat_s(self) -> float | None:
        """Seconds until the next repetition of an active alarm, None where there is none."""
        interval_s = self._spec.repeat_interval
        if not interval_s or not self._notified_s:
            return None
        due_s = min(self._notified_s.values()) + interval_s
        return max(due_s - self._ways.clock.monotonic_s(), 0.0)

    def _repeat(self) -> None:
        interval_s = self._spec.repeat_interval
        now_s = self._ways.clock.monotonic_s()
        if not interval_s:
            return
        active = {alarm.name: alarm for alarm in self._alarms.active()}
        for name, notified_s in list(self._notified_s.items()):
            alarm = active.get(name)
            if alarm is None:
                del self._notified_s[name]
            elif now_s - notified_s >= interval_s:
                self._notified_s[name] = now_s
                if alarm.acknowledgement is None and self._spec.accepts(alarm):
                    self._add("repeated", alarm)

    async def _send_first(self) -> None:
        name, pending = next(iter(self._pending.items()))
        self._is_sending = True
        try:
            for _, step in self._spec.steps(pending, self._ways):
                await step()
        except Exception as error:  # noqa: BLE001 - whatever a library raises, the notification was not sent
            self._is_sending = False
            self._note_failure(name, pending, error)
            if self._attempts:
                delay_s = min(_RETRY_S * 2 ** (self._attempts - 1), _MAX_RETRY_S)
                await asyncio.sleep(delay_s)
        else:
            self._is_sending = False
            self._attempts = 0
            self._error = None
            self._sent += 1
            self._metrics.sent.value += 1
            self._sent_at = rfc3339(self._ways.clock.now_ns())
            if self._pending.get(name) is pending:
                del self._pending[name]
            self._alarms.deactivate(f"{FAILING}:{self._spec.name}")

    def _note_failure(self, name: str, pending: Notification, error: Exception) -> None:
        spec = self._spec
        reason = _reason(error, spec)
        self._failed += 1
        self._metrics.failed.value += 1
        self._attempts += 1
        self._error = reason
        self._error_at = rfc3339(self._ways.clock.now_ns())
        is_final = isinstance(error, NotSent) and error.is_final
        if is_final or self._attempts >= spec.max_attempts:
            self._attempts = 0
            if self._pending.get(name) is pending:
                self._drop(name)
            _log.warning("alarm.not_sent", receiver=spec.name, alarm=name, reason=reason)
        self._alarms.activate(
            f"{FAILING}:{spec.name}",
            f"alarm receiver '{spec.name}' cannot deliver: {reason}",
            alarm_receiver=spec.name,
            reason=reason,
        )

    def shown(self) -> ReceiverReadOnly:
        """Its state, for the API."""
        state: Literal["idle", "sending", "retrying", "disabled"] = "idle"
        if not self._spec.enable:
            state = "disabled"
        elif self._attempts:
            state = "retrying"
        elif self._is_sending:
            state = "sending"
        return {
            "state": state,
            "reason": self._error if state == "retrying" else None,
            "waiting": len(self._pending),
            "sent": self._sent,
            "failed": self._failed,
            "dropped": self._dropped,
            "last_sent_at": self._sent_at,
            "last_error": self._error,
            "last_error_at": self._error_at,
        }


def notification(event: Event, alarm: Alarm, node: str, clock: Clock) -> Notification:
    """The notification of an event of an alarm."""
    shown = shown_alarm(alarm, clock.now_ns())
    text = f"{alarm.name} {_HAPPENED[event]} ({alarm.type.severity}): {alarm.message}"
    return Notification(event, alarm, {"event": event, "node": node, "text": text, **shown})


@dataclass(frozen=True, slots=True)
class _Item:
    """A receiver as it was sent, with secrets, and as it was understood."""

    name: str
    raw: Spec
    spec: ReceiverSpec


class AlarmReceivers(Contributor, ObjectVerbs[_Item]):
    """Receivers of alarms. Used on the event loop."""

    kind = "alarm receiver"

    def __init__(
        self,
        section: ObjectSection,
        alarms: Alarms,
        guard: AddressGuard,
        publisher: Publisher,
        clock: Clock,
        node: str,
        metrics: Metrics,
        sent_elsewhere: Collection[str] = (),
    ) -> None:
        """``sent_elsewhere`` are the alarms of the whole machine, of which another cell sends notifications."""
        super().__init__(section, lambda item: item.raw)
        self._sent_elsewhere = frozenset(sent_elsewhere)
        self._alarms = alarms
        self._node = node
        self._metrics = _Metrics(metrics)
        self._threads = ThreadPoolExecutor(_MAIL_THREADS, "alarm e-mail")
        self._ways = Ways(guard, publisher, clock, self._threads)
        self._receivers: dict[str, _Receiver] = {}
        self._used: dict[str, _Item] = {}
        alarms.on_change.connect(self._note)

    def start(self) -> None:
        """Take the receivers of the configuration. Raises ``ConfigError`` with a sentence for each that cannot be
        used."""
        if problems := self.load(self._section.load()):
            raise ConfigError(problems)

    def stop(self) -> None:
        """End all work. What waits is not sent."""
        for receiver in self._receivers.values():
            receiver.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def enable(self, name: str, enabled: bool) -> Spec:
        """Switch it on or off, also for the next start of the broker."""
        item = self._objects.get(name)
        is_so = item.spec.enable == enabled
        return self.replace(name, item.raw if is_so else {**item.raw, "enable": enabled})

    def consequences(self, change: Change) -> Iterator[str]:
        """Notifications that a deletion drops, and alarms that are no longer sent."""
        (kind, name), after = change.target, change.after
        receiver = self._receivers.get(name)
        if kind != self.kind or receiver is None or after is not None:
            return
        if waiting := receiver.shown()["waiting"]:
            yield f"{are(waiting, 'notification')} dropped."
        if not any(item.spec.enable for item in self._objects if item.name != name):
            yield "Alarms are sent to no one: no other receiver is enabled."

    async def test(self, name: str) -> dict[str, Any]:
        """Send a test notification to a saved receiver, step by step."""
        return await self._test(self._objects.get(name).spec)

    async def probe(self, spec: Spec) -> dict[str, Any]:
        """The same to one that need not be saved; stars stand for the secrets of the one of that name."""
        return await self._test(self._compiled({"name": "probe", **spec}).spec)

    async def _test(self, spec: ReceiverSpec) -> dict[str, Any]:
        clock = self._ways.clock
        alarm = Alarm("test", "this is a test of an alarm receiver", clock.now_ns())
        steps: list[dict[str, Any]] = []
        ok = True
        for name, step in spec.steps(notification("test", alarm, self._node, clock), self._ways):
            started_s = perf_counter()
            result, message = "skipped", ""
            if ok:
                try:
                    async with asyncio.timeout(spec.timeout):
                        message = await step()
                    result = "ok"
                except Exception as error:  # noqa: BLE001 - whatever is raised is what the step found
                    result, message = "failed", _reason(error, spec)
                    ok = False
            took_ms = round((perf_counter() - started_s) * 1000, 1)
            steps.append(
                {"name": name, "result": result, "duration_ms": took_ms, "message": message}
            )
        return {"ok": ok, "steps": steps}

    def _compiled(self, spec: Spec) -> _Item:
        refusal = f"the {self.kind} cannot be saved"
        sent = {name: value for name, value in spec.items() if name not in _READ_ONLY}
        stored = self._objects.find(str(sent.get("name")))
        if stored is None and len(self._objects.names()) >= MAX_RECEIVERS:
            raise Invalid(refusal, [Problem(f"there may be {MAX_RECEIVERS}", "/name")])
        sent = with_stored(sent, stored.raw if stored else {})
        model = _TYPES.get(str(sent.get("type")))
        if model is None:
            text = f"expected {', '.join(list(_TYPES)[:-1])} or {list(_TYPES)[-1]}, got {sent.get('type')!r}"
            raise Invalid(refusal, [Problem(text, "/type")])
        item: ReceiverSpec = parsed(model, sent, refusal)
        if problems := [*reference_problems(item), *misplaced_references(item)]:
            raise Invalid(refusal, problems)
        if stored is not None:
            check_moved(f"{self.kind} {item.name!r}", spec, item, stored.spec)
        return _Item(item.name, sent, item)

    def _changed(self) -> None:
        items = {item.name: item for item in self._objects}
        for name in self._receivers.keys() - items.keys():
            self._receivers.pop(name).delete()
        for name, item in items.items():
            if self._used.get(name) is item:
                continue
            if name not in self._receivers:
                self._receivers[name] = _Receiver(
                    self._alarms, self._ways, self._node, self._metrics
                )
            self._receivers[name].use(item.spec)
        self._used = items

    def _shown(self, item: _Item) -> Spec:
        receiver = self._receivers.get(item.name)
        shown: Spec = item.spec.model_dump(mode="json", exclude_none=True)
        return shown if receiver is None else shown | receiver.shown()

    def _note(self, alarm: Alarm) -> None:
        if alarm.name in self._sent_elsewhere:
            return
        for receiver in list(self._receivers.values()):
            receiver.note(alarm)


_READ_ONLY: Final = frozenset(ReceiverReadOnly.__annotations__)
