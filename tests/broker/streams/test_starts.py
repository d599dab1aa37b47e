"""Where subscriptions that begin in the past begin."""

from __future__ import annotations

import pytest

from broker.core.errors import Invalid
from broker.core.stream import StreamRecord
from broker.core.topic import TopicFilter
from broker.storage.memory import MemoryStore
from broker.storage.store import Batch
from broker.streams.settings import StreamSpec
from broker.streams.starts import StreamStarts
from tests.support.catalogues import catalogue_of
from tests.support.mqtt_server import MovedClock

HOUR_US = 3_600_000_000


@pytest.fixture
def starts() -> StreamStarts:
    """A stream ``meters`` of ten records, one an hour, the last one now; and one of two shards."""
    store, clock = MemoryStore(), MovedClock()
    catalogue = catalogue_of(
        store,
        StreamSpec(name="meters", topics=["meters/#", "$own/x"]),
        StreamSpec(name="wide", topics=["#"], shards=2),
    )
    [shard] = catalogue.get("meters").shards
    now_us = clock.now_ns() // 1000
    records = [
        StreamRecord(now_us - (9 - n) * HOUR_US, "meters/a", b"", 1, False, "p") for n in range(10)
    ]
    store.commit(Batch({shard: records}))
    return StreamStarts(catalogue, store, clock)


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("earliest", 0),
        ("latest", 10),
        (" latest ", 10),
        ("offset:4", 4),
        ("-2h", 7),
        ("-150m", 7),
        ("1699999999", 9),
        ("1699993000000", 8),
        ("1699993000000000", 8),
        ("2023-11-14T20:13:20Z", 7),
        ("2023-11-14T20:13:20", 7),
        ("2023-11-14T21:13:20+01:00", 7),
        ("2043-01-01", 10),
    ],
)
def test_a_place_is_a_word_a_time_or_an_offset(
    starts: StreamStarts, text: str, offset: int
) -> None:
    name, [(_, found)] = starts.find(TopicFilter.parse("meters/+"), text, None)
    assert (name, found) == ("meters", offset)


@pytest.mark.parametrize(
    "text", ["", "first", "offset:", "offset:-1", "-soon", "12", "2026-13-01", "９" * 12]
)
def test_what_is_no_place_is_refused_with_the_forms_there_are(
    starts: StreamStarts, text: str
) -> None:
    with pytest.raises(Invalid, match="is not a valid start; write 'earliest'"):
        starts.find(TopicFilter.parse("meters/+"), text, None)


def test_the_stream_is_the_first_by_name_that_has_all_topics_or_the_one_named(
    starts: StreamStarts,
) -> None:
    assert starts.find(TopicFilter.parse("$share/g/meters/#"), "earliest", None)[0] == "meters"
    assert starts.find(TopicFilter.parse("meters/#"), "earliest", "wide")[0] == "wide"
    assert [at for _, at in starts.find(TopicFilter.parse("a"), "latest", None)[1]] == [0, 0]
    with pytest.raises(Invalid, match="no stream captures all topics of '\\$SYS/#'"):
        starts.find(TopicFilter.parse("$SYS/#"), "earliest", None)
    with pytest.raises(Invalid, match="stream 'meters' does not capture all topics of '#'"):
        starts.find(TopicFilter.parse("#"), "earliest", "meters")
    with pytest.raises(Invalid, match="there is no stream 'none'"):
        starts.find(TopicFilter.parse("a"), "earliest", "none")
    with pytest.raises(Invalid, match="2 shards"):
        starts.find(TopicFilter.parse("a"), "offset:1", "wide")
