"""Objects that are nothing but their settings: one call uses all of them, in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from broker.config.spec_problems import parsed
from broker.core.errors import ConfigError
from broker.core.objects import ObjectSection, Spec
from broker.core.ordered import Named, ObjectVerbs

M = TypeVar("M", bound=Named)


class SpecObjects(ObjectVerbs[M]):
    """``use`` is called with all objects, in order, when they change.

    The model has a ``name``. Read-only members of a shown object may be sent back; ``read_only`` names them.
    """

    read_only: frozenset[str] = frozenset()

    def __init__(
        self,
        kind: str,
        section: ObjectSection,
        model: type[M],
        use: Callable[[Sequence[M]], None],
        write: Callable[[M], Spec] | None = None,
    ) -> None:
        """``write`` turns an object into what is saved of it: by default all its settings."""
        self.kind = kind
        super().__init__(section, write or _written)
        self._model: type[Any] = model
        self._use = use

    def start(self) -> None:
        """Take the objects of the configuration.

        Raises:
            ConfigError: a sentence for each that cannot be used; the others are active.
        """
        if problems := self.load(self._section.load()):
            raise ConfigError(problems)

    def _compiled(self, spec: Spec) -> M:
        sent = {member: value for member, value in spec.items() if member not in self.read_only}
        item: M = parsed(self._model, sent, f"the {self.kind} cannot be saved")
        return item

    def _changed(self) -> None:
        self._use(list(self._objects))


def _written(item: Any) -> Spec:
    written: Spec = item.model_dump(mode="json", exclude_none=True)
    return written
