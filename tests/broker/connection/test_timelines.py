"""Time lines of clients: like events are counted, and neither many events nor many clients take much memory."""

from __future__ import annotations

from broker.connection.timelines import MAX_BYTES, MAX_EVENTS, MAX_REFUSED_BYTES, Timelines
from broker.core.clock import SystemClock
from broker.observe.metrics import Metrics


def timelines() -> Timelines:
    return Timelines(SystemClock(), Metrics())


def test_like_events_are_counted_whatever_the_length_of_their_text() -> None:
    lines = timelines()
    for detail in ("", "short", "long " * 100):
        for _ in range(3):
            lines.add("a", "subscribed", "", detail)
            lines.refused("stranger", "bad_password", detail)
    assert [event.count for event in lines.of("a")] == [3, 3, 3]
    assert [event.count for event in lines.of("stranger")] == [3, 3, 3]


def test_a_client_keeps_its_latest_events() -> None:
    lines = timelines()
    for number in range(MAX_EVENTS + 20):
        lines.add("a", "subscribed", "", str(number))
    assert [event.detail for event in lines.of("a")] == [
        str(number) for number in range(20, MAX_EVENTS + 20)
    ]


def test_clients_without_news_for_longest_go_first() -> None:
    lines = timelines()
    for number in range(60_000):
        lines.add(f"client-{number}", "connected")
        lines.refused(f"made-up-{number}", "bad_password", "")
    assert lines.size_bytes <= MAX_BYTES + MAX_REFUSED_BYTES
    assert lines.of("client-59999")
    assert not lines.of("client-0")
    assert not lines.of("made-up-0")


def test_what_happened_before_the_first_login_stays() -> None:
    lines = timelines()
    lines.refused("a", "bad_password", "")
    lines.add("a", "connected")
    lines.refused("a", "bad_password", "")
    assert [event.kind for event in lines.of("a")] == ["refused", "connected", "refused"]
