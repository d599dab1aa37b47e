"""Streams by name: each has a log number, never reused, and an epoch, new when a stream is created again.

Kept in the store's key space, so that names and records cannot come apart:

::

    streams/next             the next log number
    streams/by-name/NAME     {"log": ..., "epoch": ..., "shards": ...}; in a further cell of a broker also "of", the
                             epoch of the stream in the first one
    streams/dropping/LOG     the name of a stream that is being removed, until its records are forgotten
    streams/indexed/LOG      that the range server is to index its records by topic, and their retention
    streams/tier/LOG         that the range server is to upload its records (``broker.streams.tier.report``)
"""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from broker.core import jsontext
from broker.core.errors import AlreadyExists, NotFound
from broker.core.topic import TopicFilter
from broker.observe.log import get_logger
from broker.storage.collection import RAW, RetriedCollection
from broker.storage.store import Batch, LogShard, Store
from broker.storage.writer import Writer
from broker.streams.epochs import Epochs
from broker.streams.settings import StreamSpec
from broker.streams.tier.report import Wanted as TierWanted
from broker.streams.tier.report import unpack_wanted, wanted_key
from broker.streams.topic_index.report import INDEXED, Wanted

# Logs below are the broker's own.
FIRST_STREAM_LOG: Final = 16

_log = get_logger(__name__)

_NEXT: Final = b"streams/next"
_NAMES: Final = b"streams/by-name/"
_DROPPING: Final = b"streams/dropping/"


@dataclass(slots=True)
class Stream:
    """One stream. ``spec`` is replaced when users change it; log, epoch and shards stay."""

    spec: StreamSpec
    log: int
    epoch: str
    shards: tuple[LogShard, ...]
    filters: tuple[TopicFilter, ...] = ()
    is_gone: bool = field(default=False)

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.spec.name

    def shard_of(self, client_id: str) -> LogShard:
        """Shard of a client's records: always the same, so that they stay in order."""
        if len(self.shards) == 1:
            return self.shards[0]
        return self.shards[zlib.crc32(client_id.encode(errors="replace")) % len(self.shards)]

    def shard(self, number: int) -> LogShard:
        """The shard of a number.

        Raises:
            NotFound: it has none.
        """
        first = self.shards[0].shard
        if not first <= number < first + len(self.shards):
            counted = f"{len(self.shards)}, counted from {first}"
            raise NotFound("shard", str(number), f"stream {self.name!r} has {counted}")
        return self.shards[number - first]

    def describe(self, spec: StreamSpec) -> None:
        """Take a new specification."""
        self.spec = spec
        self.filters = tuple(TopicFilter.parse(text) for text in spec.topics)


class LogKeys(RetriedCollection[bytes, bytes]):
    """The keys of the store that say which logs there are, of streams and of queues. No call waits for a commit: a
    change is in the commit group that is gathering, and so with or before the records of its log."""

    def __init__(self, writer: Writer) -> None:
        super().__init__(writer, b"", RAW, RAW)

    def scan(self, prefix: bytes) -> Sequence[tuple[bytes, bytes]]:
        """All keys that begin so and their values, in order, as they were put last."""
        present = {**dict(self.writer.store.scan(prefix)), **dict(self.waiting())}
        return sorted(
            (key, value)
            for key, value in present.items()
            if value is not None and key.startswith(prefix)
        )

    def take_number(self) -> int:
        """A number for a new log, never given before."""
        stored = self.get(_NEXT)
        number = FIRST_STREAM_LOG if stored is None else int(stored)
        self.put(_NEXT, b"%d" % (number + 1))
        return number

    def dropping(self) -> Mapping[int, str]:
        """Logs whose records must be deleted and still exist, with the streams or queues that they belonged to."""
        return {
            int(key.removeprefix(_DROPPING)): name.decode() for key, name in self.scan(_DROPPING)
        }

    def begin_drop(self, log: int, name: str) -> None:
        """Delete the records of a log in the background; ``name`` is the stream or queue they belonged to."""
        self.put(_DROPPING + b"%d" % log, name.encode())


