"""Secrets in settings: as text, or as ``${env:NAME}`` or ``${file:PATH}``, read when they are used.

A reference is no secret: it is shown and saved as it is. A text shows as stars, and stars sent back keep what is
stored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from broker.config.secrets import MASK, Secret
from broker.core.errors import SluiceError

REFERENCE: Final = re.compile(r"\$\{(env|file):([^}]+)\}")
_LONGEST_CHARACTERS: Final = 64 * 1024


class SecretUnreadable(SluiceError):
    """The variable or file that a secret refers to is not there."""

    code = "secret_unreadable"


class SecretText(Secret):
    """The type of a settings field that holds a secret."""

    __slots__ = ()

    def reveal(self) -> str:
        """The secret as it is now. Do not keep it.

        Raises:
            SecretUnreadable: the variable or file that it refers to is not there; says which.
        """
        match = REFERENCE.fullmatch(self._text)
        if match is None:
            return self._text
        return _of_environment(match[2]) if match[1] == "env" else _of_file(match[2])

    @property
    def written(self) -> str:
        """The text as it stands in the settings, a reference or the secret itself."""
        return self._text

    @property
    def shown(self) -> str:
        """What people see of it."""
        return self._text if not self._text or REFERENCE.fullmatch(self._text) else MASK

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
        raise SecretUnreadable(f"the environment variable {name}, which the settings refer to, is not set")
    return found


def _of_file(path: str) -> str:
    try:
        with Path(path).open(encoding="utf-8") as file:
            text = file.read(_LONGEST_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "not text"
        raise SecretUnreadable(f"the file {path}, which the settings refer to, cannot be read: {why.lower()}") from None
    if len(text) > _LONGEST_CHARACTERS:
        longest = f"{_LONGEST_CHARACTERS} characters"
        raise SecretUnreadable(f"the file {path}, which the settings refer to, is longer than {longest}")
    return text.strip()


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
