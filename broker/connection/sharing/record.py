"""A share group as the store keeps it: where it stands in its logs, and what is claimed and not settled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from broker.connection.sharing.group import ShareGroup
from broker.connection.sharing.places import Cursor
from broker.routing.strategies import StrategyName
from broker.storage.store import LogShard

PREFIX: Final = b"share-group/"

_VERSION: Final = 1


class Place(msgspec.Struct, array_like=True, frozen=True):
    """``position``: nothing from there on was given out. ``pending``: offsets below it that are not settled."""

    log: int
    shard: int
    position: int
    pending: list[int]


class GroupRecord(msgspec.Struct, array_like=True, frozen=True):
    """``filter`` is the text of the subscription, also where the group's key is another. ``stream`` is what the group
    stands on, None for the session log."""

    version: int
    filter: str
    strategy: StrategyName
    stream: str | None
    is_kept: bool
    is_private: bool
    created_ns: int
    outstanding: int
    outstanding_bytes: int
    redelivered: int
    places: list[Place]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(GroupRecord).decode


def key_of(group_key: str) -> bytes:
    """Where a group's record is."""
    return PREFIX + group_key.encode()


def encode_group(group: ShareGroup) -> bytes:
    """The record of a group as it is now."""
    places = [
        Place(cursor.shard.log, cursor.shard.shard, group.position(cursor), group.claimed(cursor))
        for cursor in group.cursors
    ]
    return _encode(
        GroupRecord(
            _VERSION, group.filter.text, group.strategy_name, group.stream, group.is_kept, group.is_private,
            group.created_ns, group.outstanding, group.outstanding_bytes, group.redelivered, places,
        )
    )  # fmt: skip


def decode_groups(found: Iterator[tuple[bytes, bytes]]) -> Iterator[tuple[str, GroupRecord]]:
    """Keys and records from a scan of ``PREFIX``."""
    for key, value in found:
        yield key[len(PREFIX) :].decode(), _decode(value)


def restore_group(group: ShareGroup, record: GroupRecord) -> None:
    """Fill a new group from its record."""
    group.is_kept, group.is_private, group.is_persistent = record.is_kept, record.is_private, True
    group.outstanding, group.outstanding_bytes = record.outstanding, record.outstanding_bytes
    group.redelivered = record.redelivered
    group.stand_on([], record.stream)
    for place in record.places:
        cursor = Cursor(LogShard(place.log, place.shard), place.position, is_behind=True)
        group.restore(cursor, place.pending)
