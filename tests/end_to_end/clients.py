"""Real clients of the end-to-end tests: mosquitto's programs, paho, and a bare socket for what those refuse to send."""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import select
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from tests.support.node import Reachable, eventually

DEADLINE_S = 60.0
_NAMES = itertools.count(1)


def publish(
    node: Reachable, topic: str, payload: str, *options: str
) -> subprocess.CompletedProcess[str]:
    """``mosquitto_pub``; it has its acknowledgement when this returns."""
    command = [
        "mosquitto_pub",
        "-h",
        node.mqtt[0],
        "-p",
        str(node.mqtt[1]),
        "-t",
        topic,
        "-m",
        payload,
        *options,
    ]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=True)


class MosquittoSub:
    """``mosquitto_sub``, subscribed once it is made. ``form`` is what it prints of a message, see its manual."""

    def __init__(self, node: Reachable, *options: str, form: str = "%t %p") -> None:
        command = [
            *("stdbuf", "-oL", "mosquitto_sub", "-h", node.mqtt[0], "-p", str(node.mqtt[1])),
            *("-d", "-F", f"> {form}", *options),
        ]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self._unread = b""
        self._messages: list[str] = []
        self.output: list[str] = []
        self._until(lambda: any(line.startswith("Subscribed ") for line in self.output))

    def take(self, count: int) -> list[str]:
        """The next messages, as printed."""
        self._until(lambda: len(self._messages) >= count)
        taken, self._messages = self._messages[:count], self._messages[count:]
        return taken

    def _until(self, condition: Any) -> None:
        assert self.process.stdout is not None
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            left_s = deadline - time.monotonic()
            if left_s <= 0 or not select.select([self.process.stdout], [], [], left_s)[0]:
                raise AssertionError(
                    f"mosquitto_sub gave no more in {DEADLINE_S} s; so far: {self.output}"
                )
            self._read()

    def take_ready(self) -> list[str]:
        """The messages that have come, as printed; does not wait."""
        assert self.process.stdout is not None
        while select.select([self.process.stdout], [], [], 0)[0]:
            self._read()
        taken, self._messages = self._messages, []
        return taken

    def _read(self) -> None:
        assert self.process.stdout is not None
        chunk = os.read(self.process.stdout.fileno(), 65536)
        assert chunk, f"mosquitto_sub ended: {self.output}"
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        for line in lines:
            text = line.decode()
            self.output.append(text)
            if text.startswith("> "):
                self._messages.append(text[2:])

    def close(self) -> None:
        """End it in order: it says DISCONNECT."""
        self.process.terminate()
        self._reap()

    def kill(self) -> None:
        """``kill -9``: the broker sees nothing but the end of the connection."""
        self.process.kill()
        self._reap()

    def _reap(self) -> None:
        self.process.wait(DEADLINE_S)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def __enter__(self) -> MosquittoSub:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.close()


