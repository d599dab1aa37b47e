"""What a cell's store hands to the stores of other cells when their number changes.

The values of each collection belong to a cell by the client, the topic or the source that their keys name. Of the
session log, a cell gets the records that its new sessions wait for, once, addressed to the slots that come with them:
sessions that it has already pass over them. Share groups and what actions have not sent stay where they are: parts of
groups note where their members are from now on.

Nothing is removed from a store before everything is in the others, so that all of it can be done again after a kill.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from typing import Final, NamedTuple

import msgspec

from broker.cluster.positions import StoredPositions
from broker.connection.sessions import inbounds
from broker.connection.sessions.log import SESSION_LOG
from broker.connection.sharing import group
from broker.connection.sharing.group import FarMemberRecord
from broker.connection.sharing.services import OF_CELL
from broker.core.cells import Slots, cell_of, cell_of_name
from broker.core.stream import StreamRecord
from broker.core.topic_keys import topic_of
from broker.routing import delayed, retained_store
from broker.session.delivery import Claim
from broker.session.record import (
    Claimed,
    moved_session,
    moved_subscriptions,
    needs_of,
    stored_filters,
)
from broker.session.subscriptions import Matching, matching_filters
from broker.storage import records
from broker.storage.store import Batch, LogShard, Store

# Number of records or values, and their bytes, that are committed together.
_TOGETHER: Final = 2000
_TOGETHER_BYTES: Final = 1024 * 1024
# Of a record beside its topic and payload, about.
_RECORD_BYTES: Final = 64
# Topics that are remembered.
_MOST_TOPICS: Final = 65_536
_SESSIONS: Final = b"session/"
_SUBSCRIPTIONS: Final = b"subscriptions/"
_DELAYED: Final = b"delayed/"
_GROUPS: Final = b"share-group/"
_PRIVATE_GROUP: Final = b"$replay/"
_SETTLED: Final = b"share-settled/"
_POSITIONS: Final = b"values/bridges/positions/"
_MARK: Final = b"resize/"
_NEVER: Final = 1 << 62

# Cell of a value, by the rest of its key, the value and the number of cells.
_CellOf = Callable[[bytes, bytes, int], int]


def _by_client(key: bytes, _value: bytes, count: int) -> int:
    return cell_of(key.decode(), count)


def _by_publisher(_key: bytes, value: bytes, count: int) -> int:
    return cell_of(delayed.client_of(value), count)


def _by_topic(key: bytes, _value: bytes, count: int) -> int:
    return cell_of(topic_of(key), count)


def _by_topic_after_time(key: bytes, value: bytes, count: int) -> int:
    return _by_topic(key[8:], value, count)


def _by_connector(key: bytes, _value: bytes, count: int) -> int:
    return cell_of_name(key.decode(), count)


def _by_source(homes: Mapping[str, str], key: bytes, _value: bytes, count: int) -> int:
    connector = homes.get(key.decode().partition("/")[0])
    return 0 if connector is None else cell_of_name(connector, count)


# The collections whose values have a cell by their keys, and the positions of sources. Others stay where they are.
MOVED: Final[dict[bytes, _CellOf]] = {
    _SESSIONS: _by_client,
    _SUBSCRIPTIONS: _by_client,
    inbounds.PREFIX: _by_client,
    b"wills/": _by_client,
    b"replay/": _by_client,
    _DELAYED: _by_publisher,
    retained_store.PREFIX: _by_topic,
    retained_store.EXPIRY_PREFIX: _by_topic_after_time,
    b"values/bridges/mqtt/": _by_connector,
}
# Collections that are the same in all cells: a new one gets those of the first.
SHARED: Final = (b"bans/", b"access/", b"values/node/origin")


class _Mark(msgspec.Struct, array_like=True, frozen=True):
    """What a store has from another one, kept in the commits of it: the number of records, the offset of the first,
    and whether all values are there too. ``change`` names the change of the number of cells."""

    change: str
    records: int
    first: int
    is_whole: bool = False


_pack: Final = msgspec.msgpack.Encoder().encode
_unpack: Final = msgspec.msgpack.Decoder(_Mark).decode


class Form(NamedTuple):
    """A change of the number of cells, by a name that no other one has. ``homes`` are the connectors of sources, by
    the identifiers of these."""

    id: str
    before: int
    after: int
    homes: Mapping[str, str]


class Share:
    """What one cell's store has for another cell."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self.sessions = self.values = self.messages = 0
        self.size_bytes = self.message_bytes = 0
        self.claims: dict[str, list[Claimed]] = defaultdict(list)
        """Messages of this cell's parts of share groups that its clients have in flight."""
        self._low = _NEVER
        self._offsets: set[int] = set()
        self._filters: dict[str, str] = {}
        self._matching: Matching[str] | None = None
        self._topics: dict[str, bool] = {}
        self._copied = array("Q")
        """Offsets of the records that it gets, in order."""
        self._claimed: dict[tuple[str, int], int] = {}
        self._first = 0

    def add_session(self, client_id: str, value: bytes) -> None:
        """Note what a session needs of logs."""
        needs = needs_of(value)
        self.sessions += 1
        self._low = min(self._low, needs.position, *needs.offsets)
        self._offsets.update(needs.offsets)
        claims = [claimed for claimed in needs.claims if not claimed.claim[0].startswith(OF_CELL)]
        if claims:
            self.claims[client_id] += claims

    def add_subscriptions(self, value: bytes) -> None:
        """Note which topics sessions wait for."""
        self._filters.update((text, text) for text, _, _ in stored_filters(value))

    def wanted(self, store: Store) -> Iterator[StreamRecord]:
        """The records that it gets, always the same ones in the same order."""
        self._copied = array("Q")
        self._claimed = {}
        for client_id, claims in self.claims.items():
            for claimed in claims:
                record = None if claimed.is_released else _record_at(store, claimed)
                if record is not None:
                    self._claimed[client_id, claimed.packet_id] = len(self._claimed)
                    yield record._replace(rule=client_id)
        for batch in store.read_arrow(SESSION_LOG, self._low, _NEVER):
            for start in range(0, batch.num_rows, _TOGETHER):
                for offset, record in records.decode(batch.slice(start, _TOGETHER)):
                    addressee = self._addressee(offset, record)
                    if addressee is not None:
                        self._copied.append(offset)
                        yield record._replace(rule=addressee)

    def _addressee(self, offset: int, record: StreamRecord) -> str | None:
        """Whom a record is addressed to there; None if no session that comes needs it."""
        slots: Slots | None = self._slots
        if record.rule is not None:
            came_with = Slots.of_addressee(record.rule)
            if came_with is None:  # a client's, or a cell's, which has a NUL
                is_here = "\0" not in record.rule and self._slots.have(record.rule)
                return record.rule if is_here else None
            slots = self._slots.common(came_with)
        if slots is None or (offset not in self._offsets and not self._is_wanted(record.topic)):
            return None
        return slots.addressee

    def _is_wanted(self, topic: str) -> bool:
        wanted = self._topics.get(topic)
        if wanted is None:
            if self._matching is None:
                self._matching = matching_filters(self._filters)
            wanted = any(True for _ in self._matching(topic))
            if len(self._topics) >= _MOST_TOPICS:
                self._topics.clear()
            self._topics[topic] = wanted
        return wanted

    def count(self, store: Store) -> None:
        """Count the records that it gets."""
        for record in self.wanted(store):
            self.messages += 1
            self.message_bytes += len(record.payload) + len(record.topic) + _RECORD_BYTES
        self.size_bytes += self.message_bytes

    def copied_to(self, first: int) -> None:
        """The records are at the offsets from this one on."""
        self._first = first

    def offset_of(self, offset: int) -> int:
        """Where reading goes on in the new log, for an offset of the one of before."""
        return self._first + len(self._claimed) + bisect_left(self._copied, offset)

    def copy_of(self, offset: int) -> int | None:
        """Offset of a record's copy, None where there is none."""
        at = bisect_left(self._copied, offset)
        if at == len(self._copied) or self._copied[at] != offset:
            return None
        return self._first + len(self._claimed) + at

    def form_of(
        self,
        prefix: bytes,
        key: bytes,
        value: bytes,
        claim_of: Callable[[str, Claim], Claim | None],
    ) -> bytes:
        """A value as the other store keeps it. ``claim_of`` gives the claim of a client there."""
        if prefix == _SUBSCRIPTIONS:
            return moved_subscriptions(value, self.offset_of)
        if prefix != _SESSIONS:
            return value
        client_id = key.decode()
        claimed = {
            claim.packet_id: self._first + self._claimed[client_id, claim.packet_id]
            for claim in self.claims.get(client_id, ())
            if (client_id, claim.packet_id) in self._claimed
        }
        return moved_session(
            value, self.offset_of, self.copy_of, claimed, partial(claim_of, client_id)
        )


