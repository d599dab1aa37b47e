"""Client attributes: texts worked out at CONNECT from certificate, properties and expressions.

They are evaluated after client identifier and user name are settled and before authentication, and live as long as the
connection. Templates, rules, checks and transformations read them as ``client_attrs.NAME``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from pydantic import Field

from broker.auth.attempt import ConnectAttempt
from broker.auth.expressions import ExpressionText
from broker.config.model import Settings
from broker.observe.log import get_logger
from broker.observe.metrics import Metrics
from transforms.variform.compiler import compile_expression
from transforms.variform.errors import EvalError

log = get_logger(__name__)

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
MAX_BYTES = 65_535


class ClientAttributeSettings(Settings):
    """One attribute."""

    expression: ExpressionText = Field(
        description="What it is worked out from; empty text sets no attribute."
    )
    set_as_attr: str = Field(
        pattern=r"^[A-Za-z0-9]+[A-Za-z0-9\-_]*$", max_length=255, description="Its name."
    )


class ClientAttributes:
    """Works out the attributes of clients that connect; a later entry replaces an earlier one of its name.

    ``override`` is an expression that gives another client identifier, or None.
    """

    def __init__(
        self,
        settings: Sequence[ClientAttributeSettings],
        metrics: Metrics,
        override: str | None = None,
    ) -> None:
        self._entries = [
            (entry.set_as_attr, compile_expression(entry.expression)) for entry in settings
        ]
        self._override = None if override is None else compile_expression(override)
        self._failed = metrics.counter(
            "client_attributes_failed", "client attributes that could not be worked out"
        )

    def settled(self, attempt: ConnectAttempt) -> ConnectAttempt:
        """The attempt with its attributes, and under the client identifier that the override gives. Never raises."""
        if attributes := self.of(attempt):
            attempt = replace(attempt, attributes=attributes)
        if self._override is None:
            return attempt
        try:
            client_id = self._override.evaluate(attempt.bindings())
        except EvalError as error:
            self._refuse(attempt, "clientid", str(error))
            return attempt
        if (
            not client_id
            or _CONTROL.search(client_id)
            or len(client_id.encode(errors="replace")) > MAX_BYTES
        ):
            self._refuse(
                attempt, "clientid", "the value is empty, too long or has control characters"
            )
            return attempt
        return replace(attempt, client_id=client_id)

    def roots(self, name: str) -> frozenset[str]:
        """The variables that an attribute is worked out from; none for one that is not worked out here."""
        roots = [expression.roots for entry, expression in self._entries if entry == name]
        return frozenset().union(*roots)

    def of(self, attempt: ConnectAttempt) -> dict[str, str]:
        """The attributes of a client. One that cannot be worked out is left out, with a warning; never raises."""
        if not self._entries:
            return {}
        bindings = attempt.bindings()
        texts = {}
        for name, expression in self._entries:
            try:
                text = expression.evaluate(bindings)
            except EvalError as error:
                self._refuse(attempt, name, str(error))
                continue
            if _CONTROL.search(text) or len(text.encode(errors="replace")) > MAX_BYTES:
                self._refuse(attempt, name, "the value has control characters or is too long")
            elif text:
                texts[name] = text
        return texts

    def _refuse(self, attempt: ConnectAttempt, name: str, why: str) -> None:
        self._failed.value += 1
        log.warning(
            "client.attribute_not_set", client_id=attempt.client_id, attribute=name, reason=why
        )
