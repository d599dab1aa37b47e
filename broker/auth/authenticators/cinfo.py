"""The authenticator ``cinfo``: decides from what is known of the client alone, asking nobody."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from broker.auth.attempt import ConnectAttempt
from broker.auth.expressions import Condition, ExpressionText
from broker.config.model import Settings
from broker.observe.log import get_logger

log = get_logger(__name__)

Verdict = Literal["allow", "deny", "ignore"]


class CinfoCheck(Settings):
    """One check; the first that matches decides."""

    is_match: Annotated[
        list[ExpressionText], BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
    ] = Field(min_length=1, description="Expressions over the client that must all give exactly 'true'.")
    result: Verdict = Field(description="allow accepts, deny refuses, ignore asks the next authenticator.")


class CinfoSettings(Settings):
    """Settings of one ``cinfo`` authenticator."""

    mechanism: Literal["cinfo"]
    enable: bool = Field(default=True, description="Whether it is asked.")
    precondition: ExpressionText | None = Field(
        default=None, description="It is asked only when this gives exactly 'true'."
    )
    checks: list[CinfoCheck] = Field(min_length=1, max_length=1000, description="In order; the first match decides.")


class CinfoAuthenticator:
    """See the module."""

    def __init__(self, settings: CinfoSettings) -> None:
        self._checks = [(Condition(check.is_match), check.result) for check in settings.checks]

    def decide(self, attempt: ConnectAttempt) -> Verdict:
        """The result of the first check that matches, ``ignore`` when none does. An expression that fails matches
        nothing."""
        bindings = attempt.bindings()
        for condition, result in self._checks:
            holds, error = condition.holds(bindings)
            if error is not None:
                log.warning("authn.check_failed", mechanism="cinfo", client_id=attempt.client_id, reason=error)
            if holds:
                return result
        return "ignore"
