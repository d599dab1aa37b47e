"""The codec under any bytes: what holds for all of them, and a target that looks for bytes that reach new lines of it.

``python -m tests.fuzz.codec -runs=1000000`` needs the extra ``fuzz`` (atheris); options are libFuzzer's. The first byte
of an input chooses the version, the second how the rest is cut; the corpus is made of the packets that tests know.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from broker.codec.encode import encode_packet
from broker.codec.framing import Decoder
from broker.codec.packets import Connect, Packet
from broker.core.errors import PeerError
from tests.support.wire import BAD_CASES, CASES

VERSIONS: Final = (3, 4, 5)
_HEAD_BYTES: Final = 2
_OF_SERVERS: Final = ("ConnAck", "SubAck", "UnsubAck")

Read = tuple[list[Packet], int, int]
"""Packets, the reason code of the error that ended them or 0, and the version that the stream has then."""


def check(data: bytes) -> None:
    """Nothing but the peer's kind of error comes out, cuts change nothing, and what was read is written the same.

    Raises:
        AssertionError: one of these does not hold. Whatever else is raised is a bug as well.
    """
    if len(data) < _HEAD_BYTES:
        return
    version, stream = VERSIONS[data[0] % len(VERSIONS)], data[_HEAD_BYTES:]
    whole = _read(version, [stream])
    assert _read(version, list(_cut(stream, data[1]))) == whole
    now = version
    for packet in whole[0]:
        now = packet.version if isinstance(packet, Connect) else now
        _check_written(packet, now)


def _read(version: int, pieces: Sequence[bytes]) -> Read:
    decoder, found, code = Decoder(version), list[Packet](), 0
    try:
        for piece in pieces:
            for packet in decoder.feed(piece):
                found.append(packet)
    except PeerError as error:
        code = error.reason_code
        assert code >= 0x80
    return found, code, decoder.version


def _check_written(packet: Packet, version: int) -> None:
    """A packet, written and read again, is the same, and is written the same again.

    Codes that a server may not answer with are taken from one that does, but not written: 0x80 stands for them.
    """
    written = encode_packet(packet, version)
    [again] = Decoder(version).feed(written)
    assert type(again).__name__ in _OF_SERVERS or again == packet
    assert encode_packet(again, version) == written


def _cut(stream: bytes, how: int) -> Iterator[bytes]:
    """Pieces of lengths that ``how`` stands for, single bytes among them."""
    places = [0]
    while places[-1] < len(stream):
        how = (how * 73 + 41) % 256
        places.append(min(len(stream), places[-1] + how % 19 + (how > 250) * 200 + 1))
    return (stream[start:stop] for start, stop in pairwise(places))


def corpus() -> Iterator[bytes]:
    """Inputs to begin with: every packet that the tests know, right and wrong, alone and in a row."""
    known = [(case.version, case.data) for case in CASES] + [
        (case.version, case.data) for case in BAD_CASES
    ]
    for number, (version, data) in enumerate(known):
        yield bytes((VERSIONS.index(version), number)) + data
    for version in VERSIONS:
        yield bytes((VERSIONS.index(version), 7)) + b"".join(
            data for of, data in known if of == version
        )


def main() -> None:
    """Hand over to libFuzzer, which does not return. A folder named among the options keeps what it finds."""
    import atheris  # an extra

    with atheris.instrument_imports():
        # instrumented when they are loaded, so what this module has loaded is loaded anew
        for name in [name for name in sys.modules if name.startswith("broker.codec")]:
            del sys.modules[name]
        import broker.codec.decode
        import broker.codec.encode
        import broker.codec.framing
    names = globals()
    names["Decoder"] = broker.codec.framing.Decoder
    names["encode_packet"] = broker.codec.encode.encode_packet
    names["Connect"] = sys.modules["broker.codec.packets"].Connect
    with TemporaryDirectory() as directory:
        for number, data in enumerate(corpus()):
            (Path(directory) / f"{number:03}").write_bytes(data)
        atheris.Setup([*sys.argv, directory], check)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