class Leaving:
    """What one cell's store has that other cells get."""

    def __init__(self, number: int, store: Store, form: Form) -> None:
        self.number = number
        self._store = store
        self._form = form
        self._cell_of: dict[bytes, _CellOf] = {**MOVED, _POSITIONS: partial(_by_source, form.homes)}
        own = Slots.of_cell(number, form.before)
        self.shares: dict[int, Share] = {}
        for cell in range(form.after):
            slots = own.common(Slots.of_cell(cell, form.after))
            if cell != number:
                self.shares[cell] = Share(slots or Slots(1, 0))
        for prefix, key, value, cell in self._values():
            share = self.shares[cell]
            share.values += 1
            share.size_bytes += len(prefix) + len(key) + len(value)
            if prefix == _SESSIONS:
                share.add_session(key.decode(), value)
            elif prefix == _SUBSCRIPTIONS:
                share.add_subscriptions(value)

    def _values(self) -> Iterator[tuple[bytes, bytes, bytes, int]]:
        """Prefix, rest of the key, value and cell of each value that is another cell's."""
        for prefix, by in self._cell_of.items():
            for stored_key, value in self._store.scan(prefix):
                key = stored_key[len(prefix) :]
                cell = by(key, value, self._form.after)
                # what is not this cell's came from another store already
                if cell != self.number and by(key, value, self._form.before) == self.number:
                    yield prefix, key, value, cell

    def count(self) -> None:
        """Count the messages that others get."""
        for share in self.shares.values():
            share.count(self._store)

    def busy_readers(self) -> Iterator[str]:
        """Clients that go, with a subscription that began in the past and has not read its stream to the end."""
        for client_id, _, value in self._private_groups():
            if not group.is_idle(value, lambda shard: self._store.range_of(shard).next_offset):
                yield client_id

    def _private_groups(self) -> Iterator[tuple[str, bytes, bytes]]:
        """Client, key and record of the groups of subscriptions that began in the past, of clients that go."""
        for key, value in self._store.scan(_GROUPS + _PRIVATE_GROUP):
            name = key.removeprefix(_GROUPS + _PRIVATE_GROUP).decode()
            client_id = name.removesuffix(f"/{group.filter_of(value)}")
            if cell_of(client_id, self._form.after) != self.number:
                yield client_id, key, value

    def copy(self, stores: Callable[[int], Store], note: Callable[[str], None]) -> None:
        """Write everything into the other stores that is not there yet."""
        whole = set()
        granted = cache(lambda cell: _Granted(cell, stores(cell)))
        for cell, share in self.shares.items():
            if share.values and self._copy_records(cell, share, stores(cell), note):
                whole.add(cell)
        changes: dict[int, _Puts] = {}
        for prefix, key, value, cell in self._values():
            if cell in whole:
                continue
            puts = changes.setdefault(cell, _Puts(stores(cell)))
            put_key = prefix + key
            if prefix == _DELAYED:
                put_key = _free_key(stores(cell), put_key, value)
            form = self.shares[cell].form_of(prefix, key, value, granted(cell).claim_of)
            puts.add(put_key, form)
        for cell, puts in changes.items():
            puts.flush()
            mark = _mark_in(stores(cell), self.number, self._form)
            stores(cell).commit(
                Batch(puts={_key(self.number): _pack(msgspec.structs.replace(mark, is_whole=True))})
            )
            note(f"cell {self.number} to {cell}: {self.shares[cell].sessions:,} sessions")

    def _copy_records(
        self, cell: int, share: Share, target: Store, note: Callable[[str], None]
    ) -> bool:
        """Append the records that sessions wait for; True where all values are there too."""
        mark = _mark_in(target, self.number, self._form)
        share.copied_to(mark.first)
        wanted: list[StreamRecord] = []
        size = 0
        done = mark.records

        def commit() -> None:
            kept = _Mark(self._form.id, done, mark.first, mark.is_whole)
            target.commit(
                Batch({SESSION_LOG: wanted} if wanted else {}, {_key(self.number): _pack(kept)})
            )

        for number, record in enumerate(share.wanted(self._store)):
            if number < mark.records:
                continue
            wanted.append(record)
            size += len(record.payload)
            done += 1
            if len(wanted) >= _TOGETHER or size >= _TOGETHER_BYTES:
                commit()
                note(f"cell {self.number} to {cell}: {done:,} messages")
                wanted = []
                size = 0
        commit()
        return mark.is_whole

    def remove(self) -> None:
        """Delete here what the other stores have."""
        places: dict[str, set[tuple[int, int, int]]] = defaultdict(set)
        for share in self.shares.values():
            for claims in share.claims.values():
                for claimed in claims:
                    places[claimed.claim[0]].add(
                        (claimed.claim[1], claimed.claim[2], claimed.claim[3])
                    )
        puts = _Puts(self._store)
        for name, taken in places.items():
            key = _GROUPS + name.encode()
            if (value := self._store.get(key)) is not None:
                puts.add(key, group.without(value, taken))
        for _, key, _ in self._private_groups():
            puts.add(key, None)
        puts.flush()
        for prefix, key, _, _ in self._values():
            puts.add(prefix + key, None)
        puts.flush()


