"""Context of the management API: the services of the features, and a few verbs of the server.

The composition root fills an ``ApiContext`` and hands it to ``ui.api.application.create_app``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from bridges.spark.broker_side.jobs import TableJobs
from bridges.spark.broker_side.reads import TableReads
from bridges.spark.broker_side.service import LakeTableService
from bridges.spark.broker_side.states import TableStates
from broker.admin.access import AccessService
from broker.admin.accounts import Accounts
from broker.admin.alarms import AlarmService
from broker.admin.api_settings import ApiSettings
from broker.admin.applied import AppliedObjects
from broker.admin.audit_log import AuditLog
from broker.admin.backups import Backups
from broker.admin.captures import Captures
from broker.admin.cells import CellService
from broker.admin.delayed import DelayedService
from broker.admin.jobs import Jobs
from broker.admin.pipeline import PipelineView
from broker.admin.quarantine import QuarantineService
from broker.admin.refused import RefusedMessages
from broker.admin.replays.service import StreamReplays
from broker.admin.saturation import SaturationLog
from broker.admin.stream_imports import StreamImports
from broker.admin.stream_records import StreamRecords
from broker.admin.tails import MessageTails
from broker.admin.tokens import Tokens
from broker.admin.traffic import Traffic
from broker.cluster.service import ClusterService
from broker.config.root import PlannedReload, ReloadedConfig
from broker.core.clock import Clock, SystemClock
from broker.core.contributor import Contributors
from broker.core.kinds import Kind
from broker.core.objects import KindService, ObjectSection, SavedObject, Saves, Spec
from broker.core.receivers import Receivers
from broker.core.signals import Signal
from broker.core.stage import WaitingPublisher
from broker.core.values import Values
from broker.observe.metrics import Metrics
from broker.observe.metrics_history import MetricsHistory
from ui.api.idempotency import IdempotencyKeys
from ui.api.sign_in import SignIn
from ui.api.status import Status

if TYPE_CHECKING:
    from pathlib import Path

    from ui.api.cells import Faces


class ReloadConfig(Protocol):
    """Reload of the configuration (``broker.app.reload``)."""

    async def follow(self, changes: Mapping[str, Mapping[str, Any]] | None, files: str) -> None:
        """Take over changes of objects that another cell has saved, or all that its file holds."""

    async def digest(self) -> str:
        """Digest of the active configuration, the same in all cells that have taken over the same."""

    async def reload(self, *, drain: bool = False) -> ReloadedConfig:
        """Read the files again and apply what changed."""
        ...

    async def adopt(self) -> None:
        """Take over what another cell has written to the API's file."""
        ...

    async def plan(self, *, drain: bool = False) -> PlannedReload:
        """Return what ``reload`` would change. Raises as it does."""
        ...


class Logins(Protocol):
    """Limit of failed logins to the API (``broker.app.api_logins``)."""

    def refuses(self, host: str | None, shown: str, is_right: bool) -> bool: ...

    def refuses_account(self, host: str | None, account: str) -> bool: ...

    def attempted(self, host: str | None, account: str, is_right: bool) -> None: ...

    def retry_after_s(self) -> int: ...


