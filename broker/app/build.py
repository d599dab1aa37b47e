"""Settings to objects, by hand, in one place."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from broker.admin import access
from broker.admin.access import USERS, AccessService
from broker.admin.accounts import Accounts
from broker.admin.alarm_receivers import AlarmReceivers
from broker.admin.api_settings import ApiSettings
from broker.admin.applied import AppliedObjects
from broker.admin.audit_log import AuditLog
from broker.admin.backups import Backups
from broker.admin.captures import Captures
from broker.admin.cells import Arrival, CopiesOfCell
from broker.admin.delayed import DelayedService
from broker.admin.impact import ClientImpact
from broker.admin.named_secrets import NamedSecrets
from broker.admin.pipeline import PipelineView
from broker.admin.quarantine import QuarantineService
from broker.admin.refused import RefusedMessages
from broker.admin.replays.service import StreamReplays
from broker.admin.rewrites import RewriteService
from broker.admin.saturation import SaturationLog
from broker.admin.spec_objects import SpecObjects
from broker.admin.stream_imports import StreamImports
from broker.admin.tails import MessageTails
from broker.admin.tokens import Tokens
from broker.app import features
from broker.app.health import NodeHealth
from broker.app.settings import AccessSettings, NodeSettings
from broker.app.version import product_version
from broker.auth.access import Access
from broker.auth.authorize import AuthorizationSettings
from broker.auth.chain import AuthenticationSettings, AuthenticatorChain, UserAccess
from broker.auth.flapping import FlappingSettings
from broker.auth.hashing import HashPool, PasswordHashingSettings
from broker.auth.login_limits import LoginLimits, LoginLimitSettings
from broker.auth.users import Users
from broker.cluster.directories import cells_directory, directory_of, origin_file
from broker.cluster.links import Links
from broker.cluster.settings import ClusterSettings
from broker.cluster.steering import Steering
from broker.config.allowed import AllowedSettings, confine
from broker.config.model import Settings
from broker.config.root import Config
from broker.config.sections import Sections
from broker.config.ssrf import AddressGuard
from broker.config.vault import Vault
from broker.connection.dead_letters import DeadLetterSettings
from broker.connection.hub import ServerSettings
from broker.connection.sessions.log import SESSION_LOG
from broker.connection.sessions.zones import ZonesSettings
from broker.connection.settings import MqttSettings
from broker.connection.sharing.settings import SharedSettings
from broker.connection.sys_topics import SysTopicSettings
from broker.core.clock import SystemClock
from broker.core.contributor import Contributors, TopicStage
from broker.core.events import Events
from broker.core.feature import (
    Feature,
    MessagingPort,
    MonitoringPort,
    NodePort,
    Services,
    StoragePort,
)
from broker.core.hosts import address_text
from broker.core.kinds import counted, kinds, kinds_in_files
from broker.core.objects import ObjectService, Reference, SavedObject
from broker.core.origin import Identity, origin_of
from broker.core.times import rfc3339_of
from broker.core.tracing import Spans
from broker.net.limits import api_limit
from broker.net.listener import check_zones
from broker.net.listeners import ListenerStatus
from broker.net.server import Server
from broker.net.settings import (
    ListenerSettings,
    NamedListener,
    SslListeners,
    TcpListeners,
    WsListeners,
    WssListeners,
    named_listeners,
)
from broker.observe.alarms import Alarms
from broker.observe.metrics import Metrics
from broker.observe.metrics_history import MetricsHistory
from broker.observe.overload import Overload
from broker.observe.settings import (
    AlarmSettings,
    AuditLogSettings,
    LogSettings,
    MetricsHistorySettings,
    OverloadSettings,
    SaturationLogSettings,
    TelemetrySettings,
)
from broker.observe.telemetry import Telemetry, resource_of
from broker.pipeline.tracing import Tracing
from broker.routing.automatic import AutoSubscriptionSpec
from broker.routing.delayed import DelayedSettings
from broker.routing.settings import RetainedSettings
from broker.storage.health import DISK_NEARLY_FULL, StoreHealth
from broker.storage.rocksdb.options import Memory
from broker.storage.rocksdb.store import RocksStore
from broker.storage.settings import StoreSettings
from broker.storage.store import Store
from broker.storage.writer import Writer
from broker.streams.catalogue import Catalogue, LogKeys
from broker.streams.epochs import FILE, Epochs
from broker.streams.queues import StoredQueues, StoredValues
from broker.streams.range_client import RangeClient
from broker.streams.ranges_process import RangesProcess
from broker.streams.service import StreamService
from broker.streams.settings import RangeServerSettings, StreamSettings
from broker.streams.starts import StreamStarts
from broker.streams.tier.places import TierPlaces
from broker.streams.topic_index.pages import IndexPages

# Seconds from a commit to the next one with a commit log, at most: each costs its servers up to 3 ms, whatever it has.
_LOG_PACE_S: Final = 0.005

_OWN_MODELS: Final[dict[str, type[Settings]]] = {
    "node": NodeSettings,
    "allowed": AllowedSettings,
    "access": AccessSettings,
    **access.SETTINGS,
    "listeners.tcp.default": ListenerSettings,
    "listeners.tcp": TcpListeners,
    "listeners.ssl": SslListeners,
    "listeners.ws": WsListeners,
    "listeners.wss": WssListeners,
    "mqtt": MqttSettings,
    "zones": ZonesSettings,
    "shared_subscription": SharedSettings,
    "delayed": DelayedSettings,
    "sys_topics": SysTopicSettings,
    "retained": RetainedSettings,
    "dead_letter": DeadLetterSettings,
    "store": StoreSettings,
    "stream_defaults": StreamSettings,
    "range_server": RangeServerSettings,
    "api": ApiSettings,
    "log": LogSettings,
    "alarms": AlarmSettings,
    "audit_log": AuditLogSettings,
    "metrics_history": MetricsHistorySettings,
    "overload": OverloadSettings,
    "saturation_log": SaturationLogSettings,
    "telemetry": TelemetrySettings,
    "cluster": ClusterSettings,
}


def section_models() -> dict[str, type[Settings]]:
    """The settings model of every section of the configuration, the features' among them."""
    return _OWN_MODELS | {
        section: features.load(name) for section, name in features.SETTINGS.items()
    }


