"""The last retained message of each topic, in the store, found by topic filter.

Nothing of them is held in memory but what waits for its commit, so memory does not grow with their number: a look-up
reads keys from the store in slices, each as long as its caller can do with, and continues at the key where it stopped.
With ``storage = memory`` there is a copy in memory, and look-ups do not touch the store.

Keys: ``retained/KEY`` holds the message of the topic with that key (``broker.core.topic_keys``), so one entry a
topic; ``retained-expiry/TIME KEY`` finds what expires next; ``retained-totals`` counts them, so that a start reads
neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct
from typing import Final, NamedTuple, Protocol

from broker.core import reason
from broker.core.clock import Clock
from broker.core.errors import SluiceError
from broker.core.message import Message
from broker.core.stage import Refusal
from broker.core.topic import TopicFilter
from broker.core.topic_keys import FilterWalk, topic_key, topic_of
from broker.routing.retained_record import (
    Accounts,
    Origin,
    account_of,
    decode_retained,
    encode_retained,
    expiry_of,
    origin_of,
    stamp_of,
)
from broker.routing.settings import RetainedSettings
from broker.storage.collection import RAW, TEXT, Codec, Collection, LiveCollection
from broker.storage.ordered_keys import OrderedKeys
from broker.storage.store import KeyCursor, Store
from broker.storage.writer import Writer

PREFIX: Final = b"retained/"
EXPIRY_PREFIX: Final = b"retained-expiry/"
TOTALS: Final = b"retained-totals"
_TOTALS: Final = Struct(">QQQ")
_TIME: Final = Struct(">Q")
# When a message expires, nanoseconds of the wall clock, and the key of its topic.
_EXPIRIES: Final = Codec[tuple[int, bytes]](
    lambda place: _TIME.pack(place[0]) + place[1],
    lambda key: (_TIME.unpack_from(key)[0], key[_TIME.size :]),
)
# Keys that one slice of a look-up visits: some 2 ms.
_STEPS: Final = 512
_LOAD_STEP: Final = 1000
_SWEEP_STEP: Final = 256


class Entry(NamedTuple):
    """A retained message and the order in which it was taken."""

    message: Message
    stamp: int


class Slice(NamedTuple):
    """A part of a look-up. ``position`` is where the next one continues, None at the end."""

    entries: list[Entry]
    position: bytes | None


class Values(NamedTuple):
    """A part of a look-up as the store has it: keys of topics, and values."""

    values: list[tuple[bytes, bytes]]
    position: bytes | None


class Owners(Protocol):
    """The other cells of a broker: each cell has the retained messages of some topics."""

    count: int
    """Number of messages that the others have, as they last said, and their bytes."""
    size_bytes: int

    def has(self, topic: str) -> bool:
        """True if the retained message of a topic is another cell's."""

    def send(self, message: Message, stamp: int) -> None:
        """Send a message to the cell of its topic; its publisher's acknowledgement waits until it is stored there."""

    async def among(self, topics: Sequence[str]) -> set[str]:
        """Topics of other cells that have a message."""

    def changed(self) -> None:
        """The messages of this cell have changed."""

    def noted(self, message: Message) -> None:
        """A message with RETAIN was published here."""