class Catalogue:
    """The streams there are. Changes are in the commit group that is gathering when a call returns."""

    def __init__(self, keys: LogKeys, cell: int = 0, epochs: Epochs | None = None) -> None:
        """``cell`` is the number of the cell that has the store: shards of a stream are counted over all cells.
        ``epochs`` are what the cells of several agree on."""
        self._keys = keys
        self._store = keys.writer.store
        self._cell = cell
        self._epochs = epochs
        self._streams: dict[str, Stream] = {}

    def __iter__(self) -> Iterator[Stream]:
        return iter(list(self._streams.values()))

    def __contains__(self, name: object) -> bool:
        return name in self._streams

    def get(self, name: str) -> Stream:
        """The stream of that name.

        Raises:
            NotFound: there is none.
        """
        stream = self._streams.get(name)
        if stream is None:
            raise NotFound("stream", name, "GET /api/v1/streams lists all")
        return stream

    def open(self, spec: StreamSpec) -> Stream:
        """The stream of a specification with the records it has; made when it was never there.

        Raises:
            AlreadyExists: it is open.
            broker.core.errors.Unavailable: the epochs cannot be read or written.
        """
        if spec.name in self._streams:
            raise AlreadyExists("stream", spec.name)
        stored = self._keys.get(_NAMES + spec.name.encode())
        agreed = self._agreed().get(spec.name)
        if stored is not None:
            stored = self._checked(spec.name, stored, agreed)
        if stored is None:
            stored = jsontext.encode(
                {
                    "log": self._keys.take_number(),
                    "epoch": str(uuid.uuid4()) if agreed is None else agreed,
                    "shards": spec.shards,
                    **({} if agreed is None else {"of": agreed}),
                }
            )
            self._keys.put(_NAMES + spec.name.encode(), stored)
        kept = jsontext.decode(stored)
        self._note(spec.name, kept["epoch"])
        first = self._cell * kept["shards"]
        shards = tuple(LogShard(kept["log"], first + at) for at in range(kept["shards"]))
        stream = Stream(spec, kept["log"], kept["epoch"], shards)
        self.describe(stream, spec)
        self._streams[spec.name] = stream
        return stream

    def describe(self, stream: Stream, spec: StreamSpec) -> None:
        """Give a stream a new specification."""
        self._set(INDEXED + b"%d" % stream.log, _index_of(spec, stream))
        self._set(wanted_key(stream.log), _tier_of(spec, stream))
        stream.describe(spec)

    def remove(self, name: str) -> None:
        """Remove a stream whose specification is gone; its records are forgotten later, see ``dropping``.

        Raises:
            NotFound: there is none of that name.
            broker.core.errors.Unavailable: the epochs cannot be written; the stream is removed.
        """
        stream = self.get(name)
        self._remove(name, stream.log)
        stream.is_gone = True
        del self._streams[name]
        self._note(name, None)

    def _agreed(self) -> Mapping[str, str | None]:
        """The epochs that the first cell has given to streams; none in the first cell."""
        epochs = self._epochs
        return {} if epochs is None or epochs.is_first else epochs.read()

    def _note(self, name: str, epoch: str | None) -> None:
        if self._epochs is not None and self._epochs.is_first:
            self._epochs.note({name: epoch})

    def _checked(self, name: str, stored: bytes, agreed: str | None) -> bytes | None:
        """The stored value of a stream; None once it is removed, since the first cell has another one of its name.
        One that was opened before the first cell had given it an epoch belongs to the present one."""
        kept = jsontext.decode(stored)
        if agreed is None or kept.get("of") == agreed:
            return stored
        if "of" in kept:
            self._drop_older(name, kept["log"])
            return None
        bound = jsontext.encode({**kept, "of": agreed})
        self._keys.put(_NAMES + name.encode(), bound)
        return bound

    def _drop_older(self, name: str, log: int) -> None:
        _log.warning("stream.older_removed", stream=name, reason="it was deleted in the first cell")
        self._remove(name, log)

    def follow(self) -> bool:
        """Remove what the first cell has deleted, or deleted and created again, and open again what it has; true if
        there was such a stream."""
        agreed = self._agreed()
        changed = False
        for key, stored in self._keys.scan(_NAMES):
            name = key.removeprefix(_NAMES).decode()
            if name not in agreed:
                continue
            stream = self._streams.get(name)
            epoch = agreed[name]
            if epoch is None:
                if stream is None:  # else it is about to be created again
                    self._drop_older(name, jsontext.decode(stored)["log"])
            elif self._checked(name, stored, epoch) is None and stream is not None:
                stream.is_gone = True
                del self._streams[name]
                self.open(stream.spec)
                changed = True
        return changed

    def finish_removals(self) -> None:
        """After a start, when all specifications are opened: finish, or take back, removals that were cut off."""
        open_logs = {stream.log for stream in self}
        for log, name in self._keys.dropping().items():
            if log in open_logs:
                self._keys.put(_DROPPING + b"%d" % log, None)
            else:
                self._remove(name, log)

    def undefined(self) -> list[str]:
        """Names of streams that the store holds, and for which no specification was opened."""
        names = [key.removeprefix(_NAMES).decode() for key, _ in self._keys.scan(_NAMES)]
        return [name for name in names if name not in self._streams]

    def dropping(self) -> list[int]:
        """Logs of removed streams whose records are still there."""
        return list(self._keys.dropping())

    def drop(self, log: int) -> None:
        """Forget the records of a removed stream. Blocking; for the writer thread."""
        self._store.drop(log)
        self._store.commit(Batch(puts={_DROPPING + b"%d" % log: None}))

    def _remove(self, name: str, log: int) -> None:
        """Forget the name of a log, and have its records, its index and the objects of its tier removed."""
        self._keys.begin_drop(log, name)
        key = _NAMES + name.encode()
        stored = self._keys.get(key)
        if stored is not None and jsontext.decode(stored)["log"] == log:
            self._keys.put(key, None)
        self._set(INDEXED + b"%d" % log, None)
        if stored := self._keys.get(wanted_key(log)):
            removed = msgspec.structs.replace(unpack_wanted(stored), is_removed=True)
            self._set(wanted_key(log), msgspec.json.encode(removed))

    def _set(self, key: bytes, value: bytes | None) -> None:
        if self._keys.get(key) != value:
            self._keys.put(key, value)


