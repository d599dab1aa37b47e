"""The path from bytes to packets to their handlers: the loop that every received byte passes.

PUBLISH is read in place, without a packet object. A topic whose plan has no stages and whose subscribers differ in
nothing but QoS goes the short way (``broker.connection.protocol.forwarding``); everything else takes the way through
``broker.connection.protocol.publish``. ``benchmarks/bare.py`` holds what was measured for each choice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from broker.codec.decode import decode_packet
from broker.codec.framing import frame_at
from broker.connection.connection import Connection, Taken
from broker.connection.context import Context
from broker.connection.protocol.client_acknowledgements import Acknowledgements
from broker.connection.protocol.forwarding import WIDE, Forwarding
from broker.connection.protocol.publish import Publishing
from broker.connection.protocol.subscribe import Subscribing
from broker.connection.scheduler import LOOK_S
from broker.connection.state_machine import check_order
from broker.core import reason
from broker.core.errors import PeerError
from broker.pipeline.plan import SessionRoutes
from broker.session import acks

# Number of PUBLISH and acknowledgements taken between two looks at the time, other packets one by one. What goes the
# short way in one piece counts as one of them, and after a long step the time is checked in any case.
_LOOK_EVERY: Final = 64
# Bytes of a SUBSCRIBE or UNSUBSCRIBE from which on it is processed in several turns of the loop, if need be: what is
# below has a thousand filters at most, some 10 ms.
_LONG: Final = 4096
# The kind of packets on a topic that was never seen before: it may never be again.
_NEW: Final = object()


class PacketReader:
    """Finds the packets in the received bytes, and hands them on; implements ``broker.connection.connection.Reader``.

    ``takers`` handle the packet types that the others do not.
    """

    def __init__(
        self,
        context: Context,
        publishing: Publishing,
        forwarding: Forwarding,
        acknowledgements: Acknowledgements,
        subscribing: Subscribing,
        takers: Mapping[int, Callable[[Connection, Any], None]],
    ) -> None:
        self._context = context
        self._publishing = publishing
        self._forwarding = forwarding
        self._acknowledgements = acknowledgements
        self._long_takers = subscribing.long_takers
        self._by_identifier = acknowledgements.by_identifier
        self._takers = {**acknowledgements.takers, **subscribing.takers, **takers}

    def read_packets(self, c: Connection, data: bytes, position: int) -> Taken:
        """Handle every complete packet from ``position`` on; what was taken ends where the first incomplete one begins.

        This is one function because calls cost much here: with QoS 0 in a method of its own, packets of different sizes
        take 16 % longer, packets on alternating topics 10 % (in process, 64 in each read).

        Raises:
            PeerError: the connection has to be closed; packets before the bad one have been handled.
        """
        context = self._context
        forwarding = self._forwarding
        end = len(data)
        limit = c.max_packet_bytes
        extra = 1 if c.is_v5 else 0
        (find_plan, find_qos1, find_kind), startswith = forwarding.finders(c), data.startswith
        is_unwatched = forwarding.is_allowed()
        takes_qos1 = is_unwatched and context.settings.maximum_qos > 0
        now_s = context.clock.monotonic_s
        looks_at = _LOOK_EVERY
        scheduler = context.scheduler
        figures = context.figures
        began_s = now_s()
        look_s = began_s + (LOOK_S if scheduler.left_s > LOOK_S else scheduler.left_s)
        run_routes: SessionRoutes | None = None
        run_start = run_count = packets = messages = in_runs = pubacks = answered = (
            published_bytes
        ) = rounds = 0
        is_stored = False
        try:
            while end - position > 1:
                if rounds >= looks_at:
                    if c.is_parked:
                        break
                    looks_at = rounds + _LOOK_EVERY
                    if (present_s := now_s()) > look_s or scheduler.left_s <= 0:
                        if scheduler.spend(present_s - began_s):
                            scheduler.give_way(c)
                            break
                        began_s = present_s
                        look_s = present_s + LOOK_S
                rounds += 1
                first = data[position]
                length = data[position + 1]
                body = position + 2
                if length > 126:
                    # with one of 127 and its header, a packet is above the least maximum, 128
                    if length > 127 and body < end and 0 < data[body] < 128:
                        length = length & 127 | data[body] << 7
                        body = body + 1
                        stop = body + length
                        if stop - position > limit:
                            raise _too_large(stop - position, limit)
                    else:
                        frame = frame_at(data, position, limit)
                        if frame is None:
                            break
                        body, stop = frame
                else:
                    stop = body + length
                if stop > end:
                    c.wanted = stop - position
                    break
                if first == 0x30 and is_unwatched and body + 2 < stop:
                    topic_end = body + 2 + (data[body] << 8 | data[body + 1])
                    head_end = topic_end + extra
                    if head_end <= stop and not (extra and data[topic_end]):
                        topic = data[body + 2 : topic_end]
                        kept_plan = find_plan(topic)
                        plan = kept_plan or forwarding.plan(c, topic, first)
                        routes = plan.routes
                        if plan.is_staged:
                            if run_routes is not None:
                                in_runs += forwarding.run(
                                    c, run_routes, data[run_start:position], run_count
                                )
                                run_routes = None
                            taken, is_kept = self._publishing.take_run(
                                c, plan, data, position, head_end, stop
                            )
                            in_runs += taken
                            is_stored = is_stored or is_kept
                            position += taken * (stop - position)
                            forwarding.together.deliver()
                            if c.is_closed:
                                return Taken(end)
                            if c.is_parked:
                                break
                            looks_at = rounds
                            continue
                        if routes.is_plain:
                            if routes is not run_routes:
                                if run_routes is not None:
                                    in_runs += forwarding.run(
                                        c, run_routes, data[run_start:position], run_count
                                    )
                                    if len(run_routes.entries) > WIDE:
                                        looks_at = rounds
                                run_routes = routes
                                run_start = position
                                run_count = 0
                            # packets on one topic and of one size begin with the same bytes: no need to read them again
                            size = stop - position
                            head = data[position:head_end]
                            head_size = head_end - position
                            position = stop
                            run_count = run_count + 1
                            last = end - size
                            while position <= last and startswith(head, position):
                                position += size
                                run_count += 1
                            kind = find_kind(head) or (
                                forwarding.remember_head(c, head, routes, size)
                                if kept_plan
                                else _NEW
                            )
                            while (
                                position <= last
                                and find_kind(data[position : position + head_size]) is kind
                            ):
                                position += size
                                run_count += 1
                            continue
                if run_routes is not None:
                    in_runs += forwarding.run(c, run_routes, data[run_start:position], run_count)
                    run_routes = None
                if (
                    first == 0x40
                    and length == 2
                    and (acked := acks.puback_run(c.session, data, position)) > position
                ):
                    pubacks += (acked - position) // 4
                    packets += (acked - position) // 4
                    position = acked
                    continue
                packets += 1
                if first == 0x40 and length == 2:
                    pubacks += 1
                    if not acks.puback(c.session, data[body] << 8 | data[body + 1]):
                        self._acknowledgements.unfit(c, "PUBACK", data[body] << 8 | data[body + 1])
                elif first & 0xF0 == 0x30:
                    published_bytes += stop - position
                    messages += 1
                    if (
                        first == 0x32
                        and takes_qos1
                        and (wide := forwarding.qos1(c, find_qos1, data, position, body, stop))
                    ):
                        answered += 1
                        if wide > WIDE:
                            looks_at = rounds
                    else:
                        is_stored = self._publishing.take(c, first, data, body, stop) or is_stored
                        if c.is_parked:
                            position = stop
                            break
                        looks_at = rounds
                elif (
                    length == 2
                    and first in self._by_identifier
                    and data[body : body + 2] != b"\0\0"
                ):
                    figures.received_by_type[first >> 4].value += 1
                    self._by_identifier[first](c, data[body] << 8 | data[body + 1])
                else:
                    self._take_other(c, first, data, body, stop)
                    looks_at = rounds
                if c.is_closed:
                    return Taken(end)
                position = stop
        finally:
            if run_routes is not None:
                in_runs += forwarding.run(c, run_routes, data[run_start:position], run_count)
            figures.packets_received.value += packets
            if published_bytes:
                figures.published_bytes_received.value += published_bytes
            if pubacks or answered:
                figures.note_pubacks(pubacks, answered)
        if (took_s := now_s() - began_s) > LOOK_S and scheduler.spend(took_s) and not c.is_parked:
            # the system may have more of this client to read in the same turn
            scheduler.give_way(c)
        if c.session.is_slow:
            c.hold_back_if_unread()
        return Taken(position, packets + in_runs, messages + in_runs, is_stored)

    def _take_other(self, c: Connection, first: int, data: bytes, body: int, stop: int) -> None:
        """Take a packet that is neither a PUBLISH nor a plain acknowledgement.

        Raises:
            PeerError: it breaks the protocol.
        """
        packet_type = first >> 4
        received_by_type = self._context.figures.received_by_type
        take_long = (
            self._long_takers.get(first & (0xFF if c.version > 3 else 0xF6))
            if stop - body > _LONG
            else None
        )
        if take_long is not None:
            received_by_type[packet_type].value += 1
            take_long(c, data, body, stop)
            return
        packet = decode_packet(first, data, body, stop, c.version)
        check_order(c.phase, packet_type)
        received_by_type[packet_type].value += 1
        self._takers[packet_type](c, packet)


def _too_large(size: int, limit: int) -> PeerError:
    return PeerError(
        reason.PACKET_TOO_LARGE, f"a packet of {size} bytes is larger than the maximum of {limit}"
    )