class Node:
    """All objects of one broker, joined and not yet started (``broker.app.lifecycle`` does that)."""

    def __init__(
        self,
        config: Config,
        data_dir: Path,
        token: str,
        store: Store | None = None,
        ranges: RangesProcess | None = None,
        steering: Steering | None = None,
    ) -> None:
        """Open the store, where none is given, and build what is on it. On the event loop. ``steering`` is there in a
        cell of several.

        Raises:
            ConfigError: the data directory cannot be used, or another broker has it.
        """
        self.config = config
        self.data_dir = data_dir
        self.steering = steering
        self.arrival: Arrival | None = None
        """The contents of this cell when it came to its machine; None where it did not move."""
        self.copies_of_cell: Callable[[], CopiesOfCell] | None = None
        place = None if steering is None else steering.place
        self.own_dir = data_dir if place is None else directory_of(data_dir, place)
        """Directory that this process alone writes to."""
        self.token = token
        bounds = config.get("allowed", AllowedSettings)
        confine(bounds, data_dir)
        self.metrics, self.events, self.clock = Metrics(), Events(), SystemClock()
        self.spans = Spans()
        self.alarms = Alarms(
            self.clock, self.events, self.metrics, config.get("alarms", AlarmSettings)
        )
        self.mqtt_address = self.api_address = ""
        self.started_ns = self.clock.now_ns()
        self.sections = Sections(config)
        if place is not None and place.number and self.sections.file is not None:
            self.sections.file.is_followed = True
        vault = Vault.of_environment(data_dir, os.environ)
        self.secrets = NamedSecrets(self.sections, self.clock, vault)
        self.secrets.start()
        self.secrets.settings = self._settings_with_secrets
        self._open_store(store)
        self.ranges = ranges or RangesProcess(self.own_dir)
        allow_anonymous = config.get("access", AccessSettings).allow_anonymous
        ssrf = config.get("rule_engine").ssrf
        self.tokens = Tokens(self.sections.section("tokens"), self.clock, StoredValues(self.writer))
        self.api_settings = _within_file_limit(config.get("api", ApiSettings))
        name = config.get("node", NodeSettings).name
        cluster = config.get("cluster", ClusterSettings)
        origin = origin_of(
            cluster.name if cluster.machine else name,
            StoredValues(self.writer),
            None if place is None else origin_file(data_dir),
        )
        self.identity = Identity(name, product_version(), origin)
        self._log_keys = LogKeys(self.writer)
        catalogue = Catalogue(self._log_keys)
        if place is not None:
            epochs = Epochs(cells_directory(data_dir) / FILE, is_first=place.number == 0)
            catalogue = Catalogue(self._log_keys, place.number, epochs)
        access, users, pool = self._make_access(ssrf, allow_anonymous=allow_anonymous)
        hashing = config.get("password_hashing", PasswordHashingSettings)
        self.accounts = Accounts(self.sections.section("accounts"), hashing, pool, self.clock)
        starts = StreamStarts(catalogue, self.store, self.clock)
        self.server = self._make_server(access, starts, allow_anonymous=allow_anonymous)
        self.links = None if place is None else Links(place, self.server.hub)
        contributors = Contributors((self.server.hub.share_groups,))
        self.streams = self._make_streams(catalogue, contributors)
        self.services = self._make_services(contributors)
        self.access = AccessService(self.server, users, pool, config, self.sections, self.writer)
        for path, on_delete in (
            ("bans", self.access.bans.on_lift),
            ("authentication", self.access.authenticators.on_delete),
            ("authorization/sources", self.access.sources.on_delete),
        ):
            on_delete.connect(partial(self.applied.forget, path))
        self._make_hub_services()
        self.backups = Backups(
            data_dir,
            self.sections,
            self.store,
            vault,
            self.clock,
            lambda: self.config,
            name,
            product_version(),
        )
        guard = AddressGuard(ssrf)
        self.alarm_receivers = AlarmReceivers(
            self.sections.section("alarm_receivers"),
            self.alarms,
            guard,
            self.server.publisher,
            self.clock,
            name if place is None or not place.number else f"{name}/cell-{place.number}",
            self.metrics,
            (DISK_NEARLY_FULL,) if place is not None and place.index else (),
        )
        self._trace(guard)
        self.captures = Captures(
            self.own_dir / "captures",
            self.server.hub.plans.recorders,
            self.server.hub.context.timelines,
            self.server.hub.sessions,
            self.clock,
        )
        self.saturation = SaturationLog(
            config.get("saturation_log", SaturationLogSettings),
            self.own_dir / "saturation",
            asyncio.get_running_loop(),
            self.overload.machine,
            self.writer,
            lambda: self.server.hub.connections,
            self.metrics,
        )
        self._load_features(ssrf)
        contributors.extend(
            (
                self.streams,
                self.accounts,
                self.tokens,
                self.secrets,
                self.alarm_receivers,
                ClientImpact(self.server.hub, self.access),
            )
        )
        bound_schema = self.schema_validation.validations.bound_schema
        self.tails = MessageTails(self.server.hub, self.streams, bound_schema)
        self.refused = RefusedMessages(self.tails)
        self.server.hub.pipeline.on_refusal.connect(self.refused.note)
        self.quarantine = QuarantineService(
            self.streams, self.writer, self.server.publisher, self._quarantines
        )
        self.health = NodeHealth(
            server=self.server,
            overload=self.overload,
            streams=self.streams,
            writer=self.writer,
            alarms=self.alarms,
            is_open=lambda: bool(self.mqtt_address),
            lost_rows=self.bridges.lost_rows,
        )
        self.health.react()
        self.pipeline = PipelineView(self.services.contributors, self._ends_of, self.clock)
        self.imports = StreamImports(
            catalogue,
            self.writer,
            self.clock,
            *(() if place is None else (place.has,)),
        )
        self.replays = StreamReplays(
            catalogue,
            self.writer,
            self.server.publisher,
            self.services.endpoints.sinks,
            contributors,
            self.pipeline.stages,
            self.clock,
            self.streams.logs,
        )
        contributors.extend((self.replays, self.quarantine))

    def _open_store(self, store: Store | None) -> None:
        """Open the store where none is given, and watch it and the loop."""
        config = self.config
        loop = asyncio.get_running_loop()
        metrics = self.metrics
        storing = config.get("store", StoreSettings)
        alarms = config.get("alarms", AlarmSettings)
        memory = Memory(storing.write_buffer, storing.block_cache)
        self.store: Store = (
            RocksStore(self.own_dir, storing.durability, memory) if store is None else store
        )
        pace_s = 0.0 if store is None else _LOG_PACE_S
        self.writer = Writer(self.store, loop, storing, metrics, pace_s)
        values = StoredValues(self.writer)
        self.alarms.load(values, loop.call_later)
        self.overload = Overload(
            config.get("overload", OverloadSettings), loop, self.clock, self.alarms, metrics
        )
        self.store_health = StoreHealth(self.writer, self.own_dir, self.alarms, alarms, metrics)
        history = config.get("metrics_history", MetricsHistorySettings)
        self.audit_log = AuditLog(
            self.writer, self.clock, config.get("audit_log", AuditLogSettings)
        )
        self.applied = AppliedObjects(values)
        self.history = MetricsHistory(metrics, values, self.clock, history, product_version())
        if self.sections.file is not None:
            self.sections.file.on_change.connect(self._mark_change)
            self.sections.file.on_change.connect(self.applied.note)

    def _mark_change(self, saved: SavedObject) -> None:
        if saved.order_of is None:
            self.history.mark(kinds_in_files()[saved.section].name, saved.name, saved.what)

    def _make_hub_services(self) -> None:
        """Build the services that show and change the hub's state."""
        hub = self.server.hub
        self.delayed = DelayedService(hub.delayed, self.clock)
        self.rewrites = RewriteService(self.sections.section("rewrites"), hub.rewrites)
        self.auto_subscriptions = SpecObjects(
            "auto-subscription",
            self.sections.section("auto_subscriptions"),
            AutoSubscriptionSpec,
            hub.subscribing.automatic.use,
        )

    def _trace(self, guard: AddressGuard) -> None:
        """Trace messages, where the settings say so."""
        identity = self.identity
        instance = identity.origin
        if self.steering is not None:
            instance += f"/cell-{self.steering.place.number}"
        resource = resource_of(identity.name, identity.version, instance)
        telemetry = Telemetry(
            guard, resource, asyncio.get_running_loop(), self.alarms, self.metrics
        )
        self.tracing = Tracing(self.server.hub.plans.recorders, self.spans, telemetry, self.metrics)
        self.tracing.use(self.config.get("telemetry", TelemetrySettings))

    def _make_access(self, ssrf: Any, *, allow_anonymous: bool) -> tuple[Access, Users, HashPool]:
        """Access control of connections, the broker's own users, and the threads that hash their passwords."""
        config = self.config
        metrics = self.metrics
        clock = self.clock
        hashing = config.get("password_hashing", PasswordHashingSettings)
        pool = HashPool(hashing, metrics)
        users = Users(self.sections.section(USERS), hashing, pool, clock)
        chain = AuthenticatorChain(
            config.get("authentication", AuthenticationSettings),
            metrics,
            UserAccess(users, pool, hashing.max_remembered),
            trusts_anonymous=allow_anonymous,
            clock=clock,
            guard=AddressGuard(ssrf),
            limits=LoginLimits(
                config.get("login_limits", LoginLimitSettings), clock, metrics, self.alarms
            ),
            alarms=self.alarms,
        )
        access = Access.of(
            chain,
            self.writer,
            metrics,
            clock,
            authorization=config.get("authorization", AuthorizationSettings),
            flapping=config.get("flapping_detect", FlappingSettings),
            users=users,
            base=self.data_dir,
            outside=chain.outside,
        )
        return access, users, pool

    def _make_server(
        self, access: Access, starts: StreamStarts, *, allow_anonymous: bool
    ) -> Server:
        config = self.config
        return Server(
            listeners=named_of(config),
            settings=ServerSettings(
                mqtt=config.get("mqtt", MqttSettings),
                zones=config.get("zones", ZonesSettings),
                shared=config.get("shared_subscription", SharedSettings),
                retained=config.get("retained", RetainedSettings),
                dead_letter=config.get("dead_letter", DeadLetterSettings),
                delayed=config.get("delayed", DelayedSettings),
                sys_topics=config.get("sys_topics", SysTopicSettings),
            ),
            writer=self.writer,
            session_log=SESSION_LOG,
            metrics=self.metrics,
            events=self.events,
            clock=self.clock,
            allow_anonymous=allow_anonymous,
            access=access,
            api_connections=self.api_settings.max_connections,
            alarms=self.alarms,
            identity=self.identity,
            starts=starts,
            place=None if self.steering is None else self.steering.place,
            cells=self.steering,
        )

    def _make_streams(self, catalogue: Catalogue, contributors: Contributors) -> StreamService:
        client = RangeClient(self.ranges.own_access)
        moves = self.steering is not None and self.steering.place.owners is not None
        places = TierPlaces(self.config.get("lake").stores, self.data_dir / "tiers", moves)
        streams = StreamService(
            self.writer,
            catalogue,
            self.sections.section("streams"),
            self.server.plans,
            settings=self.config.get("stream_defaults", StreamSettings),
            users=partial(contributors.users_of, "stream"),
            unread_of=contributors.unread_of,
            access=self.ranges.access,
            index=IndexPages(client, lambda: self.ranges.index),
            ranges=client,
            places=places,
            alarms=self.alarms,
            clock=self.clock,
            metrics=self.metrics,
            spans=self.spans,
            is_behind_first=self.steering is not None and self.steering.place.number > 0,
        )
        self.ranges.stores = places.for_child
        self.secrets.on_changed.connect(self.ranges.send_stores)
        self.ranges.when_tiered.connect(streams.tiers.note)
        streams.on_deleted.connect(self.ranges.revoke_tickets)
        self.tokens.on_revoked.connect(self.ranges.revoke_tickets)
        self.accounts.on_change.connect(self.ranges.revoke_tickets)
        return streams

    def _make_services(self, contributors: Contributors) -> Services:
        """Services of the broker for features."""
        server = self.server
        streams = self.streams
        place = None if self.steering is None else self.steering.place
        values = StoredValues(self.writer)
        backtest = [sys.executable, "-m", "broker.app.backtest"]
        queues = StoredQueues(self._log_keys, self.clock, self.metrics)
        return Services(
            NodePort(
                self.identity.name,
                self.clock,
                self.identity.origin,
                self.own_dir,
                backtest,
                cell=0 if place is None else place.number,
                cells=1 if place is None else place.count,
                moves=self.config.get("cluster", ClusterSettings).moves,
            ),
            MessagingPort(
                self.events,
                server.plans,
                server.publisher,
                server.hub.sys_topics.set_state,
                server.hub.withholding.with_room,
            ),
            StoragePort(
                self.sections.section,
                streams.appender,
                streams.positions,
                streams.reader,
                queues,
                values,
            ),
            MonitoringPort(self.metrics, self.alarms, self.spans),
            contributors=contributors,
        )

    def _load_features(self, ssrf: Any) -> None:
        """Make the features, each with those that it needs, and have them on the way of every message."""
        self.schema_validation = features.load(features.SCHEMA_VALIDATION)(
            self.services, self.config.get("schema_registry"), ssrf=ssrf
        )
        self.transforms = features.load(features.TRANSFORMS)(self.services)
        self.rules = self._feature(features.RULES, "rule_engine")
        self.lake = features.load(features.LAKE)(self.services, self.config.get("lake"), ssrf)
        self.bridges = features.load(features.BRIDGES)(self.services, ssrf)
        self.secrets.on_changed.connect(self.bridges.resources.secrets_changed)
        self.features: Sequence[Feature] = (
            self.schema_validation,
            self.transforms,
            self.rules,
            self.bridges,
            self.lake,
        )
        self.server.set_stages(
            [gate for feature in self.features for gate in feature.gates],
            [tap for feature in self.features for tap in feature.taps] + [self.streams.tap],
        )

    def _ends_of(self, topic: str) -> list[TopicStage]:
        """Subscribers and other ends of the path of a topic's messages."""
        subscribers = self.server.hub.router.routes(topic)
        count = len(subscribers.entries) + len(subscribers.groups)
        end: TopicStage = {
            "stage": "subscribers",
            "name": "subscribers",
            "enabled": True,
            "topics": [],
            "does": f"to {counted(count, 'subscription')}",
            "count": count,
        }
        return [end]

    def _quarantines(self) -> list[str]:
        return [
            *self.schema_validation.validations.quarantines(),
            *self.transforms.service.quarantines(),
        ]

    def _settings_with_secrets(self) -> Iterator[tuple[Reference, Any]]:
        """Authenticators, and sections of settings, as they are called."""
        for name, settings in self.config.sections.items():
            if name != "authentication":
                yield Reference("setting", name), settings
        authentication: Any = self.access.settings["authentication"].settings
        for authenticator in authentication.chain:
            yield Reference("authenticator", authenticator.mechanism), authenticator

    def _feature(self, name: str, section: str) -> Any:
        return features.load(name)(self.services, self.config.get(section))

    def listening(self, mqtt_address: str, api_address: str) -> None:
        """Remember where the node listens, as ``host:port``."""
        self.mqtt_address = mqtt_address
        self.api_address = api_address

    @property
    def listeners(self) -> list[dict[str, Any]]:
        """The addresses, as the API shows them (``ui.api.status.ListenerStatus``)."""
        statuses = self.server.listeners.statuses()
        open_ones = [
            _listener(status, *status.address) for status in statuses if status.address is not None
        ]
        return [
            *open_ones,
            {
                "name": "api",
                "protocol": "https" if self.api_settings.has_tls else "http",
                "address": self.api_address,
            },
        ]

    @property
    def started_objects(self) -> Sequence[StreamService | SpecObjects[Any] | AlarmReceivers]:
        """The broker's own services of saved kinds, in the order in which they start."""
        return (
            self.streams,
            self.accounts,
            self.tokens,
            self.rewrites,
            self.auto_subscriptions,
            self.alarm_receivers,
        )

    @property
    def object_services(self) -> dict[str, ObjectService]:
        """The services of kinds with the five verbs, by their path in the API."""
        by_kind = {
            service.kind: service for feature in self.features for service in feature.services
        }
        own: Sequence[ObjectService] = (
            self.secrets,
            *self.started_objects,
            *self.access.services,
        )
        by_kind |= {service.kind: service for service in own}
        return {kind.path: by_kind[kind.name] for kind in kinds() if kind.name in by_kind}


