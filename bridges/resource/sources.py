"""The verbs people have for sources."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bridges.resource.contract import ProbeStep
from bridges.resource.hub import Hub, RunningSource
from bridges.resource.probe import run_probe
from bridges.resource.secret import hider, with_stored
from bridges.resource.specs import SourceSpec, check_connector, shown, source_spec
from bridges.resource.stored import Stored, stored_spec
from broker.core.errors import InUse, Invalid, Problem, SluiceError
from broker.core.merge_patch import merged
from broker.core.objects import ObjectSection, Spec
from broker.core.ordered import OrderedObjects


class SourceService:
    """A ``broker.core.objects.ObjectService`` for sources."""

    kind = "source"

    def __init__(self, section: ObjectSection, hub: Hub) -> None:
        self._hub = hub
        self._objects: OrderedObjects[Stored[SourceSpec]] = OrderedObjects(self.kind, section, lambda one: one.raw)

    def load(self, specs: Sequence[Spec]) -> list[str]:
        """Take the sources of the configuration; gives a sentence for each that cannot be used."""
        problems: list[str] = []
        for spec in specs:
            try:
                checked = self._checked(spec)
                self._hub.put_source(checked)
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
        """Change a source; it goes on where it stood."""
        self._objects.check_changeable(name)
        before = self._objects.get(name)
        sent = with_stored({**spec, "name": spec.get("name", name)}, before.raw)
        checked = self._checked(sent)
        if (checked.name, checked.type) != (name, before.spec.type):
            text = f"expected name {name!r} and type {before.spec.type!r}"
            raise Invalid("a source keeps its name and type", [Problem(text, "/type")])
        return self._put(sent, checked)

    def patched(self, name: str, patch: Spec) -> Spec:
        """A source with a JSON Merge Patch (RFC 7396) applied, to be saved by ``replace``."""
        spec: Spec = merged(self._objects.get(name).raw, patch)
        return spec

    def delete(self, name: str) -> None:
        """Raises ``InUse`` while rules read it. Where it stood is forgotten."""
        self._objects.check_changeable(name)
        spec = self._objects.get(name).spec
        users = [user for ask in self._hub.services.users_of_source for user in ask(spec.id)]
        if users:
            raise InUse(self.kind, name, users)
        self._objects.remove(name)
        self._hub.remove_source(name)

    # Switching

    def enable(self, name: str, enabled: bool) -> Spec:
        """Switch it on or off, also for the next start of the broker."""
        return self.replace(name, {**self._objects.get(name).raw, "enable": enabled})

    async def start(self, name: str) -> Spec:
        """Read."""
        running = self._running(name)
        if not running.spec.enable:
            raise Invalid(f"source {name!r} is disabled; enable it")
        await self._hub.switch_source(running, "")
        return self.get(name)

    async def stop(self, name: str) -> Spec:
        """Read no more, until it is started or the broker starts anew."""
        await self._hub.switch_source(self._running(name), "stopped by a person")
        return self.get(name)

    async def restart(self, name: str) -> Spec:
        """Stop and start."""
        await self._hub.switch_source(self._running(name), "restarting")
        return await self.start(name)

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

    async def probe(self, spec: Spec) -> dict[str, Any]:
        """The step-by-step test of the connector of a source, and whether what it reads is there. Nothing is read."""
        stored = self._objects.find(str(spec.get("name")))
        return await self._probe(self._checked(with_stored({"name": "probe", **spec}, stored.raw if stored else {})))

    async def test(self, name: str) -> dict[str, Any]:
        """The same of a saved source."""
        return await self._probe(self._objects.get(name).spec)

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

    def _put(self, raw: Spec, checked: SourceSpec) -> Spec:
        self._hub.put_source(checked)
        self._objects.put(checked.name, Stored(stored_spec(raw), checked))
        return self._shown(checked.name)

    def _running(self, name: str) -> RunningSource:
        self._objects.get(name)
        return self._hub.sources[name]

    def _shown(self, name: str) -> Spec:
        running = self._hub.sources[name]
        ingress, spec = running.ingress, running.spec
        status, reason = ingress.status
        rules = [user for ask in self._hub.services.users_of_source for user in ask(spec.id)]
        return {
            **shown(spec),
            "id": spec.id,
            "status": status,
            "status_reason": reason,
            "paused": ingress.is_paused,
            "last_error": ingress.last_error,
            "metrics": ingress.figures.as_dict(),
            "rules": [text.removeprefix("rule '").removesuffix("'") for text in rules],
        }
