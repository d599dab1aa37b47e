"""What the management API is given: the services of the features, and a few verbs of the server.

The composition root fills an ``ApiContext`` and hands it to ``ui.api.application.create_app``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from broker.admin.api_settings import ApiSettings
from broker.admin.traffic import Traffic
from broker.core.clock import Clock, SystemClock
from broker.core.objects import ObjectService, Spec
from broker.core.receivers import Receivers
from broker.core.stage import WaitingPublisher
from broker.observe.metrics import Metrics
from ui.api.sign_in import SignIn
from ui.api.status import Status


class Streams(Protocol):
    """Reading streams. Both return within milliseconds and raise ``broker.core.errors.NotFound``."""

    def positions(self, name: str, at_us: int | None) -> Spec:
        """``kind`` and ``shards``, each with ``shard``, ``first_offset`` up to, not including, ``next_offset``.

        With ``at_us`` (microseconds since 1970) also ``at_offset``, the first record not older than that time.
        """
        ...

    def stream_ranges(self, name: str) -> Spec:
        """Where the records are read, by whom and until when.

        ``ranges_url`` is the address of the process that serves them, under ``/streams/{log}/{shard}?from=&to=``, to
        whom shows ``ticket`` before ``expires_at`` (RFC 3339). ``epoch`` changes when a stream is deleted and made
        anew.
        """
        ...


class Lake(Protocol):
    """The verbs of the lakehouse that are not create, replace and delete. ``NotFound`` when there is no such table."""

    def report(self, table: str, report: Spec) -> None:
        """What the job says about its progress. Runs on the event loop.

        Raises:
            broker.core.errors.Invalid: the report is not one.
        """
        ...

    def preview(self, table: str, limit: int) -> Spec:
        """``{"columns": [names], "rows": [objects], ...}``: the newest rows, newest first. Blocks; run in a thread."""
        ...

    def audit(self, table: str) -> Spec:
        """Proof by offset that every record is a row, filtered or a dead letter. Blocks; run in a thread."""
        ...


class Quarantine(Protocol):
    """What waits in quarantine, and taking it again (``broker.admin.quarantine``)."""

    def overview(self) -> Sequence[Spec]: ...

    def show(self, stream: str, limit: int) -> Spec: ...

    async def take_again(self, stream: str, limit: int) -> Spec: ...


class Groups(Protocol):
    """Share groups (``broker.admin.groups``)."""

    def overview(self) -> Sequence[Spec]: ...

    def show(self, name: str) -> Spec: ...

    def make(self, asked: Spec) -> Spec: ...

    def delete(self, name: str) -> None: ...


class Alarms(Protocol):
    """What is wrong now, and what was (``broker.admin.alarms``)."""

    def active(self) -> Sequence[Spec]: ...

    def history(self) -> Sequence[Spec]: ...

    def forget_history(self) -> int: ...


class Listeners(Protocol):
    """The addresses on which MQTT clients are taken (``broker.admin.listeners``)."""

    def list(self) -> Sequence[Spec]: ...

    def get(self, id: str) -> Spec: ...

    async def create(self, id: str, settings: Spec) -> Spec: ...

    async def patch(self, id: str, patch: Spec, *, drain: bool = False) -> Spec: ...

    async def delete(self, id: str, *, drain: bool = False) -> None: ...

    async def start(self, id: str) -> Spec: ...

    async def stop(self, id: str, *, drain: bool = False) -> Spec: ...

    async def restart(self, id: str, *, drain: bool = False) -> Spec: ...


class ShowSettings(Protocol):
    """The settings in force (``broker.app.reload``)."""

    async def __call__(self) -> Spec: ...


class ReloadConfig(Protocol):
    """Reads the configuration again (``broker.app.reload``)."""

    async def __call__(self, *, drain: bool = False) -> Spec: ...


class Delayed(Protocol):
    """Messages that are published later (``broker.admin.delayed``)."""

    def list(self, limit: int, after: str | None) -> Spec: ...

    def get(self, id: str) -> Spec: ...

    def delete(self, id: str) -> None: ...


class Pipeline(Protocol):
    """What acts on a topic, and a trial of all of it (``broker.admin.pipeline``)."""

    def of_topic(self, topic: str) -> Spec: ...

    def preview(self, body: Spec) -> Spec: ...


class Users(Protocol):
    """The broker's own users (``broker.auth.users``). What is told of one holds no password, except one just made."""

    def list(self) -> Sequence[Spec]: ...

    def get(self, name: str) -> Spec: ...

    async def create(self, spec: Spec) -> Spec: ...

    async def replace(self, name: str, spec: Spec) -> Spec: ...

    async def rotate(self, name: str) -> Spec: ...

    def delete(self, name: str) -> None: ...


