"""Authorisation: sources of rules in order, the decision over a request, and what to do when it is denied.

A source gives the rules for a client when the client connects. The first rule of the first source that is about a
request decides it; when none is, ``no_match`` does. Where no source has a rule and ``no_match`` is not ``deny``,
nothing is asked and nothing costs, but for subscriptions to everything or to ``$SYS`` (``is_wide``). Rules that a
client brought along when it logged in are asked before all sources.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationError

from broker.auth.attempt import ConnectAttempt
from broker.auth.backends.backend import BackendState, BackendUnavailable, Outside
from broker.auth.backends.http import HttpSourceSettings, http_source
from broker.auth.backends.ldap import LdapSourceSettings, ldap_source
from broker.auth.backends.redis import RedisSourceSettings, redis_source
from broker.auth.backends.source import AskedRules, OutsideSource, OutsideSourceSettings, Unanswered
from broker.auth.backends.sql import MysqlSourceSettings, PostgresqlSourceSettings, sql_source
from broker.auth.decision import Decision
from broker.auth.rules import BoundRule, Rule, RuleSettings, publish_kind, subscribe_kind
from broker.auth.subject import Subject, subject_of
from broker.auth.users import Users
from broker.config.hocon import parse_text
from broker.config.hocon_reader import HoconError
from broker.config.model import Settings
from broker.config.units import Duration
from broker.core.client import Client
from broker.core.errors import ConfigError
from broker.core.hosts import is_this_machine
from broker.core.message import Message
from broker.core.signals import Signal
from broker.core.topic import DEAD_LEVEL, SYSTEM_LEVEL, TopicFilter, lost_topic
from broker.observe.log import get_logger

log = get_logger(__name__)

Result = Literal["allow", "deny"]
_DEAD_PREFIX: Final = f"{DEAD_LEVEL}/"
# Bytes of a file of rules.
_MOST_FILE_BYTES: Final = 4 * 1024 * 1024


class FileSourceSettings(Settings):
    """Rules of the configuration, or of a file of their own."""

    type: Literal["file"]
    enable: bool = Field(default=True, description="Whether it is asked.")
    require_trusted_attributes: bool = Field(
        default=True, description="Whether its rules go by those names of a client alone that are verified, or listed "
        "in `trusted_client_attributes`."
    )  # fmt: skip
    path: str | None = Field(
        default=None,
        description="A file with `rules = [...]`, HOCON or JSON; read at the start. Through the API: in `secrets` in "
        "the data directory or in one of `allowed.secret_directories`.",
    )
    rules: list[RuleSettings] = Field(
        default_factory=list,
        max_length=10_000,
        description="Rules that stand here; before the file's.",
    )


class BuiltInSourceSettings(Settings):
    """Rules that are made through the API and the command line."""

    type: Literal["built_in"]
    enable: bool = Field(default=True, description="Whether it is asked.")
    require_trusted_attributes: bool = Field(
        default=True, description="Whether its rules go by those names of a client alone that are verified, or listed "
        "in `trusted_client_attributes`."
    )  # fmt: skip


AnySourceSettings = Annotated[
    FileSourceSettings
    | BuiltInSourceSettings
    | HttpSourceSettings
    | PostgresqlSourceSettings
    | MysqlSourceSettings
    | RedisSourceSettings
    | LdapSourceSettings,
    Field(discriminator="type"),
]


def _default_sources() -> list[AnySourceSettings]:
    return [BuiltInSourceSettings(type="built_in")]


class VerdictCacheSettings(Settings):
    """Limits of a connection's memory of decisions."""

    max_size: int = Field(
        default=32, ge=1, le=1_000_000, description="Topics a connection remembers."
    )
    ttl: Duration = Field(
        default=1800,
        gt=0,
        allow_inf_nan=False,
        description="Seconds after which all is forgotten.",
    )


