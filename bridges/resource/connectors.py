"""The verbs people have for connectors."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from bridges.resource.hub import Hub
from bridges.resource.probe import run_probe
from bridges.resource.secret import hider, with_stored
from bridges.resource.specs import ConnectorSpec, connector_spec, shown
from bridges.resource.stored import Stored, stored_spec
from broker.core.errors import InUse, Invalid, NotFound, Problem
from broker.core.merge_patch import merged
from broker.core.objects import ObjectSection, Spec
from broker.core.ordered import OrderedObjects


class ConnectorService:
    """A ``broker.core.objects.ObjectService`` for connectors."""

    kind = "connector"

    def __init__(self, section: ObjectSection, hub: Hub) -> None:
        self._hub = hub
        self._objects: OrderedObjects[Stored[ConnectorSpec]] = OrderedObjects(self.kind, section, lambda one: one.raw)

    def load(self, specs: Sequence[Spec]) -> list[str]:
        """Take the connectors of the configuration; gives a sentence for each that cannot be used."""
        problems: list[str] = []
        for spec in specs:
            try:
                checked = connector_spec(spec, self._hub.registry)
                self._objects.adopt(checked.name, Stored(spec, checked))
                self._hub.put_connector(checked)
            except Invalid as error:
                problems.append(self._objects.refusal(spec, error))
        return problems

    def list(self) -> Sequence[Spec]:
        return [self._shown(one.spec) for one in self._objects]

    def get(self, name: str) -> Spec:
        return self._shown(self._objects.get(name).spec)

    def create(self, spec: Spec) -> Spec:
        checked = connector_spec(spec, self._hub.registry)
        self._objects.check_free(checked.name)
        return self._put(spec, checked)

    def replace(self, name: str, spec: Spec) -> Spec:
        """Change a connector and connect anew; buffers stay. Secrets sent as stars stay."""
        self._objects.check_changeable(name)
        before = self._objects.get(name)
        sent = with_stored({**spec, "name": spec.get("name", name)}, before.raw)
        checked = connector_spec(sent, self._hub.registry)
        if (checked.name, checked.type) != (name, before.spec.type):
            text = f"expected name {name!r} and type {before.spec.type!r}"
            raise Invalid("a connector keeps its name and type", [Problem(text, "/type")])
        return self._put(sent, checked)

    def patched(self, name: str, patch: Spec) -> Spec:
        """A connector with a JSON Merge Patch (RFC 7396) applied, to be saved by ``replace``."""
        spec: Spec = merged(self._objects.get(name).raw, patch)
        return spec

    def delete(self, name: str) -> None:
        """Raises ``InUse`` while actions or sources stand on it."""
        self._objects.check_changeable(name)
        if users := [*self._users(name)]:
            raise InUse(self.kind, name, users)
        self._objects.remove(name)
        self._hub.remove_connector(name)

    # Switching

    def enable(self, name: str, enabled: bool) -> Spec:
        """Switch it on or off, also for the next start of the broker."""
        return self.replace(name, {**self._objects.get(name).raw, "enable": enabled})

    async def start(self, name: str) -> Spec:
        """Connect. Raises ``Invalid`` when it is disabled."""
        if not self._objects.get(name).spec.enable:
            raise Invalid(f"connector {name!r} is disabled; enable it")
        await self._hub.switch_connector(name, on=True)
        return self.get(name)

    async def stop(self, name: str) -> Spec:
        """Disconnect, until it is started or the broker starts anew. Buffers stay."""
        self._objects.get(name)
        await self._hub.switch_connector(name, on=False)
        return self.get(name)

    async def restart(self, name: str) -> Spec:
        """Disconnect and connect."""
        await self.stop(name)
        return await self.start(name)

    # Testing

    async def test(self, name: str) -> dict[str, Any]:
        """The step-by-step test of a saved connector, with a connection of its own."""
        return await self._probe(self._objects.get(name).spec)

    async def probe(self, spec: Spec) -> dict[str, Any]:
        """The same of a spec that need not be saved. Stars stand for the secrets of the connector of that name."""
        stored = self._objects.find(str(spec.get("name")))
        sent = with_stored({"name": "probe", **spec}, stored.raw if stored else {})
        return await self._probe(connector_spec(sent, self._hub.registry))

    def types(self) -> Sequence[dict[str, Any]]:
        """All types of connectors."""
        return self._hub.registry.described()

    async def _probe(self, spec: ConnectorSpec) -> dict[str, Any]:
        connector = self._hub.make_connector(spec)
        return await run_probe(connector, (), hider(spec.parameters))

    def _put(self, raw: Spec, checked: ConnectorSpec) -> Spec:
        self._objects.put(checked.name, Stored(stored_spec(raw), checked))
        self._hub.put_connector(checked)
        return self._shown(checked)

    def _shown(self, spec: ConnectorSpec) -> Spec:
        owner = self._hub.owners.get(spec.name)
        if owner is None:
            raise NotFound(self.kind, spec.name)
        status, reason = owner.state
        since = datetime.fromtimestamp(owner.since_ns / 1e9, UTC).isoformat(timespec="milliseconds")
        return {
            **shown(spec),
            "id": spec.id,
            "status": status if spec.enable else "disabled",
            "status_reason": reason if spec.enable else "",
            "since": since.replace("+00:00", "Z"),
            **self._hub.users_of(spec.name),
        }

    def _users(self, name: str) -> Sequence[str]:
        found = self._hub.users_of(name)
        return [f"{kind[:-1]} '{user}'" for kind, users in found.items() for user in users]
