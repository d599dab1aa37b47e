"""Keys and values of the topic index, a RocksDB of its own next to the store. All integers are big-endian.

::

    LOG SHARD EPOCH                         what the epoch holds (``Epoch``); EPOCH is its first offset
    LOG SHARD EPOCH TOPIC 00 00 LAST        a chunk: records of one topic, of which LAST is the last offset

An epoch is a range of offsets that is deleted as a whole. TOPIC is the key of ``broker.core.topic_keys`` with each NUL
written as ``00 01``, which keeps the order of topics by level and lets ``00 00`` end a topic. Chunks of a topic do not
overlap, so the chunk that holds an offset, or the next record after it, is one seek away.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Final

import msgspec
from rocksdict import BlockBasedIndexType, BlockBasedOptions, Cache, DBCompressionType, Options

from broker.core.stream import StreamRecord
from broker.core.topic_keys import topic_key
from broker.storage.store import LogShard

_EPOCH: Final = struct.Struct(">IHQ")
EPOCH_KEY_SIZE: Final = _EPOCH.size
_OFFSET_SIZE: Final = 8
_END_OF_TOPIC: Final = b"\0\0"

CHUNK_RECORDS: Final = 64
# Maximum number of bytes of payload in a chunk, unless it is a single record.
CHUNK_BYTES: Final = 16 * 1024

# A record in a chunk: its offset and the fields of ``StreamRecord`` except the topic.
Row = tuple[int, int, bytes, int, bool, str, str | None, str | None, str | None]


class Epoch(msgspec.Struct, frozen=True, array_like=True):
    """Offsets ``first_offset`` up to, not including, ``next_offset`` of a shard are in the index.

    Times are those of the first and last record, in microseconds; ``size_bytes`` are those of the chunks before
    compression. ``checksum`` is that of the last record, by which a store that lost its end is recognised.
    """

    first_offset: int
    next_offset: int
    first_us: int
    last_us: int
    size_bytes: int
    checksum: int


def options(block_cache: int = 8 * 1024 * 1024) -> Options:
    """Options of the index in RocksDB. Blocks are small, also those of RocksDB's own index, since a topic has few
    records in each sorted file."""
    chosen = Options(raw_mode=True)
    chosen.create_if_missing(True)
    chosen.set_compression_type(DBCompressionType.zstd())
    chosen.set_write_buffer_size(1024 * 1024)
    chosen.set_max_background_jobs(1)
    chosen.set_max_open_files(256)
    chosen.set_keep_log_file_num(2)
    tables = BlockBasedOptions()
    tables.set_block_size(4096)
    tables.set_index_type(BlockBasedIndexType.two_level_index_search())
    tables.set_metadata_block_size(4096)
    tables.set_block_cache(Cache(block_cache))
    tables.set_cache_index_and_filter_blocks(True)
    chosen.set_block_based_table_factory(tables)
    return chosen


def epoch_key(shard: LogShard, first_offset: int) -> bytes:
    """Key of an epoch's description, and prefix of the keys of its chunks."""
    return _EPOCH.pack(*shard, first_offset)


def epoch_of_key(key: bytes) -> tuple[LogShard, int]:
    """The shard and the first offset of the epoch that a key belongs to."""
    log, shard, first_offset = _EPOCH.unpack_from(key)
    return LogShard(log, shard), first_offset


def behind_epoch(key: bytes) -> bytes:
    """The first key after those of the epoch that a key belongs to."""
    shard, first_offset = epoch_of_key(key)
    return _EPOCH.pack(*shard, first_offset + 1)


def position(prefix: bytes, key: bytes) -> bytes:
    """Position of the first chunk whose topic's key is ``key`` or behind it; ``prefix`` is the epoch's."""
    return prefix + key.replace(b"\0", b"\0\1")


def chunks_of(prefix: bytes, topic: bytes) -> bytes:
    """Prefix of the chunks of a topic, which is given by its key."""
    return position(prefix, topic) + _END_OF_TOPIC


def chunk_key(prefix: bytes, topic: str, last_offset: int) -> bytes:
    """The key of a chunk."""
    return chunks_of(prefix, topic_key(topic)) + last_offset.to_bytes(_OFFSET_SIZE)


def topic_of_chunk(key: bytes) -> bytes:
    """The topic's key that a chunk's key has."""
    return key[EPOCH_KEY_SIZE : -_OFFSET_SIZE - len(_END_OF_TOPIC)].replace(b"\0\1", b"\0")


def last_offset_of(key: bytes) -> int:
    """The last offset of a chunk."""
    return int.from_bytes(key[-_OFFSET_SIZE:])


def row_of(offset: int, record: StreamRecord) -> Row:
    """A record as it is in a chunk."""
    return (offset, record.ts_us, *record[2:])


def checksum(topic: str, row: Row) -> int:
    """Checksum that tells a record from another one with its offset."""
    return zlib.crc32(pack_rows([row]), zlib.crc32(topic.encode()))


def pack_rows(rows: Sequence[Row]) -> bytes:
    """The rows of a chunk as its value."""
    return _ENCODER.encode(rows)


_ENCODER: Final = msgspec.msgpack.Encoder()
unpack_rows = msgspec.msgpack.Decoder(list[Row]).decode
pack_epoch = _ENCODER.encode
unpack_epoch = msgspec.msgpack.Decoder(Epoch).decode