class AuthorizationOptions(Settings):
    """Settings of access rules, without their sources."""

    no_match: Result | None = Field(
        default=None, description="Decision over a request that no rule is about: `allow`, `deny`. Where it is not "
        "set: `deny` while there are rules, `allow` while there are none."
    )  # fmt: skip
    deny_wide_subscriptions: bool = Field(
        default=True,
        description="Refusal of subscriptions that name no level, such as `#`, `+/#`, `/#` or `$dead/#`, and of topics "
        "that begin with `$SYS/`, unless a rule allows them. It does not apply to superusers and to clients on this "
        "machine (loopback addresses).",
    )
    deny_action: Literal["ignore", "disconnect"] = Field(
        default="ignore", description="Treatment of a client that publishes or subscribes to a forbidden topic: its "
        "request is refused, or its connection closed."
    )  # fmt: skip
    strict_subscriptions: bool = Field(
        default=False, description="Refusal of every subscription that matches a topic which a rule denies. Without it "
        "such a subscription is granted where the rest is allowed, and messages on topics that are denied are not "
        "delivered."
    )  # fmt: skip
    trusted_client_attributes: list[str] = Field(
        default_factory=list, description="Names that rules go by though no authenticator verified them: `username`, "
        "`clientid`, `client_attrs.NAME`."
    )  # fmt: skip
    check_retain_source: bool = Field(
        default=False, description="Whether retained messages are kept from subscribers once the client that published "
        "them may no longer do so."
    )  # fmt: skip
    cache: VerdictCacheSettings = Field(
        default_factory=VerdictCacheSettings, description="Decisions are remembered."
    )


class AuthorizationSettings(AuthorizationOptions):
    """Section ``authorization``: rights of clients to publish and subscribe."""

    sources: list[AnySourceSettings] = Field(
        default_factory=_default_sources,
        description="Sources of rules in the order they are asked, one of a type.",
    )


class _NotRules(Exception):
    """A file has no rules; says why."""


class RuleSet:
    """Rules in order, found quickly by the user name or client identifier that they name."""

    def __init__(self, type: str) -> None:
        self.type = type
        self._general: list[tuple[int, Rule]] = []
        self._by_username: dict[str, list[tuple[int, Rule]]] = {}
        self._by_client_id: dict[str, list[tuple[int, Rule]]] = {}
        self._named_denials: list[tuple[int, Rule]] = []
        self._count = 0

    @property
    def is_empty(self) -> bool:
        """True if it has no rules at all."""
        return not self._count

    def set(self, rules: Sequence[Rule]) -> None:
        """Use these rules."""
        self._general = []
        self._named_denials = []
        self._by_username = {}
        self._by_client_id = {}
        self._count = len(rules)
        for place in enumerate(rules):
            self._put(place)

    def _put(self, place: tuple[int, Rule]) -> None:
        rule = place[1]
        names = rule.usernames
        shelf = self._by_username
        if names is None:
            names = rule.client_ids
            shelf = self._by_client_id
        if names is None:
            self._general.append(place)
            return
        for name in set(names):
            shelf.setdefault(name, []).append(place)
        if not rule.is_allow:
            self._named_denials.append(place)

    def rules_for(self, subject: Subject) -> Iterable[BoundRule]:
        """The rules about a client, in order. A denial by name applies to all clients that did not prove their name."""
        username = subject.facts.get("username")
        client_id = subject.facts.get("clientid")
        candidates = [*self._general]
        candidates += self._by_username.get(username, ()) if username is not None else ()
        candidates += self._by_client_id.get(client_id, ()) if client_id is not None else ()
        if username is None or client_id is None:
            candidates += self._named_denials
        ordered = dict(sorted(candidates, key=lambda place: place[0]))
        return [
            bound for rule in ordered.values() if (bound := rule.bind(subject.facts)) is not None
        ]


class BelievingRules:
    """Rules that also believe names which clients give of themselves."""

    def __init__(self, rules: RuleSet) -> None:
        self._rules = rules
        self.type = rules.type

    @property
    def is_empty(self) -> bool:
        """True if it has no rules at all."""
        return self._rules.is_empty

    def rules_for(self, subject: Subject) -> Iterable[BoundRule]:
        """The rules about a client, in order."""
        return self._rules.rules_for(replace(subject, facts={**subject.claimed, **subject.facts}))


Source = RuleSet | BelievingRules | OutsideSource


@dataclass(frozen=True, slots=True)
class Ruling:
    """A decision, and the rule it is by: ``source`` is ``superuser``, ``no_match``, ``wide`` (a subscription to
    everything) or ``none`` (there are no rules) where no rule decided."""

    is_allowed: bool
    source: str
    rule: str = ""
    withheld: tuple[str, ...] = ()
    """Filters of rules that deny a part of a subscription which is allowed."""
    unanswered: Unanswered | None = None
    """The request that an outside source has to be asked about first; ``is_allowed`` is False until then."""

    @property
    def is_denied(self) -> bool:
        """True if it is a denial, and not for want of an answer."""
        return not self.is_allowed and self.unanswered is None

    @property
    def result(self) -> Result:
        """Result in the form of events and answers."""
        return "allow" if self.is_allowed else "deny"


