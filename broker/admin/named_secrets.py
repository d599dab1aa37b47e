"""Named secrets: values that settings refer to as ``${secret:NAME}``. They are written and never read back.

They are in ``DIR/api.hocon``, encrypted (``broker.config.vault``); this process holds the values in memory.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from pydantic import Field
from typing_extensions import TypedDict

from broker.admin.spec_objects import SpecObjects
from broker.config.model import Settings
from broker.config.names import ObjectName
from broker.config.secret_text import PROSE, secrets_in
from broker.config.secrets import MASK, Secret
from broker.config.sections import Sections
from broker.config.vault import NAMED_SECRETS, KeyUnusable, NamedSecret, Vault
from broker.core.clock import Clock
from broker.core.contributor import Change, Contributor, Uses
from broker.core.errors import ConfigError, InUse, Invalid, Problem
from broker.core.kinds import kinds, plural, reference_of
from broker.core.objects import Reference, Spec, is_deleted_too, saving
from broker.core.placeholders import NAMED_SECRET
from broker.core.signals import Signal
from broker.core.times import rfc3339

# Section of the secrets in the file of the API.
SECRETS: Final = "secrets"
# Secrets of one broker.
MAX_SECRETS: Final = 10_000
# Size of a value in UTF-8, in bytes.
MAX_VALUE_BYTES: Final = 64 * 1024
# A call in rule SQL, which needs a string in quotes.
_SIGNING: Final = re.compile(r"get_secret\s*\(\s*['\"]([^'\"]+)['\"]\s*\)")
_NOT_SAVED: Final = "the secret cannot be saved"
# Secrets that the error about a wrong key names.
_MOST_NAMED: Final = 20
_PLAIN: Final = Problem(
    "expected an encrypted secret, got plain text. Try: 'sluice secrets put', or ${env:NAME} or ${file:PATH} where it "
    "is used",
    "/value",
)


class SecretSpec(Settings):
    """A value that settings refer to by its name."""

    name: ObjectName
    value: Secret | None = Field(
        default=None,
        description="The secret itself: up to 64 KiB of text. Write-only: no answer has it. Left out, or as "
        "`******`, the stored one stays.",
        json_schema_extra={"x-first": True},
    )
    description: str = Field(
        default="", max_length=1000, description="What it opens, and who issued it."
    )
    updated_at: str | None = Field(default=None, description="Read-only; ignored.")
    encrypted: Secret | None = Field(
        default=None,
        description="The encrypted value, as the file of the API has it, instead of `value`; for files. Write-only.",
    )


class SecretView(TypedDict):
    """A secret without its value. ``used_by`` names the objects and settings that refer to it."""

    name: str
    description: str
    updated_at: str
    used_by: list[str]


class NamedSecrets(Contributor, SpecObjects[SecretSpec]):
    """The verbs of administrators. ``settings`` gives settings that may refer to secrets, besides saved objects."""

    kind = "secret"
    read_only = frozenset(("used_by",))

    def __init__(self, sections: Sections, clock: Clock, vault: Vault) -> None:
        self._sections = sections
        self._clock = clock
        self._vault = vault
        self.settings: Callable[[], Iterable[tuple[Reference, Any]]] = tuple
        self.on_changed = Signal[()]()
        """A secret was saved or deleted."""
        self._seen: tuple[int, Sequence[tuple[Reference, Any]]] = (-1, ())
        self._users: Mapping[str, Sequence[Reference]] = {}
        super().__init__(self.kind, sections.section(SECRETS), SecretSpec, self._use, _written)

    def uses(self) -> Uses:
        """Objects and settings with the secrets that they refer to."""
        users = self._all_users()
        return ((user, Reference(self.kind, name)) for name in users for user in users[name])

    def _all_users(self) -> Mapping[str, Sequence[Reference]]:
        """Objects and settings by the secret that they refer to; worked out again when one of them changed."""
        settings = list(self.settings())
        changes, seen = self._seen
        is_same = len(settings) == len(seen) and all(
            now[1] is then[1] for now, then in zip(settings, seen, strict=True)
        )
        if changes != self._sections.changes or not is_same:
            self._seen = (self._sections.changes, settings)
            users = defaultdict[str, dict[Reference, None]](dict)
            for user, names in (*self._of_objects(), *_of_settings(settings)):
                for name in names:
                    users[name][user] = None
            self._users = {name: list(references) for name, references in users.items()}
        return self._users

    def _of_objects(self) -> Iterator[tuple[Reference, Sequence[str]]]:
        by_section = {kind.section: kind for kind in kinds()}
        for section, name, (spec, names) in self._sections.found(_secrets_of):
            if (kind := by_section.get(section)) is not None:
                yield reference_of(kind, name, spec), names

    def _users_of(self, name: str) -> list[str]:
        return [str(user) for user in self._all_users().get(name, ()) if not is_deleted_too(user)]

    def consequences(self, change: Change) -> Iterator[str]:
        """The connections that end with a value which is replaced."""
        (kind, name), before, after = change.target, change.before, change.after
        if kind == self.kind and before is not None and after is not None and self._users_of(name):
            yield "Connectors that logged in with it connect again."

    def load(self, specs: Sequence[Spec]) -> list[str]:
        """Take the secrets of the configuration. Nothing is changed or deleted where the key is not theirs.

        Raises:
            ConfigError: the key is missing, or another one.
        """
        problem = ""
        lost: list[str] = []
        plain: list[str] = []
        for spec in specs:
            try:
                if "value" in spec:
                    plain.append(
                        self._objects.refusal(spec, Invalid("it cannot be used", [_PLAIN]))
                    )
                elif isinstance(spec.get("encrypted"), str):
                    self._vault.open(spec["name"], spec["encrypted"])
            except KeyUnusable as error:
                problem = problem or str(error)
                lost.append(repr(spec["name"]))
        if lost:
            more = f" and {len(lost) - _MOST_NAMED:,} more" if lost[_MOST_NAMED:] else ""
            which = f"{self.kind if len(lost) == 1 else plural(self.kind)} {', '.join(lost[:_MOST_NAMED])}{more}"
            raise ConfigError(
                [
                    f"{which} cannot be decrypted: {problem}. Try: put the key back; nothing was changed"
                ]
            )
        for _ in self._sections.found(_secrets_of):
            pass  # now, so that no request waits for the first look at many objects
        return plain + super().load([spec for spec in specs if "value" not in spec])

    def create(self, spec: Spec) -> Spec:
        """Add a secret."""
        if len(self._objects.names()) >= MAX_SECRETS:
            raise Invalid(
                "no more secrets can be kept", [Problem(f"there may be {MAX_SECRETS:,}", "/name")]
            )
        return super().create(spec)

    def delete(self, name: str) -> None:
        """Remove a secret. Raises ``InUse`` while something refers to it."""
        self._objects.check_changeable(name)
        if users := self._users_of(name):
            raise InUse(self.kind, name, users)
        super().delete(name)

    def _compiled(self, spec: Spec) -> SecretSpec:
        sent = super()._compiled(spec)
        before = self._objects.find(sent.name)
        updated_at = rfc3339(self._clock.now_ns())
        if sent.encrypted is not None and sent.encrypted.reveal() != MASK:
            try:
                value = self._vault.open(sent.name, sent.encrypted.reveal())
            except KeyUnusable as error:
                raise Invalid(_NOT_SAVED, [Problem(str(error), "/encrypted")]) from None
            return sent.model_copy(
                update={"value": Secret(value), "updated_at": sent.updated_at or updated_at}
            )
        if sent.value is None or sent.value.reveal() == MASK:
            if before is None:
                raise Invalid(
                    _NOT_SAVED, [Problem("expected the secret itself, got none", "/value")]
                )
            return before.model_copy(update={"description": sent.description})
        value = sent.value.reveal()
        if problem := _value_problem(value):
            raise Invalid(_NOT_SAVED, [Problem(problem, "/value")])
        if before is not None and before.value == sent.value:
            return before.model_copy(update={"description": sent.description})
        encrypted = Secret(self._vault.seal(sent.name, value))
        return sent.model_copy(update={"encrypted": encrypted, "updated_at": updated_at})

    def _put(self, item: SecretSpec) -> Spec:
        before = self._objects.find(item.name)
        saving(before is None or _written(before) != _written(item))
        self._vault.keep_key()
        return super()._put(item)

    def _shown(self, item: SecretSpec) -> Spec:
        return {
            "name": item.name,
            "description": item.description,
            "updated_at": item.updated_at,
            "used_by": self._users_of(item.name),
        }

    def _use(self, secrets: Sequence[SecretSpec]) -> None:
        NAMED_SECRETS.use({secret.name: self._named(secret) for secret in secrets})
        self.on_changed()

    def _named(self, secret: SecretSpec) -> NamedSecret:
        assert secret.value is not None
        assert secret.encrypted is not None
        return NamedSecret(
            secret.value, self._vault.reference(secret.name, secret.encrypted.reveal())
        )


def _of_settings(
    settings: Iterable[tuple[Reference, Any]],
) -> Iterator[tuple[Reference, Sequence[str]]]:
    return (
        (user, NAMED_SECRET.findall(secret.written))
        for user, model in settings
        for secret in secrets_in(model)
    )


def _secrets_of(spec: Spec) -> tuple[Spec, Sequence[str]] | None:
    """A spec and the secrets that it refers to; None if there are none."""
    names = [name for text in _texts(spec) for name in NAMED_SECRET.findall(text)]
    return (spec, names) if names else None


def _texts(value: Any) -> Iterator[str]:
    """The strings of a spec that are settings, however deep."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, member in value.items():
            if isinstance(member, str) and "get_secret" in member:
                yield from (f"${{secret:{secret}}}" for secret in _SIGNING.findall(member))
            if name not in PROSE:
                yield from _texts(member)
    elif isinstance(value, list):
        for member in value:
            yield from _texts(member)


def _written(item: SecretSpec) -> Spec:
    """A secret as it is saved: encrypted."""
    assert item.encrypted is not None
    return {
        "name": item.name,
        "description": item.description,
        "updated_at": item.updated_at,
        "encrypted": item.encrypted.reveal(),
    }


def _value_problem(value: str) -> str:
    """Reason why this cannot be the value of a secret; does not repeat it."""
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return "expected text in Unicode, got half of a surrogate pair"
    if not size:
        return "expected the secret itself, got an empty string"
    return (
        ""
        if size <= MAX_VALUE_BYTES
        else f"expected at most {MAX_VALUE_BYTES:,} bytes, got {size:,}"
    )
