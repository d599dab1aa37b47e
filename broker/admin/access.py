"""Access as administrators see it: users, access rules, bans, and the decision that a client would get."""

from __future__ import annotations

import secrets
from collections.abc import Container, Sequence
from typing import Any, Final, Literal, NotRequired, cast

from pydantic import Field, ValidationInfo, field_validator
from typing_extensions import TypedDict

from broker.admin.access_settings import KindsInOrder, StoredSettings
from broker.admin.spec_objects import SpecObjects
from broker.auth.attempt import ConnectAttempt
from broker.auth.authorize import AuthorizationOptions, AuthorizationSettings, Ruling, Rulings
from broker.auth.bans import Bans, BanView
from broker.auth.chain import AuthenticationSettings
from broker.auth.decision import Decision
from broker.auth.flapping import FlappingSettings
from broker.auth.hashing import HashPool, PasswordHashingSettings
from broker.auth.login_limits import LoginLimits, LoginLimitSettings
from broker.auth.rules import NamedRuleSettings, Rule
from broker.auth.user_import import UserImport, imported_users
from broker.auth.users import User, Users
from broker.config.model import Settings
from broker.config.root import Config
from broker.config.secrets import Secret
from broker.config.sections import Sections
from broker.core import reason
from broker.core.errors import ConfigError, NotFound, PeerError
from broker.core.objects import ObjectService, Spec, Version, apply, etag_of
from broker.core.times import rfc3339
from broker.core.topic import TopicFilter, check_topic_name
from broker.net.server import Server
from broker.observe.log import get_logger
from broker.observe.metrics import Metrics
from broker.storage.collection import RAW, TEXT, Collection
from broker.storage.writer import Writer

_log = get_logger(__name__)

USERS: Final = "users"
RULES: Final = "authorization.rules"
# The sections of settings about who may.
SETTINGS: Final[dict[str, type[Settings]]] = {
    "authentication": AuthenticationSettings,
    "authorization": AuthorizationSettings,
    "flapping_detect": FlappingSettings,
    "login_limits": LoginLimitSettings,
    "password_hashing": PasswordHashingSettings,
}
# Key of the secret that decoys of users are made with.
_SECRET: Final = "secret"


class CheckedClient(Settings, strict=True):
    """The client of a check. Without ``password`` it counts as logged in, its names verified."""

    clientid: str = Field(description="Its client identifier.")
    username: str | None = None
    password: Secret | None = Field(
        default=None, description="Authenticates by it too; null is without a password."
    )
    peerhost: str | None = Field(default=None, description="The address it comes from.")
    listener: str | None = Field(default=None, description="The listener, as `tcp:default`.")
    zone: str | None = None
    client_attrs: dict[str, str] = Field(default={}, description="Client attributes.")
    user_properties: dict[str, str] = Field(default={}, description="User properties of CONNECT.")
    is_superuser: bool = False


class AccessCheck(Settings, strict=True):
    """A client, and what it would do. Without ``action`` only connecting is checked."""

    client: CheckedClient = Field(examples=[{"clientid": "c1", "username": "ann"}])
    action: Literal["publish", "subscribe"] | None = None
    topic: str | None = Field(
        default=None, description="The topic, or the topic filter.", validate_default=True
    )
    qos: int = Field(default=0, ge=0, le=2)
    retain: bool = False

    @field_validator("topic")
    @classmethod
    def _check_topic(cls, topic: str | None, info: ValidationInfo) -> str | None:
        action = info.data.get("action")
        if (action is None) is not (topic is None) and "action" in info.data:
            raise ValueError("expected action and topic, or neither")
        try:
            if topic is not None and action == "publish":
                check_topic_name(topic)
            elif topic is not None:
                TopicFilter.parse(topic)
        except PeerError as error:
            raise ValueError(str(error)) from None
        return topic


class Authentication(TypedDict):
    """Result of authenticating a client: its ``result``, by which ``mechanism``, and which of its names are
    verified; ``why`` it refuses, and when the session would end."""

    result: str
    mechanism: str | None
    reason_code: str
    is_superuser: bool
    verified: list[str]
    why: NotRequired[str]
    expires_at: NotRequired[str]


