"""One connector: connected, checked and reconnected, with the actions and sources that use it.

::

    disconnected ──▶ connecting ──▶ connected ──▶ disconnected ...      stopped: by a person      disabled: by its spec

A connection ends when a check fails, when an action says that nothing goes through (``broken``), or when the connector
itself notices (``Context.lost``). Then its members are ended, in which they give up what is on the way, the connector
is closed, and after a pause that doubles a new attempt is made. Buffers are not touched by any of this.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, ClassVar, Final

from bridges.resource.contract import Connector
from bridges.resource.errors import (
    BridgeError,
    ReconnectFirst,
    TargetMissing,
    TargetUnusable,
    TryAgain,
    understood,
)
from bridges.resource.figures import Figures
from bridges.resource.settings.options import ConnectorOptions
from bridges.resource.specs import ActionSpec, SourceSpec
from bridges.resource.tasks import Backoff, ended, until_set
from broker.core.action import CONNECTED, CONNECTING, DISABLED, DISCONNECTED, STOPPED
from broker.core.clock import Clock
from broker.core.errors import MissingDependency
from broker.observe.log import get_logger

_log = get_logger(__name__)

_CLOSE_S: Final = 5.0


# One of ``broker.core.action``'s states, and the reason, empty when there is nothing to say.
State = tuple[str, str]


class Member(ABC):
    """An action or a source: a name, ``<type>:<name>``, a state, and the connection it uses."""

    kind: ClassVar[str]
    pause_means: ClassVar[str]
    spec: ActionSpec | SourceSpec
    figures: Figures

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self._clock = clock
        self.supervisor: Supervisor | None = None
        """Supervisor of the connector that it uses."""
        self.is_paused = False
        self.is_elsewhere = False
        """True if it runs in another cell, ``cell``."""
        self.cell = 0
        self.last_error: dict[str, Any] | None = None
        self._seen = "", 0
        self._stopped = ""
        """Reason for which it does nothing; empty while it works."""
        self._state: State = (CONNECTING, "")
        self._hide: Callable[[str], str] = str

    @property
    def key(self) -> str:
        """Tells an action from a source of the same name: ``action kafka:orders``."""
        return f"{self.kind} {self.name}"

    @property
    def state(self) -> str:
        """The state, without its reason."""
        return self.status[0]

    @property
    def since_ns(self) -> int:
        """When it came into its state; to be asked at least once a second."""
        if (state := self.state) != self._seen[0]:
            self._seen = state, self._clock.now_ns()
        return self._seen[1]

    @property
    def status(self) -> State:
        """State and reason; never better than the connector's."""
        if not self.spec.enable:
            return DISABLED, ""
        if self.is_elsewhere:
            return STOPPED, f"cell {self.cell} runs it"
        if self._stopped:
            return STOPPED, self._stopped
        if self.supervisor is None:
            return DISCONNECTED, "its connector is missing"
        state, reason = self.supervisor.state
        if state != CONNECTED:
            return state, f"connector: {reason}" if reason else ""
        return self._own_status()

    def _own_status(self) -> State:
        """The same, while the connector is connected."""
        if self.is_paused:
            return self._state[0], self._state[1] or self.pause_means
        return self._state

    def start(self) -> None:
        """Work whenever there is a connection."""
        self._stopped = ""

    async def stop(self, reason: str) -> None:
        """Do nothing until ``start``; ``serve`` has ended."""
        self._stopped = reason
        await self.end()

    async def end(self) -> None:  # noqa: B027 - not all have tasks of their own
        """End the tasks other than ``serve``."""

    def pause(self) -> None:
        """Stay connected, and neither send nor read."""
        self.is_paused = True

    def resume(self) -> None:
        """Send or read again."""
        self.is_paused = False

    @abstractmethod
    async def serve(self) -> None:
        """Use the connection until cancelled."""

    def _unwell(self, error: BridgeError, epoch: int) -> None:
        """Take an error as the state; one of the connection has it replaced."""
        reason = self._hide(str(error))
        if isinstance(error, (TargetMissing, TargetUnusable)):
            self._state = DISCONNECTED, f"unhealthy target: {reason}"
        else:
            self._state = CONNECTING if isinstance(error, TryAgain) else DISCONNECTED, reason
        if isinstance(error, ReconnectFirst) and self.supervisor is not None:
            self.supervisor.broken(reason, epoch)

    def _note(self, error: BridgeError) -> None:
        self.last_error = {
            "text": self._hide(str(error)),
            "time_ms": self._clock.now_ns() // 1_000_000,
        }


