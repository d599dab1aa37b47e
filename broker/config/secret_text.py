"""Secrets in settings: as text, or as ``${secret:NAME}``, ``${env:NAME}`` or ``${file:PATH}``, read when they are used.

A reference is not a secret: it is shown and saved as it is, and may name what ``broker.config.allowed`` says. A string
shows as stars, and stars sent back keep what is stored, unless the secret would go to another address. Of a URL only
the values of its query show as stars.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar
from urllib.parse import unquote_plus

from pydantic import BaseModel, GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from broker.config.allowed import NotAllowed, allowed
from broker.config.secrets import MASK, Secret, shown_as_password
from broker.config.vault import NAMED_SECRETS
from broker.core.errors import Invalid, Problem, SluiceError
from broker.core.placeholders import NAMED_SECRET, ROW_PLACEHOLDER, SECRET_REFERENCE, why_misplaced

T = TypeVar("T")
# Members in which a reference is only a word.
PROSE: Final = ("description", "sql")
_LONGEST_CHARACTERS: Final = 64 * 1024
_LONGEST_URL_CHARACTERS: Final = 16 * 1024


class SecretUnreadable(SluiceError):
    """The secret, variable or file that a reference names is not there."""

    code = "secret_unreadable"


class SecretText(Secret):
    """The type of a settings field that holds a secret."""

    __slots__ = ()

    def reveal(self) -> str:
        """The secret as it is now. Do not keep it.

        Raises:
            SecretUnreadable: what it refers to is not there; says which.
        """
        match = SECRET_REFERENCE.fullmatch(self._text)
        if match is None:
            return self._text
        try:
            return _READERS[match[1]](match[2])
        except NotAllowed as error:
            raise SecretUnreadable(str(error)) from None

    @property
    def why_not_allowed(self) -> str:
        """Reason why the reference is not allowed; empty if it is allowed, or for a string."""
        match = SECRET_REFERENCE.fullmatch(self._text)
        if match is None and (reference := NAMED_SECRET.search(self._text)) is not None:
            return f"expected {reference[0]} alone, got other text around it. Try: a secret with all of the text"
        try:
            if match is not None:
                getattr(allowed(), _CHECKS[match[1]])(match[2])
        except NotAllowed as error:
            return str(error)
        return ""

    @property
    def located(self) -> str:
        """The reference for another process of this machine: a file with its whole path, a named secret encrypted.

        Raises:
            NotAllowed: the file may not be read, or there is no such secret.
        """
        match = SECRET_REFERENCE.fullmatch(self._text)
        if match is not None and match[1] == "secret":
            return allowed().named(match[2]).reference
        if match is not None and match[1] == "file":
            return f"${{file:{allowed().secret_file(match[2])}}}"
        return self._text

    @property
    def former(self) -> str:
        """The value of a named secret before its last change, which errors of open connections may repeat."""
        match = SECRET_REFERENCE.fullmatch(self._text)
        secret = (
            NAMED_SECRETS.find(match[2]) if match is not None and match[1] == "secret" else None
        )
        return "" if secret is None or secret.former is None else secret.former.reveal()

    @property
    def written(self) -> str:
        """The text as it is in the settings, a reference or the secret itself."""
        return self._text

    @property
    def shown(self) -> str:
        """Form in which users see it."""
        return self._text if not self._text or SECRET_REFERENCE.fullmatch(self._text) else MASK

    @property
    def has_stars(self) -> bool:
        """True if stars stand where a secret is expected."""
        return self._text == MASK

    @property
    def hidden(self) -> Sequence[str]:
        """The texts that must not be shown, of a secret whose reference was read.

        Raises:
            SecretUnreadable: see ``reveal``.
        """
        return [text for text in (self.reveal(), self.former) if text and text != self.shown]

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validated,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda secret: secret.shown
            ),
            json_schema_input_schema=shown_as_password(),
        )


class SecretUrl(SecretText):
    """The type of a settings field with a URL or a path, whose query may hold secrets: each of its values is one unless
    it is empty or placeholders alone.

    The text itself is the URL, not a reference to one.
    """

    __slots__ = ()

    def reveal(self) -> str:
        """The URL."""
        return self._text

    @property
    def why_not_allowed(self) -> str:
        """Empty: it refers to nothing."""
        return ""

    @property
    def located(self) -> str:
        """The URL: it refers to nothing."""
        return self._text

    @property
    def address(self) -> str:
        """The part before the query."""
        return self._text.partition("?")[0]

    @property
    def shown(self) -> str:
        """The URL with stars in its query."""
        return _joined(
            self.address,
            [(name, MASK if literals(value) else value) for name, value in self._values],
        )

    @property
    def has_stars(self) -> bool:
        """True if stars stand for a value of the query."""
        return any(value == MASK for _, value in self._values)

    @property
    def hidden(self) -> Sequence[str]:
        """The values of the query without placeholders, as they are written and as they are meant."""
        texts = [text for _, value in self._values for text in literals(value)]
        return [*texts, *map(unquote_plus, texts)]

    def filled(self, stored: str) -> str:
        """The URL with the values of a stored one in place of stars: of the parameters with these names, in order."""
        by_name: dict[str, list[str]] = {}
        for name, value in SecretUrl(stored)._values:
            by_name.setdefault(name, []).append(value)
        left = {name: iter(values) for name, values in by_name.items()}
        values = [
            (name, next(left.get(name, iter(())), MASK) if value == MASK else value)
            for name, value in self._values
        ]
        return _joined(self.address, values)

    @property
    def _values(self) -> Sequence[tuple[str, str]]:
        """The name of each parameter, with its ``=``, and the value. One without a value is a value without a name."""
        _, mark, query = self._text.partition("?")
        parts = [(part, *part.partition("=")) for part in query.split("&")] if mark else []
        return [
            (name + "=", value) if value.strip("=") else ("", part)
            for part, name, _, value in parts
        ]

    @classmethod
    def _validated(cls, value: object) -> Secret:
        url = super()._validated(value)
        if len(url.reveal()) > _LONGEST_URL_CHARACTERS:
            raise ValueError(
                f"expected at most {_LONGEST_URL_CHARACTERS:,} characters, got {len(url.reveal()):,}"
            )
        return url

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validated,
            serialization=core_schema.plain_serializer_function_ser_schema(lambda url: url.shown),
            json_schema_input_schema=core_schema.str_schema(),
        )


def literals(template: str) -> Sequence[str]:
    """The texts around the placeholders of a template."""
    return [text for text in ROW_PLACEHOLDER.sub("\0", template).split("\0") if text]


def _joined(address: str, values: Sequence[tuple[str, str]]) -> str:
    return f"{address}?{'&'.join(name + value for name, value in values)}" if values else address


def _of_environment(name: str) -> str:
    value = os.environ.get(allowed().variable(name))
    if value is None:
        raise SecretUnreadable(
            f"the environment variable {name}, which the settings refer to, is not set"
        )
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
        raise SecretUnreadable(
            f"the file {path}, which the settings refer to, is longer than {longest}"
        )
    return text.strip()


# By the kind of a reference: what reads it, and the method of the bounds that checks it.
_READERS: Final[Mapping[str, Callable[[str], str]]] = {
    "env": _of_environment,
    "file": _of_file,
    "secret": lambda name: allowed().named(name).value.reveal(),
    "sealed": lambda reference: allowed().unsealed(reference),
}
_CHECKS: Final = {"env": "variable", "file": "secret_file", "secret": "named", "sealed": "unsealed"}


class MadeOfSecrets(Generic[T]):
    """Result of ``make``, which reads secrets; made again at the first call after a named secret changed."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._version = NAMED_SECRETS.version
        self._value = make()

    def __call__(self) -> T:
        if self._version != NAMED_SECRETS.version:
            version = NAMED_SECRETS.version
            self._value = self._make()
            self._version = version
        return self._value