class Retained:
    """The retained messages of a node; where it is one of several cells, those of its topics.

    Changes take part in the current commit group, so an acknowledgement waits for them.

    ``count`` and ``size_bytes`` (of topics, payloads and properties) are exact, what waits for its commit included.
    """

    def __init__(
        self, writer: Writer, clock: Clock, settings: RetainedSettings | None = None
    ) -> None:
        self._writer = writer
        self._clock = clock
        self._settings = settings or RetainedSettings()
        self._messages = LiveCollection(writer, PREFIX, RAW, RAW, self._not_stored)
        self._expiries = Collection(writer, EXPIRY_PREFIX, _EXPIRIES, RAW)
        self._totals = Collection(writer, TOTALS, TEXT, RAW)
        self._memory = OrderedKeys() if self._settings.used_storage == "memory" else None
        self._is_changed = False
        self._swept: tuple[int, bytes] | None = None
        self.accounts = Accounts()
        self.count = self.size_bytes = 0
        self.stamp = 0
        """Stamp of the latest message taken."""
        self.is_on = True
        """True if messages are retained; if not, existing ones can still be deleted."""
        self.owners: Owners | None = None
        writer.before_commit(self._seal)

    # -- start --

    def load(self) -> Iterator[None]:
        """Take over what the store holds, before anything else is asked; a step at a time."""
        yield from self._load()
        self.accounts.since = self.stamp

    def _load(self) -> Iterator[None]:
        totals = self._totals.committed("")
        if totals is not None:
            self.count, self.size_bytes, self.stamp = _TOTALS.unpack(totals)
        elif self._messages.keys_from(None, 1):
            raise SluiceError(
                "store: expected data of Sluice 0.2.0 or later, got older data. Try: start 0.2.0 once."
            )
        if self._memory is not None:
            for number, (key, value) in enumerate(self._messages.stored()):
                self._memory.put(key, value)
                if number % _LOAD_STEP == 0:
                    yield

    # -- changes --

    def refusal(self, message: Message) -> Refusal | None:
        """Refusal of a message that exceeds a limit of the settings. None when it can be retained, or deletes."""
        limits = self._settings
        size = len(message.payload)
        if not size:
            return None
        if limits.max_payload and size > limits.max_payload:
            text = f"a retained message may have {limits.max_payload} bytes of payload, and this one has {size}"
            return _refused("retained_payload_too_large", text)
        count, size_bytes = self.count, self.size_bytes
        if self.owners is not None:
            if self.owners.has(message.topic):  # which decides
                return None
            count += self.owners.count
            size_bytes += self.owners.size_bytes
        is_near = limits.max_bytes and size_bytes + size + 4096 > limits.max_bytes
        most = limits.max_bytes_per_client
        account = account_of(message.client.client_id)
        is_near_own = most and self.accounts.bytes_on(account) + size + 4096 > most
        if not (is_near or is_near_own or (limits.max_messages and count >= limits.max_messages)):
            return None
        key = topic_key(message.topic)
        old = self._value(key)
        if limits.max_messages and old is None and count >= limits.max_messages:
            return _refused(
                "retained_full", f"limit of {limits.max_messages} retained messages reached"
            )
        size = len(key) + len(encode_retained(message, 0))
        old_size = 0 if old is None else len(key) + len(old)
        if limits.max_bytes and size_bytes + size - old_size > limits.max_bytes:
            return _refused(
                "retained_full", f"limit of {limits.max_bytes} bytes of retained messages reached"
            )
        own_before = old_size if old is not None and self.accounts.of(old) == account else 0
        if most and self.accounts.bytes_on(account) + size - own_before > most:
            text = f"limit of {most} bytes of retained messages of one client reached"
            return _refused("retained_full_for_client", text)
        return None

    @property
    def is_near_limit(self) -> bool:
        """True if the messages of all cells have reached half of a limit."""
        limits = self._settings
        count, size_bytes = self.count, self.size_bytes
        if self.owners is not None:
            count += self.owners.count
            size_bytes += self.owners.size_bytes
        return 0 < limits.max_messages <= count * 2 or 0 < limits.max_bytes <= size_bytes * 2

    def retain(self, message: Message) -> None:
        """Replace the topic's message; an empty payload deletes it [MQTT-3.3.1-5, -6]."""
        if self.owners is not None:
            self.owners.noted(message)
            if self.owners.has(message.topic):
                if self.is_on or not message.payload:
                    self._is_changed = True
                    self.owners.send(message, self._next_stamp())
                return
        self.take(message)

    def take(self, message: Message, origin: Origin | None = None) -> None:
        """The same for a topic of this cell; ``origin`` is that of a message that another cell sent."""
        key = topic_key(message.topic)
        old = self._value(key)
        if message.payload:
            if not self.is_on:
                return
            account = account_of(message.client.client_id)
            self._put(key, encode_retained(message, self._next_stamp(), origin), old, account)
        elif old is not None:
            self._put(key, None, old)
        elif message.qos:
            # to be remembered as taken: sent again behind a newer message, it would delete that one
            self._writer.touch()

    def _next_stamp(self) -> int:
        self.stamp = max(self.stamp + 1, self._clock.now_ns())
        return self.stamp

    def delete(self, topic: str) -> bool:
        """Forget the message of a topic; False when there is none."""
        key = topic_key(topic)
        old = self._value(key)
        if old is not None:
            self._put(key, None, old)
        return old is not None

    def sweep(self) -> bool:
        """Forget some expired messages; True when there may be more. Only due messages are read."""
        now_ns = self._clock.now_ns()
        places = self._expiries.keys_from(self._swept, _SWEEP_STEP)
        for place in places:
            if place[0] > now_ns:
                self._swept = None
                return False
            self._expire(*place)
            self._swept = place
        if len(places) < _SWEEP_STEP:
            self._swept = None
        return len(places) == _SWEEP_STEP

    def _expire(self, expires_ns: int, key: bytes) -> None:
        value = self._value(key)
        if value is not None and expiry_of(value) == expires_ns:
            self._put(key, None, value)
        else:
            self._expiries.put((expires_ns, key), None)

    # -- look-ups --

    def get(self, topic: str) -> Message | None:
        """The message of a topic, also when it has expired and was not swept yet."""
        value = self._value(topic_key(topic))
        return None if value is None else decode_retained(topic, value)

    def among(self, topics: Iterable[str]) -> set[str]:
        """Topics that have a message; no message is read."""
        cursor = self._cursor()
        retained = set[str]()
        for key, topic in sorted((topic_key(topic), topic) for topic in topics):
            if (
                self._value(key) is not None
                if self._messages.is_waiting(key)
                else cursor.seek(key) == key
            ):
                retained.add(topic)
        return retained

    async def among_all(self, topics: Sequence[str]) -> set[str]:
        """The same with topics of other cells, for as many as answer in time."""
        retained = self.among(topics)
        if self.owners is not None:
            retained |= await self.owners.among(
                [topic for topic in topics if self.owners.has(topic)]
            )
        return retained

    @property
    def waiting(self) -> int:
        """Number of changes that wait for their commit: ``read`` does not see those."""
        return self._messages.waiting_count

    def changed_meanwhile(self, keys: frozenset[bytes]) -> frozenset[bytes]:
        """``keys`` and the keys of all changes that wait for their commit. ``read`` finds the old values of these: a
        reader in slices for a subscription has been sent the newer message as a live one."""
        return keys.union(key for key, _ in self._messages.waiting()) if self.waiting else keys

    def has_none(self, topic_filter: TopicFilter) -> bool:
        """True if nothing matches, as far as a look at one key can show."""
        if self.waiting or not self.count:
            return not self.waiting
        if "+" in topic_filter.levels or "#" in topic_filter.levels:
            return False
        return self._committed_value(topic_key(topic_filter.filter)) is None

    def waiting_entries(self, walk: FilterWalk) -> tuple[list[Entry], frozenset[bytes]]:
        """Waiting entries that match; and the keys of all that wait, deletions too."""
        waiting = dict(self._messages.waiting())
        matching = [
            (key, value)
            for key, value in waiting.items()
            if value is not None and walk.follow(key) == key
        ]
        return [_entry(key, value) for key, value in sorted(matching)], frozenset(waiting)

    def read(
        self,
        walk: FilterWalk,
        position: bytes,
        limit: int,
        max_bytes: int,
        without: frozenset[bytes] = frozenset(),
    ) -> Slice:
        """At most ``limit`` messages, or a little over ``max_bytes`` of them, from ``position`` on (``b""``: all).

        A slice may be empty and not the last. Keys in ``without`` are passed over.
        """
        values, following = self.read_values(walk, position, limit, max_bytes, without)
        return Slice([_entry(key, value) for key, value in values], following)

    def read_values(
        self,
        walk: FilterWalk,
        position: bytes,
        limit: int,
        max_bytes: int,
        without: frozenset[bytes] = frozenset(),
    ) -> Values:
        """The same, as the store has them."""
        if walk.exact is not None:
            value = None if walk.exact in without else self._committed_value(walk.exact)
            return Values([] if value is None else [(walk.exact, value)], None)
        cursor = self._cursor()
        values = list[tuple[bytes, bytes]]()
        key = cursor.seek(max(position, walk.start))
        for _ in range(_STEPS):
            if key is None:
                return Values(values, None)
            target = walk.follow(key)
            if target is None:
                return Values(values, None)
            if target != key:
                key = cursor.seek(target)
                continue
            if len(values) >= limit or max_bytes <= 0:
                return Values(values, key)
            if key not in without:
                value = cursor.value()
                values.append((key, value))
                max_bytes -= len(value)
            key = cursor.next()
        return Values(values, key)

    # -- inside --

    def _cursor(self) -> KeyCursor:
        return self._messages.cursor() if self._memory is None else self._memory.cursor(b"")

    def _value(self, key: bytes) -> bytes | None:
        return self._messages.get(key) if self._memory is None else self._memory.get(key)

    def _committed_value(self, key: bytes) -> bytes | None:
        return self._messages.committed(key) if self._memory is None else self._memory.get(key)

    def _put(
        self, key: bytes, value: bytes | None, old: bytes | None, account: int | None = None
    ) -> None:
        self._count(key, value, old, account)
        self._messages.put(key, value)
        if old is not None and (expires_ns := expiry_of(old)):
            self._expiries.put((expires_ns, key), None)
        if value is not None and (expires_ns := expiry_of(value)):
            self._expiries.put((expires_ns, key), b"")

    def _not_stored(self, key: bytes, value: bytes | None, before: bytes | None) -> None:
        self._count(key, before, value, None if before is None else self.accounts.of(before))

    def _count(
        self, key: bytes, value: bytes | None, old: bytes | None, account: int | None
    ) -> None:
        """Replace a value in the state kept in memory: totals, accounts, the copy."""
        size = 0 if value is None else len(key) + len(value)
        if account is not None:
            self.accounts.add(account, size)
        self.size_bytes += size
        self.count += value is not None
        if old is not None:
            old_size = len(key) + len(old)
            self.size_bytes -= old_size
            self.count -= 1
            if (account_before := self.accounts.of(old)) is not None:
                self.accounts.add(account_before, -old_size)
        if self._memory is not None:
            self._memory.put(key, value)
        self._is_changed = True
        if self.owners is not None:
            self.owners.changed()

    def _seal(self) -> None:
        """The group is sealed: its totals go with it."""
        if self._is_changed:
            self._is_changed = False
            self._totals.put("", _TOTALS.pack(self.count, self.size_bytes, self.stamp))