_SUPERUSER: Final = Ruling(True, "superuser")
_NO_RULES: Final = Ruling(True, "none")
_WIDE: Final = Ruling(False, "wide")
_UNNAMED: Final = frozenset(("#", "+", ""))


def is_wide(topic_filter: TopicFilter) -> bool:
    """True if a filter names no level, so that it matches all topics of some depth, also those of dead letters; or
    matches what the broker says about itself."""
    levels = lost_topic(topic_filter.levels) or topic_filter.levels
    return levels[0] == SYSTEM_LEVEL or _UNNAMED.issuperset(levels)


@dataclass(frozen=True, slots=True)
class Withheld:
    """Rules as they bear on messages on their way to a client. Equal ones decide alike."""

    rules: tuple[BoundRule, ...]
    allows_the_rest: bool
    """True if topics without a rule are allowed."""

    def decide(self, topic: str, qos: int) -> bool | None:
        """True if a message may be delivered, by the QoS of the subscription; None if no rule applies. A dead
        letter may be where the message that was lost may be too."""
        kind = subscribe_kind(qos)
        if topic.startswith(_DEAD_PREFIX):
            lost = "/".join(lost_topic(topic.split("/")))
            may_have_lost = next(
                (rule.is_allow for rule in self.rules if rule.is_about_delivery(kind, lost)), None
            )
            if not (self.allows_the_rest if may_have_lost is None else may_have_lost):
                return False
        return next(
            (rule.is_allow for rule in self.rules if rule.is_about_delivery(kind, topic)), None
        )

    def __call__(self, topic: str, qos: int) -> bool:
        """True if a message may be delivered for a subscription that was granted."""
        return self.decide(topic, qos) is not False


