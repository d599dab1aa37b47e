"""Topics as keys of the store, in an order by level, and how to find those that a filter matches.

The levels of a key are parted by a NUL, which no topic has and which sorts before all else: whatever is below a level
is together, right behind it. So a filter needs no index of its own: where a key does not match, it is known from
the filter behind which key the next match can stand, and all between is stepped over with one seek. ``a/+/c`` costs a
seek or two for each name at the second level, however much is below it.
"""

from __future__ import annotations

from typing import Final

from broker.core.topic import TopicFilter

_NUL: Final = b"\0"
# Sorts behind everything below a level, and before or at the next name there.
_BEHIND: Final = b"\x01"
# Sorts behind all topics that begin with ``$``.
_BEHIND_SYSTEM: Final = b"%"


def topic_key(topic: str) -> bytes:
    """The key of a topic."""
    return topic.replace("/", "\0").encode()


def topic_of(key: bytes) -> str:
    """The topic of a key."""
    return key.decode().replace("\0", "/")


class FilterWalk:
    """Keys that match a filter, MQTT 5.0 section 4.7, in their order.

    ``exact`` is the only key that can match, None with wildcards; ``start`` is where the first match can stand.
    """

    __slots__ = ("_levels", "_plus", "exact", "start")

    def __init__(self, topic_filter: TopicFilter) -> None:
        self._levels = tuple(level.encode() for level in topic_filter.levels)
        self._plus = [position for position, level in enumerate(self._levels) if level == b"+"]
        fixed = [level for level in self._levels if level not in (b"+", b"#")]
        is_exact = len(fixed) == len(self._levels)
        first_wild = next(
            (at for at, level in enumerate(self._levels) if level in (b"+", b"#")),
            len(self._levels),
        )
        self.start = _NUL.join(self._levels[:first_wild])
        self.exact = self.start if is_exact else None

    def follow(self, key: bytes) -> bytes | None:
        """The key itself when it matches; else the key at or behind which the next match can stand, None for none."""
        key_levels = key.split(_NUL)
        for position, level in enumerate(self._levels):
            if level == b"#":
                return _BEHIND_SYSTEM if position == 0 and key.startswith(b"$") else key
            if position == len(key_levels):
                return key + _NUL
            if level == b"+":
                if position == 0 and key.startswith(b"$"):  # [MQTT-4.7.2-1]
                    return _BEHIND_SYSTEM
            elif key_levels[position] < level:
                return _NUL.join((*key_levels[:position], level))
            elif key_levels[position] > level:
                return self._behind(key_levels, position)
        if len(key_levels) == len(self._levels):
            return key
        return self._behind(key_levels, len(self._levels))

    def _behind(self, key_levels: list[bytes], position: int) -> bytes | None:
        """Behind the name at the last ``+`` before ``position``, with all below that name."""
        free = next((at for at in reversed(self._plus) if at < position), None)
        return None if free is None else _NUL.join(key_levels[: free + 1]) + _BEHIND
