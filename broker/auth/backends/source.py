"""Sources of rules that ask an outside service.

A source of *rows* is asked for all rules of a client when it logs in, and again at intervals while it is connected. A
source of *requests* is asked about each topic that a client publishes to or subscribes to, and its answers are
remembered for a time. While a service is away, clients keep the rules and answers that they have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from pydantic import Field, ValidationError

from broker.auth.backends.backend import (
    Backend,
    BackendSettings,
    BackendUnavailable,
    Driver,
    Outside,
)
from broker.auth.rules import Bound, BoundRule, Rule, RuleSettings, subscribe_kind
from broker.auth.subject import Subject
from broker.config.units import Duration

# Rules of one client: some milliseconds of the loop each time that they are read.
MOST_ROWS: Final = 256
# Seconds that a request stays decided by ``on_unavailable``.
_UNAVAILABLE_S: Final = 1.0
_ANY_NAME: Final = ("", "%", "$all")


class OutsideSourceSettings(BackendSettings):
    """Settings of every source of rules that asks an outside service."""

    require_trusted_attributes: bool = Field(
        default=True, description="Whether requests have only those names of a client that are verified, or listed in "
        "`trusted_client_attributes`."
    )  # fmt: skip
    refresh_interval: Duration = Field(
        default=300, ge=1, le=86_400, description="How long an answer holds; then rules of connected clients are read "
        "again, and topics are asked about again. A duration."
    )  # fmt: skip


Answer = Literal["allow", "deny", "ignore"]


class RowDriver(Driver, Protocol):
    """Asks a service for the rules of a client."""

    async def rows(self, facts: Mapping[str, str | None]) -> Sequence[Mapping[str, Any]]:
        """Rules as members by name. Raises ``BackendUnavailable``."""
        ...


class RequestDriver(Driver, Protocol):
    """Asks a service about a request of a client."""

    async def result(self, facts: Mapping[str, str | None]) -> Answer:
        """Decision of the service. Raises ``BackendUnavailable``."""
        ...


class OutsideSource:
    """A source of rules that asks a service. ``settings`` tell whether a changed configuration means the same one."""

    is_empty = False

    def __init__(
        self, type: str, settings: OutsideSourceSettings, driver: Driver, outside: Outside
    ) -> None:
        self.type = type
        self.settings = settings
        self.clock = outside.clock
        self.backend = Backend(f"source {type}", settings, driver, outside)

    def facts(self, subject: Subject) -> Mapping[str, str | None]:
        """Values of a client for templates."""
        return (
            subject.facts
            if self.settings.require_trusted_attributes
            else {**subject.claimed, **subject.facts}
        )

    def rules_for(self, subject: Subject) -> Sequence[BoundRule | AskedRules]:
        """Rules of a client, as far as they are here."""
        raise NotImplementedError

    def lacks(self, subject: Subject) -> bool:
        """True if the service must be asked before there are rules for a client."""
        raise NotImplementedError

    async def read(self, subject: Subject) -> bool:
        """Ask the service for the rules of a client; returns whether they changed. Raises ``BackendUnavailable``."""
        raise NotImplementedError


class RowSource(OutsideSource):
    """A source that is asked for all rules of a client."""

    def __init__(
        self, type: str, settings: OutsideSourceSettings, driver: RowDriver, outside: Outside
    ) -> None:
        super().__init__(type, settings, driver, outside)
        self._driver = driver

    def rules_for(self, subject: Subject) -> Sequence[BoundRule | AskedRules]:
        """Rules that were read last."""
        rules: Sequence[BoundRule] = subject.outside.get(self, ())
        return rules

    def lacks(self, subject: Subject) -> bool:
        """True if the rules were never read."""
        return self not in subject.outside

    async def read(self, subject: Subject) -> bool:
        """Read the rules of a client. Where the service is passed over while it is away, a client has none."""
        facts = self.facts(subject)
        try:
            rows = await self.backend.ask(lambda: self._driver.rows(facts))
            rules = [
                bound
                for rule in self._rules(rows)
                if (bound := rule.bind(subject.facts)) is not None
            ]
        except BackendUnavailable:
            if self.settings.on_unavailable == "deny" or not self.lacks(subject):
                raise
            rules = []
        before = subject.outside.get(self)
        subject.outside[self] = rules
        return rules != before

    def _rules(self, rows: Sequence[Mapping[str, Any]]) -> list[Rule]:
        if len(rows) > MOST_ROWS:
            raise BackendUnavailable(
                f"{self.backend.name}: expected at most {MOST_ROWS} rules for a client"
            )
        return [self._rule(row, number) for number, row in enumerate(rows, 1)]

    def _rule(self, row: Mapping[str, Any], number: int) -> Rule:
        """One that cannot be read fails all: it might be the one that denies."""
        try:
            return Rule(RuleSettings.model_validate(rule_of_row(row)), f"row {number}", self.type)
        except (ValidationError, KeyError) as error:
            detail = f"no {error}" if isinstance(error, KeyError) else str(error.errors()[0]["msg"])
            raise BackendUnavailable(
                f"{self.backend.name}: row {number} is not a rule: {detail}"
            ) from None


def rule_of_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A rule in the form of the configuration. Columns: permission, action, topic; perhaps qos, retain, ipaddress,
    username, clientid. Raises ``KeyError``."""
    columns = {name.lower(): value for name, value in row.items()}
    rule: dict[str, Any] = {"permission": columns["permission"], "topics": columns["topic"]}
    if columns.get("action") is not None:
        rule["action"] = {"pubsub": "all"}.get(columns["action"], columns["action"])
    if columns.get("qos") is not None:
        qos = columns["qos"]
        rule["qos"] = (
            [int(number) for number in str(qos).split(",")] if not isinstance(qos, list) else qos
        )
    if columns.get("retain") is not None:
        retain = columns["retain"]
        rule["retain"] = bool(int(retain)) if str(retain) in ("0", "1") else retain
    conditions = {"ipaddr": columns.get("ipaddress"), "username": columns.get("username")}
    conditions["clientid"] = columns.get("clientid")
    who = {
        name: str(value)
        for name, value in conditions.items()
        if value is not None and value not in _ANY_NAME
    }
    return {**rule, "who": who} if who else rule