class Rulings:
    """The rules for one client. Bound when first asked for."""

    __slots__ = ("_no_match", "_rules", "_settings", "_sources", "_withheld", "subject")

    def __init__(
        self,
        subject: Subject,
        sources: Sequence[Source],
        no_match: Ruling,
        settings: AuthorizationSettings,
    ) -> None:
        self.subject = subject
        self._sources = sources
        self._no_match = no_match
        self._settings = settings
        self._withheld: Withheld | None = None
        self._rules: list[BoundRule | AskedRules] | None = None

    def publish(self, topic: str, qos: int, retain: bool) -> Ruling:
        """Ruling over a publish."""
        if self.subject.is_superuser:
            return _SUPERUSER
        kind = publish_kind(qos, retain)
        for rule in self.rules():
            if isinstance(rule, AskedRules):
                answer = rule.about(kind, topic)
                if answer is not None:
                    return self._answered(answer)
            elif rule.is_about_publish(kind, topic):
                return self._ruling(rule)
        return self._ruling(None)

    def subscribe(self, topic_filter: TopicFilter, qos: int) -> Ruling:
        """Ruling over a subscription, by its filter without ``$share``."""
        if self.subject.is_superuser:
            return _SUPERUSER
        ruling = self._of_filter(topic_filter, topic_filter.levels, qos)
        if not (ruling.is_allowed and (lost := lost_topic(topic_filter.levels))):
            return ruling
        lost_ruling = self._of_filter(topic_filter, lost, qos)
        if lost_ruling.is_allowed and not lost_ruling.withheld:
            return ruling
        if self._settings.strict_subscriptions:
            return replace(lost_ruling, is_allowed=False)
        withheld = [f"{_DEAD_PREFIX}+/{text}" for text in lost_ruling.withheld or ("/".join(lost),)]
        return replace(ruling, withheld=(*ruling.withheld, *withheld))

    def _of_filter(self, topic_filter: TopicFilter, asked: tuple[str, ...], qos: int) -> Ruling:
        kind = subscribe_kind(qos)
        withheld: list[str] = []
        for rule in self.rules():
            if isinstance(rule, AskedRules):
                answer = rule.about(kind, "/".join(asked))
                if answer is not None:
                    return self._answered(answer, withheld)
                continue
            if rule.is_about_subscribe(kind, asked):
                return self._ruling(rule, withheld)
            if part := rule.denied_part(kind, asked):
                if self._settings.strict_subscriptions:
                    return self._ruling(rule)
                withheld += [denied.text for denied in part]
        if (
            self._settings.deny_wide_subscriptions
            and is_wide(topic_filter)
            and not is_this_machine(self.subject.facts.get("peerhost"))
        ):
            return _WIDE
        return self._ruling(None, withheld)

    @property
    def withheld(self) -> Withheld:
        """Filter of messages that are not delivered to the client, by the rules about its subscriptions."""
        if self._withheld is None:
            rules = tuple(rule for rule in self.bound() if rule.kinds >> subscribe_kind(0))
            self._withheld = Withheld(rules, self.allows_the_rest)
        return self._withheld

    @property
    def allows_the_rest(self) -> bool:
        """True if topics without a rule are allowed."""
        return self._no_match.is_allowed

    def bound(self) -> list[BoundRule]:
        """The rules about the client, in order, without answers about single topics."""
        return [rule for rule in self.rules() if isinstance(rule, BoundRule)]

    def rules(self) -> list[BoundRule | AskedRules]:
        """The rules about the client, and answers of outside sources, in order."""
        if self._rules is None:
            subject = self.subject
            rules: list[BoundRule | AskedRules] = []
            rules += [
                bound
                for rule in subject.rules or ()
                if (bound := rule.bind(subject.facts)) is not None
            ]
            for source in self._sources:
                rules += source.rules_for(subject)
            self._rules = rules
        return self._rules

    def _answered(self, answer: BoundRule | Unanswered, withheld: Sequence[str] = ()) -> Ruling:
        if isinstance(answer, Unanswered):
            return Ruling(False, answer.asked.source_type, unanswered=answer)
        return self._ruling(answer, withheld)

    def _ruling(self, rule: BoundRule | None, withheld: Sequence[str] = ()) -> Ruling:
        ruling = self._no_match if rule is None else Ruling(rule.is_allow, rule.source, rule.name)
        return (
            replace(ruling, withheld=tuple(withheld)) if withheld and ruling.is_allowed else ruling
        )