def handed_over(store: Store, topic: str, value: bytes, stamp: int) -> dict[bytes, bytes | None]:
    """The changes by which a store takes a value that another cell has for a topic, or with an empty one deletes its
    own; none where its own was published after ``stamp``."""
    key = topic_key(topic)
    old = store.get(PREFIX + key)
    puts: dict[bytes, bytes | None] = {}
    if old is not None:
        origin = origin_of(old)
        if stamp < (stamp_of(old) if origin is None else origin.stamp):
            return puts
        puts[EXPIRY_PREFIX + _EXPIRIES.encode((expiry_of(old), key))] = None
    puts[PREFIX + key] = value or None
    if value and (expires_ns := expiry_of(value)):
        puts[EXPIRY_PREFIX + _EXPIRIES.encode((expires_ns, key))] = b""
    return puts


def recounted(store: Store) -> tuple[bytes, bytes | None]:
    """The key and the value of the totals of a store, counted again."""
    count = size_bytes = stamp = 0
    length = len(PREFIX)
    for key, value in store.scan(PREFIX):
        count += 1
        size_bytes += len(key) - length + len(value)
        stamp = max(stamp, stamp_of(value))
    return TOTALS, _TOTALS.pack(count, size_bytes, stamp) if count else None


def _entry(key: bytes, value: bytes) -> Entry:
    return Entry(decode_retained(topic_of(key), value), stamp_of(value))


def _refused(why: str, text: str) -> Refusal:
    return Refusal("retained", "retained", why, reason.QUOTA_EXCEEDED, text)