class Client:
    """A paho client that is connected once it is made. It never connects again by itself."""

    def __init__(
        self,
        node: Reachable,
        client_id: str = "",
        *,
        version: Any = paho.MQTTv5,
        is_clean: bool = True,
        expiry_s: int = 0,
        topic_aliases: int = 0,
        will: tuple[str, str] | None = None,
        user_properties: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.client_id = client_id or f"client-{next(_NAMES)}"
        self.version = version
        self.messages: queue.Queue[paho.MQTTMessage] = queue.Queue()
        self.connack: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self.farewell: queue.Queue[tuple[Any, Any]] = queue.Queue()
        self._answers: dict[int, tuple[Any, Any]] = {}
        self._answered = threading.Condition()
        options: dict[str, Any] = {} if version == paho.MQTTv5 else {"clean_session": is_clean}
        self.paho = paho.Client(
            CallbackAPIVersion.VERSION2,
            self.client_id,
            protocol=version,
            reconnect_on_failure=False,
            **options,
        )
        self.paho.on_connect = lambda c, u, flags, reason, properties: self.connack.put(
            (flags, reason)
        )
        self.paho.on_disconnect = self._ended
        self.paho.on_message = lambda c, u, message: self.messages.put(message)
        self.paho.on_publish = lambda c, u, mid, reason, properties: self._answer(
            mid, reason, properties
        )
        self.paho.on_subscribe = lambda c, u, mid, reasons, properties: self._answer(
            mid, reasons, properties
        )
        if will is not None:
            self.paho.will_set(*will, 1)
        if version == paho.MQTTv5:
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = expiry_s
            if topic_aliases:
                properties.TopicAliasMaximum = topic_aliases
            if user_properties:
                properties.UserProperty = list(user_properties)
            self.paho.connect(*node.mqtt, 30, clean_start=is_clean, properties=properties)
        else:
            self.paho.connect(*node.mqtt, 30)
        self.paho.loop_start()
        self.flags, reason = self.connack.get(timeout=DEADLINE_S)
        assert not reason.is_failure, reason

    def subscribe(self, topic_filter: str, qos: int = 0, **options: Any) -> None:
        """Subscribe and wait for the SUBACK. ``options`` are those of MQTT 5."""
        if options:
            _, mid = self.paho.subscribe(topic_filter, options=SubscribeOptions(qos, **options))
        else:
            _, mid = self.paho.subscribe(topic_filter, qos)
        reasons, _ = self._answer_of(mid)
        assert [reason.value for reason in reasons] == [qos], reasons

    def publish(
        self,
        topic: str,
        payload: str | bytes,
        qos: int = 1,
        *,
        retain: bool = False,
        **properties: Any,
    ) -> tuple[Any, Any]:
        """Publish and wait for the last acknowledgement: its reason code and properties."""
        given = None
        if properties:
            given = Properties(PacketTypes.PUBLISH)
            for name, value in properties.items():
                setattr(given, name, value)
        return self._answer_of(self.paho.publish(topic, payload, qos, retain, given).mid)

    def take(self) -> paho.MQTTMessage:
        """The next message."""
        return self.messages.get(timeout=DEADLINE_S)

    def close(self) -> None:
        """Say DISCONNECT and wait for the end."""
        self.paho.disconnect()
        self.paho.loop_stop()

    def _ended(
        self, _client: Any, _userdata: Any, flags: Any, reason: Any, properties: Any
    ) -> None:
        self.farewell.put((reason, properties))
        self.connack.put((flags, reason))  # read where the end came before the CONNACK

    def _answer(self, mid: int, reason: Any, properties: Any) -> None:
        with self._answered:
            self._answers[mid] = (reason, properties)
            self._answered.notify_all()

    def _answer_of(self, mid: int | None) -> tuple[Any, Any]:
        with self._answered:
            assert self._answered.wait_for(lambda: mid in self._answers, DEADLINE_S), (
                f"packet {mid} was not answered"
            )
            assert mid is not None
            return self._answers.pop(mid)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()


class Raw:
    """A TCP connection that sends any bytes and gives packets back as they came."""

    def __init__(self, node: Reachable) -> None:
        self.socket = socket.create_connection(node.mqtt, DEADLINE_S)
        self._buffer = b""

    def connect(self, client_id: str, *, version: int = 5) -> bytes:
        """A clean CONNECT; the CONNACK."""
        properties = b"\x00" if version == 5 else b""
        name = client_id.encode()
        self.send(
            0x10,
            b"\x00\x04MQTT"
            + bytes((version, 2, 0, 30))
            + properties
            + len(name).to_bytes(2)
            + name,
        )
        connack = self.receive()
        assert connack is not None
        assert (connack[0], connack[3 if connack[1] < 128 else 4]) == (0x20, 0), connack
        return connack

    def send(self, first: int, body: bytes) -> None:
        """A packet with this first byte; ``body`` has less than 16,384 bytes."""
        length = len(body)
        size = bytes((length,)) if length < 128 else bytes((length & 127 | 128, length >> 7))
        self.socket.sendall(bytes((first,)) + size + body)

    def receive(self) -> bytes | None:
        """The next packet as it came, None when the broker has closed the connection."""
        while True:
            end = _packet_end(self._buffer)
            if end is not None:
                packet, self._buffer = self._buffer[:end], self._buffer[end:]
                return packet
            with contextlib.suppress(ConnectionResetError):
                chunk = self.socket.recv(65536)
                if chunk:
                    self._buffer += chunk
                    continue
            return None

    def __enter__(self) -> Raw:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.socket.close()


def _packet_end(buffer: bytes) -> int | None:
    length = shift = 0
    for at in range(1, min(len(buffer), 5)):
        length |= (buffer[at] & 127) << shift
        shift += 7
        if buffer[at] < 128:
            return at + 1 + length if len(buffer) >= at + 1 + length else None
    return None


class Bystander:
    """A client that minds its own business: it publishes numbers to itself and notices if one does not arrive."""

    PAUSE_S = 0.02

    def __init__(self, node: Reachable) -> None:
        self._client = Client(node)
        self._topic = f"bystander/{self._client.client_id}"
        self._client.subscribe(self._topic, 1)
        self._is_over = threading.Event()
        self.error: Exception | None = None
        self.seen = 0
        self._thread = threading.Thread(target=self._run, name="bystander", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._is_over.wait(self.PAUSE_S):
                reason, _ = self._client.publish(self._topic, str(self.seen))
                assert not reason.is_failure, reason
                got = self._client.take().payload
                assert got == str(self.seen).encode(), got
                self.seen += 1
        except Exception as error:  # noqa: BLE001  told by check(), on the test's own thread
            self.error = error

    def check(self) -> None:
        """Its traffic was never disturbed, and goes on."""
        seen = self.seen
        eventually(
            lambda: self.error or self.seen >= seen + 2, DEADLINE_S, what="the bystander's traffic"
        )
        assert self.error is None, repr(self.error)
        assert self._client.farewell.empty()

    def close(self) -> None:
        """End it."""
        self._is_over.set()
        self._thread.join(DEADLINE_S)
        self._client.close()


@contextlib.contextmanager
def undisturbed(node: Reachable) -> Iterator[Bystander]:
    """Traffic of another client goes on while the block runs; fails where it does not."""
    bystander = Bystander(node)
    try:
        yield bystander
        bystander.check()
    finally:
        bystander.close()
