"""Authenticators in order: the first that allows or denies decides; when none does, the client is accepted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from pydantic import Field, model_validator

from broker.auth.attempt import ConnectAttempt
from broker.auth.authenticators.cinfo import CinfoAuthenticator, CinfoSettings, Verdict
from broker.auth.expressions import Condition
from broker.config.model import Settings
from broker.core import reason
from broker.observe.log import get_logger
from broker.observe.metrics import Metrics

log = get_logger(__name__)


class AuthenticationSettings(Settings):
    """Section ``authentication``: a list of authenticators."""

    takes_a_list: ClassVar[bool] = True

    chain: list[CinfoSettings] = Field(default_factory=list, description="Authenticators in the order they are asked.")

    @model_validator(mode="before")
    @classmethod
    def _from_list(cls, value: Any) -> Any:
        return {"chain": value} if isinstance(value, list) else value


class Authenticator(Protocol):
    """One link of the chain."""

    def decide(self, attempt: ConnectAttempt) -> Verdict:
        """Whether the client is accepted; never raises, never waits."""
        ...


class AuthenticatorChain:
    """The authenticators that are enabled. ``is_empty`` tells that there are none: then everybody is accepted."""

    def __init__(self, settings: AuthenticationSettings, metrics: Metrics) -> None:
        self._links: Sequence[tuple[str, Condition | None, Authenticator]] = [
            (one.mechanism, Condition([one.precondition]) if one.precondition else None, CinfoAuthenticator(one))
            for one in settings.chain
            if one.enable
        ]
        self.is_empty = not self._links
        self._allowed = metrics.counter("authentication_allowed", "clients an authenticator accepted")
        self._denied = metrics.counter("authentication_denied", "clients an authenticator refused")
        self._undecided = metrics.counter("authentication_undecided", "clients no authenticator decided over")

    def authenticate(self, attempt: ConnectAttempt) -> int:
        """0 to accept, else the reason code of MQTT 5 to refuse with."""
        for mechanism, precondition, authenticator in self._links:
            if precondition is not None:
                holds, error = precondition.holds(attempt.bindings())
                if error is not None:
                    told = {"mechanism": mechanism, "client_id": attempt.client_id}
                    log.warning("authn.precondition_failed", reason=error, **told)
                if not holds:
                    continue
            verdict = authenticator.decide(attempt)
            if verdict == "allow":
                self._allowed.value += 1
                return reason.SUCCESS
            if verdict == "deny":
                self._denied.value += 1
                log.info("authn.denied", mechanism=mechanism, client_id=attempt.client_id)
                return reason.BAD_USER_NAME_OR_PASSWORD
        self._undecided.value += not self.is_empty
        return reason.SUCCESS
