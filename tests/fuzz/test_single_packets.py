"""No single packet, from anyone, keeps the event loop busy for 100 ms or makes the broker take 64 MiB.

Packets follow the grammar of MQTT, and each field is as long, deep, numerous or laborious as can be. The broker has a
little of everything that a packet may meet: users, access rules, rewrites, retained messages, a session with thousands
of subscriptions. Its loop has a thread of its own, whose processor time is what counts.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from broker.routing.rewrite import RewriteSpec
from tests.support.access import BUILTIN, access
from tests.support.broker_thread import BrokerThread, Socket, broker_thread
from tests.support.examples import examples
from tests.support.processor import is_within
from tests.support.raw import PINGREQ, connect, packet, props, publish, subscribe, text, varint

WORST_S: Final = 0.1
MOST_BYTES: Final = 64 * 1024 * 1024
MOST: Final = 1024 * 1024
"""The default of ``mqtt.max_packet_size``."""
RULES: Final[list[dict[str, Any]]] = [
    {"permission": "deny", "topics": ["secret/#", "+/secret/${clientid}"]},
    {"permission": "allow", "action": "publish", "topics": ["#"], "qos": [0, 1, 2]},
    {"permission": "allow", "topics": ["#", "u/${username}/#", "eq a/+/b"]},
]
REWRITE: Final = {
    "name": "r",
    "source_topic": "old/#",
    "re": "^old/((?:[^/]*/)*)([^/]*)$",
    "dest_topic": "new/$1$2",
}
RETAINED: Final = 5000
SUBSCRIPTIONS: Final = 9000

# -- fields --

_PIECES = (
    "a", "/", "a/", "+/", "#/", "old/", "secret/", "\u0301\u0316", "\ufdfa", "\u0345\u0301", "\U0001f600", "é", " ",
    "=2C", "=", ",", "%c", "%u", "${clientid}", "$", "{", '[{"a":', "[", "9", "\\", "eyJhbGciOiJIUzI1NiJ9.", "\u05d0",
    "\ufeff",
)  # fmt: skip
_STARTS = (
    "",
    "$share/g/",
    "$share/",
    "$delayed/1/",
    "$delayed/99999999999/",
    "$SYS/",
    "$events/",
    "old/",
    "secret/",
    "r/",
)
_LABORIOUS = ("\u0301\u0316", "\ufdfa", "a/", "+/", "(/")
PINGRESP: Final = 0xD0
_SIZES = (0, 1, 23, 127, 1000, 1024, 1025, 8_000, 30_000, 60_000)


class Sent(NamedTuple):
    """What is sent by a client of a version, 0 for one that is not connected."""

    version: int
    data: bytes

    def __repr__(self) -> str:
        return f"Sent({self.version}, {self.data[:60]!r}, {len(self.data)} bytes)"


def texts(most: int = 65_535) -> st.SearchStrategy[bytes]:
    """A string of one piece many times, behind a start that means something."""

    def made(start: str, piece: str, size: int) -> bytes:
        whole = (start + piece * (size // len(piece.encode()))).encode()
        return whole[:most].decode(errors="ignore").encode()

    pieces = st.one_of(st.sampled_from(_PIECES), st.sampled_from(_LABORIOUS))
    sizes = st.one_of(st.sampled_from(_SIZES), st.sampled_from(_SIZES[-2:]))
    return st.builds(made, st.sampled_from(_STARTS), pieces, sizes)


names: Final = st.one_of(st.just(b"ann"), st.sampled_from((b"generated", b"x", b"")), texts())
payloads: Final = st.builds(
    lambda piece, size: piece * (size // len(piece)),
    st.sampled_from(
        (
            b"x",
            b"[",
            b'{"a":',
            b"\0",
            b"\xff",
            b'"\\u0000',
            b"1",
            b"1,",
            b"-",
            b"1e9,",
            b"\xf0\x9f\x98\x80",
        )
    ),
    st.sampled_from((1, 1000, 60_000, 900_000)),
)
pairs: Final = st.builds(
    lambda name, value, count: (b"\x26" + text(name) + text(value)) * count,
    texts(20_000),
    texts(20_000),
    st.sampled_from((1, 2, 99, 100, 101, 3000)),
).filter(lambda data: len(data) < MOST)
versions: Final = st.sampled_from((3, 4, 5))


def block(*kinds: bytes) -> st.SearchStrategy[list[bytes]]:
    """Some properties that may stand in a packet: strings by their identifiers, and user properties."""
    each = st.builds(
        lambda kind, value: bytes((kind,)) + text(value), st.sampled_from(b"".join(kinds)), texts()
    )
    return st.lists(st.one_of(each, pairs), max_size=3)


# -- packets --


@st.composite
def connects(draw: st.DrawFn) -> bytes:
    """Of a client that nobody knows yet. 0x16 is authentication data."""
    version, flags, rest, has_method = draw(versions), 0, b"", draw(st.booleans())
    found = draw(block(b"\x16")) if version == 5 else []
    if version == 5 and has_method:
        found.append(
            b"\x15" + text(draw(st.sampled_from(("SCRAM-SHA-256", "SCRAM-SHA-512", "x" * 60_000))))
        )
        found.append(
            b"\x16" + text(b"n,," + b"n=" + draw(texts(32_000)) + b",r=" + draw(texts(32_000)))
        )
    if draw(st.booleans()):
        will = draw(block(b"\x03\x08")) if version == 5 else []
        flags |= 0x04 | draw(st.sampled_from((0, 0x08, 0x20, 0x28)))
        rest += props(version, *will) + text(draw(texts())) + text(draw(texts()))
    if draw(st.booleans()):
        flags |= 0xC0
        rest += text(draw(names)) + text(draw(texts()))
    client_id = draw(st.one_of(st.sampled_from((b"c", b"wide")), texts()))
    return connect(version, client_id, *found, clean=draw(st.booleans()), flags=flags, rest=rest)


@st.composite
def publishes(draw: st.DrawFn, version: int) -> bytes:
    topic = draw(st.one_of(st.sampled_from((b"t", b"r/1", b"w/1/2/3", b"secret/x")), texts()))
    found = draw(block(b"\x03\x08")) if version == 5 else []
    if version == 5 and draw(st.booleans()):
        found.append(b"\x23" + draw(st.integers(0, 65)).to_bytes(2))
    qos, retain = draw(st.sampled_from((0, 1, 2))), draw(st.booleans())
    return publish(version, topic, draw(payloads), *found, qos=qos, retain=retain)


@st.composite
def lists(draw: st.DrawFn, version: int) -> bytes:
    """SUBSCRIBE and UNSUBSCRIBE of as many filters as there is room for, alike or numbered."""
    form = draw(st.sampled_from((
        "{}", "{}/+", "+/{}", "#", "+/+/+/+", "r/+", "w/+/{}/#", "$share/g/{}", "$share/{}/#", "old/{}",
        "a/" * 120 + "{}", "+/" * 120 + "{}", "/" * 127 + "{}", "secret/{}", "{}/" + "x" * 1000, "#/{}", "",
    )))  # fmt: skip
    is_subscribe, options = draw(st.booleans()), bytes((draw(st.sampled_from((0, 1, 2, 0x2C, 3))),))
    each = [text(form.format(number)) + (options if is_subscribe else b"") for number in range(10)]
    count = min(
        draw(st.sampled_from((1, 10, 3000, 300_000))), (MOST - 2000) // (max(map(len, each)) + 5)
    )
    end = options if is_subscribe else b""
    body = b"".join(text(form.format(number)) + end for number in range(count))
    return packet(0x82 if is_subscribe else 0xA2, b"\0\1", props(version), body)


@st.composite
def small_ones(draw: st.DrawFn, version: int) -> bytes:
    """Acknowledgements, AUTH and DISCONNECT with all that they may carry, and packets that clients may not send."""
    first = draw(
        st.sampled_from(
            (0x40, 0x50, 0x62, 0x70, 0xE0, 0xF0, 0xC0, 0x20, 0x90, 0xB0, 0xD0, 0x10, 0x00)
        )
    )
    found = draw(block(b"\x1f\x15\x16\x1c")) if version == 5 else []
    code = bytes((draw(st.sampled_from((0, 4, 0x18, 0x19, 0x87, 0xFF))),))
    head = b"" if first >= 0xE0 else draw(st.sampled_from((b"\0\1", b"\xff\xff", b"\0\0")))
    return packet(first, head, code, props(5, *found))


@st.composite
def raw_ones(draw: st.DrawFn) -> bytes:
    """A type and flags, then the same bytes over and over: lists of empty strings, of properties, of lengths."""
    body = draw(
        st.sampled_from(
            (b"\0", b"\xff", b"\0\0\0", b"\x26\0\0\0\0", b"\0\1#\0", b"\0\1+", b"\x80", b"\x0b\1")
        )
    )
    size = draw(st.sampled_from((1, 100, 60_000, MOST - 10)))
    head = draw(
        st.sampled_from(
            (b"", b"\0\1", b"\0\1\0", b"\0\1" + varint(size), b"\0\4MQTT\5\2\0\0" + varint(size))
        )
    )
    return packet(draw(st.integers(0, 255)), (head + body * (size // len(body)))[: MOST - 10])


PACKETS: Final = st.one_of(
    st.builds(Sent, st.just(0), st.one_of(connects(), raw_ones())),
    versions.flatmap(
        lambda version: st.builds(
            Sent,
            st.just(version),
            st.one_of(publishes(version), lists(version), small_ones(version), raw_ones()),
        )
    ),
)

MARKS: Final = "\u0301\u0316" * 12_000
"""Combining marks out of order: to normalize them takes time by the square of their number."""


def login(*properties: bytes, user: str = "ann", password: str = "") -> Sent:
    """A CONNECT with these."""
    return Sent(0, connect(5, "c", *properties, flags=0xC0, rest=text(user) + text(password)))


def many(first: int, form: str, count: int) -> Sent:
    """A SUBSCRIBE (0x82) or UNSUBSCRIBE (0xA2) of so many filters."""
    end = b"\1" if first == 0x82 else b""
    return Sent(
        4,
        packet(
            first, b"\0\1", b"".join(text(form.format(number)) + end for number in range(count))
        ),
    )


# -- what holds --


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerThread]:
    slow = {"iterations": 4096, "threads": 1}
    users = [{"name": "ann", "password": "pencil"}, {"name": "generated", "password": "x"}]
    options: dict[str, Any] = {
        "access": access(
            BUILTIN, users=users, rules=RULES, hashing=slow, login_limits={"enable": False}
        )
    }
    with broker_thread(tmp_path_factory.mktemp("broker") / "store", **options) as broker:
        broker.on_loop(
            lambda: broker.node.server.hub.rewrites.use([RewriteSpec.model_validate(REWRITE)])
        )
        filler = client(broker, "filler")
        for start in range(0, RETAINED, 500):
            kept = range(start, start + 500)
            filler.ask(
                b"".join(publish(5, f"r/{n}", b"x" * 50, retain=True) for n in kept) + PINGREQ,
                PINGRESP,
            )
        filler.close()
        widen(broker)
        broker.call(broker.lateness.take())
        gc.collect()
        gc.freeze()  # as a broker does after its start: what other tests left in this process is none of its work
        yield broker
        gc.unfreeze()


def client(
    broker: BrokerThread, client_id: str, version: int = 5, *properties: bytes, clean: bool = True
) -> Socket:
    """A client that may do what the rules allow."""
    wire = Socket(broker.node.port)
    login = {"flags": 0xC0, "rest": text("ann") + text("pencil"), "clean": clean}
    data = connect(version, client_id, *properties, **login)  # type: ignore[arg-type]
    assert wire.ask(data + PINGREQ, PINGRESP)
    return wire


def widen(broker: BrokerThread) -> None:
    """Give the session ``wide``, which is away, its subscriptions again: a CONNECT may end it."""
    wire = client(broker, "wide", 5, b"\x11\xff\xff\xff\xff", clean=False)
    for start in range(0, SUBSCRIPTIONS, 3000):
        wide = [(f"w/{n % 3 or '+'}/{n}/#", 1) for n in range(start, start + 3000)]
        assert wire.ask(subscribe(5, 1, *wide) + PINGREQ, PINGRESP)
    wire.close()


def peak_bytes() -> tuple[int, int]:
    """What the process takes, and the most that it took since ``forget_peak``."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {
        line.split(":")[0]: line.split()[1] for line in lines if line.startswith(("VmRSS", "VmHWM"))
    }
    return int(found["VmRSS"]) * 1024, int(found["VmHWM"]) * 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def check(broker: BrokerThread, sent: Sent) -> None:
    """Send a packet on a connection of its own, and look at what it did until the broker is at rest."""
    version, data = sent
    bystander = client(broker, "bystander", 4)
    wire = client(broker, "attacker", version) if version else Socket(broker.node.port)
    broker.call(broker.lateness.take())
    forget_peak()
    before, _ = peak_bytes()
    if wire.send(data):
        wire.ask(PINGREQ, PINGRESP) if version else wire.read_until()
    wire.close()
    for _ in range(3):
        bystander.ask(PINGREQ, PINGRESP)
    worst_s = broker.call(broker.lateness.take())
    _, peak = peak_bytes()
    bystander.close()
    assert is_within(worst_s, WORST_S), f"{worst_s * 1e3:.0f} ms for {sent}"
    assert peak - before < MOST_BYTES, f"{(peak - before) >> 20} MiB for {sent}"
    event(f"{data[0] >> 4:X} version {version}")


