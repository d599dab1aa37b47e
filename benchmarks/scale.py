"""A million retained topics, a million subscriptions, many sessions: what they take to load, find, keep and start.

Each part runs in a process of its own, so that the memory it tells is its own: resident memory before and after, in
bytes for each. What is found is the store and the routing of the broker, without sockets; ``--count`` makes it smaller.

  retained       load, look-ups by filter, a subscriber's whole set, expiry, memory
  subscriptions  put, match, remove and memory by the shape of the filter, and a storm of wildcards
  plans          what a topic costs that is new, or one of many in turn, against always the same one, without sockets
                 (what is wanted of many topics is about clients: ``benchmarks.bare`` holds it)
  start          how long a node takes to restore what the store holds, and the longest it holds the loop
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.load import resident_bytes
from broker.connection.hub import ServerSettings
from broker.connection.sessions.log import SESSION_LOG
from broker.core.client import Client
from broker.core.clock import SystemClock
from broker.core.events import Events
from broker.core.message import Message
from broker.core.topic import TopicFilter
from broker.core.topic_keys import FilterWalk
from broker.core.topic_trie import FilterTrie
from broker.net.server import Server
from broker.net.settings import ListenerSettings, NamedListener
from broker.observe.metrics import Metrics
from broker.routing.retained_store import Retained
from broker.session.session import Session
from broker.storage.rocksdb.store import RocksStore
from broker.storage.store import Store
from broker.storage.writer import Writer

_PID = os.getpid()
PARTS = ("retained", "subscriptions", "plans", "start")
_PAYLOAD = b'{"temp":21.5,"hum":40,"id":"dev-0001","pad":"%b"}' % (b"x" * 80)
_SITES = 1000
_START_WITHIN_S = 60.0
_START_STEP_S = 0.25
"""So long the loop may wait for one step of restoring: the API answers in between."""
_RETAINED_BYTES = (256 + 64 + 32) << 20
"""Of resident memory that loading retained messages may take, however many: RocksDB's buffers, its cache, and some."""


def main() -> int:
    """Run all parts, or one; 1 when a figure is not what is wanted."""
    options = _options()
    if options.part is None:
        parts = [
            [sys.executable, "-m", "benchmarks.scale", part, "--count", str(options.count)]
            for part in PARTS
        ]
        return max(subprocess.run(command, check=False).returncode for command in parts)
    folder = Path(tempfile.mkdtemp(prefix="scale-"))
    try:
        if options.part == "subscriptions":
            return subscriptions(options.count)
        part = {"retained": retained, "plans": plans, "start": start}[options.part]
        return asyncio.run(part(folder, options.count))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


