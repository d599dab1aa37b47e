"""The authenticator ``cinfo``: decides from the client's properties alone."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from broker.auth.attempt import ConnectAttempt
from broker.auth.decision import DENIED, IGNORED, ClientName, Decision, Verdict
from broker.auth.expressions import Condition, ExpressionText
from broker.config.model import Settings
from broker.observe.log import get_logger

log = get_logger(__name__)


class CinfoCheck(Settings):
    """One check; the first that matches decides."""

    is_match: Annotated[
        list[ExpressionText],
        BeforeValidator(lambda value: [value] if isinstance(value, str) else value),
    ] = Field(
        min_length=1, description="Expressions over the client that must all give exactly 'true'."
    )
    result: Verdict = Field(
        description="allow accepts, deny refuses, ignore asks the next authenticator."
    )
    verifies: list[ClientName] = Field(
        default_factory=list, description="With allow: the names that these expressions prove to be the client's own, "
        "`username`, `clientid`; access rules believe no others."
    )  # fmt: skip


class CinfoSettings(Settings):
    """Settings of one ``cinfo`` authenticator."""

    mechanism: Literal["cinfo"]
    enable: bool = Field(default=True, description="Whether it is asked.")
    precondition: ExpressionText | None = Field(
        default=None, description="It is asked only when this gives exactly 'true'."
    )
    checks: list[CinfoCheck] = Field(
        min_length=1, max_length=1000, description="In order; the first match decides."
    )


class CinfoAuthenticator:
    """Decides from the client's properties alone."""

    def __init__(self, settings: CinfoSettings) -> None:
        self._checks = [(Condition(check.is_match), _decision(check)) for check in settings.checks]

    def decide(self, attempt: ConnectAttempt) -> Decision:
        """The result of the first check that matches, ``ignore`` when none does. An expression that fails matches
        nothing."""
        bindings = attempt.bindings()
        for condition, decision in self._checks:
            holds, error = condition.holds(bindings)
            if error is not None:
                log.warning(
                    "authn.check_failed",
                    mechanism="cinfo",
                    client_id=attempt.client_id,
                    reason=error,
                )
            if holds:
                return decision
        return IGNORED


def _decision(check: CinfoCheck) -> Decision:
    if check.result == "allow":
        return Decision("allow", verified=frozenset(check.verifies), mechanism="cinfo")
    return DENIED if check.result == "deny" else IGNORED