class Authorizer:
    """The sources that are enabled. ``users`` are the broker's own, among them superusers."""

    def __init__(
        self,
        settings: AuthorizationSettings,
        base: Path | None = None,
        users: Users | None = None,
        outside: Outside | None = None,
    ) -> None:
        self.built_in = RuleSet("built_in")
        self._surroundings = outside or Outside.alone()
        self._sources: Sequence[Source] = ()
        self.trusted_in: Callable[[str], Sequence[str] | None] = lambda zone: None
        """Names that are believed in a zone, None for those of the settings."""
        self._base = base
        self._users = users
        self.on_change = Signal[()]()
        """Rules have changed."""
        self._was_active = False
        self.use(settings)

    def use(self, settings: AuthorizationSettings) -> None:
        """Use these settings from now on, also for connected clients.

        Raises:
            ConfigError: a sentence for everything that is wrong; nothing changed.
        """
        before = self.outside
        self._sources = self.sources_of(settings)
        self.settings = settings
        for source in before:
            if source not in self._sources:
                source.backend.close()
        self.changed()

    def sources_of(self, settings: AuthorizationSettings) -> Sequence[Source]:
        """The sources that settings enable, with the rules in their files; raises as ``use``. Outside sources whose
        settings are the same stay."""
        sources: list[Source] = []
        problems: list[str] = []
        for number, source in enumerate(settings.sources):
            if source.type in [other.type for other in settings.sources[:number]]:
                problems.append(
                    f"authorization.sources has two of the type {source.type!r}; join them into one"
                )
            elif isinstance(source, BuiltInSourceSettings):
                sources += [_asked_by(self.built_in, source)] if source.enable else []
            elif isinstance(source, OutsideSourceSettings):
                sources += [self._outside_source(source, settings)] if source.enable else []
            elif source.enable:
                file = self.file_of(source.path) if source.path else None
                sources.append(_asked_by(_file_source(source, file, problems), source))
        if problems:
            raise ConfigError(problems)
        return sources

    def trial(
        self, rules: Sequence[Rule] | None = None, settings: AuthorizationSettings | None = None
    ) -> Authorizer:
        """An authorizer with other rules of the API or other settings, which no client asks. Raises as ``use``."""
        trial = copy(self)
        if rules is not None:
            trial.built_in = RuleSet("built_in")
            trial.built_in.set(rules)
        trial.settings = settings or self.settings
        trial._sources = trial.sources_of(trial.settings)
        return trial

    def _outside_source(self, settings: Any, authorization: AuthorizationSettings) -> OutsideSource:
        existing = next((source for source in self.outside if source.settings == settings), None)
        return existing or SOURCES[type(settings)](
            settings, self._surroundings, authorization.cache.max_size
        )

    @property
    def outside(self) -> list[OutsideSource]:
        """The sources that ask an outside service."""
        return [source for source in self._sources if isinstance(source, OutsideSource)]

    @property
    def keeps_claims(self) -> bool:
        """True if a source believes names that are not verified."""
        return any(
            not entry.require_trusted_attributes for entry in self.settings.sources if entry.enable
        )

    def state_of(self, type: str) -> dict[str, BackendState] | None:
        """State of a source for users; None if there is nothing to report."""
        return next(
            ({"backend": source.backend.state} for source in self.outside if source.type == type),
            None,
        )

    def tick(self) -> None:
        """Check the services of outside sources when it is time to."""
        for source in self.outside:
            source.backend.tick()

    async def stop(self) -> None:
        """Close the connections of outside sources; returns once they are closed."""
        for source in self.outside:
            source.backend.close()
            await source.backend.closed()

    def lacks(self, subject: Subject) -> bool:
        """True if the rules of a client must first be read from an outside source."""
        return not subject.is_superuser and any(source.lacks(subject) for source in self.outside)

    def subject_of(
        self,
        attempt: ConnectAttempt,
        decision: Decision,
        roots: Callable[[str], Collection[str]],
        zone: str,
    ) -> Subject:
        """Verified facts about a client after the decision, with the names that are believed in its zone."""
        trusted = self.trusted_in(zone)
        if trusted is None:
            trusted = self.settings.trusted_client_attributes
        return subject_of(
            attempt, decision, roots=roots, trusted=trusted, keeps_claims=self.keeps_claims
        )

    async def prepared(self, decision: Decision, subject: Subject) -> Decision:
        """The decision with the rules of the client from outside sources; a denial where one must not be missing."""
        for source in self.outside:
            try:
                await source.read(subject)
            except BackendUnavailable as error:
                return source.backend.unavailable(error)
        return replace(decision, outside=subject.outside)

    async def read_again(self, subject: Subject) -> bool:
        """Read the rules of a connected client again; returns whether they changed. It keeps those of a service that
        is away."""
        is_changed = False
        for source in self.outside:
            with suppress(BackendUnavailable):
                is_changed = await source.read(subject) or is_changed
        return is_changed

    def file_of(self, source: str) -> Path:
        """Path of the file that a source names."""
        return Path(source) if self._base is None else self._base / source

    @property
    def is_active(self) -> bool:
        """True if there is anything to ask."""
        return self.settings.no_match == "deny" or any(
            not source.is_empty for source in self._sources
        )

    def restricts(self, subject: Subject) -> bool:
        """True if there is anything to ask about a client, apart from wide subscriptions."""
        return not subject.is_superuser and (self.is_active or subject.rules is not None)

    def rulings(self, subject: Subject) -> Rulings:
        """The rules for one client."""
        settings = self.settings
        no_match = _NO_RULES
        if settings.no_match is not None or self.restricts(subject):
            no_match = Ruling(settings.no_match == "allow", "no_match")
        return Rulings(subject, self._sources, no_match, settings)

    def _rulings_later(self, subject: Subject) -> Rulings:
        """The rules for a client that may be gone. Outside sources are not asked again about messages that they
        allowed when they were left."""
        if not self.outside:
            return self.rulings(subject)
        own = [source for source in self._sources if not isinstance(source, OutsideSource)]
        return Rulings(subject, own, Ruling(True, "no_match"), self.settings)

    def may_retain(self, message: Message) -> bool:
        """True if the client that published a retained message may still do so."""
        client = message.client
        return not client.client_id or self.may_still_publish(
            client, message.topic, message.qos, True
        )

    def may_still_publish(self, client: Client, topic: str, qos: int, retain: bool) -> bool:
        """True if the current rules let a client publish a message that it left behind."""
        subject = self._subject_later(client)
        return (
            not self.restricts(subject)
            or self._rulings_later(subject).publish(topic, qos, retain).is_allowed
        )

    def _subject_later(self, client: Client) -> Subject:
        """Verified facts about a client that may be gone. Where its standing is not stored, these are its names, which
        were good enough when it published."""
        standing = client.standing
        claimed: dict[str, str] = {}
        if self.keeps_claims:
            claims = {"clientid": client.client_id, "username": client.username}
            claimed = {name: text for name, text in claims.items() if text is not None}
        if standing is None:
            names = {
                "clientid": client.client_id,
                "username": client.username,
                "peerhost": client.peer_host,
            }
            attributes = {f"client_attrs.{name}": text for name, text in client.attributes.items()}
            facts = {name: text for name, text in names.items() if text is not None} | attributes
            return Subject(facts, self._is_superuser(client.username or ""))
        is_superuser = standing.is_superuser
        if standing.account is not None:
            is_superuser = self._is_superuser(standing.account[0])
        rules = (
            None
            if standing.rules is None
            else [BoundRule.restored(*rule) for rule in standing.rules]
        )
        return Subject(standing.facts, is_superuser, rules, claimed=claimed)

    def _is_superuser(self, username: str) -> bool:
        user = None if self._users is None else self._users.find(username)
        return user is not None and user.is_superuser

    def changed(self) -> None:
        """Rules of a source have changed: make it count at once."""
        was_active = self._was_active
        self._was_active = self.is_active
        if was_active and not self._was_active:
            log.warning(
                "authorization.open",
                detail="no access rule is left; authorization.no_match = deny refuses all",
            )
        self.on_change()


