"""Secrets in the settings of connectors (``broker.config.secret_text``), and taking them out of texts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from bridges.resource.errors import BadSettings
from broker.config.secret_text import SecretText as SharedSecretText
from broker.config.secret_text import SecretUnreadable, SecretUrl, literals, secrets_in
from broker.config.secrets import MASK
from broker.core.placeholders import NAMED_SECRET

# Shorter secrets are not searched for in texts: they would be found everywhere. In characters.
_SHORTEST_HIDDEN: Final = 3
# The same of parts of secrets, templates and queries that are a word or a number, such as ``json`` and ``500``.
_SHORTEST_WORD_HIDDEN: Final = 8


class SecretText(SharedSecretText):
    """The type of a settings field that holds a secret."""

    __slots__ = ()

    def reveal(self) -> str:
        """The secret as it is now. Do not keep it.

        Raises:
            BadSettings: what it refers to is not there.
        """
        try:
            return super().reveal()
        except SecretUnreadable as error:
            raise BadSettings(str(error)) from None


class SecretTemplate(SecretText):
    """Type of a settings field with a template that may contain secrets in addition to its placeholders: as text, or as
    ``${secret:NAME}``.

    It is shown only if it is empty, or placeholders and references alone.
    """

    __slots__ = ()

    def reveal(self) -> str:
        """The template, with secrets in place of references to them.

        Raises:
            BadSettings: there is no such secret.
        """
        return NAMED_SECRET.sub(
            lambda match: SecretText(match[0]).reveal().replace("${", "${$}{"), self._text
        )

    @property
    def named(self) -> Sequence[SecretText]:
        """The references in it."""
        return [SecretText(match[0]) for match in NAMED_SECRET.finditer(self._text)]

    @property
    def why_not_allowed(self) -> str:
        """Reason why a reference is not allowed; empty if all are."""
        return next((reason for secret in self.named if (reason := secret.why_not_allowed)), "")

    @property
    def located(self) -> str:
        """The template, which stays in this process."""
        return self._text

    @property
    def shown(self) -> str:
        """The text that users see."""
        return MASK if literals(NAMED_SECRET.sub("", self._text)) else self._text

    @property
    def hidden(self) -> Sequence[str]:
        """The texts around placeholders and references."""
        return literals(NAMED_SECRET.sub("", self._text))


def hider(*models: Any) -> Callable[[str], str]:
    """A function that takes secrets of settings out of a string: errors of libraries repeat addresses and passwords."""

    def hide(text: str) -> str:
        for model in models:
            for secret in secrets_in(model):
                for part in (secret, *(secret.named if isinstance(secret, SecretTemplate) else ())):
                    text = _without(text, part)
        return text

    return hide


def _without(text: str, secret: SharedSecretText) -> str:
    try:
        hidden = secret.hidden
    except (BadSettings, SecretUnreadable):
        return text
    is_whole = not isinstance(secret, (SecretTemplate, SecretUrl))
    wholes = [value for value in hidden if is_whole and len(value) >= _SHORTEST_HIDDEN]
    parts = [part for value in hidden for part in (value, *value.split()) if _is_telling(part)]
    for part in sorted({*wholes, *parts}, key=len, reverse=True):
        text = text.replace(part, MASK)
    return text


def _is_telling(part: str) -> bool:
    """True unless a part of a secret is short and may be in a string for other reasons."""
    if len(part) >= _SHORTEST_WORD_HIDDEN:
        return True
    has_both = any(map(str.isalpha, part)) and any(map(str.isdigit, part))
    return has_both and len(part) >= _SHORTEST_HIDDEN


def has_unknown_stars(model: Any) -> bool:
    """True if a secret of a model is only stars, with nothing stored that they could stand for."""
    return any(secret.has_stars for secret in secrets_in(model))