class Bans(Protocol):
    """Who is refused (``broker.auth.bans``)."""

    def list(self) -> Sequence[Spec]: ...


class Access(Protocol):
    """Who may (``broker.admin.access``)."""

    @property
    def users(self) -> Users: ...

    @property
    def bans(self) -> Bans: ...

    async def ban(self, spec: Spec) -> Spec: ...

    async def unban(self, kind: str, who: str) -> None: ...

    async def import_users(self, body: Spec) -> Spec: ...

    async def check(self, body: Spec) -> Spec: ...


class Logins(Protocol):
    """How often logins to the API may fail (``broker.app.api_logins``)."""

    def refuses(self, host: str | None, shown: str, is_right: bool) -> bool: ...

    def retry_after_s(self) -> int: ...


@dataclass(slots=True)
class ApiContext:
    """All that the API knows of the server.

    ``services`` are those of kinds by their path (``broker.core.kinds``); routes exist for those that are given.
    ``metrics_text`` is Prometheus' text format. ``not_ready`` gives the reason why the node should get no traffic
    yet, or None. ``functions`` is the catalogue of SQL functions, ``plugins`` the packages that brought some of them.
    """

    token: str = field(repr=False)
    services: Mapping[str, ObjectService]
    publisher: WaitingPublisher
    status: Callable[[], Status]
    metrics_text: Callable[[], str]
    streams: Streams | None = None
    lake: Lake | None = None
    quarantine: Quarantine | None = None
    groups: Groups | None = None
    access: Access | None = None
    logins: Logins | None = None
    delayed: Delayed | None = None
    listeners: Listeners | None = None
    reload: ReloadConfig | None = None
    settings: ShowSettings | None = None
    alarms: Alarms | None = None
    pipeline: Pipeline | None = None
    traffic: Traffic | None = None
    receivers: Receivers = field(default_factory=Receivers)
    """Where what is posted to ``/ingest/NAME`` goes."""
    functions: Callable[[], Sequence[Spec]] | None = None
    plugins: Callable[[], Sequence[Spec]] = list
    not_ready: Callable[[], str | None] = lambda: None
    ready_remark: Callable[[], str] = lambda: "ok"
    """What ``/readyz`` answers when there is no such reason."""
    defers_work: Callable[[], bool] = lambda: False
    """Whether evaluations are to wait, since the node is overloaded."""
    clock: Clock = field(default_factory=SystemClock)
    version: str = "0.1.0"
    api_settings: ApiSettings = field(default_factory=ApiSettings)
    metrics: Metrics = field(default_factory=Metrics)
    verb_timeout_s: float = 2.0
    base_url: str = ""
    """``http://host:port``, set by the server once it listens."""
    sign_in: SignIn = field(init=False)

    def __post_init__(self) -> None:
        if not self.token:
            raise ValueError("the administrator's token must not be empty: every request would have it")
        self.sign_in = SignIn(self.clock)

    def new_sign_in_link(self) -> str:
        """An address that opens the status page once, within ten minutes, without asking for the token."""
        return f"{self.base_url}/?code={self.sign_in.new_code()}"
