"""JSON texts: what takes long to read is bounded, and read as any other."""

from __future__ import annotations

import gc
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core import jsontext
from tests.support.processor import is_within

_MIB = 1024 * 1024
_PADDING = b'"' + b" " * 4096 + b'"'
"""Makes a text so long that it is looked at for what takes long."""


def _repeated(item: bytes, most: int) -> bytes:
    """An array of items, of 2 MiB or ``most`` items."""
    return b"[" + (item + b",") * min(2 * _MIB // (len(item) + 1), most) + b"1]"


@pytest.mark.parametrize(
    "text",
    [
        _repeated(b"[]", 90_000),
        _repeated(b'{"a":1}', 90_000),
        _repeated(b"5e-324", 90_000),
        _repeated(b"1.234567890123456789e-0300", 90_000),
        _repeated(b"1.7976931348623157E+308", 90_000),
        _repeated(b"9007199254740993.0", _MIB),
        _repeated(b"1", _MIB),
        _repeated(b"9" * 4000, _MIB),
        b"[" * 100 + _repeated(b"[]", 90_000) + b"]" * 100,
        b'["' + b"\\u0041" * (_MIB // 3) + b'"]',
    ],
    ids=lambda text: bytes(text[:24]).decode(),
)
@pytest.mark.timed
def test_no_text_of_2_mib_takes_100_ms(text: bytes) -> None:
    """One of ten times: programs that share the processor and its caches make the others twice as long."""

    def decoded_s() -> float:
        begun_s = time.thread_time()
        jsontext.decode(text)
        return time.thread_time() - begun_s

    gc.disable()  # as in a broker, which collects between turns of its loop
    try:
        assert any(is_within(decoded_s(), 0.1) for _ in range(10))
    finally:
        gc.enable()


@pytest.mark.parametrize("item", [b"[]", b"{}", b"5e-324"])
def test_more_parts_are_refused(item: bytes) -> None:
    with pytest.raises(jsontext.JsonError, match="JSON has more than 100000"):
        jsontext.decode(_repeated(item, 110_000))


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["e", "E"]))
def test_floats_of_long_texts_are_those_of_short_ones(number: float, sign: str) -> None:
    text = repr(number).replace("e", sign).encode()
    [_, long] = jsontext.decode(b"[" + _PADDING + b"," + text + b"]")
    assert long == number == jsontext.decode(text)
    assert type(long) is float


def test_overflow_is_refused_in_long_texts_too() -> None:
    for text in (b"1e400", b"[" + _PADDING + b",-1e400]"):
        with pytest.raises(jsontext.JsonError, match="out of range"):
            jsontext.decode(text)
