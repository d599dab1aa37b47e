"""A durable session as the store keeps it: several values, since its window changes often, the rest rarely."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import replace as replace_member

from broker.core import stored
from broker.core.client import Client, Proof, Standing
from broker.core.stored import StoredMessage
from broker.core.subscription import Subscription
from broker.core.topic import SHARE_PREFIXES, TopicFilter
from broker.session import backlog
from broker.session.delivery import Claim, Delivery, SharedDelivery
from broker.session.log_queue import LogQueue
from broker.session.session import Session
from broker.session.state import DEFAULT_ZONE, SessionState
from broker.session.will import Will

_VERSION: Final = 1


class _Flight(msgspec.Struct, array_like=True, frozen=True):
    """One delivery in flight; ``offset`` is its place in the session log, ``claim`` that of a share group's."""

    packet_id: int
    offset: int
    qos: int
    retain: bool
    is_released: bool
    identifiers: tuple[int, ...]
    claim: tuple[str, int, int, int] | None = None


class _Will(StoredMessage):
    """A will as the message that it becomes."""

    delay_s: int
    standing: Standing | None = None


def _will_of_0_2_0(
    topic: str,
    payload: bytes,
    qos: int,
    retain: bool,
    delay_s: int,
    properties: dict[str, Any],
    username: str | None = None,
    protocol_version: int = 0,
) -> tuple[Any, ...]:
    client = "", username, None, None, "", protocol_version
    return client, topic, 0, payload, qos, retain, False, properties, (), None, delay_s  # fmt: skip


class _Session(msgspec.Struct, array_like=True, frozen=True):
    """``ends_at_ns`` is 0 while the session is connected or never ends; ``is_connected`` distinguishes the two. Records
    of earlier releases have no ``proof``: the session belongs to the user name in them.
    """

    version: int
    expiry_s: int
    is_connected: bool
    ends_at_ns: int
    position: int
    next_id: int
    flights: list[_Flight]
    username: str | None
    protocol_version: int
    will: None
    will_at_ns: int
    away_since_ns: int = 0
    maybe_sent_below: int = 0
    zone: str = DEFAULT_ZONE
    proof: int | None = None
    account: tuple[str, str] | None = None


class _Subscription(msgspec.Struct, array_like=True, frozen=True):
    filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    retain_handling: int
    identifier: int
    since_offset: int
    is_replayed: bool = False


class _Subscriptions(msgspec.Struct, array_like=True, frozen=True):
    version: int
    items: list[_Subscription]


_encode = msgspec.msgpack.Encoder().encode
_decode_will = stored.decoder(_Will, "a will", _will_of_0_2_0)
_decode_session = msgspec.msgpack.Decoder(_Session).decode
_decode_subscriptions = msgspec.msgpack.Decoder(_Subscriptions).decode


def encode_session(session: SessionState, log_next: int) -> bytes:
    """All of a session but its subscriptions and its will; ``log_next`` is the session log's next offset."""
    return _encode(
        _Session(
            _VERSION,
            session.expiry_s,
            not session.is_away,
            session.ends_at_ns,
            backlog.position(session, log_next),
            session.window.next_id,
            [
                _Flight(
                    packet_id, d.offset, d.qos, d.retain, d.is_released, d.identifiers, _claim_of(d)
                )
                for packet_id, d in session.window.inflight.items()
                if d.offset >= 0
                or d.is_released
                or _claim_of(d) is not None  # others could not be sent again
            ],
            session.client.username,
            session.client.protocol_version,
            None,
            session.will_at_ns,
            session.away_since_ns,
            session.maybe_sent_below,
            session.zone,
            int(session.client.proof),
            None if session.client.standing is None else session.client.standing.account,
        )
    )


def _claim_of(delivery: Delivery) -> Claim | None:
    return delivery.claim if isinstance(delivery, SharedDelivery) else None


def encode_subscriptions(session: SessionState) -> bytes:
    """The subscriptions of a session."""
    return _encode(
        _Subscriptions(
            _VERSION,
            [
                _Subscription(
                    s.filter.text, s.qos, s.no_local, s.retain_as_published, s.retain_handling, s.identifier,
                    s.since_offset, s.is_replayed,
                )
                for s in session.subscriptions.values()
            ],
        )
    )  # fmt: skip


def encode_will(will: Will) -> bytes:
    """Encode a will with the client that left it."""
    return stored.encode(will.message(0), will.delay_s, will.client.standing)


def decode_will(value: bytes, client_id: str) -> Will:
    """Inverse of ``encode_will``."""
    record = _decode_will(value)
    message = record.message()
    client = replace(message.client, client_id=client_id, standing=record.standing)
    properties = dict(message.properties or {})
    return Will(
        message.topic,
        message.payload,
        message.qos,
        message.retain,
        client,
        record.delay_s,
        properties,
    )


