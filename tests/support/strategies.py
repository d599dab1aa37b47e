"""hypothesis strategies for what comes over the wire: packets of every kind and version, topics, filters."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from broker.codec import properties as p
from broker.codec.codes import CODES
from broker.codec.packets import (
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    SubAck,
    Subscribe,
    SubscriptionRequest,
    UnsubAck,
    Unsubscribe,
    Will,
)

VERSIONS = st.sampled_from((3, 4, 5))

texts = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
packet_ids = st.integers(1, 65_535)
payloads = st.binary(max_size=200)
levels = st.text("abc é", max_size=3)
topics = st.lists(levels, min_size=1, max_size=4).map("/".join).filter(bool)
filters = st.lists(levels | st.just("+"), min_size=0, max_size=4).flatmap(
    lambda parts: st.just("/".join(parts)).filter(bool) | st.just("/".join([*parts, "#"]))
)

_VALUES: dict[str, st.SearchStrategy[Any]] = {
    "Payload-Format-Indicator": st.integers(0, 1),
    "Request-Problem-Information": st.integers(0, 1),
    "Request-Response-Information": st.integers(0, 1),
    "Maximum-QoS": st.integers(0, 1),
    "Retain-Available": st.integers(0, 1),
    "Wildcard-Subscription-Available": st.integers(0, 1),
    "Subscription-Identifier-Available": st.integers(0, 1),
    "Shared-Subscription-Available": st.integers(0, 1),
    "Message-Expiry-Interval": st.integers(0, 2**32 - 1),
    "Session-Expiry-Interval": st.integers(0, 2**32 - 1),
    "Will-Delay-Interval": st.integers(0, 2**32 - 1),
    "Maximum-Packet-Size": st.integers(1, 2**32 - 1),
    "Receive-Maximum": st.integers(1, 65_535),
    "Server-Keep-Alive": st.integers(0, 65_535),
    "Topic-Alias-Maximum": st.integers(0, 65_535),
    "Topic-Alias": st.integers(0, 65_535),
    "Subscription-Identifier": st.integers(1, 268_435_455),
    "Correlation-Data": st.binary(max_size=20),
    "Response-Topic": topics,
}


def properties(packet_type: int) -> st.SearchStrategy[dict[str, Any]]:
    """Properties that may stand in a packet."""
    possible = {
        name: _VALUES.get(name, texts)
        for name, kind in p.PROPERTY_TYPES.items()
        if packet_type in kind.packets
    }
    if packet_type == p.PUBLISH:
        possible["Subscription-Identifier"] = st.lists(
            st.integers(1, 268_435_455), min_size=1, max_size=3
        )
    possible.pop("Authentication-Data", None)
    possible["User-Property"] = st.lists(st.tuples(texts, texts), min_size=1, max_size=3)
    return st.fixed_dictionaries({}, optional=possible)


def _session_present(version: int) -> st.SearchStrategy[bool]:
    """CONNACK of 3.1 does not say."""
    return st.booleans() if version > 3 else st.just(False)


def packets(version: int) -> st.SearchStrategy[Packet]:
    """Any packet that may be sent in a version."""
    kinds: list[st.SearchStrategy[Packet]] = [
        connects(version),
        st.builds(
            ConnAck,
            _session_present(version),
            _codes(version, p.CONNACK),
            _properties(version, p.CONNACK),
        ),
        publishes(version),
        *(_acks(version)),
        st.builds(
            Subscribe,
            packet_ids,
            st.lists(_requests(version), min_size=1, max_size=3),
            _subscribe(version),
        ),
        st.builds(
            SubAck,
            packet_ids,
            st.lists(_codes(version, p.SUBACK), max_size=3),
            _properties(version, p.SUBACK),
        ),
        st.builds(
            Unsubscribe,
            packet_ids,
            st.lists(filters, min_size=1, max_size=3),
            _properties(version, p.UNSUBSCRIBE),
        ),
        st.just(PingReq()),
        st.just(PingResp()),
    ]
    if version == 5:
        codes = st.lists(_codes(5, p.UNSUBACK), max_size=3)
        kinds += [
            st.builds(UnsubAck, packet_ids, codes, properties(p.UNSUBACK)),
            st.builds(Disconnect, _codes(5, p.DISCONNECT), properties(p.DISCONNECT)),
            st.builds(Auth, _codes(5, p.AUTH), properties(p.AUTH)),
        ]
    else:
        kinds += [st.builds(UnsubAck, packet_ids), st.just(Disconnect())]
    return st.one_of(kinds)


def _codes(version: int, packet_type: int) -> st.SearchStrategy[int]:
    return st.sampled_from(sorted(CODES[packet_type])) if version == 5 else st.integers(0, 0x80)


@st.composite
def connects(draw: st.DrawFn, version: int) -> Connect:
    """A CONNECT of a version."""
    will = draw(
        st.none()
        | st.builds(Will, topics, payloads, st.integers(0, 2), st.booleans(), _will(version))
    )
    username = draw(st.none() | texts)
    may_have_password = version == 5 or username is not None
    password = draw(st.none() | st.binary(max_size=10)) if may_have_password else None
    return Connect(
        draw(texts), version, draw(st.booleans()), draw(st.integers(0, 65_535)), will, username, password,
        draw(_properties(version, p.CONNECT)), version < 5 and draw(st.booleans()),
    )  # fmt: skip


@st.composite
def publishes(draw: st.DrawFn, version: int) -> Publish:
    """A PUBLISH of a version."""
    qos = draw(st.integers(0, 2))
    return Publish(
        draw(topics),
        draw(payloads),
        qos,
        draw(st.booleans()),
        draw(st.booleans()) if qos else False,
        draw(packet_ids) if qos else 0,
        draw(_properties(version, p.PUBLISH)),
    )


def _acks(version: int) -> list[st.SearchStrategy[Packet]]:
    kinds = ((PubAck, p.PUBACK), (PubRec, p.PUBREC), (PubRel, p.PUBREL), (PubComp, p.PUBCOMP))
    if version < 5:
        return [st.builds(kind, packet_ids) for kind, _ in kinds]
    return [
        st.builds(kind, packet_ids, _codes(5, number), properties(number)) for kind, number in kinds
    ]


def _requests(version: int) -> st.SearchStrategy[SubscriptionRequest]:
    if version < 5:
        return st.builds(SubscriptionRequest, filters, st.integers(0, 2))
    return st.builds(
        SubscriptionRequest,
        filters,
        st.integers(0, 2),
        st.booleans(),
        st.booleans(),
        st.integers(0, 2),
    )


def _properties(version: int, packet_type: int) -> st.SearchStrategy[dict[str, Any]]:
    return properties(packet_type) if version == 5 else st.just({})


def _subscribe(version: int) -> st.SearchStrategy[dict[str, Any]]:
    return _properties(version, p.SUBSCRIBE)


def _will(version: int) -> st.SearchStrategy[dict[str, Any]]:
    return _properties(version, p.WILL)