async def retained(folder: Path, count: int) -> int:
    """Retained messages on disk."""
    store = RocksStore(folder, "os")
    writer = Writer(store, asyncio.get_running_loop())
    held = Retained(writer, SystemClock())
    before = _resident()
    started = time.perf_counter()
    for number in range(count):
        held.retain(Message(_topic(number), _PAYLOAD, 1, True, Client("loader"), time.time_ns()))
        if number % 500 == 0:
            await writer.committed()
    await writer.committed()
    loaded_s = time.perf_counter() - started
    grown = _resident() - before
    data = held.size_bytes
    _tell("retained, load", f"{count / loaded_s:,.0f}/s, {data / 1e6:,.0f} MB of data")
    _tell(
        "retained, resident memory", f"{grown / 1e6:,.0f} MB more, {grown / data:.2f} of the data"
    )
    for text in (_topic(count // 2), "site7/#", "site7/+/temp", "+/dev77/temp", "+/+/none", "#"):
        found, taken_s, longest_ms = await _walked(held, text)
        _tell(
            f"retained, {text}",
            f"{found:,} found in {taken_s * 1e3:,.1f} ms, slices of {longest_ms:.1f} ms at most",
        )
    _tell("retained, resident memory after '#'", f"{(_resident() - before) / 1e6:,.0f} MB more")
    replaced_s = await _timed(writer, lambda: _replace(held, 20_000, count))
    _tell("retained, replaced", f"{20_000 / replaced_s:,.0f}/s")
    await writer.close()
    store.close()
    began = time.perf_counter()
    store = RocksStore(folder, "os")
    again = Retained(Writer(store, asyncio.get_running_loop()), SystemClock())
    for _ in again.load():
        pass
    _tell(
        "retained, opened again", f"{again.count:,} there after {time.perf_counter() - began:.2f} s"
    )
    return int(grown > _RETAINED_BYTES)


async def _walked(held: Retained, text: str) -> tuple[int, float, float]:
    walk, position, found, longest = FilterWalk(TopicFilter.parse(text)), b"", 0, 0.0
    started = time.perf_counter()
    at: bytes | None = position
    while at is not None:
        began = time.perf_counter()
        entries, at = held.read(walk, at, 256, 256 * 1024)
        longest = max(longest, time.perf_counter() - began)
        found += len(entries)
    return found, time.perf_counter() - started, longest * 1e3


def _replace(held: Retained, times: int, count: int) -> None:
    for _ in range(times):
        topic = _topic(random.randrange(count))
        held.retain(Message(topic, _PAYLOAD, 1, True, Client("loader"), time.time_ns()))


async def _timed(writer: Writer, work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    await writer.committed()
    return time.perf_counter() - started


def subscriptions(count: int) -> int:
    """Subscriptions in the tree of filters, by shape."""
    shapes = {
        "one topic": "site{site}/dev{n}/cmd",
        "all below": "site{site}/dev{n}/#",
        "plus in the middle": "site{site}/+/dev{n}",
        "plus in front": "+/dev{n}/cmd",
    }
    for name, shape in shapes.items():
        _subscribed(name, shape, count)
    _storm(min(count, 100_000))
    return 0


def _subscribed(name: str, shape: str, count: int) -> None:
    filters = [TopicFilter.parse(shape.format(site=n % _SITES, n=n)) for n in range(count)]
    owners = [f"client-{n}" for n in range(count)]
    gc.collect()
    before, trie = _resident(), FilterTrie[int]()
    put_s = _each(count, lambda n: trie.put(filters[n].levels, owners[n], n))
    gc.collect()
    grown = _resident() - before
    topics = [
        filters[n].filter.replace("+", "x").replace("#", "y/z")
        for n in random.sample(range(count), 20_000)
    ]
    match_s = _each(len(topics), lambda n: trie.match(topics[n]))
    remove_s = _each(count, lambda n: trie.remove(filters[n].levels, owners[n]))
    times = " ".join(f"{what} {taken * 1e6:.2f} µs" for what, taken in (
        ("put", put_s), ("match", match_s), ("remove", remove_s)
    ))  # fmt: skip
    _tell(f"subscriptions, {name}", f"{count:,}: {grown / count:,.0f} bytes each; {times}")


def _storm(count: int) -> None:
    """Many clients on few broad filters: what a match then costs is its result."""
    trie = FilterTrie[int]()
    texts = ("+/+/+/#", "#", "+/+/#", "a/+/+/d", "+/b/+/#", "a/#")
    for n in range(count):
        trie.put(TopicFilter.parse(texts[n % len(texts)]).levels, f"client-{n}", n)
    taken_s = _each(20, lambda _: trie.match("a/b/c/d"))
    found = len(trie.match("a/b/c/d"))
    _tell(
        "subscriptions, storm",
        f"{found:,} of {count:,} match in {taken_s * 1e3:.1f} ms, {taken_s / found * 1e9:.0f} ns each",
    )
    none_s = _each(2000, lambda n: trie.match(f"$SYS/{n}"))
    _tell("subscriptions, storm, a topic beside it", f"{none_s * 1e6:.2f} µs")


class _NoLink:
    """The byte stream of a client that nobody reads."""

    peer_host = peer_port = sock_name = server_name = tls_version = certificate = None
    listener, refusal = "none", 0

    def write(self, data: bytes) -> None:
        """Nobody reads it."""

    def close(self, *, lingers: bool = False) -> None:
        """Nothing to close."""

    def pause_reading(self) -> None:
        """Nothing is read."""

    resume_reading = pause_reading

    def unsent_bytes(self) -> int:
        """Everything is taken at once."""
        return 0


async def plans(folder: Path, count: int) -> int:
    """Messages of QoS 0 through a connection, read in pieces as from a socket, to one subscriber of everything."""
    server = _server(RocksStore(folder, "os"))
    hub = server.hub
    await server.start()
    from broker.codec.encode import encode_packet
    from broker.codec.packets import Connect, Publish, Subscribe, SubscriptionRequest

    subscriber, publisher = hub.connect(_NoLink()), hub.connect(_NoLink())  # type: ignore[arg-type]
    for connection, name in ((subscriber, "sub"), (publisher, "pub")):
        connection.opened()
        connection.data_received(encode_packet(Connect(name, 4)))
    subscriber.data_received(encode_packet(Subscribe(1, [SubscriptionRequest("#", 0)])))
    messages = 200_000
    rates = {}
    for topics in (1, 100, 10_000, min(count, 1_000_000)):
        packets = [
            encode_packet(Publish(f"site{n % _SITES:03}/dev{n:07}/temp", _PAYLOAD))
            for n in range(topics)
        ]
        pieces = list(_pieces(packets, max(messages, topics)))
        if topics <= 10_000:
            for piece in pieces[: max(1, len(pieces) // 5)]:
                publisher.data_received(piece)
        started = time.perf_counter()
        for piece in pieces:
            publisher.data_received(piece)
            hub.context.pending_writes.flush()
        rates[topics] = max(messages, topics) / (time.perf_counter() - started)
        name = "all of them new" if topics > 10_000 else f"{topics:,} in turn"
        _tell(
            f"plans, topics: {name}",
            f"{rates[topics]:,.0f}/s, {rates[topics] / rates[1]:.2f} of one topic",
        )
    await server.stop(1)
    return 0


def _pieces(packets: list[bytes], count: int) -> Iterator[bytes]:
    """Packets in turn, 500 in a piece."""
    for start in range(0, count, 500):
        yield b"".join(packets[number % len(packets)] for number in range(start, start + 500))


async def start(folder: Path, count: int) -> int:
    """A node with a tenth as many lasting sessions as retained messages, each with a subscription, ended and begun."""
    sessions = count // 10
    server = _server(RocksStore(folder, "os"))
    hub, writer = server.hub, server.hub.context.writer
    for _ in hub.load():
        pass
    for number in range(count):
        hub.retained.retain(
            Message(_topic(number), _PAYLOAD, 1, True, Client("loader"), time.time_ns())
        )
        if number % 1000 == 0:
            await writer.committed()
    from broker.core.subscription import Subscription

    for number in range(sessions):
        session: Session = hub.life.new_session(
            f"client-{number}", hub.zones.default, is_durable=True
        )
        session.expiry_s = 86_400
        subscription = Subscription(TopicFilter.parse(f"site{number % _SITES}/dev{number}/cmd"), 1)
        hub.subscriptions.add(session, subscription, is_new=True)
        hub.subscriptions.changed(session)
        hub.life.detached(session, is_will_due=False)
        if number % 1000 == 0:
            await writer.committed()
    await writer.committed()
    await writer.close()
    writer.store.close()
    before, began = _resident(), time.perf_counter()
    server = _server(RocksStore(folder, "os"))
    gc.disable()  # as the server does
    longest = 0.0
    # what the thread itself takes: what else the machine does is not the step's
    step = time.thread_time()
    for _ in server.hub.load():
        longest = max(longest, time.thread_time() - step)
        step = time.thread_time()
    taken_s = time.perf_counter() - began
    gc.enable()
    there = f"{len(server.hub.sessions):,} sessions, {server.hub.retained.count:,} retained"
    _tell("start", f"{there}: {taken_s:.1f} s, in steps of {longest * 1e3:.0f} ms at most")
    _tell(
        "start, resident memory",
        f"{(_resident() - before) / max(sessions, 1):,.0f} bytes a session",
    )
    await server.hub.context.writer.close()
    return int(taken_s > _START_WITHIN_S or longest > _START_STEP_S)


def _server(store: Store) -> Server:
    metrics = Metrics()
    return Server(
        settings=ServerSettings(),
        listeners=[NamedListener(ListenerSettings(bind="127.0.0.1:0"))],
        writer=Writer(store, asyncio.get_running_loop(), metrics=metrics),
        session_log=SESSION_LOG,
        metrics=metrics,
        events=Events(),
        clock=SystemClock(),
    )


def _topic(number: int) -> str:
    return f"site{number % _SITES}/dev{number}/temp"


def _each(count: int, work: Callable[[int], object]) -> float:
    """Seconds each."""
    started = time.perf_counter()
    for number in range(count):
        work(number)
    return (time.perf_counter() - started) / count


def _resident() -> int:
    return resident_bytes(_PID)


def _tell(what: str, found: str) -> None:
    print(f"{what:45}: {found}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", nargs="?", choices=PARTS, help="one part; all without")
    parser.add_argument(
        "--count",
        type=int,
        default=1_000_000,
        help="retained topics, and subscriptions of each shape",
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