def restore_session(session: Session, value: bytes) -> bool:
    """Fill a new session from its record; returns whether it was connected when the record was made.

    Deliveries in flight come back without their message, which the session log holds at their offset.
    """
    record = _decode_session(value)
    proof = (
        Proof(record.proof)
        if record.proof is not None
        else Proof.LOGIN
        if record.username
        else Proof.NOTHING
    )
    standing = None if record.account is None else Standing({}, record.account)
    client = Client(
        session.client_id,
        record.username,
        protocol_version=record.protocol_version,
        proof=proof,
        standing=standing,
    )
    session.client = client
    session.is_v5 = record.protocol_version == 5
    session.expiry_s = record.expiry_s
    session.ends_at_ns = record.ends_at_ns
    session.will_at_ns = record.will_at_ns
    session.away_since_ns = record.away_since_ns
    session.maybe_sent_below = record.maybe_sent_below
    session.zone = record.zone
    inflight = {}
    for flight in record.flights:
        if flight.claim is not None:
            delivery: Delivery = SharedDelivery.restored(
                flight.claim, flight.qos, flight.retain, flight.identifiers
            )
        else:
            delivery = Delivery(None, flight.qos, flight.retain, flight.identifiers, flight.offset)
        delivery.is_released = flight.is_released
        inflight[flight.packet_id] = delivery
    session.window.inflight = inflight
    session.window.next_id = record.next_id
    session.log = LogQueue(record.position, is_behind=True)
    return record.is_connected


class Needs(NamedTuple):
    """Records of logs that a stored session needs: the session log from ``position`` on and at ``offsets``, and the
    messages of share groups that it has in flight."""

    position: int
    offsets: list[int]
    claims: list[Claimed]


class Claimed(NamedTuple):
    """A message of a share group in flight; its content is no longer needed where it ``is_released``."""

    packet_id: int
    claim: Claim
    is_released: bool


def needs_of(value: bytes) -> Needs:
    """Records of logs that the session of a record needs."""
    record = _decode_session(value)
    return Needs(
        record.position,
        [flight.offset for flight in record.flights if flight.claim is None and flight.offset >= 0],
        [
            Claimed(flight.packet_id, flight.claim, flight.is_released)
            for flight in record.flights
            if flight.claim is not None
        ],
    )


def moved_session(
    value: bytes,
    offset_of: Callable[[int], int],
    copy_of: Callable[[int], int | None],
    claimed: Mapping[int, int],
    claim_of: Callable[[Claim], Claim | None],
) -> bytes:
    """The record of a session whose log is another one from now on.

    Args:
        value: the record.
        offset_of: gives the offset in the new log from which to read, for one in the log of before.
        copy_of: gives the offset of a message's copy, None where the log no longer had it.
        claimed: offsets of copies of share groups' messages in flight, by packet identifier: from now on these are the
            session's alone.
        claim_of: gives the claim that a session has from now on on one of those that is in another log, None where it
            has none.
    """
    record = _decode_session(value)
    flights = []
    for flight in record.flights:
        claim = None
        if flight.claim is not None:
            claim = claim_of(flight.claim)
            offset = claimed.get(flight.packet_id)
        else:
            offset = None if flight.offset < 0 else copy_of(flight.offset)
        if offset is None and claim is None and not flight.is_released:
            continue
        new_offset = -1 if offset is None else offset
        flights.append(replace_member(flight, offset=new_offset, claim=claim))
    return _encode(
        replace_member(
            record,
            position=offset_of(record.position),
            maybe_sent_below=offset_of(record.maybe_sent_below),
            flights=flights,
        )
    )


def stored_filters(value: bytes) -> Iterator[tuple[str, int, bool]]:
    """Filters of a stored session that the session log has messages for, with QoS and RETAIN as published; those of
    share groups and streams are left out."""
    for item in _decode_subscriptions(value).items:
        if item.qos and not item.is_replayed and not item.filter.startswith(SHARE_PREFIXES):
            yield item.filter, item.qos, item.retain_as_published


def stored_memberships(value: bytes) -> Iterator[tuple[str, int]]:
    """Filters of share groups that a stored session is a durable member of, with QoS."""
    for item in _decode_subscriptions(value).items:
        if item.qos and item.filter.startswith(SHARE_PREFIXES):
            yield item.filter, item.qos


def moved_subscriptions(value: bytes, offset_of: Callable[[int], int]) -> bytes:
    """The subscriptions of a session whose log is another one from now on. One that began in the past, and has read
    its stream to the end, becomes a plain one."""
    items = [
        replace_member(item, since_offset=offset_of(item.since_offset), is_replayed=False)
        for item in _decode_subscriptions(value).items
    ]
    return _encode(_Subscriptions(_VERSION, items))


def restore_subscriptions(session: Session, value: bytes) -> None:
    """Fill in the subscriptions of a restored session."""
    for item in _decode_subscriptions(value).items:
        session.subscriptions[item.filter] = Subscription(
            TopicFilter.parse(item.filter), item.qos, item.no_local, item.retain_as_published, item.retain_handling,
            item.identifier, item.since_offset, item.is_replayed,
        )  # fmt: skip