class RequestSource(OutsideSource):
    """A source that is asked about each topic of a client. ``max_answers`` are remembered for a client."""

    def __init__(
        self,
        type: str,
        settings: OutsideSourceSettings,
        driver: RequestDriver,
        outside: Outside,
        max_answers: int,
    ) -> None:
        super().__init__(type, settings, driver, outside)
        self.driver = driver
        self.max_answers = max_answers

    def rules_for(self, subject: Subject) -> Sequence[BoundRule | AskedRules]:
        """Answers about the client."""
        asked: AskedRules = subject.outside.setdefault(self, AskedRules(self, subject))
        return (asked,)

    def lacks(self, subject: Subject) -> bool:
        """Never: it is asked about topics."""
        return False

    async def read(self, subject: Subject) -> bool:
        """Nothing: it is asked about topics."""
        return False


class AskedRules:
    """Answers of a service about the topics of one client."""

    def __init__(self, source: RequestSource, subject: Subject) -> None:
        self._source = source
        self._facts = source.facts(subject)
        self._answers: dict[tuple[int, str], tuple[float, BoundRule | None]] = {}

    @property
    def source_type(self) -> str:
        """Type of the source."""
        return self._source.type

    def about(self, kind: int, topic: str) -> BoundRule | Unanswered | None:
        """The answer about a request, None for no opinion."""
        answer = self._answers.get((kind, topic))
        if answer is None or self._source.clock.monotonic_s() >= answer[0]:
            return Unanswered(self, kind, topic)
        return answer[1]

    async def ask(self, kind: int, topic: str) -> None:
        """Ask the service about a request; never raises. Where it gives no answer the last one holds."""
        facts = {**self._facts, **_request(kind, topic)}
        lasts_s = self._source.settings.refresh_interval
        source = self._source
        before = self._answers.pop((kind, topic), None)
        try:
            result = await source.backend.ask(lambda: source.driver.result(facts))
            rule = (
                None if result == "ignore" else self._rule(kind, topic, is_allow=result == "allow")
            )
        except BackendUnavailable:
            lasts_s = _UNAVAILABLE_S
            is_denied = source.settings.on_unavailable == "deny"
            rule = self._rule(kind, topic, is_allow=False) if is_denied else None
            if before is not None:
                rule = before[1]
        while len(self._answers) >= source.max_answers:
            del self._answers[next(iter(self._answers))]
        self._answers[kind, topic] = (source.clock.monotonic_s() + lasts_s, rule)

    def _rule(self, kind: int, topic: str, *, is_allow: bool) -> BoundRule:
        return BoundRule(
            "answer",
            self._source.type,
            is_allow,
            1 << kind,
            (Bound(tuple(topic.split("/")), True),),
        )


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A request that a service has not been asked about, or not recently."""

    asked: AskedRules
    kind: int
    topic: str

    async def answer(self) -> None:
        """Ask; afterwards there is an answer. Never raises."""
        await self.asked.ask(self.kind, self.topic)


def _request(kind: int, topic: str) -> dict[str, str | None]:
    first_subscribe = subscribe_kind(0)
    if kind >= first_subscribe:
        return {
            "action": "subscribe",
            "topic": topic,
            "qos": str(kind - first_subscribe),
            "retain": "false",
        }
    return {
        "action": "publish",
        "topic": topic,
        "qos": str(kind >> 1),
        "retain": str(bool(kind & 1)).lower(),
    }