# Makes an outside source of its settings; the number is how many answers are remembered for a client.
SOURCES: Final[Mapping[type[Settings], Callable[[Any, Outside, int], OutsideSource]]] = {
    HttpSourceSettings: http_source,
    PostgresqlSourceSettings: sql_source,
    MysqlSourceSettings: sql_source,
    RedisSourceSettings: redis_source,
    LdapSourceSettings: ldap_source,
}


def _asked_by(
    rules: RuleSet, settings: FileSourceSettings | BuiltInSourceSettings
) -> RuleSet | BelievingRules:
    return rules if settings.require_trusted_attributes else BelievingRules(rules)


def _file_source(settings: FileSourceSettings, file: Path | None, problems: list[str]) -> RuleSet:
    source = RuleSet("file")
    written = [*settings.rules, *(() if file is None else _rules_of_file(file, problems))]
    source.set([Rule(rule, f"rule {number}", "file") for number, rule in enumerate(written, 1)])
    return source


def _rules_of_file(file: Path, problems: list[str]) -> list[RuleSettings]:
    """The rules in a file. A problem says where it is and shows nothing of the file, which may not be one of rules."""
    try:
        with file.open("rb") as opened:
            data = opened.read(_MOST_FILE_BYTES + 1)
        if len(data) > _MOST_FILE_BYTES:
            raise _NotRules(f"expected at most {_MOST_FILE_BYTES} bytes")
        values: Mapping[str, Any] = parse_text(data.decode("utf-8-sig"), str(file)).values
        rules = values.get("rules")
        if not isinstance(rules, list) or set(values) != {"rules"}:
            raise _NotRules("expected rules = [ ... ] and nothing else")
    except OSError as error:
        reason = (error.strerror or "it cannot be read").lower()
    except HoconError as error:
        reason = f"expected HOCON or JSON, got something else{f' at {error.where}' if error.where else ''}"
    except UnicodeDecodeError:
        reason = "expected UTF-8 text"
    except _NotRules as error:
        reason = str(error)
    else:
        return _rules_in(rules, file, problems)
    problems.append(f"authorization.sources: {file} cannot be used: {reason}")
    return []


def _rules_in(rules: Sequence[Any], file: Path, problems: list[str]) -> list[RuleSettings]:
    checked = []
    for number, entry in enumerate(rules, 1):
        try:
            checked.append(RuleSettings.model_validate(entry))
        except ValidationError as error:
            reason = "; ".join(
                f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in error.errors()
            )
            problems.append(f"{file}: rule {number}: {reason}")
    return checked
