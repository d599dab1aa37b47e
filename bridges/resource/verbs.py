"""What people can do with connectors, actions and sources alike: list, make, change, switch and test them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

from bridges.resource.hub import Hub
from bridges.resource.specs import ActionSpec, ConnectorSpec, SourceSpec
from bridges.resource.stored import Stored, stored_spec
from broker.config.secret_text import check_moved, secrets_in, with_stars, with_stored
from broker.core.errors import InUse, Invalid, Problem, SluiceError
from broker.core.merge_patch import merged
from broker.core.objects import ObjectSection, Spec
from broker.core.ordered import OrderedObjects

S = TypeVar("S", ConnectorSpec, ActionSpec, SourceSpec)


class ResourceService(ABC, Generic[S]):
    """A ``broker.core.objects.ObjectService``; each kind says how its objects are checked, set to work and shown."""

    kind: ClassVar[str]

    def __init__(self, section: ObjectSection, hub: Hub) -> None:
        self._hub = hub
        self._objects: OrderedObjects[Stored[S]] = OrderedObjects(self.kind, section, lambda one: one.raw)

    def load(self, specs: Sequence[Spec]) -> list[str]:
        """Take the objects of the configuration; gives a sentence for each that cannot be used."""
        problems: list[str] = []
        for spec in specs:
            try:
                checked = self._checked(spec)
                self._use(checked)
                self._objects.adopt(checked.name, Stored(spec, checked))
            except SluiceError as error:
                problems.append(self._objects.refusal(spec, error))
        return problems

    def list(self) -> Sequence[Spec]:
        return [self._shown(one.spec.name) for one in self._objects]

    def get(self, name: str) -> Spec:
        return self._shown(self._objects.get(name).spec.name)

    def create(self, spec: Spec) -> Spec:
        checked = self._checked(spec)
        self._objects.check_free(checked.name)
        return self._put(spec, checked)

    def replace(self, name: str, spec: Spec) -> Spec:
        """Change one. It goes on with the new settings: buffers and places stay, secrets sent as stars too."""
        self._objects.check_changeable(name)
        before = self._objects.get(name)
        sent = with_stored({**spec, "name": spec.get("name", name)}, before.raw)
        checked = self._checked(sent)
        if (checked.name, checked.type) != (name, before.spec.type):
            text = f"expected name {name!r} and type {before.spec.type!r}"
            raise Invalid(f"{self.kind} {name!r} keeps its name and type", [Problem(text, "/type")])
        check_moved(f"{self.kind} {name!r}", spec, checked.parameters, before.spec.parameters)
        return self._put(sent, checked)

    def patched(self, name: str, patch: Spec) -> Spec:
        """One with a JSON Merge Patch (RFC 7396) applied, to be saved by ``replace``."""
        before = self._objects.get(name)
        spec: Spec = merged(with_stars(before.raw, list(secrets_in(before.spec.parameters))), patch)
        return spec

    def delete(self, name: str) -> None:
        """Raises ``InUse`` while others need it. What waits in its buffer, or where it stood, is forgotten."""
        self._objects.check_changeable(name)
        if users := self._users(self._objects.get(name).spec):
            raise InUse(self.kind, name, users)
        self._objects.remove(name)
        self._give_up(name)

    # Switching

    def enable(self, name: str, enabled: bool) -> Spec:
        """Switch it on or off, also for the next start of the broker. What waits stays."""
        return self.replace(name, {**self._objects.get(name).raw, "enable": enabled})

    async def start(self, name: str) -> Spec:
        """Set it to work. Raises ``Invalid`` when it is disabled."""
        if not self._objects.get(name).spec.enable:
            raise Invalid(f"{self.kind} {name!r} is disabled; enable it")
        await self._switch(name, "")
        return self.get(name)

    async def stop(self, name: str) -> Spec:
        """Stop it until it is started or the broker restarts. Buffered rows stay; new rows are dropped."""
        self._objects.get(name)
        await self._switch(name, "stopped by a person")
        return self.get(name)

    async def restart(self, name: str) -> Spec:
        """Stop and start."""
        if self._objects.get(name).spec.enable:
            await self._switch(name, "restarting")
        return await self.start(name)

    # Testing

    async def probe(self, spec: Spec) -> dict[str, Any]:
        """The step-by-step test of a spec that need not be saved; stars stand for the secrets of the one of that name.
        Nothing is written or read."""
        stored = self._objects.find(str(spec.get("name")))
        sent = with_stored({"name": "probe", **spec}, stored.raw if stored else {})
        checked = self._checked(sent)
        if stored is not None:
            check_moved(f"{self.kind} {checked.name!r}", spec, checked.parameters, stored.spec.parameters)
        return await self._probe(checked)

    async def test(self, name: str) -> dict[str, Any]:
        """The same of a saved one, with a connection of its own."""
        return await self._probe(self._objects.get(name).spec)

    # What a kind says

    @abstractmethod
    def _checked(self, spec: Spec) -> S:
        """The spec understood. Raises ``Invalid`` with every problem."""

    @abstractmethod
    def _use(self, checked: S) -> None:
        """Set it to work, in place of the one of that name."""

    @abstractmethod
    def _give_up(self, name: str) -> None:
        """It is deleted."""

    @abstractmethod
    async def _switch(self, name: str, reason: str) -> None:
        """Stop it for that reason; start it when there is none."""

    @abstractmethod
    async def _probe(self, spec: S) -> dict[str, Any]:
        """The step-by-step test."""

    @abstractmethod
    def _shown(self, name: str) -> Spec:
        """What people see of it."""

    @abstractmethod
    def _users(self, spec: S) -> Sequence[object]:
        """Who needs it, as texts."""

    def _put(self, raw: Spec, checked: S) -> Spec:
        self._use(checked)
        self._objects.put(checked.name, Stored(stored_spec(raw), checked))
        return self._shown(checked.name)
