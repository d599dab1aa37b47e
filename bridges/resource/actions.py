"""The verbs people have for actions, and for their dead letters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from bridges.resource.contract import ProbeStep
from bridges.resource.hub import RunningAction
from bridges.resource.probe import run_probe
from bridges.resource.secret import hider
from bridges.resource.specs import ActionSpec, action_spec, check_connector, shown
from bridges.resource.verbs import ResourceService
from broker.core.errors import Invalid, Unavailable
from broker.core.objects import Spec

MAX_TAKEN: Final = 100_000
_PIECE: Final = 200


class ActionService(ResourceService[ActionSpec]):
    """Actions: where rules hand rows to."""

    kind = "action"

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
        if running.action.is_paused:
            raise Invalid(f"action {name!r} is paused, so that nothing of it is sent; resume it")
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

    async def _probe(self, spec: ActionSpec) -> dict[str, Any]:
        of_connector = self._hub.connector_specs[spec.connector]
        connector = self._hub.make_connector(of_connector)
        sink = connector.sink(spec.parameters, self._hub.context(spec.id, spec.resource_opts.request_timeout))

        async def target() -> str:
            await connector.close()
            await connector.open()
            await sink.open()
            await sink.check()
            return "ready for rows"

        steps = [ProbeStep("target", target), ProbeStep("permission", sink.permission)]
        return await run_probe(connector, steps, hider(of_connector.parameters, spec.parameters), close=sink.close)

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
                    running.action.write(item.row, item.message, None)
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

    def _use(self, checked: ActionSpec) -> None:
        self._hub.put_action(checked)

    def _give_up(self, name: str) -> None:
        self._hub.remove_action(name)

    async def _switch(self, name: str, reason: str) -> None:
        await self._hub.switch_action(self._running(name), reason)

    def _users(self, spec: ActionSpec) -> Sequence[str]:
        users = [str(user) for user in self._hub.services.contributors.users_of("action", spec.id)]
        return users + [f"action '{one.spec.name}'" for one in self._objects if _falls_back_to(one.spec, spec.id)]

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
        return {
            **shown(spec),
            "id": spec.id,
            "status": action.status[0],
            "status_reason": action.status[1],
            "paused": action.is_paused,
            "dead_letters_waiting": running.letters.waiting,
            "last_error": action.last_error,
            "metrics": action.figures.as_dict(),
            "rules": [user.name for user in self._hub.services.contributors.users_of("action", spec.id)],
        }


def _falls_back_to(spec: ActionSpec, id: str) -> bool:
    return any(one.kind == "reference" and f"{one.type}:{one.name}" == id for one in spec.fallback_actions)
