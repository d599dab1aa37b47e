"""Authenticators and sources of rules, changed while the broker runs: one of each kind, in an order that matters.

They are settings, in ``DIR/api.hocon`` when they were set here. What ``sluice.conf`` or the environment sets is changed
there, and applied by ``sluice config reload``.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from broker.admin.named_files import file_problems
from broker.auth.chain import ALIASES, native
from broker.config.file_names import API_FILE
from broker.config.model import Settings
from broker.config.root import Config
from broker.config.secret_text import check_moved, reference_problems, with_stored
from broker.config.sections import Sections
from broker.config.spec_problems import parsed
from broker.core.errors import (
    AlreadyExists,
    ConfigError,
    Invalid,
    NotFound,
    Problem,
    ReadOnly,
    Unavailable,
)
from broker.core.objects import Spec, Version, etag_of, saving
from broker.core.signals import Signal

_DEFAULT: Final = "default"


class StoredSettings:
    """One section of settings that is changed at run time. ``check`` raises ``ConfigError`` where ``use``, which
    applies it, would."""

    def __init__(
        self,
        name: str,
        config: Config,
        sections: Sections,
        settings: Settings,
        check: Callable[[Any], object],
        use: Callable[[Any], None],
    ) -> None:
        self.name = name
        self.settings = settings
        self._sections = sections
        self._check = check
        self._use = use
        self._origin = config.origin(name)
        self.on_change = Signal[Settings]()
        """With the settings before."""

    def adopt(self, settings: Settings) -> None:
        """The configuration was read again, and is this now.

        Raises:
            ConfigError: it cannot be applied; nothing changed.
        """
        before = self.settings
        self._take(settings)
        self.on_change(before)

    def _take(self, settings: Settings) -> None:
        self._use(settings)
        self.settings = settings

    def raw(self) -> Any:
        """The section in the API's file; None if it has none."""
        file = self._sections.file
        return None if file is None else deepcopy(file.values.get(self.name))

    def change(self, value: Any, what: str) -> None:
        """Apply another value and save it.

        Raises:
            Invalid: with every problem; nothing changed.
            ReadOnly: a file or the environment sets it.
        """
        if self._origin != _DEFAULT and API_FILE not in self._origin:
            raise ReadOnly(
                f"{self.name} is set by {self._origin}; change it there, then 'sluice config reload'"
            )
        file = self._sections.file
        if file is None:
            raise Unavailable(
                "settings cannot be saved without a data directory; start with --data-dir"
            )
        settings = parsed(
            type(self.settings), _without_objects(value), f"{what} cannot be saved", tags=_TAGS
        )
        if problems := reference_problems(settings):
            raise Invalid(f"{what} cannot be saved", problems)
        try:
            self._check(settings)
        except ConfigError as error:
            problems = [Problem(text) for text in error.problems]
            raise Invalid(f"{what} cannot be applied", problems) from None
        saving(settings != self.settings)
        before = self.settings
        self._take(settings)
        try:
            file.set(self.name, value)
        except Unavailable:
            self._take(before)
            raise
        self.on_change(before)


_TAGS: Final = (
    "cinfo",
    "builtin",
    "jwt",
    "file",
    "built_in",
    "http",
    "postgresql",
    "mysql",
    "redis",
    "ldap",
)


def _without_objects(value: Any) -> Any:
    """Without the objects below the section in the same file."""
    return (
        {key: inner for key, inner in value.items() if key != "rules"}
        if isinstance(value, dict)
        else value
    )


