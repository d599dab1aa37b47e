"""The verbs people have for connectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bridges.resource.probe import run_probe
from bridges.resource.secret import hider
from bridges.resource.specs import ConnectorSpec, connector_spec, shown
from bridges.resource.verbs import ResourceService
from broker.core.objects import Spec
from broker.core.times import rfc3339


class ConnectorService(ResourceService[ConnectorSpec]):
    """Connectors: connections to outside systems, which actions and sources stand on."""

    kind = "connector"

    def types(self) -> Sequence[dict[str, Any]]:
        """All types of connectors."""
        return self._hub.registry.described()

    async def _probe(self, spec: ConnectorSpec) -> dict[str, Any]:
        connector = self._hub.make_connector(spec)
        return await run_probe(connector, (), hider(spec.parameters))

    def _checked(self, spec: Spec) -> ConnectorSpec:
        return connector_spec(spec, self._hub.registry)

    def _use(self, checked: ConnectorSpec) -> None:
        self._hub.put_connector(checked)

    def _give_up(self, name: str) -> None:
        self._hub.remove_connector(name)

    async def _switch(self, name: str, reason: str) -> None:
        await self._hub.switch_connector(name, on=not reason)

    def _shown(self, name: str) -> Spec:
        owner, spec = self._hub.owners[name], self._hub.connector_specs[name]
        status, reason = owner.state
        return {
            **shown(spec),
            "id": spec.id,
            "status": status if spec.enable else "disabled",
            "status_reason": reason if spec.enable else "",
            "since": rfc3339(owner.since_ns),
            **self._hub.users_of(spec.name),
        }

    def _users(self, spec: ConnectorSpec) -> Sequence[str]:
        found = self._hub.users_of(spec.name)
        return [f"{kind[:-1]} '{user}'" for kind, users in found.items() for user in users]
