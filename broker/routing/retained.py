"""The last retained message of each topic, found by topic filter, kept in the store under ``retained/TOPIC``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec

from broker.core.client import Client
from broker.core.message import Message
from broker.core.topic import TopicFilter

PREFIX: Final = b"retained/"


class _Record(msgspec.Struct, array_like=True, frozen=True):
    """Value of a key: a version number first, so that a later layout can be told apart."""

    version: int
    payload: bytes
    qos: int
    received_ns: int
    client_id: str
    username: str | None
    properties: dict[str, Any] | None


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Record).decode


class _Level:
    __slots__ = ("children", "message")

    def __init__(self) -> None:
        self.children: dict[str, _Level] = {}
        self.message: Message | None = None


class Retained:
    """All retained messages, in memory by level and in the store by topic.

    ``put`` takes part in the commit group at hand, so an acknowledgement waits for it.
    """

    def __init__(self, put: Callable[[bytes, bytes | None], None]) -> None:
        self._put = put
        self._root = _Level()
        self.count = 0

    def load(self, found: Iterable[tuple[bytes, bytes]]) -> None:
        """Take what the store holds under ``PREFIX``."""
        for key, value in found:
            topic = key[len(PREFIX) :].decode()
            self._set(topic, _message(topic, _decode(value)))

    def retain(self, message: Message) -> None:
        """Replace the topic's message; an empty payload deletes it [MQTT-3.3.1-5, -6]."""
        key = PREFIX + message.topic.encode()
        if not message.payload:
            if self._remove(message.topic):
                self._put(key, None)
            return
        self._set(message.topic, message)
        self._put(key, _encode(_record(message)))

    def matching(self, topic_filter: TopicFilter) -> Iterator[Message]:
        """Retained messages whose topics match the filter."""
        nodes = [self._root]
        for position, level in enumerate(topic_filter.levels):
            if level == "#":
                for node in nodes:
                    yield from _below(node, hides_system=position == 0)
                return
            nodes = [child for node in nodes for child in _step(node, level, position)]
        for node in nodes:
            if node.message is not None:
                yield node.message

    def _set(self, topic: str, message: Message) -> None:
        node = self._root
        for level in topic.split("/"):
            child = node.children.get(level)
            if child is None:
                child = node.children[level] = _Level()
            node = child
        self.count += node.message is None
        node.message = message

    def _remove(self, topic: str) -> bool:
        path, node = [], self._root
        for level in topic.split("/"):
            child = node.children.get(level)
            if child is None:
                return False
            path.append((node, level))
            node = child
        if node.message is None:
            return False
        node.message = None
        self.count -= 1
        for parent, level in reversed(path):
            child = parent.children[level]
            if child.message is not None or child.children:
                break
            del parent.children[level]
        return True


def _step(node: _Level, level: str, position: int) -> list[_Level]:
    if level != "+":
        child = node.children.get(level)
        return [] if child is None else [child]
    if position:
        return list(node.children.values())
    return [child for name, child in node.children.items() if not name.startswith("$")]  # [MQTT-4.7.2-1]


def _below(node: _Level, hides_system: bool) -> Iterator[Message]:
    stack = [node]
    while stack:
        here = stack.pop()
        if here.message is not None:
            yield here.message
        hidden = hides_system and here is node
        stack.extend(child for name, child in here.children.items() if not (hidden and name.startswith("$")))


def _record(message: Message) -> _Record:
    properties = dict(message.properties) if message.properties else None
    client = message.client
    return _Record(1, message.payload, message.qos, message.received_ns, client.client_id, client.username, properties)


def _message(topic: str, record: _Record) -> Message:
    properties = record.properties
    if properties and "User-Property" in properties:
        properties["User-Property"] = [(name, value) for name, value in properties["User-Property"]]
    return Message(
        topic,
        record.payload,
        record.qos,
        True,
        Client(record.client_id, record.username),
        record.received_ns,
        properties,
    )