def with_stored(sent: Any, stored: Any) -> Any:
    """The value as sent, with stored secrets in place of stars."""
    if isinstance(sent, str) and isinstance(stored, str):
        if sent == MASK:
            return stored
        return SecretUrl(sent).filled(stored) if MASK in sent else sent
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


class _References:
    """See ``REFERENCES``."""


# Marks a field of plain strings each of which may be a reference to a named secret.
REFERENCES: Final = _References()


def values_in(value: Any, *, addresses: bool) -> Iterator[Any]:
    """Every secret, or every address, of a settings model, however deep."""
    if isinstance(value, SecretText):
        if not addresses:
            yield value
    elif isinstance(value, BaseModel):
        for name, field in type(value).model_fields.items():
            if addresses and ADDRESS in field.metadata:
                address = getattr(value, name)
                yield address.address if isinstance(address, SecretUrl) else address
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
    return [
        Problem(reason, pointer)
        for secret in secrets_in(model)
        if (reason := secret.why_not_allowed)
    ]


def misplaced_references(value: Any, pointer: str = "") -> Iterator[Problem]:
    """A problem for each reference to a named secret in a settings model where the value would reach topics, payloads,
    logs or other systems' records."""
    members: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, SecretUrl):
        value = value.reveal()
    if isinstance(value, str):
        if (reference := NAMED_SECRET.search(value)) is not None:
            yield Problem(why_misplaced(reference[0]), pointer)
    elif isinstance(value, BaseModel):
        fields = type(value).model_fields
        members = [
            (name, member)
            for name, member in value
            if name not in PROSE and (name not in fields or REFERENCES not in fields[name].metadata)
        ]
    elif isinstance(value, Mapping):
        members = value.items()
    elif isinstance(value, (list, tuple)):
        members = enumerate(value)
    for name, member in members:
        yield from misplaced_references(member, f"{pointer}/{name}")


def named_value(text: str) -> str:
    """The text, or the value of the named secret that it is a reference to.

    Raises:
        SecretUnreadable: there is no such secret.
    """
    return SecretText(text).reveal() if NAMED_SECRET.fullmatch(text) else text


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
    if has_stars(sent) and list(values_in(now, addresses=True)) != list(
        values_in(before, addresses=True)
    ):
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
    return isinstance(sent, str) and (sent == MASK or SecretUrl(sent).has_stars)


def with_stars(raw: Any, secrets: Sequence[SecretText]) -> Any:
    """The stored value, with stars in place of these secrets."""
    shown_by_text = {secret.written: secret.shown for secret in secrets}
    if isinstance(raw, Mapping):
        return {name: with_stars(value, secrets) for name, value in raw.items()}
    if isinstance(raw, list):
        return [with_stars(value, secrets) for value in raw]
    return shown_by_text.get(raw, raw) if isinstance(raw, str) else raw