class _Granted:
    """Messages that a cell's parts of share groups have granted to members in other cells."""

    def __init__(self, cell: int, store: Store) -> None:
        self._cell = cell
        self._log = StoredPositions(store).identity
        self._granted = {
            (key.removeprefix(_GROUPS).decode(), grant.client_id, grant.place)
            for key, value in store.scan(_GROUPS)
            for grant in group.granted_in(value)
        }

    def claim_of(self, client_id: str, claim: Claim) -> Claim | None:
        """The claim of a client that comes to this cell, for one that it has; None if the message is its own from now
        on, or the part in this cell did not grant it."""
        if not claim[0].startswith(OF_CELL):
            return None
        cell, log, name = claim[0].removeprefix(OF_CELL).split(":", 2)
        if int(cell) != self._cell:
            return claim
        place = claim[3] >> 1
        if log != self._log or (name, client_id, place) not in self._granted:
            return None
        return name, SESSION_LOG.log, SESSION_LOG.shard, place


class _Puts:
    """Changes of one store, committed many at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._puts: dict[bytes, bytes | None] = {}
        self._bytes = 0

    def add(self, key: bytes, value: bytes | None) -> None:
        self._puts[key] = value
        self._bytes += len(key) + len(value or b"")
        if len(self._puts) >= _TOGETHER or self._bytes >= _TOGETHER_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._puts:
            self._store.commit(Batch(puts=self._puts))
        self._puts = {}
        self._bytes = 0


def _key(number: int) -> bytes:
    return _MARK + b"%d" % number


def _mark_in(target: Store, number: int, form: Form) -> _Mark:
    """What a store has from the cell with that number."""
    value = target.get(_key(number))
    mark = None if value is None else _unpack(value)
    if mark is None or mark.change != form.id:
        return _Mark(form.id, 0, target.range_of(SESSION_LOG).next_offset)
    return mark


def _free_key(target: Store, key: bytes, value: bytes) -> bytes:
    """A key for a delayed message, which ends with a number: another one where the store has a message with it."""
    while target.get(key) not in (None, value):
        key = key[:-8] + (int.from_bytes(key[-8:]) + 1).to_bytes(8)
    return key


def _record_at(store: Store, claimed: Claimed) -> StreamRecord | None:
    """The message of a share group that a session has in flight, None if its log no longer has it."""
    _, log, shard, offset = claimed.claim
    found = store.read(LogShard(log, shard), offset, 1)
    return found[0][1] if found and found[0][0] == offset else None


def fold(store: Store) -> None:
    """Store whole what clients may send again."""
    puts = _Puts(store)
    for key, value in inbounds.folded(store):
        puts.add(key, value)
    puts.flush()


def share(first: Store, new: Store) -> None:
    """Give a new cell what all cells have, and a part of each share group."""
    puts = _Puts(new)
    for prefix in SHARED:
        for key, value in first.scan(prefix):
            puts.add(key, value)
    for key, value in _groups(first):
        puts.add(key, group.part_of(value))
    puts.flush()


def _groups(store: Store) -> Iterator[tuple[bytes, bytes]]:
    for key, value in store.scan(_GROUPS):
        if not key.startswith(_GROUPS + _PRIVATE_GROUP):
            yield key, value


def regroup(
    cell: int,
    form: Form,
    stores: Callable[[int], Store],
    members: Mapping[str, list[FarMemberRecord]],
) -> None:
    """Write into a cell's parts of share groups where members are from now on, and what these have settled."""
    store = stores(cell)
    log = StoredPositions(store).identity
    settled: dict[str, set[tuple[int, int, int]]] = defaultdict(set)
    for other in range(form.before):
        prefix = _SETTLED + b"%d/" % cell
        for key, _ in stores(other).scan(prefix):
            identity, number, name = key.removeprefix(prefix).decode().split("/", 2)
            if identity == log:
                settled[name].add((SESSION_LOG.log, SESSION_LOG.shard, int(number) >> 1))

    def home_of(client_id: str) -> int | None:
        home = cell_of(client_id, form.after)
        return None if home == cell else home

    puts = _Puts(store)
    for key, value in _groups(store):
        name = key.removeprefix(_GROUPS).decode()
        far = [member for member in members.get(name, ()) if member.cell != cell]
        left = group.without(value, settled[name]) if name in settled else value
        puts.add(key, group.with_members(left, far, home_of))
    puts.flush()


def finish(store: Store) -> None:
    """Delete what notes a change of the number of cells, once it is made, and count again what is counted."""
    puts = _Puts(store)
    for prefix in (_MARK, _SETTLED):  # parts of share groups took note of what was settled
        for key, _ in store.scan(prefix):
            puts.add(key, None)
    puts.add(*retained_store.recounted(store))
    puts.flush()