class KindsInOrder:
    """A list of settings with one of each kind, and its verbs. ``member`` names the kind inside one; ``state_of``
    returns the state that is shown with its settings; ``file_of`` gives the file that its ``path`` names."""

    def __init__(
        self,
        kind: str,
        stored: StoredSettings,
        member: str,
        inside: str | None,
        listed: str,
        state_of: Callable[[str], Mapping[str, Any] | None] = lambda name: None,
        file_of: Callable[[str], Path] = Path,
    ) -> None:
        self.kind = kind
        self._stored = stored
        self._member = member
        self._inside = inside
        self._listed = listed
        self._state_of = state_of
        self._file_of = file_of
        self.on_delete = Signal[str]()
        """With each name of one that is gone."""
        stored.on_change.connect(self._note_deleted)

    def _note_deleted(self, before: Settings) -> None:
        existing = self._names()
        for item in getattr(before, self._listed):
            name = getattr(item, self._member)
            if name not in existing:
                for written in (name, *(alias for alias in ALIASES if ALIASES[alias] == name)):
                    self.on_delete(written)

    @staticmethod
    def canonical(name: str) -> str:
        """The name of the one that ``mechanism:backend`` means."""
        return ALIASES.get(name, name)

    def list(self) -> Sequence[Spec]:
        """All of them in their order."""
        return [self._shown(item) for item in getattr(self._stored.settings, self._listed)]

    def get(self, name: str) -> Spec:
        """The one of a kind; raises ``NotFound``."""
        return self.list()[self._at(name)]

    def saved_version(self, name: str) -> Version:
        """The version of the one of a kind."""
        return Version(etag_of(self._raw()[self._at(name)]))

    def create(self, spec: Mapping[str, Any]) -> Spec:
        """Add one at the end.

        Raises:
            AlreadyExists: there is one of its kind.
            Invalid, ReadOnly: nothing changed.
        """
        spec = native({self._member: spec.get("name"), **spec})
        name = spec[self._member]
        if name in self._names():
            raise AlreadyExists(self.kind, str(name))
        self._check_file(spec)
        self._save([*self._raw(), _plain(spec)])
        return self.get(str(name))

    def replace(self, name: str, spec: Mapping[str, Any]) -> Spec:
        """Put another in its place; raises as ``create``, and ``NotFound``."""
        at = self._at(name)
        raw = self._raw()
        self._check_file(spec)
        name = self.canonical(name)
        raw[at] = {self._member: name, **with_stored(_plain(native(spec)), raw[at])}
        before = getattr(self._stored.settings, self._listed)[at]
        with suppress(ValidationError):  # of which saving says more
            check_moved(f"the {self.kind}", spec, type(before).model_validate(raw[at]), before)
        if raw[at][self._member] != name:
            raise Invalid(
                f"the {self.kind} keeps its {self._member}",
                [Problem(f"it is {name!r}", f"/{self._member}")],
            )
        self._save(raw)
        return self.get(name)

    def delete(self, name: str) -> None:
        """Take one away; raises as ``replace``."""
        at = self._at(name)
        raw = self._raw()
        del raw[at]
        self._save(raw)

    def after(self, name: str, spec: Mapping[str, Any] | None) -> Any:
        """The settings with another of a kind in place of the one of that name; None deletes that."""
        settings = self._stored.settings
        items = {getattr(item, self._member): item for item in getattr(settings, self._listed)}
        if spec is None:
            items.pop(name, None)
        else:
            alone = type(settings).model_validate(
                {self._listed: [{self._member: name, **_plain(spec)}]}
            )
            items[name] = getattr(alone, self._listed)[0]
        return settings.model_copy(update={self._listed: list(items.values())})

    def reorder(self, names: Sequence[str]) -> None:
        """Bring all into this order; every one must be named once."""
        here = self._names()
        if sorted(names) != sorted(here):
            raise Invalid(
                "the order cannot be used",
                [Problem(f"expected each of {', '.join(here)} once", "/order")],
            )
        raw = self._raw()
        self._save([raw[here.index(name)] for name in names])

    def _check_file(self, spec: Mapping[str, Any]) -> None:
        path = spec.get("path")
        if (
            isinstance(path, str)
            and path
            and (problems := file_problems(self._file_of(path), "/path"))
        ):
            raise Invalid(f"the {self.kind} cannot be saved", problems)

    def _save(self, items: builtins.list[Spec]) -> None:
        value: Any = items
        if self._inside is not None:
            value = {**(self._stored.raw() or {}), self._inside: items}
        self._stored.change(value, f"the {self.kind}")

    def _raw(self) -> builtins.list[Spec]:
        """The items as they were written through the API: there, secrets are not masked."""
        raw = self._stored.raw()
        if self._inside is not None and isinstance(raw, dict):
            raw = raw.get(self._inside)
        if isinstance(raw, list):
            return raw
        return [
            item.model_dump(mode="json", exclude_none=True)
            for item in getattr(self._stored.settings, self._listed)
        ]

    def _names(self) -> builtins.list[str]:
        return [
            getattr(item, self._member) for item in getattr(self._stored.settings, self._listed)
        ]

    def _at(self, name: str) -> int:
        try:
            return self._names().index(self.canonical(name))
        except ValueError:
            raise NotFound(self.kind, name) from None

    def _shown(self, settings: Settings) -> Spec:
        shown = settings.model_dump(mode="json", exclude_none=True)
        state = self._state_of(shown[self._member])
        return {"name": shown[self._member], **shown, **({} if state is None else {"state": state})}


def _plain(spec: Mapping[str, Any]) -> Spec:
    """The settings without the name and the state that are shown with them."""
    return {key: value for key, value in spec.items() if key not in ("name", "state")}
