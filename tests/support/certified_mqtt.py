"""The type ``mqtt``, certified on a mosquitto with logins."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from threading import Condition, Thread
from typing import Any

from broker.codec.encode import encode_packet
from broker.codec.framing import Decoder
from broker.codec.packets import (
    ConnAck,
    Connect,
    PingReq,
    PingResp,
    Publish,
    SubAck,
    Subscribe,
    SubscriptionRequest,
)
from tests.support.forwarder import Forwarder
from tests.support.peers import Peer, mosquitto
from tests.support.processes import free_port

Row = dict[str, Any]
_DEADLINE_S = 60.0


class Collector:
    """Reads a topic in QoS 0, which mosquitto writes out before it confirms the message to whoever sent it."""

    def __init__(self, port: int, topic: str, username: str, password: str) -> None:
        self.payloads: list[bytes] = []
        self._seen: list[type] = []
        self._changed = Condition()
        self._socket = socket.create_connection(("127.0.0.1", port), _DEADLINE_S)
        self._socket.settimeout(None)
        self._thread = Thread(target=self._read, daemon=True)
        self._thread.start()
        self._say(Connect("collector", username=username, password=password.encode()), ConnAck)
        self._say(Subscribe(1, [SubscriptionRequest(topic)]), SubAck)

    def all_read(self) -> list[bytes]:
        """What has come, once all that the broker has written was read."""
        self._say(PingReq(), PingResp)
        return self.payloads

    def ended(self) -> list[bytes]:
        """What has come, once the broker is gone."""
        self._thread.join(_DEADLINE_S)
        self._socket.close()
        return self.payloads

    def _say(self, packet: Any, answer: type) -> None:
        with self._changed:
            before = self._seen.count(answer)
            self._socket.sendall(encode_packet(packet))
            assert self._changed.wait_for(lambda: self._seen.count(answer) > before, _DEADLINE_S), (
                answer
            )

    def _read(self) -> None:
        decoder = Decoder()
        while True:
            try:
                data = self._socket.recv(65_536)
            except OSError:
                return
            if not data:
                return
            with self._changed:
                for packet in decoder.feed(data):
                    if isinstance(packet, Publish):
                        self.payloads.append(packet.payload)
                    else:
                        self._seen.append(type(packet))
                self._changed.notify_all()


class CertifiedMqtt:
    """The connector type ``mqtt`` on a mosquitto with logins."""

    type = "mqtt"
    secret = "wonder:land"
    has_targets, asks_for_target = True, False

    def __init__(self, directory: Path) -> None:
        self._directory = directory / "mosquitto"
        self._way = Forwarder(free_port(), free_port())
        """Is opened when the collector reads: mosquitto keeps nothing for it."""
        self._peer: Peer | None = None
        self._collector: Collector | None = None
        self._before: list[bytes] = []

    def kinds(self) -> Sequence[Any]:
        return ()

    async def up(self) -> None:
        await asyncio.to_thread(self._up)

    def _up(self) -> None:
        if self._peer is not None:
            return
        self._directory.mkdir(exist_ok=True)
        passwords = self._directory / "passwords"
        program = shutil.which("mosquitto_passwd") or "/usr/bin/mosquitto_passwd"
        subprocess.run(
            [program, "-b", "-c", str(passwords), "alice", self.secret],
            check=True,
            capture_output=True,
        )
        access = self._directory / "access"
        access.write_text("user alice\ntopic readwrite rows/#\n")
        lines = ("allow_anonymous false", f"password_file {passwords}", f"acl_file {access}")
        self._peer = mosquitto(self._directory, *lines, port=self._way.target)
        self._peer.process.start()
        self._collector = Collector(self._way.target, "rows/#", "alice", self.secret)
        self._way.open()

    async def down(self) -> None:
        assert self._peer is not None
        assert self._collector is not None
        self._peer.process.kill()
        self._way.cut()
        self._before += await asyncio.to_thread(self._collector.ended)
        self._peer = self._collector = None

    async def close(self) -> None:
        if self._peer is not None:
            await self.down()

    def connector(self) -> Row:
        return self._login(self.secret)

    def bad_credentials(self) -> Row:
        return self._login("wrong password")

    def parameters(self) -> Row:
        return {"topic": "rows/${key}", "payload": "${.}", "qos": 1}

    def missing_target(self) -> Row:
        return {**self.parameters(), "topic": "closed/${key}"}

    async def arrived(self) -> list[tuple[str, int]]:
        assert self._collector is not None
        found = self._before + await asyncio.to_thread(self._collector.all_read)
        return [(row["key"], row["n"]) for row in map(json.loads, found)]

    def _login(self, password: str) -> Row:
        return {"server": f"127.0.0.1:{self._way.port}", "username": "alice", "password": password}
