"""Frames of a link: any pieces give the same frames, and bytes that are none give one error."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.cluster.frames import (
    MAX_STRUCT_BYTES,
    Figures,
    Frame,
    FrameDecoder,
    FrameError,
    FrameType,
    Hello,
    Kept,
    LoggedRecord,
    LogRecords,
    RouteChanges,
    Routed,
    Taken,
    decoded,
    encoded,
    header,
)
from tests.support.examples import examples

_NUMBERS = st.integers(0, (1 << 63) - 1)
_TEXTS = st.text(max_size=20)
_NAMES = st.text("0123456789abcdef", max_size=32)
_RECORDS = st.builds(
    LoggedRecord,
    _NUMBERS,
    st.integers(0, 1 << 52),
    st.text("ab/", min_size=1, max_size=9),
    st.binary(max_size=40),
    st.integers(0, 2),
    st.booleans(),
    _TEXTS,
    st.none() | _TEXTS,
    st.none() | _TEXTS,
)
_BODIES: st.SearchStrategy[Any] = st.one_of(
    st.builds(
        Hello,
        st.integers(1, 9),
        st.integers(0, 63),
        st.integers(1, 64),
        _NAMES,
        _NAMES,
        _NAMES,
        _NUMBERS,
        st.lists(_NUMBERS, max_size=4),
        _NAMES,
        _NUMBERS,
    ),
    st.builds(
        RouteChanges,
        _NUMBERS,
        st.booleans(),
        st.booleans(),
        st.lists(
            st.tuples(st.text("a/+#", min_size=1, max_size=9), st.none() | st.integers(0, 11)),
            max_size=5,
        ),
    ),
    st.builds(Routed, _NUMBERS),
    st.builds(Taken, _NUMBERS, st.lists(_NUMBERS, max_size=4), st.lists(_NUMBERS, max_size=4)),
    st.builds(LogRecords, st.lists(_RECORDS, max_size=4), _NUMBERS),
    st.builds(Kept, _NUMBERS),
    st.builds(
        Figures,
        st.dictionaries(_NAMES, st.integers(-(1 << 62), 1 << 62) | st.floats(0, 1e9), max_size=4),
    ),
)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """The bytes in pieces."""
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[begin:end] for begin, end in pairwise(edges)]


@settings(max_examples=examples(150))
@given(
    st.lists(_BODIES | st.binary(max_size=30), max_size=6),
    st.lists(st.integers(0, 1 << 16), max_size=8),
)
def test_frames_come_out_as_they_went_in_wherever_they_are_cut(
    bodies: list[Any], places: list[int]
) -> None:
    data = b"".join(
        header(FrameType.LIVE, len(body), 3, 1) + body if isinstance(body, bytes) else encoded(body)
        for body in bodies
    )
    decoder = FrameDecoder()
    frames = [frame for piece in cut(data, places) for frame in decoder.feed(piece)]
    assert decoder.held_bytes == 0
    assert [
        frame.body if frame.type is FrameType.LIVE else decoded(type(body), frame)
        for frame, body in zip(frames, bodies, strict=True)
    ] == bodies


@settings(max_examples=examples(200))
@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=4))
def test_other_bytes_are_frames_or_one_error(data: bytes, places: list[int]) -> None:
    decoder = FrameDecoder()
    with suppress(FrameError):
        for piece in cut(data, places):
            for frame in decoder.feed(piece):
                assert isinstance(frame, Frame)


@settings(max_examples=examples(200))
@given(
    st.sampled_from([Hello, RouteChanges, Routed, Taken, LogRecords, Kept, Figures]),
    st.binary(max_size=60) | _BODIES.map(lambda body: encoded(body)[8:]),
)
def test_a_body_is_its_struct_or_one_error(kind: type[Any], body: bytes) -> None:
    with suppress(FrameError):
        assert isinstance(decoded(kind, Frame(FrameType.HELLO, body)), kind)


def test_an_announced_length_takes_no_memory() -> None:
    decoder = FrameDecoder()
    tracemalloc.start()
    try:
        assert list(decoder.feed(header(FrameType.LIVE, 200 * 1024 * 1024) + b"x")) == []
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\0\0\0\0\x63\0\0\0", "expected a known type of frame, got 99"),
        (
            header(FrameType.ROUTED, MAX_STRUCT_BYTES + 1),
            f"ROUTED frame: expected at most {MAX_STRUCT_BYTES} bytes",
        ),
    ],
)
def test_the_error_says_what_was_expected(data: bytes, why: str) -> None:
    with pytest.raises(FrameError, match=why):
        list(FrameDecoder().feed(data))