class Authorization(TypedDict):
    """Result of the access rules, and which rule of which source decides. Rules that need a name which is not verified
    are ``withheld``."""

    result: str
    source: str
    rule: str | None
    withheld: list[str]


class ClientRule(TypedDict):
    """A rule that applies to a client, with its placeholders filled."""

    name: str
    source: str
    permission: Literal["allow", "deny"]
    topics: list[str]


class AccessDecision(TypedDict):
    """Decision on an action of a client, the part that decides, and the result of each part that was asked.

    ``facts`` are what rules can name of the client, ``rules`` those that apply to it.
    """

    allowed: bool
    clientid: str
    username: str | None
    decided_by: Literal["ban", "authentication", "authorization"]
    ban: NotRequired[BanView]
    authentication: NotRequired[Authentication]
    authorization: NotRequired[Authorization]
    facts: NotRequired[dict[str, str]]
    rules: NotRequired[list[ClientRule]]


class CacheView(TypedDict):
    """Limits of a connection's memory of decisions; ``ttl`` in seconds."""

    max_size: int
    ttl: float


class AuthorizationView(TypedDict):
    """Settings of access rules, as in section `authorization` of the configuration."""

    no_match: Literal["allow", "deny"] | None
    deny_wide_subscriptions: bool
    deny_action: Literal["ignore", "disconnect"]
    strict_subscriptions: bool
    trusted_client_attributes: list[str]
    check_retain_source: bool
    cache: CacheView


class AccessRules(SpecObjects[NamedRuleSettings]):
    """The access rules of API and command line, in their order."""

    read_only = frozenset(("number",))

    def after(self, name: str, spec: Spec | None) -> list[Rule]:
        """The enabled rules with this one in place of the one of that name; None deletes that."""
        rules = {rule.name: rule for rule in self._objects}
        apply(rules, {name: None if spec is None else self._compiled(spec)})
        return enabled_rules(list(rules.values()))


def enabled_rules(rules: Sequence[NamedRuleSettings]) -> list[Rule]:
    """Rules of API and command line, compiled, without those that are disabled."""
    return [Rule(rule, rule.name, "built_in") for rule in rules if rule.enable]


class BanService:
    """Lists, shows, creates and lifts bans. A ban is named by the compared field and its value:
    ``clientid/meter-9``."""

    kind: Final = "ban"

    def __init__(self, bans: Bans, writer: Writer) -> None:
        self._bans = bans
        self._writer = writer

    def list(self) -> Sequence[BanView]:
        """All active bans, newest first."""
        return self._bans.list()

    def get(self, name: str) -> BanView:
        """An active ban; raises ``NotFound``."""
        banned = next((ban for ban in self._bans.list() if ban["name"] == name), None)
        if banned is None:
            raise NotFound(self.kind, name, "'sluice bans ls' lists all")
        return banned

    def saved_version(self, name: str) -> Version:
        """The version of an active ban; raises ``NotFound``."""
        return Version(etag_of(self.get(name)))

    async def create(self, spec: Spec) -> BanView:
        """Add a ban; returns when it is in the store.

        Raises:
            Invalid, Unavailable: no ban was added.
        """
        ban = self._bans.create(spec)
        await self._writer.committed()
        return ban

    async def delete(self, name: str) -> None:
        """Lift a ban; returns when that is in the store. Raises ``NotFound``."""
        kind, _, who = name.partition("/")
        self._bans.delete(kind, who)
        await self._writer.committed()


