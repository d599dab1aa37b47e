"""What holds for the codec under any bytes, with hypothesis' bytes and with a few minutes of libFuzzer's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from broker.codec.encode import encode_packet
from tests.fuzz.codec import VERSIONS, check, corpus
from tests.support.examples import examples
from tests.support.strategies import packets

ROOT = Path(__file__).parents[2]


def head(version: int, cut: int) -> bytes:
    return bytes((VERSIONS.index(version), cut))


@pytest.mark.parametrize("number", range(len(list(corpus()))))
def test_what_the_tests_know_holds_the_rules(number: int) -> None:
    check(list(corpus())[number])


@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.binary(min_size=2, max_size=400))
def test_any_bytes_hold_the_rules(data: bytes) -> None:
    check(data)


@st.composite
def broken_streams(draw: st.DrawFn) -> bytes:
    """Packets in a row, with bytes changed, put in, taken out and doubled."""
    version = draw(st.sampled_from(VERSIONS))
    stream = bytearray(
        b"".join(
            encode_packet(one, version) for one in draw(st.lists(packets(version), max_size=4))
        )
    )
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, max(0, len(stream) - 1)))
        match draw(st.sampled_from(("change", "insert", "remove", "double"))):
            case "change" if stream:
                stream[at] = draw(st.integers(0, 255))
            case "insert":
                stream[at:at] = draw(st.binary(max_size=6))
            case "remove":
                del stream[at : at + draw(st.integers(1, 6))]
            case _:
                stream[at:at] = stream[at : at + 40]
    return head(version, draw(st.integers(0, 255))) + bytes(stream)


@settings(max_examples=examples(400), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(broken_streams())
@example(head(5, 0) + b"\x10\xff\xff\xff\x7f")
@example(head(4, 0) + b"\x30\x80\x80\x80\x80")
def test_packets_with_damage_hold_the_rules(data: bytes) -> None:
    check(data)


@pytest.mark.heavy
def test_a_coverage_guided_search_finds_no_bytes_that_break_the_rules(tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris is the extra 'fuzz'")
    options = ["-runs=300000", "-max_len=512", "-timeout=5", f"-artifact_prefix={tmp_path}/"]
    command = [sys.executable, "-m", "tests.fuzz.codec", *options]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "Done 300000 runs" in done.stderr