def named_of(config: Config, *, also_disabled: bool = False) -> list[NamedListener]:
    """The listeners of a configuration, in the order in which they are opened.

    Raises:
        ConfigError: a sentence for each that is in a zone that there is not.
    """
    every = named_listeners(
        config.get("listeners.tcp.default", ListenerSettings),
        config.get("listeners.tcp", TcpListeners),
        config.get("listeners.ssl", SslListeners),
        config.get("listeners.ws", WsListeners),
        config.get("listeners.wss", WssListeners),
        also_disabled=True,
    )
    check_zones(every, config.get("zones", ZonesSettings).by_name)
    return [named for named in every if also_disabled or named.settings.enable]


def _within_file_limit(settings: ApiSettings) -> ApiSettings:
    """The settings with as many connections as there are file descriptors for."""
    return settings.model_copy(update={"max_connections": api_limit(settings.max_connections)})


def _listener(status: ListenerStatus, host: str, port: int) -> dict[str, Any]:
    shown = {
        "name": status.name,
        "protocol": status.protocol,
        "address": address_text(host, port),
        "connections": status.connections,
        "max_connections": status.max_connections,
        "zone": status.zone,
    }
    expires = status.certificate_expires
    return shown if expires is None else shown | {"certificate_expires": rfc3339_of(expires)}
