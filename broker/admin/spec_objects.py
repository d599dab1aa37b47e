"""Objects that are nothing but their settings: the five verbs, and one call that puts all of them in force."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from broker.config.model import Settings
from broker.config.spec_problems import parsed
from broker.core.errors import ConfigError, Invalid
from broker.core.objects import ObjectSection, Spec
from broker.core.ordered import OrderedObjects

M = TypeVar("M", bound=Settings)


class SpecObjects(Generic[M]):
    """A ``broker.core.objects.ObjectService``. ``use`` is called with all objects, in order, when they change.

    The model has a ``name``. Read-only members of a shown object may be sent back; ``read_only`` names them.
    """

    read_only: frozenset[str] = frozenset()

    def __init__(self, kind: str, section: ObjectSection, model: type[M], use: Callable[[Sequence[M]], None]) -> None:
        self.kind = kind
        self._model, self._use, self._section = model, use, section
        self._objects: OrderedObjects[M] = OrderedObjects(kind, section, _written)

    def start(self) -> None:
        """Take the objects of the configuration.

        Raises:
            ConfigError: a sentence for each that cannot be used; the others are in force.
        """
        problems = []
        for spec in self._section.load():
            try:
                self._objects.adopt(spec["name"], self.parsed(spec))
            except Invalid as error:
                problems.append(self._objects.refusal(spec, error))
        self._use(list(self._objects))
        if problems:
            raise ConfigError(problems)

    def list(self) -> Sequence[Spec]:
        """All of them in their order."""
        return [self.shown(item) for item in self._objects]

    def get(self, name: str) -> Spec:
        """One of them; raises ``NotFound``."""
        return self.shown(self._objects.get(name))

    def create(self, spec: Spec) -> Spec:
        """Add one at the end.

        Raises:
            Invalid: with all problems.
            AlreadyExists: the name is taken.
        """
        item = self.parsed(spec)
        self._objects.check_free(spec["name"])
        return self._put(spec["name"], item)

    def replace(self, name: str, spec: Spec) -> Spec:
        """Put another in its place.

        Raises:
            Invalid: with all problems.
            ReadOnly: a file fixes it.
        """
        self._objects.check_changeable(name)
        return self._put(name, self.parsed({**spec, "name": name}))

    def delete(self, name: str) -> None:
        """Take one away; raises ``NotFound`` and ``ReadOnly``."""
        self._objects.remove(name)
        self._use(builtins.list(self._objects))

    def reorder(self, names: Sequence[str]) -> None:
        """Bring all into this order; every name must be there once."""
        self._objects.reorder(names)
        self._use(builtins.list(self._objects))

    def parsed(self, spec: Spec) -> M:
        """The object of a spec; raises ``Invalid``."""
        sent = {member: value for member, value in spec.items() if member not in self.read_only}
        return parsed(self._model, sent, f"the {self.kind} cannot be saved")

    def shown(self, item: M) -> Spec:
        """The object as people see it."""
        return _written(item)

    def _put(self, name: str, item: M) -> Spec:
        self._objects.put(name, item)
        self._use(builtins.list(self._objects))
        return self.shown(item)


def _written(item: Settings) -> Spec:
    return item.model_dump(mode="json", exclude_none=True)