class AccessService:
    """The verbs of administrators on the access that connections ask for."""

    def __init__(
        self,
        server: Server,
        users: Users,
        pool: HashPool,
        config: Config,
        sections: Sections,
        writer: Writer,
    ) -> None:
        """``users`` are those of the server's access."""
        self._server = server
        self._pool = pool
        self._writer = writer
        self.users = users
        access = self._access = server.hub.access
        self._attributes = server.hub.logins.attributes
        self.rules = AccessRules(
            "access rule", sections.section(RULES), NamedRuleSettings, self._use_rules
        )
        self._allows_weak = config.get(
            "password_hashing", PasswordHashingSettings
        ).allow_weak_imports
        authentication = config.get("authentication", AuthenticationSettings)
        authorization = config.get("authorization", AuthorizationSettings)
        self.settings = {
            "authentication": StoredSettings(
                "authentication",
                config,
                sections,
                authentication,
                self._check_authentication,
                self._use_authentication,
            ),
            "authorization": StoredSettings(
                "authorization",
                config,
                sections,
                authorization,
                access.authorizer.sources_of,
                access.authorizer.use,
            ),
        }
        self.authenticators = KindsInOrder(
            "authenticator",
            self.settings["authentication"],
            "mechanism",
            None,
            "chain",
            state_of=lambda mechanism: access.authenticators.state_of(mechanism),
        )
        self.sources = KindsInOrder(
            "source of rules",
            self.settings["authorization"],
            "type",
            "sources",
            "sources",
            state_of=lambda type_name: access.authorizer.state_of(type_name),
            file_of=access.authorizer.file_of,
        )

    @property
    def services(self) -> Sequence[ObjectService]:
        """The kinds of objects with the five verbs."""
        return self.rules, self.authenticators, self.sources

    @property
    def bans(self) -> Bans:
        """The bans: clients that are refused whatever their credentials."""
        return self._access.bans

    @property
    def limits(self) -> LoginLimits:
        """The limits of failed logins."""
        return self._access.authenticators.limits

    def clients_of(self, users: Container[str]) -> Sequence[str]:
        """Identifiers of the clients that are connected as these users."""
        return self._server.hub.connections.of_users(users)

    def start(self) -> None:
        """Take the users and rules of the configuration.

        Raises:
            ConfigError: with every problem of both.
        """
        stored = Collection(self._writer, b"access/", TEXT, RAW)
        secret = stored.committed(_SECRET)
        if secret is None:
            secret = secrets.token_bytes(32)
            stored.put(_SECRET, secret)
        self.users.know(secret)
        problems: list[str] = []
        for start in (self.users.start, self.rules.start):
            try:
                start()
            except ConfigError as error:
                problems += error.problems
        if problems:
            raise ConfigError(problems)

    def stop(self) -> None:
        """End the threads that hash."""
        self._pool.close()

    def _check_authentication(self, settings: AuthenticationSettings) -> None:
        before = self._access.authenticators
        chain = before.replaced(settings, Metrics())
        if chain.is_empty and not before.is_empty:
            self._server.check_open()

    def _use_authentication(self, settings: AuthenticationSettings) -> None:
        before = self._access.authenticators
        chain = before.replaced(settings)
        if chain.is_empty and not before.is_empty:
            self._server.check_open()
            _log.warning(
                "access.no_authenticator", text="every client that reaches a listener may connect"
            )
        before.close()
        self._access.authenticators = chain

    def _use_rules(self, rules: Sequence[NamedRuleSettings]) -> None:
        authorizer = self._access.authorizer
        authorizer.built_in.set(enabled_rules(rules))
        authorizer.changed()

    # -- verbs --

    def authorization(self) -> AuthorizationView:
        """The settings of access rules, without their sources."""
        settings = self.settings["authorization"].settings
        options = {name: getattr(settings, name) for name in AuthorizationOptions.model_fields}
        view: Any = AuthorizationOptions.model_construct(**options).model_dump(mode="json")
        return cast("AuthorizationView", view)

    def set_authorization(self, options: AuthorizationOptions) -> AuthorizationView:
        """Replace the settings of access rules; sources stay.

        Raises:
            Invalid, ReadOnly: nothing changed.
        """
        stored = self.settings["authorization"]
        kept = {
            name: value
            for name, value in (stored.raw() or {}).items()
            if name in ("sources", "rules")
        }
        stored.change(
            {**options.model_dump(mode="json", exclude_none=True), **kept},
            "the settings of access rules",
        )
        return self.authorization()

    async def users_of(self, body: UserImport) -> Sequence[User]:
        """The users of an import, for ``users.adopt``.

        Raises:
            Invalid: with a problem for each that cannot be imported.
        """
        return await imported_users(body, self._pool, allow_weak=self._allows_weak)

    async def check(self, check: AccessCheck) -> AccessDecision:
        """Decide whether a client would be allowed an action, and give the reason.

        With a ``password`` (``null`` for none) the client is authenticated too; without that member it is taken as
        authenticated, its names verified.
        """
        attempt = self._attributes.settled(_attempt(check.client))
        answer: AccessDecision = {
            "allowed": True,
            "clientid": attempt.client_id,
            "username": attempt.username,
            "decided_by": "authentication",
        }
        ban = self.bans.of(attempt)
        if ban is not None:
            return {**answer, "allowed": False, "decided_by": "ban", "ban": ban.as_shown()}
        decision = await self._decision(check.client, attempt)
        attempt = attempt.after(decision)
        answer["username"], answer["authentication"] = attempt.username, _shown_decision(decision)
        if not decision.is_allowed:
            return {**answer, "allowed": False}
        if check.action is not None:
            return await self._authorize(answer, attempt, decision, check)
        return answer

    async def _decision(self, client: CheckedClient, attempt: ConnectAttempt) -> Decision:
        if "password" not in client.model_fields_set:
            return Decision(
                "allow",
                is_superuser=client.is_superuser,
                verified=frozenset(("username", "clientid")),
            )
        decision = self._access.authenticate(attempt)
        return decision if isinstance(decision, Decision) else await decision

    async def _authorize(
        self,
        answer: AccessDecision,
        attempt: ConnectAttempt,
        decision: Decision,
        check: AccessCheck,
    ) -> AccessDecision:
        authorizer = self._access.authorizer
        subject = authorizer.subject_of(attempt, decision, self._attributes.roots, attempt.zone)
        prepared = (
            decision if decision.is_superuser else await authorizer.prepared(decision, subject)
        )
        if not prepared.is_allowed:
            return {**answer, "allowed": False, "authentication": _shown_decision(prepared)}
        rulings = authorizer.rulings(subject)
        ruling = _asked(rulings, check)
        before = None
        while ruling.unanswered is not None and ruling.unanswered != before:
            before = ruling.unanswered
            await before.answer()
            ruling = _asked(rulings, check)
        answer["allowed"], answer["decided_by"] = ruling.is_allowed, "authorization"
        answer["authorization"] = {
            "result": ruling.result,
            "source": ruling.source,
            "rule": ruling.rule or None,
            "withheld": list(ruling.withheld),
        }
        answer["facts"] = dict(sorted(subject.facts.items()))
        answer["rules"] = [
            {
                "name": rule.name,
                "source": rule.source,
                "permission": "allow" if rule.is_allow else "deny",
                "topics": [topic_filter.text for topic_filter in rule.filters],
            }
            for rule in rulings.bound()
        ]
        return answer


def _shown_decision(decision: Decision) -> Authentication:
    shown: Authentication = {
        "result": decision.verdict,
        "mechanism": decision.mechanism or None,
        "reason_code": reason.name_of(decision.reason_code),
        "is_superuser": decision.is_superuser,
        "verified": sorted(decision.verified),
    }
    if decision.why:
        shown["why"] = decision.why
    if decision.expires_s is not None:
        shown["expires_at"] = rfc3339(int(decision.expires_s * 1e9))
    return shown


def _attempt(client: CheckedClient) -> ConnectAttempt:
    return ConnectAttempt(
        client.clientid,
        client.username,
        None if client.password is None else client.password.reveal().encode(),
        client.peerhost,
        0,
        5,
        client.listener or "tcp:default",
        tuple(client.user_properties.items()),
        attributes=client.client_attrs,
        zone=client.zone or "default",
    )


def _asked(rulings: Rulings, check: AccessCheck) -> Ruling:
    assert check.topic is not None
    if check.action == "publish":
        return rulings.publish(check.topic, check.qos, check.retain)
    return rulings.subscribe(TopicFilter.parse(check.topic), check.qos)
