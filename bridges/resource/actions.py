"""The verbs people have for actions, and for their dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from bridges.resource.contract import ProbeStep
from bridges.resource.hub import Hub, RunningAction
from bridges.resource.probe import run_probe
from bridges.resource.secret import hider, with_stored
from bridges.resource.specs import ActionSpec, action_spec, check_connector, shown
from bridges.resource.stored import Stored, stored_spec
from broker.core.errors import InUse, Invalid, Problem, SluiceError, Unavailable
from broker.core.merge_patch import merged
from broker.core.objects import ObjectSection, Spec
from broker.core.ordered import OrderedObjects

MAX_TAKEN: Final = 100_000
_PIECE: Final = 200


class ActionService:
    """A ``broker.core.objects.ObjectService`` for actions."""

    kind = "action"

    def __init__(self, section: ObjectSection, hub: Hub) -> None:
        self._hub = hub
        self._objects: OrderedObjects[Stored[ActionSpec]] = OrderedObjects(self.kind, section, lambda one: one.raw)

    def load(self, specs: Sequence[Spec]) -> list[str]:
        """Take the actions of the configuration; gives a sentence for each that cannot be used."""
        problems: list[str] = []
        for spec in specs:
            try:
                checked = self._checked(spec)
                self._hub.put_action(checked)
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
        """Change an action; what waits in its buffer stays and is sent with the new settings."""
        self._objects.check_changeable(name)
        before = self._objects.get(name)
        sent = with_stored({**spec, "name": spec.get("name", name)}, before.raw)
        checked = self._checked(sent)
        if (checked.name, checked.type) != (name, before.spec.type):
            text = f"expected name {name!r} and type {before.spec.type!r}"
            raise Invalid("an action keeps its name and type", [Problem(text, "/type")])
        return self._put(sent, checked)

    def patched(self, name: str, patch: Spec) -> Spec:
        """An action with a JSON Merge Patch (RFC 7396) applied, to be saved by ``replace``."""
        spec: Spec = merged(self._objects.get(name).raw, patch)
        return spec

    def delete(self, name: str) -> None:
        """Raises ``InUse`` while rules hand rows to it, or it is the fallback of another. What waits is dropped."""
        self._objects.check_changeable(name)
        spec = self._objects.get(name).spec
        users = [user for ask in self._hub.services.users_of_sink for user in ask(spec.id)]
        users += [f"action '{one.spec.name}'" for one in self._objects if _falls_back_to(one.spec, spec.id)]
        if users:
            raise InUse(self.kind, name, users)
        self._objects.remove(name)
        self._hub.remove_action(name)

    # Switching

    def enable(self, name: str, enabled: bool) -> Spec:
        """Switch it on or off, also for the next start of the broker. What waits stays."""
        return self.replace(name, {**self._objects.get(name).raw, "enable": enabled})

    async def start(self, name: str) -> Spec:
        """Take rows and send them."""
        await self._hub.switch_action(self._enabled(name), "")
        return self.get(name)

    async def stop(self, name: str) -> Spec:
        """Take no rows (they are dropped and counted) and send none. What waits stays."""
        await self._hub.switch_action(self._running(name), "stopped by a person")
        return self.get(name)

    async def restart(self, name: str) -> Spec:
        """Stop and start."""
        running = self._enabled(name)
        await self._hub.switch_action(running, "restarting")
        return await self.start(name)

    def pause(self, name: str) -> Spec:
        """Take rows and keep them in the buffer."""
        self._running(name).action.pause()
        return self.get(name)

    def resume(self, name: str) -> Spec:
        """Send again."""
        self._running(name).action.resume()
        return self.get(name)

    async def drain(self, name: str, timeout_s: float = 30.0) -> dict[str, Any]:
        """Take no more rows, send those that wait, then stop. Gives how many are ``left`` when time is over."""
        running = self._enabled(name)
        left = await running.action.drain(timeout_s)
        await self._hub.switch_action(running, "drained" if not left else f"drained, and {left} rows are left")
        return {"name": name, "left": left, "drained": left == 0, "status": running.action.state}

    # Counting

    def metrics(self, name: str) -> dict[str, Any]:
        """Counters, gauges and rates."""
        return self._running(name).action.figures.as_dict()

    def reset_metrics(self, name: str) -> None:
        """Counters back to zero; what waits counts as matched."""
        self._running(name).action.figures.reset()

    def tick(self, now_s: float) -> None:
        """Sample the rates."""
        for running in self._hub.actions.values():
            running.action.figures.sample(now_s)

    # Testing

    async def probe(self, spec: Spec) -> dict[str, Any]:
        """The step-by-step test of the connector of an action, and whether its target is there. Nothing is written."""
        stored = self._objects.find(str(spec.get("name")))
        sent = with_stored({"name": "probe", **spec}, stored.raw if stored else {})
        return await self._probe(self._checked(sent))

    async def test(self, name: str) -> dict[str, Any]:
        """The same of a saved action."""
        return await self._probe(self._objects.get(name).spec)

    async def _probe(self, spec: ActionSpec) -> dict[str, Any]:
        of_connector = self._hub.connector_specs[spec.connector]
        connector = self._hub.make_connector(of_connector)
        sink = connector.sink(spec.parameters, self._hub.context(spec.id, spec.resource_opts.request_timeout))

        async def look() -> str:
            await connector.close()
            await connector.open()
            try:
                await sink.open()
                await sink.check()
            finally:
                await sink.close()
            return "the target is there and may be written to"

        return await run_probe(connector, [ProbeStep("target", look)], hider(of_connector.parameters, spec.parameters))

    # Dead letters

    async def dead_letters(self, name: str, limit: int) -> dict[str, Any]:
        """The oldest dead letters, and how many there are."""
        letters = self._running(name).letters
        return {"action": name, "waiting": letters.waiting, "items": list(await letters.show(limit))}

    async def redrive(self, name: str, limit: int) -> dict[str, Any]:
        """Hand dead letters to the action once more, oldest first; one that fails again becomes a new one."""
        running = self._enabled(name)
        letters, taken, problem = running.letters, 0, None
        while taken < limit and problem is None:
            found = await letters.take(min(_PIECE, limit - taken))
            done = 0
            for _, item in found:
                try:
                    running.action.write(item.row, item.message, _nobody)
                except Unavailable as error:
                    problem = str(error)
                    break
                done += 1
            if not done:
                break
            letters.forget(done)
            await letters.committed()
            taken += done
        return {"action": name, "sent": taken, "waiting": letters.waiting, "problem": problem}

    def purge(self, name: str) -> dict[str, Any]:
        """Forget all dead letters."""
        return {"action": name, "purged": self._running(name).letters.remove()}

    # Inside

    def _put(self, raw: Spec, checked: ActionSpec) -> Spec:
        self._hub.put_action(checked)
        self._objects.put(checked.name, Stored(stored_spec(raw), checked))
        return self._shown(checked.name)

    def _running(self, name: str) -> RunningAction:
        self._objects.get(name)
        return self._hub.actions[name]

    def _enabled(self, name: str) -> RunningAction:
        running = self._running(name)
        if not running.spec.enable:
            raise Invalid(f"action {name!r} is disabled; enable it")
        return running

    def _checked(self, spec: Spec) -> ActionSpec:
        checked = action_spec(spec, self._hub.registry)
        check_connector("action", checked, self._hub.connector_specs)
        return checked

    def _shown(self, name: str) -> Spec:
        running = self._hub.actions[name]
        action, spec = running.action, running.spec
        rules = [user for ask in self._hub.services.users_of_sink for user in ask(spec.id)]
        return {
            **shown(spec),
            "id": spec.id,
            "status": action.status[0],
            "status_reason": action.status[1],
            "paused": action.is_paused,
            "dead_letters_waiting": running.letters.waiting,
            "last_error": action.last_error,
            "metrics": action.figures.as_dict(),
            "rules": [text.removeprefix("rule '").removesuffix("'") for text in rules if text.startswith("rule '")],
        }


def _falls_back_to(spec: ActionSpec, id: str) -> bool:
    return any(one.kind == "reference" and f"{one.type}:{one.name}" == id for one in spec.fallback_actions)


def _nobody(_error: Exception | None) -> None:
    """Nobody waits for what becomes of a dead letter."""
