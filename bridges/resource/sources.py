"""The verbs people have for sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bridges.resource.contract import ProbeStep
from bridges.resource.hub import RunningSource
from bridges.resource.probe import run_probe
from bridges.resource.secret import hider
from bridges.resource.specs import SourceSpec, check_connector, shown, source_spec
from bridges.resource.verbs import ResourceService
from broker.core.objects import Reference, Spec


class SourceService(ResourceService[SourceSpec]):
    """Sources: what rules read as ``$bridges/<type>:<name>``."""

    kind = "source"

    def pause(self, name: str) -> Spec:
        """Read nothing, and stay connected."""
        self._running(name).ingress.pause()
        return self.get(name)

    def resume(self, name: str) -> Spec:
        """Read again."""
        self._running(name).ingress.resume()
        return self.get(name)

    # Counting

    def metrics(self, name: str) -> dict[str, Any]:
        """Counters and rates."""
        return self._running(name).ingress.figures.as_dict()

    def reset_metrics(self, name: str) -> None:
        """Counters back to zero."""
        self._running(name).ingress.figures.reset()

    def tick(self, now_s: float) -> None:
        """Sample the rates."""
        for running in self._hub.sources.values():
            running.ingress.figures.sample(now_s)

    # Testing

    async def _probe(self, spec: SourceSpec) -> dict[str, Any]:
        of_connector = self._hub.connector_specs[spec.connector]
        connector = self._hub.make_connector(of_connector)
        source = connector.source(spec.parameters, self._hub.context(spec.id, spec.resource_opts.health_check_timeout))

        async def look() -> str:
            await connector.close()
            await connector.open()
            await source.check()
            return "what is read is there"

        return await run_probe(connector, [ProbeStep("target", look)], hider(of_connector.parameters, spec.parameters))

    # Inside

    def _checked(self, spec: Spec) -> SourceSpec:
        checked = source_spec(spec, self._hub.registry)
        check_connector("source", checked, self._hub.connector_specs)
        return checked

    def _use(self, checked: SourceSpec) -> None:
        self._hub.put_source(checked)

    def _give_up(self, name: str) -> None:
        self._hub.remove_source(name)

    async def _switch(self, name: str, reason: str) -> None:
        await self._hub.switch_source(self._running(name), reason)

    def _users(self, spec: SourceSpec) -> Sequence[Reference]:
        return self._hub.services.contributors.users_of("source", spec.id)

    def _running(self, name: str) -> RunningSource:
        self._objects.get(name)
        return self._hub.sources[name]

    def _shown(self, name: str) -> Spec:
        running = self._hub.sources[name]
        ingress, spec = running.ingress, running.spec
        status, reason = ingress.status
        return {
            **shown(spec),
            "id": spec.id,
            "status": status,
            "status_reason": reason,
            "paused": ingress.is_paused,
            "last_error": ingress.last_error,
            "metrics": ingress.figures.as_dict(),
            "rules": [user.name for user in self._users(spec)],
        }