@example(login(password=MARKS))
@example(login(user=MARKS))
@example(login(b"\x15" + text("SCRAM-SHA-256"), b"\x16" + text(f"n,,n={MARKS},r=x")))
@example(login(b"\x15" + text("SCRAM-SHA-256"), b"\x16" + text("n,,n=" + "=2C" * 15_000 + ",r=x")))
@example(many(0x82, "{}", 100_000))
@example(many(0x82, "w/+/{}/#", 60_000))
@example(many(0x82, "a/" * 120 + "{}", 4000))
@example(many(0xA2, "{}", 100_000))
@example(many(0x82, "$share/g/{}", 50_000))
@example(Sent(3, subscribe(3, 1, *[("#", 0)] * 3000)))
@example(Sent(3, subscribe(3, 1, *[("+/#", 0)] * 1000)))
@example(Sent(5, publish(5, "t", b"", b"\x26\0\0\0\0" * 200_000)))
@example(Sent(5, packet(0x40, b"\0\1\0", props(5, b"\x26\0\0\0\0" * 200_000))))
@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(PACKETS)
def test_no_single_packet_stalls_the_broker_or_takes_its_memory(
    broker: BrokerThread, sent: Sent
) -> None:
    check(broker, sent)


@pytest.mark.heavy
@pytest.mark.timeout(3600)
@settings(max_examples=examples(3000), deadline=None, suppress_health_check=list(HealthCheck))
@given(PACKETS)
def test_nor_does_any_of_thousands(broker: BrokerThread, sent: Sent) -> None:
    check(broker, sent)
