"""The last retained message of each topic, in the store, found by topic filter.

Nothing of them is held in memory but what waits for its commit, so memory does not grow with their number: a look-up
reads keys from the store in slices, each as long as its caller can do with, and continues at the key where it stopped.
With ``storage = memory`` there is a copy in memory, and look-ups do not touch the store.

Keys: ``retained/KEY`` holds the message of the topic with that key (``broker.core.topic_keys``), so one entry a
topic; ``retained-expiry/TIME KEY`` finds what expires next; ``retained-totals`` counts them, so that a start reads
neither.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from struct import Struct
from typing import Final, NamedTuple

from broker.core import reason
from broker.core.clock import Clock
from broker.core.errors import SluiceError
from broker.core.message import Message
from broker.core.stage import Refusal
from broker.core.topic import TopicFilter
from broker.core.topic_keys import FilterWalk, topic_key, topic_of
from broker.routing.retained_record import (
    Accounts,
    account_of,
    decode_retained,
    encode_retained,
    expiry_of,
    stamp_of,
)
from broker.routing.settings import RetainedSettings
from broker.storage.ordered_keys import OrderedKeys
from broker.storage.store import KeyCursor, Store
from broker.storage.writer import Writer

PREFIX: Final = b"retained/"
EXPIRY_PREFIX: Final = b"retained-expiry/"
TOTALS: Final = b"retained-totals"
_TOTALS: Final = Struct(">QQQ")
_TIME: Final = Struct(">Q")
_STEPS: Final = 512
"""Keys that one slice of a look-up visits: some 2 ms."""
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


class _Change:
    """A change that waits for its commit, with what it did to the totals since the last one that was committed."""

    __slots__ = ("account", "account_before", "bytes", "count", "value")

    def __init__(
        self, value: bytes | None, count: int, size_bytes: int, account: int | None, account_before: int | None
    ) -> None:
        self.value, self.count, self.bytes = value, count, size_bytes
        self.account, self.account_before = account, account_before
        """The account of this value, and of the value that was committed last."""


class Retained:
    """The retained messages of a node.

    Changes take part in the commit group at hand, so an acknowledgement waits for them.

    ``count`` and ``size_bytes`` (of topics, payloads and properties) are exact, what waits for its commit included.
    """

    def __init__(self, writer: Writer, clock: Clock, settings: RetainedSettings | None = None) -> None:
        self._writer, self._clock = writer, clock
        self._settings = settings or RetainedSettings()
        self._memory = OrderedKeys() if self._settings.used_storage == "memory" else None
        self._pending: dict[bytes, _Change] = {}
        self._open: dict[bytes, _Change] = {}
        self._sweep_from = EXPIRY_PREFIX
        self.accounts = Accounts()
        self.count = self.size_bytes = 0
        self.stamp = 0
        """Of the latest message taken."""
        self.is_on = True
        """Whether messages are retained; if not, those there are can still be deleted."""
        writer.before_commit(self._seal)

    # -- start --

    def load(self) -> Iterator[None]:
        """Take over what the store holds, before anything else is asked; a step at a time."""
        yield from self._load()
        self.accounts.since = self.stamp

    def _load(self) -> Iterator[None]:
        store = self._writer.store
        known = store.get(TOTALS)
        if known is not None:
            self.count, self.size_bytes, self.stamp = _TOTALS.unpack(known)
        elif store.cursor(PREFIX).seek(PREFIX) is not None:
            raise SluiceError("store: expected data of Sluice 0.2.0 or later, got older data. Try: start 0.2.0 once.")
        if self._memory is not None:
            for number, (key, value) in enumerate(store.scan(PREFIX)):
                self._memory.put(key, value)
                if number % _LOAD_STEP == 0:
                    yield

    # -- changes --

    def refusal(self, message: Message) -> Refusal | None:
        """Why a message cannot be retained: a limit of the settings. None when it can, or deletes."""
        limits, size = self._settings, len(message.payload)
        if not size:
            return None
        if limits.max_payload and size > limits.max_payload:
            text = f"a retained message may have {limits.max_payload} bytes of payload, and this one has {size}"
            return _refused("retained_payload_too_large", text)
        is_near = limits.max_bytes and self.size_bytes + size + 4096 > limits.max_bytes
        most, account = limits.max_bytes_per_client, account_of(message.client.client_id)
        is_near_own = most and self.accounts.bytes_on(account) + size + 4096 > most
        if not (is_near or is_near_own or (limits.max_messages and self.count >= limits.max_messages)):
            return None
        key = topic_key(message.topic)
        old = self._value(key)
        if limits.max_messages and old is None and self.count >= limits.max_messages:
            return _refused("retained_full", f"there are {self.count} retained messages, as many as there may be")
        size, old_size = len(key) + len(encode_retained(message, 0)), 0 if old is None else len(key) + len(old)
        if limits.max_bytes and self.size_bytes + size - old_size > limits.max_bytes:
            return _refused(
                "retained_full", f"retained messages may have {limits.max_bytes} bytes, and would have more"
            )
        own_before = old_size if old is not None and self.accounts.of(old) == account else 0
        if most and self.accounts.bytes_on(account) + size - own_before > most:
            text = f"the retained messages of one client may have {most} bytes, and would have more"
            return _refused("retained_full_for_client", text)
        return None

    def retain(self, message: Message) -> None:
        """Replace the topic's message; an empty payload deletes it [MQTT-3.3.1-5, -6]."""
        key = topic_key(message.topic)
        old = self._value(key)
        if message.payload:
            if not self.is_on:
                return
            self.stamp = max(self.stamp + 1, self._clock.now_ns())
            account = account_of(message.client.client_id)
            self._put(key, encode_retained(message, self.stamp), old, account)
        elif old is not None:
            self._put(key, None, old)
        elif message.qos:  # to be remembered as taken: sent again behind a newer message, it would delete that one
            self._writer.touch()

    def delete(self, topic: str) -> bool:
        """Forget the message of a topic; False when there is none."""
        key = topic_key(topic)
        old = self._value(key)
        if old is not None:
            self._put(key, None, old)
        return old is not None

    def sweep(self) -> bool:
        """Forget some of what has expired; True when there may be more. What is not due is not looked at."""
        cursor, now_ns = self._writer.store.cursor(EXPIRY_PREFIX), self._clock.now_ns()
        key = cursor.seek(self._sweep_from)
        for _ in range(_SWEEP_STEP):
            if key is None or _TIME.unpack_from(key, len(EXPIRY_PREFIX))[0] > now_ns:
                self._sweep_from = EXPIRY_PREFIX
                return False
            self._expire(key)
            self._sweep_from = key + b"\0"
            key = cursor.next()
        return True

    def _expire(self, key: bytes) -> None:
        (expires_ns,) = _TIME.unpack_from(key, len(EXPIRY_PREFIX))
        topic = key[len(EXPIRY_PREFIX) + _TIME.size :]
        value = self._value(topic)
        if value is not None and expiry_of(value) == expires_ns:
            self._put(topic, None, value)
        else:
            self._writer.put(key, None)

    # -- look-ups --

    def get(self, topic: str) -> Message | None:
        """The message of a topic, also when it has expired and was not swept yet."""
        value = self._value(topic_key(topic))
        return None if value is None else decode_retained(topic, value)

    def among(self, topics: Iterable[str]) -> set[str]:
        """Those of the topics that have a message; no message is read."""
        cursor, found = self._source.cursor(PREFIX), set[str]()
        for key, topic in sorted((topic_key(topic), topic) for topic in topics):
            change = self._pending.get(key)
            if _seek(cursor, key) == key if change is None else change.value is not None:
                found.add(topic)
        return found

    @property
    def waiting(self) -> int:
        """How many changes wait for their commit: ``read`` does not see those."""
        return len(self._pending)

    def changed_meanwhile(self, known: frozenset[bytes]) -> frozenset[bytes]:
        """``known`` and the keys of all that waits for its commit. What ``read`` finds of those is old, and a reader in
        slices for a subscription has been sent the newer message as a live one."""
        return known.union(self._pending) if self._pending else known

    def has_none(self, topic_filter: TopicFilter) -> bool:
        """Whether there is nothing that matches, as far as a look at one key can show."""
        if self._pending or not self.count:
            return not self._pending
        if "+" in topic_filter.levels or "#" in topic_filter.levels:
            return False
        return self._committed_value(topic_key(topic_filter.filter)) is None

    def waiting_entries(self, walk: FilterWalk) -> tuple[list[Entry], frozenset[bytes]]:
        """What waits for its commit and matches; and the keys of all that waits, deletions too."""
        found = [
            (key, change.value)
            for key, change in self._pending.items()
            if change.value is not None and walk.follow(key) == key
        ]
        return [_entry(key, value) for key, value in sorted(found)], frozenset(self._pending)

    def read(
        self, walk: FilterWalk, position: bytes, limit: int, max_bytes: int, without: frozenset[bytes] = frozenset()
    ) -> Slice:
        """At most ``limit`` messages, or a little over ``max_bytes`` of them, from ``position`` on (``b""``: all).

        A slice may be empty and not the last. Keys in ``without`` are passed over.
        """
        if walk.exact is not None:
            return Slice(self._exact(walk.exact, without), None)
        cursor, entries = self._source.cursor(PREFIX), list[Entry]()
        key = _seek(cursor, max(position, walk.start))
        for _ in range(_STEPS):
            if key is None:
                return Slice(entries, None)
            target = walk.follow(key)
            if target is None:
                return Slice(entries, None)
            if target != key:
                key = _seek(cursor, target)
                continue
            if len(entries) >= limit or max_bytes <= 0:
                return Slice(entries, key)
            if key not in without:
                value = cursor.value()
                entries.append(_entry(key, value))
                max_bytes -= len(value)
            key = _key(cursor.next())
        return Slice(entries, key)

    def _exact(self, key: bytes, without: frozenset[bytes]) -> list[Entry]:
        value = None if key in without else self._committed_value(key)
        return [] if value is None else [_entry(key, value)]

    @property
    def _source(self) -> Store | OrderedKeys:
        """Where committed messages are read."""
        return self._writer.store if self._memory is None else self._memory

    # -- inside --

    def _value(self, key: bytes) -> bytes | None:
        change = self._pending.get(key)
        return self._committed_value(key) if change is None else change.value

    def _committed_value(self, key: bytes) -> bytes | None:
        return self._source.get(PREFIX + key)

    def _put(self, key: bytes, value: bytes | None, old: bytes | None, account: int | None = None) -> None:
        count = (value is not None) - (old is not None)
        size, old_size = 0 if value is None else len(key) + len(value), 0 if old is None else len(key) + len(old)
        size_bytes = size - old_size
        self.count += count
        self.size_bytes += size_bytes
        account_before = None
        if old is not None and (account_before := self.accounts.of(old)) is not None:
            self.accounts.add(account_before, -old_size)
        if account is not None:
            self.accounts.add(account, size)
        self._writer.put(PREFIX + key, value)
        if old is not None and (expires_ns := expiry_of(old)):
            self._writer.put(_expiry_key(expires_ns, key), None)
        if value is not None and (expires_ns := expiry_of(value)):
            self._writer.put(_expiry_key(expires_ns, key), b"")
        if not self._open:
            self._writer.when_committed(self._settler(self._open))
        earlier = self._open.get(key)
        if earlier is not None:
            count, size_bytes = count + earlier.count, size_bytes + earlier.bytes
            account_before = earlier.account_before
        self._open[key] = self._pending[key] = _Change(value, count, size_bytes, account, account_before)

    def _seal(self) -> None:
        """The group is sealed: its totals go with it."""
        if self._open:
            self._writer.put(TOTALS, _TOTALS.pack(self.count, self.size_bytes, self.stamp))
            self._open = {}

    def _settler(self, changes: Mapping[bytes, _Change]) -> Callable[[BaseException | None], None]:
        def settle(error: BaseException | None) -> None:
            for key, change in changes.items():
                if error is not None:
                    self._undo(key, change)
                elif self._memory is not None:
                    self._memory.put(PREFIX + key, change.value)
                if self._pending.get(key) is change:
                    del self._pending[key]

        return settle

    def _undo(self, key: bytes, change: _Change) -> None:
        """A change was not committed: what it did to the totals falls to a later one of the key, or is taken back."""
        later = self._pending.get(key)
        if later is not None and later is not change:
            later.count += change.count
            later.bytes += change.bytes
            later.account_before = change.account_before
        else:
            self.count -= change.count
            self.size_bytes -= change.bytes
            size = 0 if change.value is None else len(key) + len(change.value)
            if change.account is not None:
                self.accounts.add(change.account, -size)
            if change.account_before is not None:
                self.accounts.add(change.account_before, size - change.bytes)


def _seek(cursor: KeyCursor, key: bytes) -> bytes | None:
    return _key(cursor.seek(PREFIX + key))


def _key(found: bytes | None) -> bytes | None:
    return None if found is None else found[len(PREFIX) :]


def _entry(key: bytes, value: bytes) -> Entry:
    return Entry(decode_retained(topic_of(key), value), stamp_of(value))


def _expiry_key(expires_ns: int, key: bytes) -> bytes:
    return EXPIRY_PREFIX + _TIME.pack(expires_ns) + key


def _refused(why: str, text: str) -> Refusal:
    return Refusal("retained", "retained", why, reason.QUOTA_EXCEEDED, text)