@dataclass(slots=True)
class ApiContext:
    """All that the API knows of the server.

    ``services`` are those of kinds by their path (``broker.core.kinds``); routes exist for those that are given.
    ``section`` is where the configuration has the objects of a kind; without it their services say what is saved.
    ``metrics_text`` is Prometheus' text format. ``not_ready`` gives the reason why the node should get no traffic
    yet, or None. ``events`` and ``functions`` are the catalogues of the languages, ``plugins`` the packages that
    brought some of the functions.
    """

    token: str = field(repr=False)
    services: Mapping[str, KindService]
    publisher: WaitingPublisher
    status: Callable[[], Status]
    metrics_text: Callable[[], str]
    section: Callable[[str], ObjectSection] | None = None
    together: Callable[[], AbstractContextManager[None]] = nullcontext
    """Write all objects that are saved inside the block to disk at once."""
    saved_objects: Signal[SavedObject] | None = None
    """Signal with each object that was saved in the file of the API."""
    put_objects: Callable[[Saves], None] = lambda saves: None
    """Write changes of objects to disk at once, before their services apply them."""
    contributors: Contributors = field(default_factory=Contributors)
    streams: StreamRecords | None = None
    lake: TableJobs | None = None
    lake_tables: LakeTableService | None = None
    lake_reads: TableReads | None = None
    lake_states: TableStates | None = None
    replays: StreamReplays | None = None
    imports: StreamImports | None = None
    quarantine: QuarantineService | None = None
    refused: RefusedMessages | None = None
    access: AccessService | None = None
    accounts: Accounts | None = None
    oidc: Any = None
    """``broker.admin.oidc.OidcSignIn``, where the settings name an issuer."""
    tokens: Tokens | None = None
    logins: Logins | None = None
    delayed: DelayedService | None = None
    reload: ReloadConfig | None = None
    alarms: AlarmService | None = None
    audit_log: AuditLog | None = None
    saturation: SaturationLog | None = None
    applied: AppliedObjects | None = None
    cells: CellService | None = None
    cluster: ClusterService | None = None
    backups: Backups | None = None
    captures: Captures | None = None
    audit_trail: Any = None
    """``ui.api.revert.AuditTrail`` of the audit log, once the routes of kinds exist."""
    history: MetricsHistory | None = None
    pipeline: PipelineView | None = None
    traffic: Traffic | None = None
    tails: MessageTails | None = None
    receivers: Receivers = field(default_factory=Receivers)
    """Receivers of requests to ``/ingest/NAME``."""
    events: Callable[[], Sequence[Spec]] = list
    functions: Callable[[], Sequence[Spec]] = list
    plugins: Callable[[], Sequence[Spec]] = list
    not_ready: Callable[[], str | None] = lambda: None
    ready_remark: Callable[[], str] = lambda: "ok"
    """Answer of ``/readyz`` when the node is ready."""
    defers_work: Callable[[], bool] = lambda: False
    """True if evaluations must wait, since the node is overloaded."""
    clock: Clock = field(default_factory=SystemClock)
    version: str = "0.1.0"
    api_settings: ApiSettings = field(default_factory=ApiSettings)
    metrics: Metrics = field(default_factory=Metrics)
    verb_timeout_s: float = 2.0
    saved_files: Mapping[str, Path] | None = None
    """The files that the first cell of several machines saves, for the cells of others."""
    machine: str = ""
    """Name of the machine that this process runs on, in a cluster."""
    faces: Faces | None = None
    """The other cells, where this process answers for several."""
    base_url: str = ""
    """``http://host:port``, set by the server once it listens."""
    values: Values = field(default_factory=Values)
    """Store of request keys, sessions and jobs."""
    keys: IdempotencyKeys = field(init=False)
    jobs: Jobs = field(init=False)
    sign_in: SignIn = field(init=False)

    def __post_init__(self) -> None:
        if not self.token:
            raise ValueError(
                "the administrator's token must not be empty: every request would have it"
            )
        self.sign_in = SignIn(self.clock, self.values, self.token)
        self.jobs = Jobs(self.values, self.clock)
        self.keys = IdempotencyKeys(self.values, self.clock)

    def service(self, place: str) -> Any:
        """The service at a place of a declaration, as ``traffic.clients``; None where the node has none."""
        part: Any = self
        for name in filter(None, place.split(".")):
            part = part.get(name) if isinstance(part, Mapping) else getattr(part, name, None)
        return part

    def section_of(self, kind: Kind) -> ObjectSection | None:
        """Section of the configuration with the objects of a kind; None if their service saves them."""
        return None if kind.section is None or self.section is None else self.section(kind.section)

    def new_sign_in_link(self) -> str:
        """An address that opens the dashboard once, within ten minutes, without asking for the token."""
        return f"{self.base_url}/?code={self.sign_in.new_code()}"
