"""Small reads of one turn of the loop, taken together.

A fleet of devices sends one message at a time, each over a connection of its own: what a read costs apart from the
message is then most of it. So small reads wait until the loop has read from all connections that have something, and
one pass takes them in the order in which they came: what is the same for all is looked up once and counted once, and
each subscriber is written to once. What is not one PUBLISH or PUBACK as fleets send them goes the way of any other
read.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from broker.connection.connection import Connection
from broker.connection.context import Context
from broker.connection.permits import FindPlan
from broker.connection.protocol.client_acknowledgements import Acknowledgements
from broker.connection.protocol.forwarding import WIDE, Forwarding
from broker.connection.protocol.publish import MOST_AT_ONCE, Publishing
from broker.connection.scheduler import LOOK_S
from broker.pipeline.plan import Plans, SessionRoutes, TopicPlan
from broker.pipeline.topic_counts import TopicCounts
from broker.session import acks

# Reads that wait at most.
_AT_ONCE: Final = 128
_QOS_0: Final = 0x30
_QOS_1: Final = 0x32
_PUBACK: Final = 0x40


def _repeats(data: bytes, head_end: int, size: int) -> bool:
    """True if there are only packets like the first one, of that size, that differ in the payload behind the head; not
    more than are taken at once."""
    head = data[:head_end]
    end = len(data)
    if end % size or end > MOST_AT_ONCE * size:
        return False
    return all(data.startswith(head, at) for at in range(size, end, size))


class Arrivals:
    """Takes small reads of connections together."""

    def __init__(
        self,
        context: Context,
        plans: Plans,
        publishing: Publishing,
        forwarding: Forwarding,
        acknowledgements: Acknowledgements,
        topic_counts: TopicCounts,
    ) -> None:
        self._context = context
        self._plans = plans
        self._publishing = publishing
        self._forwarding = forwarding
        self._acknowledgements = acknowledgements
        self._topic_counts = topic_counts
        self._waiting: list[tuple[Connection, bytes]] = []
        self._gathered: list[Connection] = []
        """With answers that wait for the current commit group."""
        self._kept: list[Connection] = []
        """Clients whose QoS 0 messages left something there."""

    def add(self, c: Connection, data: bytes) -> None:
        """Take this read with the others of the turn."""
        waiting = self._waiting
        waiting.append((c, data))
        if len(waiting) == 1:
            self._context.defer(self.take)
        elif len(waiting) == _AT_ONCE:
            self.take()

    def take(self) -> None:
        """Take all that wait, in the order in which they came; what is left when the turn's time is over, in turns to
        come.

        This is one function for the reason that ``PacketReader.read_packets`` is.
        """
        batch = self._waiting
        self._waiting = []
        if not batch:
            return
        context = self._context
        forwarding = self._forwarding
        clock = context.clock
        now_s = context.now_s
        find_any: FindPlan = self._plans.by_topic.get
        scheduler = context.scheduler
        is_known = forwarding.is_allowed() and not (
            self._topic_counts.is_on or context.restricts_publish
        )
        began_s = clock.monotonic_s()
        now_ns = clock.now_ns()
        run: list[tuple[Connection, bytes]] = []
        run_routes: SessionRoutes | None = None
        is_run_v5 = is_over = False
        read_bytes = packets = published_bytes = pubacks = answered = 0
        for arrival in batch:
            c, data = arrival
            if c.is_closed:
                continue
            size = len(data)
            plan = None
            kind = 0
            if is_known and size > 3 and c.takes_together(size):
                first = data[0]
                length = data[1]
                body = 2
                if length > 127:
                    length = length & 127 | data[2] << 7
                    body = 3
                end = body + length
                if end <= size and (length < 128) is (body == 2):
                    if first in (_QOS_0, _QOS_1):
                        topic_end = payload_at = body + 2 + (data[body] << 8 | data[body + 1])
                        permits = c.permits
                        is_v5 = c.is_v5
                        find = find_any
                        if first == _QOS_1:
                            payload_at += 2
                        if permits is not None:
                            find = permits.find if first == _QOS_0 else permits.find_qos1
                        if is_v5:
                            payload_at = (
                                size + 1
                                if payload_at >= end or data[payload_at]
                                else payload_at + 1
                            )
                        if (
                            payload_at <= end
                            and (plan := find(data[body + 2 : topic_end])) is not None
                        ):
                            routes = plan.routes
                            if len(routes.entries) > WIDE:
                                # one may take long: the other way looks at the time
                                kind = 0
                            elif end < size:
                                is_ready = plan.is_staged and not (plan.waits or plan.resolve)
                                if first == _QOS_0 and is_ready and _repeats(data, payload_at, end):
                                    kind = first
                            elif first == _QOS_1 or plan.is_staged or not routes.is_plain:
                                kind = first
                            else:
                                if routes is not run_routes or is_v5 is not is_run_v5:
                                    if run_routes is not None:
                                        forwarding.run_together(run, run_routes)
                                        run = []
                                    run_routes = routes
                                    is_run_v5 = is_v5
                                run.append(arrival)
                                c.now_ns = now_ns
                                c.bytes_in += size
                                c.packets_in += 1
                                c.messages_in += 1
                                c.deadline_s = now_s + c.silence_s
                                read_bytes += size
                                continue
                    elif first == _PUBACK and size == 4:
                        kind = _PUBACK
            if run_routes is not None:
                forwarding.run_together(run, run_routes)
                run = []
                run_routes = None
            if not is_over and (present_s := clock.monotonic_s()) - began_s > LOOK_S:
                is_over = scheduler.spend(present_s - began_s)
                began_s = present_s
            if is_over and c.is_connected and not c.is_parked:
                scheduler.give_way(c)  # what was read of it waits until it is taken up
                kind = 0
            try:
                if not kind:
                    self._seal()
                    c.take(data)
                    continue
                c.now_ns = now_ns
                c.bytes_in += size
                read_bytes += size
                if kind == _PUBACK:
                    packets += 1
                    pubacks += 1
                    self._take_puback(c, data)
                elif plan is not None:
                    if kind == _QOS_1:
                        packets += 1
                        published_bytes += size
                    answered += self._take_publish(c, plan, data, topic_end, payload_at, end)
            except Exception as error:  # noqa: BLE001  one connection's trouble must not become another's
                c.fail_reading(error)
                continue
            c.deadline_s = now_s + c.silence_s
        if run_routes is not None:
            forwarding.run_together(run, run_routes)
        self._seal()
        figures = context.figures
        figures.bytes_received.value += read_bytes
        figures.packets_received.value += packets
        figures.published_bytes_received.value += published_bytes
        if pubacks or answered:
            figures.note_pubacks(pubacks, answered)
        if (took_s := clock.monotonic_s() - began_s) > LOOK_S:
            scheduler.spend(took_s)
        context.pending_writes.flush()

    def _take_puback(self, c: Connection, data: bytes) -> None:
        if not acks.puback(c.session, data[2] << 8 | data[3]):
            self._acknowledgements.unfit(c, "PUBACK", data[2] << 8 | data[3])
        c.packets_in += 1

    def _take_publish(
        self, c: Connection, plan: TopicPlan, data: bytes, topic_end: int, payload_at: int, end: int
    ) -> int:
        """A PUBLISH that is all of a read, on a topic whose plan is known; or several of QoS 0 on that topic. Returns
        the number of PUBACKs that went the short way."""
        count = 1
        answered = 0
        is_stored = False
        if data[0] == _QOS_0:
            count, is_stored = self._publishing.take_run(c, plan, data, 0, payload_at, end)
        elif not plan.is_staged and self._forwarding.hand_on(c, plan, data, topic_end, payload_at):
            answered = 1
        else:
            self._publishing.take_qos1(c, plan, data, topic_end, payload_at)
        if c.is_closed:
            return answered
        c.packets_in += count
        c.messages_in += count
        if c.answers.waiting:
            c.answers.gather()
            self._gathered.append(c)
        if is_stored:
            self._kept.append(c)
        backpressure = c.services.backpressure
        if backpressure.fresh:
            backpressure.hold(c)
        if c.session.is_slow:
            c.hold_back_if_unread()
        return answered

    def _seal(self) -> None:
        """Deliver what was gathered, tie answers to their commit group, and wait for the store where it has too much to
        do."""
        self._forwarding.together.deliver()
        gathered = self._gathered
        if not (gathered or self._kept):
            return
        writer = self._context.writer
        if gathered:
            writer.when_committed(partial(self._committed, gathered))
            self._gathered = []
        if writer.is_congested:
            for c in (*gathered, *self._kept):
                if not c.is_closed:
                    c.services.backpressure.hold_for_store(c)
        self._kept.clear()

    @staticmethod
    def _committed(gathered: list[Connection], error: BaseException | None) -> None:
        for c in gathered:
            try:
                c.answers.committed(c, error)
            except Exception as failure:  # noqa: BLE001  one connection's trouble must not become another's
                c.fail_reading(failure)
