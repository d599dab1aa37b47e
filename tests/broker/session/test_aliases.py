"""Topic aliases to a client: what it reads is what was sent, whichever topics come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.codec.encode import aliased_publish, encode_packet, publish_topic
from broker.codec.framing import Decoder
from broker.codec.packets import PubAck, Publish
from broker.session.aliases import AliasingOutbox, TopicAliases
from broker.session.outbox import PendingWrites
from tests.support.strategies import publishes

topics = st.sampled_from([f"t/{number}" for number in range(6)])


def read(data: bytes, maximum: int) -> list[Publish]:
    """What a client with so many aliases makes of what it got."""
    known: dict[int, str] = {}
    packets = []
    for packet in Decoder(5).feed(data):
        assert isinstance(packet, Publish)
        alias = packet.properties.pop("Topic-Alias", None)
        if alias is not None:
            assert 1 <= alias <= maximum
            if packet.topic:
                known[alias] = packet.topic
            packet.topic = known[alias]
        packets.append(packet)
    return packets


@given(
    st.lists(st.tuples(topics, publishes(5)), max_size=300),
    st.integers(1, 4),
    st.sampled_from((1e9, 30)),
)
def test_what_is_aliased_reads_as_it_was(
    sent: list[tuple[str, Publish]], maximum: int, most_bytes: float
) -> None:
    written: list[bytes] = []
    box = AliasingOutbox(
        PendingWrites(lambda flush: None, lambda is_left: None), written.append, maximum, most_bytes
    )
    plain = []
    for topic, packet in sent:
        packet.topic = topic
        packet.properties.pop("Topic-Alias", None)
        encoded = encode_packet(packet, 5)
        plain.append(packet)
        box.add(encoded)
        assert len(box.chunks[-1]) <= max(len(encoded), most_bytes)
    box.flush()
    assert read(b"".join(written), maximum) == plain


@given(publishes(5), st.integers(1, 65_535), st.booleans())
def test_an_alias_is_put_into_a_packet_of_any_shape(
    packet: Publish, alias: int, is_known: bool
) -> None:
    packet.properties.pop("Topic-Alias", None)
    encoded = encode_packet(packet, 5)
    assert publish_topic(encoded) == packet.topic.encode()
    [got] = Decoder(5).feed(aliased_publish(encoded, alias, is_known=is_known))
    assert isinstance(got, Publish)
    assert got.properties.pop("Topic-Alias") == alias
    assert got.topic == ("" if is_known else packet.topic)
    packet.topic = got.topic
    assert got == packet


def test_packets_that_are_no_publish_pass() -> None:
    written: list[bytes] = []
    box = AliasingOutbox(
        PendingWrites(lambda flush: None, lambda is_left: None), written.append, 5, 1e9
    )
    box.add(encode_packet(PubAck(1), 5))
    box.flush()
    assert written == [b"\x40\2\0\1"]


def take(aliases: TopicAliases, topic: str) -> int:
    """What is done for each packet; the number it goes out with."""
    name = topic.encode()
    number = aliases.find(name)
    if not number and (number := aliases.free_for(name)):
        aliases.assign(number, name)
    return number


def test_topics_in_use_keep_their_number_however_many_others_come() -> None:
    aliases = TopicAliases(3)
    for turn in range(100):
        numbers = [take(aliases, topic) for topic in ("a", "b", "c", "d", "e", f"once/{turn}")]
        assert numbers == [1, 2, 3, 0, 0, 0]


def test_a_cold_topic_gives_way_to_a_hot_one() -> None:
    aliases = TopicAliases(2)
    assert [take(aliases, topic) for topic in ("cold", "warm")] == [1, 2]
    numbers = [take(aliases, topic) for _ in range(20) for topic in ("warm", "hot")]
    assert set(numbers[::2]) == {2}
    assert numbers[1] == 0
    assert numbers[-1] == 1
    assert take(aliases, "cold") == 0


def test_topics_that_come_once_take_nothing() -> None:
    aliases = TopicAliases(2)
    for number in range(10_000):
        take(aliases, f"once/{number}")
    assert take(aliases, "once/0") == 1
    assert take(aliases, "once/1") == 2