def _index_of(spec: StreamSpec, stream: Stream) -> bytes | None:
    if spec.index == "none":
        return None
    age_us = None if spec.retention.age == float("inf") else int(spec.retention.age * 1_000_000)
    shards = len(stream.shards)
    wanted = Wanted(shards, spec.retention.bytes // shards, age_us, stream.shards[0].shard)
    return msgspec.json.encode(wanted)


def _tier_of(spec: StreamSpec, stream: Stream) -> bytes | None:
    tier = spec.tier
    if tier is None:
        return None
    retention_us = None if tier.retention == float("inf") else int(tier.retention * 1_000_000)
    after_us = int(tier.after * 1_000_000)
    shards = len(stream.shards)
    unread_bytes = tier.unread_bytes // shards
    wanted = TierWanted(
        spec.name,
        stream.epoch,
        shards,
        tier.url,
        after_us,
        retention_us,
        unread_bytes,
        first_shard=stream.shards[0].shard,
    )
    return msgspec.json.encode(wanted)


def stored_streams(store: Store) -> Iterator[tuple[str, int, int]]:
    """Name, log and number of shards of each stream that a store has."""
    for key, value in store.scan(_NAMES):
        kept = jsontext.decode(value)
        yield key.removeprefix(_NAMES).decode(), kept["log"], kept["shards"]
