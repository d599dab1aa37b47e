"""Topic names and topic filters, MQTT 5.0 section 4.7."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from sys import intern
from typing import Final

from broker.core import reason
from broker.core.errors import PeerError

MAX_TOPIC_BYTES = 65_535
# Levels of the longest topic: one that ``mqtt.max_topic_levels`` allowed comes from the store and other cells, too.
_MAX_LEVELS: Final = MAX_TOPIC_BYTES + 1
SHARE_PREFIX = "$share/"
# The share group of filters ``$queue/FILTER``, which name none.
QUEUE = "$queue"
SHARE_PREFIXES = (SHARE_PREFIX, f"{QUEUE}/")
# Prefix of the seconds and the topic of a message that is published later (``broker.routing.delayed``).
DELAYED_PREFIX = "$delayed/"
SYSTEM_LEVEL = "$SYS"
SYS_PREFIX = f"{SYSTEM_LEVEL}/"
# First level of dead letters: ``$dead/REASON/TOPIC`` unless the settings say otherwise
# (``broker.connection.dead_letters``).
DEAD_LEVEL = "$dead"
# Beginnings of the topics that the broker alone publishes to.
RESERVED_PREFIXES = (SYS_PREFIX, SHARE_PREFIX, "$events/", "$file/", f"{DEAD_LEVEL}/")


def check_topic_name(
    topic: str, max_levels: int = _MAX_LEVELS, max_bytes: int = MAX_TOPIC_BYTES
) -> None:
    """Refuse what is not a topic name: empty, with wildcards, NUL, too long or too deep.

    Raises:
        PeerError: with reason code 0x90 and a sentence that says why.
    """
    if not topic:
        raise PeerError(reason.TOPIC_NAME_INVALID, "a topic name must not be empty")
    if "+" in topic or "#" in topic:
        raise PeerError(
            reason.TOPIC_NAME_INVALID, f"topic name {topic!r} must not contain '+' or '#'"
        )
    if "\0" in topic:
        raise PeerError(reason.TOPIC_NAME_INVALID, "a topic name must not contain U+0000")
    if len(topic) * 4 > max_bytes and len(topic.encode()) > max_bytes:
        raise PeerError(reason.TOPIC_NAME_INVALID, f"topic name is longer than {max_bytes} bytes")
    if topic.count("/") >= max_levels:
        raise PeerError(reason.TOPIC_NAME_INVALID, f"topic name has more than {max_levels} levels")


def split_share(text: str) -> tuple[str, str]:
    """Return ``$share/NAME/`` or ``$queue/`` of a filter, an empty string where it has neither, and the rest."""
    if not text.startswith(SHARE_PREFIXES):
        return "", text
    levels = text.split("/", 2 if text.startswith(SHARE_PREFIX) else 1)
    if len(levels) == 2 and text.startswith(SHARE_PREFIX):
        return "", text
    return text.removesuffix(levels[-1]), levels[-1]


def undelayed(topic: str) -> str:
    """The topic that a client means: that behind ``$delayed/SECONDS/``, else the topic itself. Rights are about it."""
    if not topic.startswith(DELAYED_PREFIX):
        return topic
    return topic[len(DELAYED_PREFIX) :].partition("/")[2] or topic


def is_reserved(topic: str) -> bool:
    """True if only the broker publishes to a topic, now or later."""
    return topic.startswith("$") and undelayed(topic).startswith(RESERVED_PREFIXES)


def is_bridge_state(topic: str) -> bool:
    """Return whether bridges of mosquitto publish on a topic that they are connected: ``1``, or ``0`` as their will."""
    return topic.startswith(f"{SYS_PREFIX}broker/connection/") and topic.endswith("/state")


_SYSTEM_OF_CLIENTS: Final = tuple(
    tuple(f"{SYS_PREFIX}{rest}".split("/"))
    for rest in ("broker/connection/#", "brokers/+/clients/#")  # a name may have levels
)


def system_of_clients(levels: tuple[str, ...]) -> list[str]:
    """The filters of ``$SYS`` topics with messages about a client, of those that a ``$SYS`` filter may match: states of
    bridges, and clients that come and go. All else there are figures, which each cell publishes to its own clients."""
    return ["/".join(some) for some in _SYSTEM_OF_CLIENTS if overlaps(levels, some)]


def reserved_topic(topic: str) -> PeerError:
    """The error for publishing there."""
    text = f"topic {topic!r} begins with {', '.join(RESERVED_PREFIXES)}, which only the broker publishes to"
    return PeerError(reason.NOT_AUTHORIZED, text.replace(", $dead", " or $dead"))


def lost_topic(levels: Sequence[str]) -> tuple[str, ...]:
    """The levels of the topic, or of the filter of topics, that dead letters under these levels are about. None where
    the levels are not of dead letters."""
    if levels[0] != DEAD_LEVEL:
        return ()
    if "#" in levels[1:3] or len(levels) < 3:
        return ("#",)
    return tuple(levels[2:])


@dataclass(frozen=True, slots=True)
class TopicFilter:
    """A parsed topic filter; what takes one checks no more.

    ``text`` is the filter as the client wrote it, with ``$share/group/`` or ``$queue/``; ``levels`` are those of the
    filter proper.
    """

    text: str
    levels: tuple[str, ...]
    share_group: str | None = None

    @classmethod
    def parse(
        cls, text: str, max_levels: int = _MAX_LEVELS, max_bytes: int = MAX_TOPIC_BYTES
    ) -> TopicFilter:
        """Parse a filter, with or without ``$share/group/`` or ``$queue/`` in front.

        Raises:
            PeerError: with reason code 0x8F and a sentence that says why.
        """
        group = None
        body = text
        if text.startswith(SHARE_PREFIXES):
            prefix, body = split_share(text)
            group = QUEUE if text.startswith(f"{QUEUE}/") else prefix[len(SHARE_PREFIX) : -1]
            if not prefix or not group or "+" in group or "#" in group:
                raise _refused(
                    text, "a shared subscription is written $share/NAME/FILTER, NAME without + or #"
                )
        if not body:
            raise _refused(text, "a topic filter must not be empty")
        if "\0" in body:
            raise _refused(text, "a topic filter must not contain U+0000")
        if len(text) * 4 > max_bytes and len(text.encode()) > max_bytes:
            raise _refused(text[:40] + "…", f"it is longer than {max_bytes} bytes")
        levels = tuple(map(intern, body.split("/")))  # names that many filters share are there once
        if len(levels) > max_levels:
            raise _refused(text, f"it has more than {max_levels} levels")
        for position, level in enumerate(levels) if "#" in body or "+" in body else ():
            if "#" in level and (level != "#" or position != len(levels) - 1):
                raise _refused(text, "'#' must be the whole last level")
            if "+" in level and level != "+":
                raise _refused(text, "'+' must be a whole level")
        return cls(text, levels, group)

    @property
    def filter(self) -> str:
        """The filter without ``$share/group/`` or ``$queue/``."""
        return "/".join(self.levels)

    def matches(self, topic: str) -> bool:
        """True if a topic name matches; leading wildcards do not match a first level that starts with ``$``."""
        return levels_match(self.levels, topic)


def levels_match(filter_levels: tuple[str, ...], topic: str) -> bool:
    """True if the topic matches the levels of a filter, MQTT 5.0 sections 4.7.1 and 4.7.2."""
    topic_levels = topic.split("/")
    if topic.startswith("$") and filter_levels[0] in ("+", "#"):
        return False
    for position, level in enumerate(filter_levels):
        if level == "#":
            return True
        if position >= len(topic_levels) or level not in ("+", topic_levels[position]):
            return False
    return len(filter_levels) == len(topic_levels)


def covers(wide: tuple[str, ...], narrow: tuple[str, ...]) -> bool:
    """True if the wide filter matches every topic that the narrow filter matches.

    A ``+`` or ``#`` first does not match topics that begin with ``$`` (MQTT 5.0, 4.7.2), so ``#`` does not cover
    ``$SYS/#``.
    """
    if _passes_over(wide, narrow):
        return False
    for position, level in enumerate(wide):
        if level == "#":
            return True
        if position >= len(narrow):
            return False
        other = narrow[position]
        if other == "#" or (other == "+" and level != "+") or level not in ("+", other):
            return False
    return len(wide) == len(narrow)


def overlaps(levels: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """True if some topic is matched by both filters; a topic that begins with ``$`` is not matched by ``+`` or
    ``#``."""
    if _passes_over(levels, other) or _passes_over(other, levels):
        return False
    for left, right in zip(levels, other, strict=False):
        if "#" in (left, right):
            return True
        if left != right and "+" not in (left, right):
            return False
    longer = levels if len(levels) > len(other) else other
    return len(levels) == len(other) or longer[min(len(levels), len(other))] == "#"


def _passes_over(wide: tuple[str, ...], narrow: tuple[str, ...]) -> bool:
    return wide[0] in ("+", "#") and narrow[0].startswith("$")


def _refused(text: str, why: str) -> PeerError:
    return PeerError(reason.TOPIC_FILTER_INVALID, f"topic filter {text!r}: {why}")
