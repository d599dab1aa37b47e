"""Secrets in settings: as text, or as ``${env:NAME}`` or ``${file:PATH}``, read when they are used.

A reference is not a secret: it is shown and saved as it is, and may name what ``broker.config.allowed`` says. A string
shows as stars, and stars sent back keep what is stored, unless the secret would go to another address.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from broker.config.allowed import NotAllowed, allowed
from broker.config.secrets import AS_PASSWORD, MASK, Secret
from broker.core.errors import Invalid, Problem, SluiceError
from broker.core.placeholders import SECRET_REFERENCE

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
        match = SECRET_REFERENCE.fullmatch(self._text)
        if match is None:
            return self._text
        try:
            return _of_environment(match[2]) if match[1] == "env" else _of_file(match[2])
        except NotAllowed as error:
            raise SecretUnreadable(str(error)) from None

    @property
    def why_not_allowed(self) -> str:
        """Reason why the reference is not allowed; empty if it is allowed, or for a string."""
        match = SECRET_REFERENCE.fullmatch(self._text)
        try:
            if match is not None:
                _ = allowed().variable(match[2]) if match[1] == "env" else allowed().secret_file(match[2])
        except NotAllowed as error:
            return str(error)
        return ""

    @property
    def located(self) -> str:
        """The reference for another process of this machine: a file with its whole path.

        Raises:
            NotAllowed: the file may not be read.
        """
        match = SECRET_REFERENCE.fullmatch(self._text)
        if match is None or match[1] == "env":
            return self._text
        return f"${{file:{allowed().secret_file(match[2])}}}"

    @property
    def written(self) -> str:
        """The text as it is in the settings, a reference or the secret itself."""
        return self._text

    @property
    def shown(self) -> str:
        """Form in which users see it."""
        return self._text if not self._text or SECRET_REFERENCE.fullmatch(self._text) else MASK

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validated,
            serialization=core_schema.plain_serializer_function_ser_schema(lambda secret: secret.shown),
            json_schema_input_schema=AS_PASSWORD,
        )


def _of_environment(name: str) -> str:
    value = os.environ.get(allowed().variable(name))
    if value is None:
        raise SecretUnreadable(f"the environment variable {name}, which the settings refer to, is not set")
    return value


def _of_file(path: str) -> str:
    try:
        with allowed().secret_file(path).open(encoding="utf-8") as file:
            text = file.read(_LONGEST_CHARACTERS + 1)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise SecretUnreadable(
            f"the file {path}, which the settings refer to, cannot be read: {reason.lower()}"
        ) from None
    if len(text) > _LONGEST_CHARACTERS:
        longest = f"{_LONGEST_CHARACTERS} characters"
        raise SecretUnreadable(f"the file {path}, which the settings refer to, is longer than {longest}")
    return text.strip()


def with_stored(sent: Any, stored: Any) -> Any:
    """The value as sent, with stored secrets in place of stars."""
    if sent == MASK and isinstance(stored, str):
        return stored
    if isinstance(sent, Mapping) and isinstance(stored, Mapping):
        return {name: with_stored(value, stored.get(name)) for name, value in sent.items()}
    if isinstance(sent, list) and isinstance(stored, list):
        padded = [*stored, *[None] * len(sent)]
        return [with_stored(value, padded[at]) for at, value in enumerate(sent)]
    return sent


class _Address:
    """See ``ADDRESS``."""


# Marks a field of a settings model, as ``Annotated[str, ADDRESS]``: where the secrets of the model are sent.
ADDRESS: Final = _Address()


def values_in(value: Any, *, addresses: bool) -> Iterator[Any]:
    """Every secret, or every address, of a settings model, however deep."""
    if isinstance(value, SecretText):
        if not addresses:
            yield value
    elif isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            if addresses and ADDRESS in field.metadata:
                yield getattr(value, name)
            else:
                yield from values_in(getattr(value, name), addresses=addresses)
    elif isinstance(value, (Mapping, list, tuple)):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from values_in(item, addresses=addresses)


def secrets_in(value: Any) -> Iterator[SecretText]:
    """Every secret of a settings model."""
    return values_in(value, addresses=False)


def with_references(settings: BaseModel) -> dict[str, Any]:
    """A settings model for another process of this machine, with secrets as references.

    Raises:
        NotAllowed: a file may not be read.
    """
    references = {name: value.located for name, value in settings if isinstance(value, SecretText)}
    return {**settings.model_dump(mode="json", exclude_defaults=True), **references}


def reference_problems(model: Any, pointer: str = "") -> list[Problem]:
    """A problem for each reference of a settings model that is not allowed."""
    return [Problem(reason, pointer) for secret in secrets_in(model) if (reason := secret.why_not_allowed)]


def check_moved(what: str, sent: Any, now: Any, before: Any) -> None:
    """Stars mean the stored secret only while it is sent to the same place.

    Args:
        what: names the object in the error.
        sent: as it came, with stars.
        now: the settings model that came of it.
        before: the stored one.

    Raises:
        Invalid: an address has changed and a secret was not sent again.
    """
    if has_stars(sent) and list(values_in(now, addresses=True)) != list(values_in(before, addresses=True)):
        raise Invalid(f"{what} cannot be saved", [moved_problem()])


def moved_problem(pointer: str = "") -> Problem:
    """Problem of a secret whose address changed."""
    text = "the address changed, and the stars stand for a secret of the address before; send the secret again"
    return Problem(text, pointer)


def has_stars(sent: Any) -> bool:
    """True if stars replace a secret in the value."""
    if isinstance(sent, Mapping):
        return any(has_stars(value) for value in sent.values())
    if isinstance(sent, (list, tuple)):
        return any(has_stars(value) for value in sent)
    return isinstance(sent, str) and sent == MASK


def with_stars(raw: Any, secrets: Sequence[SecretText]) -> Any:
    """The stored value, with stars in place of these secrets."""
    hidden = {secret.written for secret in secrets if secret.shown == MASK}
    if isinstance(raw, Mapping):
        return {name: with_stars(value, secrets) for name, value in raw.items()}
    if isinstance(raw, list):
        return [with_stars(value, secrets) for value in raw]
    return MASK if isinstance(raw, str) and raw in hidden else raw