class Supervisor:
    """Keeps one connector connected while its actions and sources use it.

    ``name`` is ``<type>:<name>``; ``make`` makes the connector of the present settings.
    """

    def __init__(
        self,
        name: str,
        options: ConnectorOptions,
        clock: Clock,
        hide: Callable[[str], str] = str,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.name = name
        self.options = options
        self.epoch = 0
        self.connector: Connector | None = None
        """The one that is connected."""
        self.state: State = (CONNECTING, "")
        self.since_ns = clock.now_ns()
        self.attempts = 0
        """To connect, that failed since the last connection."""
        self.next_attempt_ns: int | None = None
        """When the next attempt begins, while one is waited for."""
        self.members: dict[str, Member] = {}
        self.memory: dict[str, Any] = {}
        """Values that its connectors keep from one connection to the next."""
        self._serving: dict[str, asyncio.Task[None]] = {}
        self._make: Callable[[], Awaitable[Connector]]
        self._clock = clock
        self._chance = chance
        self.hide = hide
        """Takes the secrets of the settings out of a string."""
        self._broken = asyncio.Event()
        self._reason = ""
        self._task: asyncio.Task[None] | None = None
        self._proved_s = -float("inf")

    def equip(
        self,
        options: ConnectorOptions,
        make: Callable[[], Awaitable[Connector]],
        hide: Callable[[str], str],
    ) -> None:
        """Settings as they are from the next connection on; ``hide`` takes their secrets out of a string."""
        self.options = options
        self._make = make
        self.hide = hide

    # Life

    def start(self) -> None:
        """Connect, and stay connected."""
        if self._task is None:
            self._become(CONNECTING, "")
            self._task = asyncio.create_task(self._run(), name=f"connector {self.name}")

    async def stop(self, reason: str) -> None:
        """Disconnect, and stay so."""
        await self.end()
        self._become(STOPPED, reason)

    async def disable(self) -> None:
        """The same, because its spec says so."""
        await self.end()
        self._become(DISABLED, "")

    async def end(self) -> None:
        """Disconnect, without a message."""
        task = self._task
        self._task = None
        if task is not None:
            await ended(task)

    # Members

    def attach(self, member: Member) -> None:
        """Let an action or source use the connection from now on."""
        self.members[member.key] = member
        if self.connector is not None:
            self._serve(member)

    async def detach(self, key: str) -> None:
        """Let it use the connection no more."""
        self.members.pop(key, None)
        await self._end_serving(key)

    # Reports of members and of the connector

    def broken(self, reason: str, epoch: int) -> None:
        """The connection of that epoch does not work."""
        if epoch == self.epoch and self.connector is not None and not self._broken.is_set():
            self._become(DISCONNECTED, reason)
            self._broken.set()

    def lost(self, reason: str) -> None:
        """The connector noticed that its connection is gone."""
        self.broken(reason, self.epoch)

    def proved(self) -> None:
        """Something went through."""
        self._proved_s = self._clock.monotonic_s()

    # The task

    async def _run(self) -> None:
        options = self.options
        backoff = Backoff(options.reconnect_interval, options.health_check_interval, self._chance)
        try:
            while True:
                started_s = self._clock.monotonic_s()
                await self._once()
                if self._proved_s >= started_s:
                    backoff.reset()
                pause_s = backoff.pause_s()
                self.next_attempt_ns = self._clock.now_ns() + int(pause_s * 1e9)
                await asyncio.sleep(pause_s)
                self.next_attempt_ns = None
        finally:
            self.attempts = 0
            self.next_attempt_ns = None
            await self._leave(None)

    async def _once(self) -> None:
        """Connect and stay until something breaks."""
        if self.state[0] != DISCONNECTED:
            self._become(CONNECTING, "")
        connector: Connector | None = None
        try:
            connector = await self._make()
            await _within(self.options.start_timeout, connector.open(), "no connection")
            self._broken.clear()
            self.connector = connector
            self.attempts = 0
            self.epoch += 1
            self._become(CONNECTED, "")
            for member in list(self.members.values()):
                self._serve(member)
            await self._watch(connector)
        except Exception as error:  # noqa: BLE001 - whatever a connector raises is the reason why it is not connected
            self.attempts += self.connector is None
            self._become(DISCONNECTED, _reason(error))
        finally:
            await self._leave(connector)

    async def _watch(self, connector: Connector) -> None:
        """Return when the connection is broken; raise what a check says."""
        while not self._broken.is_set():
            options = self.options
            pause_s = (
                options.health_check_interval
                + options.health_check_interval_jitter * self._chance()
            )
            await until_set(self._broken, pause_s)
            if self._broken.is_set() or self._clock.monotonic_s() - self._proved_s < pause_s:
                continue
            await _within(options.health_check_timeout, connector.check(), "no answer to a check")
            self.proved()

    async def _leave(self, connector: Connector | None) -> None:
        self.connector = None
        for key in list(self._serving):
            await self._end_serving(key)
        if connector is not None:
            with suppress(Exception):
                async with asyncio.timeout(_CLOSE_S):
                    await connector.close()

    def _serve(self, member: Member) -> None:
        self._serving[member.key] = asyncio.create_task(
            member.serve(), name=f"serving {member.key}"
        )

    async def _end_serving(self, key: str) -> None:
        task = self._serving.pop(key, None)
        if task is None:
            return
        await ended(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("bridge.member_failed", member=key, error=repr(error))

    def _become(self, state: str, reason: str) -> None:
        reason = self.hide(reason)
        if (state, reason) == self.state:
            return
        before = self.state[0]
        self.state = (state, reason)
        self.since_ns = self._clock.now_ns()
        if state == CONNECTED:
            _log.info("bridge.connected", connector=self.name)
        elif state == DISCONNECTED and before != DISCONNECTED:
            _log.warning("bridge.disconnected", connector=self.name, reason=reason)
        elif state == DISCONNECTED:
            _log.debug("bridge.still_disconnected", connector=self.name, reason=reason)


async def _within(seconds: float, doing: Coroutine[Any, Any, None], failure: str) -> None:
    """Raises ``TimeoutError`` that says what did not happen in time."""
    limit = asyncio.timeout(seconds)
    try:
        async with limit:
            await doing
    except TimeoutError:
        if limit.expired():
            raise TimeoutError(f"{failure} within {seconds:g} s") from None
        raise


def _reason(error: Exception) -> str:
    cause: Any = error if isinstance(error, (BridgeError, MissingDependency)) else understood(error)
    return str(cause)
