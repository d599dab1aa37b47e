"""One action: what rules hand rows to (``broker.core.action.Sink``), with its buffer, its sender and its state.

The buffer is the action's own. A sink is made for each connection and each change of the settings; it is used while the
action is *open*, which is while the connector's supervisor runs ``serve``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

from bridges.resource.contract import Sink
from bridges.resource.errors import (
    BridgeError,
    NeverAgain,
    ReconnectFirst,
    TargetMissing,
    understood,
)
from bridges.resource.figures import ActionFigures, Waiting
from bridges.resource.sending.batch import Pace, Sender
from bridges.resource.sending.buffer import Buffer
from bridges.resource.sending.dead_letters import DeadLetters
from bridges.resource.sending.fallbacks import FallbackCall
from bridges.resource.sending.item import Item
from bridges.resource.specs import ActionSpec
from bridges.resource.supervisor import Member, State
from bridges.resource.tasks import Backoff, ended, until_set
from broker.core.action import CONNECTED, CONNECTING, PushedBack, Row, Settlement, SinkDisabled
from broker.core.errors import SluiceError, Unavailable
from broker.core.feature import Services
from broker.core.message import Message
from broker.core.queue import QueueFull
from broker.observe.log import get_logger

_log = get_logger(__name__)

# A batch without an answer for so long is reported in the action's state.
SLOW_S: Final = 5.0
# Rows that wait, of which a replay adds no more.
_FEW_ROWS: Final = 2_000
_AFTER_FAULT_S: Final = 1.0
# Longest wait for requests that are aborted.
_HALT_S: Final = 10.0

_settle_of: Final = attrgetter("settle")


class Action(Member):
    """Receives rows from rules, buffers them and sends them."""

    kind = "action"
    pause_means = "paused: rows wait in the buffer"
    spec: ActionSpec
    figures: ActionFigures
    buffer: Buffer

    def __init__(self, spec: ActionSpec, services: Services) -> None:
        super().__init__(spec.id, services.node.clock)
        self.spec = spec
        self.figures = ActionFigures(services.monitoring.metrics, spec.id, self._queue)
        self.letters = DeadLetters(
            spec.id,
            spec.dead_letters,
            services.storage.queues,
            services.storage.values,
            services.node.clock,
            self.figures.dead_letters_lost,
        )
        self._spans = services.monitoring.spans
        # read for each row
        self._is_enabled = spec.enable
        self._matched = self.figures.matched
        self._fallbacks: Sequence[FallbackCall] = ()
        self._pace: Pace
        self._make_sink: Callable[[], Sink]
        self._sink: Sink | None = None
        self._sender: Sender | None = None
        self._sending: asyncio.Task[None] | None = None
        self._open = asyncio.Event()
        self._success_s = -float("inf")
        self._has_sent_back = False
        self._nudged = asyncio.Event()
        self._moved = asyncio.Event()

    def equip(
        self,
        spec: ActionSpec,
        fallbacks: Sequence[FallbackCall],
        pace: Pace,
        make_sink: Callable[[], Sink],
        hide: Callable[[str], str],
    ) -> None:
        """Settings from now on; ``hide`` takes their secrets out of a string. The caller restarts it."""
        self.spec = spec
        self.letters.options = spec.dead_letters
        self._fallbacks = fallbacks
        self._is_enabled = spec.enable
        self._pace = pace
        self._make_sink = make_sink
        self._hide = hide
        self._state = self._state[0], ""

    # For rules

    def _own_status(self) -> State:
        if self._state[0] == CONNECTED and (slow := self._slow):
            return CONNECTING, slow
        return super()._own_status()

    @property
    def _slow(self) -> str:
        """The obstacle while no answers come; empty while they do."""
        if self._sink is not None and self._sink.held_up:
            return self._hide(self._sink.held_up)
        slow_s = self._sender.slowest_s if self._sender is not None else 0.0
        return f"no answer from the target for {slow_s:.0f} s" if slow_s > SLOW_S else ""

    @property
    def has_room(self) -> bool:
        """See ``broker.core.action.Sink``."""
        bounds = self.buffer.bounds
        return (
            self.backlog < min(_FEW_ROWS, bounds.records // 2)
            and self.buffer.size_bytes < bounds.size_bytes // 2
        )

    def write(self, row: Row, message: Message, settle: Settlement | None) -> None:
        """Take a row of a rule. See ``broker.core.action.Sink``; ``settle`` is None where no one waits."""
        self._put(row, message, settle)

    def write_fallback(self, row: Row, message: Message) -> None:
        """Take a row that another action discarded. Raises as ``write``."""
        self._put(row, message, None, is_fallback=True)

    def _put(
        self, row: Row, message: Message, settle: Settlement | None, is_fallback: bool = False
    ) -> None:
        if not self._is_enabled:
            raise SinkDisabled(f"the action '{self.name}' is disabled")
        self._matched.value += 1
        if self._stopped:
            self.figures.dropped["resource_stopped"].value += 1
            self.figures.lost["resource_stopped"].value += 1
            raise Unavailable(f"the action '{self.name}' is stopped: {self._stopped}")
        try:
            self.buffer.put(row, message, settle, is_fallback)
        except SluiceError as error:
            raise self._not_taken(error, row, message, is_fallback) from None

    def _not_taken(
        self, error: SluiceError, row: Row, message: Message, is_fallback: bool
    ) -> SluiceError:
        """Count a row that the buffer did not take. Unless it is pushed back, it is discarded as those it drops."""
        figures = self.figures
        if isinstance(error, QueueFull):
            figures.dropped["queue_full"].value += 1
            text = f"the action '{self.name}' takes no more: {error}"
            if self.spec.resource_opts.overflow == "refuse":
                return PushedBack(text)
            item = Item(row, message, None, 0, self._clock.monotonic_s(), is_fallback=is_fallback)
            self._given_up((item,), 1, "queue_full", _DROPS["queue_full"])
            return Unavailable(text)
        if isinstance(error, Unavailable):
            figures.dropped["other"].value += 1
            figures.lost["other"].value += 1
        else:
            figures.failed.value += 1
            figures.lost["failed"].value += 1
        return error

    # Life

    def start(self) -> None:
        """Take rows and send them."""
        self._stopped = ""
        self._set_gate()
        if self._sending is None:
            self._sending = asyncio.create_task(self._send(), name=f"sender of {self.name}")

    async def _send(self) -> None:
        """Work the buffer off until cancelled; a fault of ours must not leave rows lying."""
        while True:
            self._sender = Sender(
                self.buffer, self._pace, self, self._clock, self.name, self._spans, self._hide
            )
            try:
                await self._sender.run()
            except Exception:  # noqa: BLE001 - a bug; what was taken is back in the buffer
                _log.exception("bridge.sender_failed", action=self.name)
                await asyncio.sleep(_AFTER_FAULT_S)

    async def end(self) -> None:
        """Send no more; requests on the way are aborted, and their rows wait with the rest."""
        sending = self._sending
        self._sending = None
        if sending is not None:
            await ended(sending)
        self._sender = None

    def pause(self) -> None:
        """Take rows and keep them in the buffer."""
        self.is_paused = True
        self._set_gate()

    def resume(self) -> None:
        """Send again."""
        self.is_paused = False
        self._set_gate()

    async def drain(self, timeout_s: float) -> int:
        """Take no more rows and send those that wait; how many are left when that takes longer. To be stopped then."""
        self._stopped = "draining: rows that wait are sent, new ones are not taken"
        return await self.emptied(timeout_s)

    async def emptied(self, timeout_s: float) -> int:
        """Wait until nothing waits or is on the way; how many rows still do when that takes longer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.backlog:
                    self._moved.clear()
                    await self._moved.wait()
        return self.backlog

    @property
    def is_open(self) -> bool:
        """True while rows are being sent."""
        return self._open.is_set()

    @property
    def backlog(self) -> int:
        """Rows that wait or are on the way."""
        return self.buffer.waiting + self.buffer.taken

    # The connection's side

    async def serve(self) -> None:
        """Open the sink and watch over it, until cancelled: called while the connector is connected."""
        assert self.supervisor is not None
        epoch = self.supervisor.epoch
        options = self.spec.resource_opts
        backoff = Backoff(options.retry_interval, options.health_check_interval)
        self._state = CONNECTING, self._state[1]  # the reason is kept until something succeeds
        sink: Sink | None = None
        try:
            while True:
                sink = sink or self._make_sink()
                if await self._is_well(sink.open, epoch):
                    break
                await self._pause(backoff.pause_s())
            self._sink = sink
            self._state = (CONNECTED, "")
            self._set_gate()
            await self._watch(sink, epoch, backoff)
        finally:
            self._sink = None
            self._set_gate()
            if self._sender is not None:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_HALT_S):
                        await self._sender.halt()
            if sink is not None:
                with suppress(Exception):
                    await sink.close()

    async def _watch(self, sink: Sink, epoch: int, backoff: Backoff) -> None:
        """Checks while nothing is sent, and more often while something is wrong."""
        while True:
            is_fine = self._state[0] == CONNECTED
            interval_s = self.spec.resource_opts.health_check_interval
            if is_fine:
                backoff.reset()
            await self._pause(interval_s if is_fine else backoff.pause_s())
            recent = self._clock.monotonic_s() - self._success_s < interval_s
            is_asked = not recent or self._state[0] != CONNECTED
            if is_asked and await self._is_well(sink.check, epoch) and not self._is_refused:
                self._state = CONNECTED, ""

    @property
    def _is_refused(self) -> bool:
        """True while rows wait that the target has sent back: a good check does not prove that they go through."""
        return self._has_sent_back and bool(self.backlog) and not self.is_paused

    async def _is_well(self, ask: Callable[[], Any], epoch: int) -> bool:
        try:
            async with asyncio.timeout(self.spec.resource_opts.health_check_timeout):
                await ask()
        except Exception as error:  # noqa: BLE001 - whatever a connector raises is its state
            self._unwell(understood(error), epoch)
            return False
        return True

    async def _pause(self, seconds: float) -> None:
        self._nudged.clear()
        await until_set(self._nudged, seconds)

    def _unwell(self, error: BridgeError, epoch: int) -> None:
        if isinstance(error, ReconnectFirst):
            self._sink = None
            self._open.clear()
        super()._unwell(error, epoch)

    def _set_gate(self) -> None:
        if self._sink is not None and not self.is_paused:
            self._open.set()
        else:
            self._open.clear()

    # Outcomes of the sender (``batch.Outcomes``)

    async def usable(self, timeout_s: float) -> Sink | None:
        """The sink once it may be used; None when that takes longer."""
        if not self._open.is_set():
            await until_set(self._open, timeout_s)
        return self._sink if self._open.is_set() else None

    def succeeded(self, items: Sequence[Item]) -> None:
        """Confirmed."""
        self.figures.success.value += len(items)
        self._success_s = self._clock.monotonic_s()
        self._has_sent_back = False
        if self._state[0] != CONNECTED and self._sink is not None:
            self._state = CONNECTED, ""
        if self.supervisor is not None:
            self.supervisor.proved()
        self.figures.retried_success.value += len([item for item in items if item.attempts])
        _settle_success(items)

    def failed(self, items: Sequence[Item], error: BridgeError) -> None:
        """Discard rows that failed."""
        self.figures.failed.value += len(items)
        self.figures.retried_failed.value += sum(1 for item in items if item.attempts > 1)
        self._note(error)
        if isinstance(error, TargetMissing) and self.supervisor is not None:
            self._unwell(error, self.supervisor.epoch)
        reason = self._hide(str(error))
        self._given_up(items, len(items), "failed", reason)
        _settle_failure(items, NeverAgain(reason))

    def dropped(self, items: Sequence[Item], count: int, reason: str) -> None:
        """Discard rows that the buffer dropped, or that expired."""
        self.figures.dropped[reason].value += count
        text = _DROPS[reason]
        if reason != "not_stored":  # which the store logs, once
            _log.warning("bridge.dropped", action=self.name, rows=count, reason=reason)
        self._given_up(items, count, reason, text)
        _settle_failure(items, Unavailable(f"the action '{self.name}' gave the row up: {text}"))

    def _given_up(self, items: Sequence[Item], count: int, cause: str, text: str) -> None:
        """Hand rows to the fallbacks, and keep them where the settings say so; those that nothing holds from now on are
        lost, unless their messages count as not stored."""
        handed_on = (
            [not item.is_fallback and self._fall_back(item) for item in items]
            if self._fallbacks
            else []
        )
        kept = self.letters.keep(items, cause, text)
        if kept:
            self.figures.dead_letters[cause].value += kept
        if cause != "not_stored":
            self.figures.lost[cause].value += count - kept - sum(handed_on[kept:])

    def _fall_back(self, item: Item) -> bool:
        """Return whether a fallback took the row."""
        is_taken = False
        for call in self._fallbacks:
            try:
                call(item.row, item.message)
                is_taken = True
            except Exception as error:  # noqa: BLE001 - one fallback must not stop the next one
                _log.warning("bridge.fallback_failed", action=self.name, reason=str(error))
        return is_taken

    def retrying(self, items: Sequence[Item], error: BridgeError) -> None:
        """To be sent again."""
        self.figures.retried.value += sum(1 for item in items if item.attempts == 1)
        self._note(error)
        self._has_sent_back = True
        if self.supervisor is not None:
            self._unwell(error, self.supervisor.epoch)
        self._nudged.set()

    def moved(self) -> None:
        """Rows have left the buffer."""
        self._moved.set()

    def late(self, count: int) -> None:
        """Count an answer for rows that were discarded before."""
        self.figures.late_reply.value += count

    def _queue(self) -> Waiting:
        """Contents of the buffer; rows that wait for an absent target count as waiting."""
        sent = 0 if self._sender is None else min(self._sender.inflight, self.buffer.taken)
        return Waiting(self.backlog - sent, self.buffer.size_bytes, sent, self._lag_s())

    def _lag_s(self) -> float | None:
        """The age of the oldest row. On disk it is known of rows that were read, which a sender does at once."""
        entered_s = self.buffer.oldest_entered_s
        if entered_s is None:
            return None if self.backlog and self._sending is None else 0.0
        return max(0.0, self._clock.monotonic_s() - entered_s) if self.backlog else 0.0


_DROPS: Final = {
    "expired": "it waited longer than request_ttl",
    "queue_full": "the buffer was full",
    "not_stored": "the store could not be written",
    "other": "the buffer was taken away",
}


def _settle_success(items: Sequence[Item]) -> None:
    """Settle rows, once for all consecutive rows with the same ``settle``."""
    for settle, of_one in groupby(items, _settle_of):
        if settle is not None:
            try:
                settle.succeeded(len(list(of_one)))
            except Exception:  # noqa: BLE001 - one that raises must not keep the others from hearing of theirs
                _log.exception("bridge.settle_failed")


def _settle_failure(items: Sequence[Item], error: Exception) -> None:
    for item in items:
        if item.settle is not None:
            try:
                item.settle.failed(item.row, item.message, error)
            except Exception:  # noqa: BLE001 - as above
                _log.exception("bridge.settle_failed")
