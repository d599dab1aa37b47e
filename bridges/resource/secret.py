"""Secrets in the settings of connectors: as text, or as ``${env:NAME}`` or ``${file:PATH}``, read when they are used.

A reference is no secret: it is shown and saved as it is. A text shows as stars, and stars sent back keep what is
stored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from bridges.resource.errors import BadSettings
from broker.config.secrets import MASK, Secret

_REFERENCE: Final = re.compile(r"\$\{(env|file):([^}]+)\}")
_LONGEST_BYTES: Final = 64 * 1024
_SHORTEST_HIDDEN: Final = 3
"""Shorter secrets are not looked for in texts: they would be found everywhere."""


class SecretText(Secret):
    """The type of a settings field that holds a secret."""

    __slots__ = ()

    def reveal(self) -> str:
        """The secret as it is now. Do not keep it.

        Raises:
            BadSettings: the variable or file that it refers to is not there.
        """
        text = self.written
        match = _REFERENCE.fullmatch(text)
        if match is None:
            return text
        return _of_environment(match[2]) if match[1] == "env" else _of_file(match[2])

    @property
    def written(self) -> str:
        """The text as it stands in the settings, a reference or the secret itself."""
        return self._text

    @property
    def shown(self) -> str:
        """What people see of it."""
        return self._text if not self._text or _REFERENCE.fullmatch(self._text) else MASK

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validated,
            serialization=core_schema.plain_serializer_function_ser_schema(lambda secret: secret.shown),
            json_schema_input_schema=core_schema.str_schema(),
        )


def _of_environment(name: str) -> str:
    found = os.environ.get(name)
    if found is None:
        raise BadSettings(f"the environment variable {name}, which the settings refer to, is not set")
    return found


def _of_file(path: str) -> str:
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(_LONGEST_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise BadSettings(f"the file {path}, which the settings refer to, cannot be read: {reason.lower()}") from None
    if len(text) > _LONGEST_BYTES:
        raise BadSettings(f"the file {path}, which the settings refer to, is longer than {_LONGEST_BYTES} characters")
    return text.strip()


def secrets_in(value: Any) -> Iterator[SecretText]:
    """Every secret of a settings model, however deep."""
    if isinstance(value, SecretText):
        yield value
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            yield from secrets_in(getattr(value, name))
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from secrets_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from secrets_in(item)


def hider(*models: Any) -> Callable[[str], str]:
    """What takes the secrets of settings out of a text: errors of libraries repeat addresses and passwords."""

    def hide(text: str) -> str:
        for model in models:
            for secret in secrets_in(model):
                text = _without(text, secret)
        return text

    return hide


def _without(text: str, secret: SecretText) -> str:
    try:
        value = secret.reveal()
    except BadSettings:
        return text
    return text.replace(value, MASK) if len(value) >= _SHORTEST_HIDDEN else text


def with_stored(sent: Any, stored: Any) -> Any:
    """What was sent, with what is stored in place of stars."""
    if sent == MASK and isinstance(stored, str):
        return stored
    if isinstance(sent, Mapping) and isinstance(stored, Mapping):
        return {name: with_stored(value, stored.get(name)) for name, value in sent.items()}
    if isinstance(sent, list) and isinstance(stored, list):
        padded = [*stored, *[None] * len(sent)]
        return [with_stored(value, padded[at]) for at, value in enumerate(sent)]
    return sent


def has_unknown_stars(model: Any) -> bool:
    """Whether a secret of a model is only stars, with nothing stored that they could stand for."""
    return any(secret.written == MASK for secret in secrets_in(model))
