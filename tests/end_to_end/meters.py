"""What the end-to-end tests publish: meters with a schema, and the objects that bring their readings into a table."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MessageState
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from tests.end_to_end import readings
from tests.support.node import Node


def define(node: Node) -> None:
    """Schemas, validation, transformation, rules, streams and tables for ``meters/#``, as a user would make them."""
    readings.define(node.call)
    node.call("POST", "/transforms", {
        "name": "stamp", "topics": ["meters/#"], "failure_action": "drop",
        "payload_decoder": {"type": "json"}, "payload_encoder": {"type": "json"},
        "operations": [
            {"key": "payload.site", "value": "nth(2, topic_split(topic))"},
            {"key": "user_property.gate", "value": "'passed'"},
        ],
    })  # fmt: skip
    node.call("POST", "/streams", {"name": "readings"})
    node.call("POST", "/streams", {"name": "rejected"})
    node.call("POST", "/rules", {
        "name": "readings",
        "sql": readings.IN_BROKER.replace("SELECT", "SELECT payload.site AS site, clientid AS client,"),
        "actions": [{"type": "stream", "stream": "readings"}],
    })  # fmt: skip
    node.call("POST", "/rules", {
        "name": "rejected",
        "sql": 'SELECT clientid AS client, validation, payload AS raw FROM "$events/schema_validation/failed"',
        "actions": [{"type": "stream", "stream": "rejected"}],
    })  # fmt: skip
    node.call("POST", "/lake/tables", {"name": "readings", "stream": "readings", "format": "delta"})
    node.call("POST", "/lake/tables", {"name": "rejected", "stream": "rejected", "format": "delta"})


def payload(seq: int) -> tuple[str, bytes]:
    """``(kind, payload)`` of a meter's message: one in ten does not fit the schema, one in nine not the table."""
    if seq % 20 == 7:
        return "invalid", f'{{"seq":{seq},"temp":"hot"}}'.encode()
    if seq % 20 == 17:
        return "invalid", f'{{"seq":{seq},"temp":"\udc99"}}'.encode(errors="surrogateescape")
    if readings.reason(seq) is None and seq % 50 == 23:
        return "misfit", readings.payload(seq, f"text {seq}")
    return "valid" if readings.reason(seq) is None else "misfit", readings.payload(seq)


def reason(seq: int) -> str:
    """Why the row of a message that does not fit the table is a dead letter."""
    return (
        readings.reason(seq) or f"column 'note' takes a number, the row has the text \"text {seq}\""
    )


mqtt_ms_resend_pubrel = MessageState.MQTT_MS_RESEND_PUBREL


class ForgettingLess(paho.Client):
    """paho that knows at every attempt to connect which messages the broker has taken.

    At a second attempt in a row it forgets that the PUBREC of a message came, and sends the PUBLISH anew without DUP,
    which is another message by the protocol [MQTT-4.3.3-1].
    """

    def _messages_reconnect_reset_out(self) -> None:
        taken = [
            mid
            for mid, message in self._out_messages.items()
            if message.state == mqtt_ms_resend_pubrel
        ]
        super()._messages_reconnect_reset_out()
        for mid in taken:
            self._out_messages[mid].state = mqtt_ms_resend_pubrel


@dataclass
class Meter:
    """One paho client with a persistent session that publishes numbered readings and remembers their fate."""

    name: str
    version: Any
    qos: int
    count: int
    port: int
    acknowledged: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)
    _by_mid: dict[int, int] = field(default_factory=dict)
    _early: dict[int, bool] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def connect(self) -> paho.Client:
        options: dict[str, Any] = {}
        if self.version != paho.MQTTv5:
            options["clean_session"] = False
        client = ForgettingLess(
            CallbackAPIVersion.VERSION2, self.name, protocol=self.version, **options
        )
        client.max_inflight_messages_set(20)
        client.max_queued_messages_set(0)
        client.reconnect_delay_set(1, 1)
        client.on_publish = self._on_publish
        if self.version == paho.MQTTv5:
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = 3600
            client.connect_async(
                "127.0.0.1", self.port, 30, clean_start=False, properties=properties
            )
        else:
            client.connect_async("127.0.0.1", self.port, 30)
        client.loop_start()
        return client

    def publish(self, client: paho.Client, seq: int) -> None:
        info = client.publish(f"meters/{self.name}/reading", payload(seq)[1], self.qos)
        with self._lock:
            self._by_mid[info.mid] = seq
            if info.mid in self._early:
                self._settle(info.mid, self._early.pop(info.mid))

    def _on_publish(
        self, client: Any, userdata: Any, mid: int, reason: Any, properties: Any
    ) -> None:
        with self._lock:
            if mid in self._by_mid:
                self._settle(mid, bool(reason.is_failure))
            else:
                self._early[mid] = bool(reason.is_failure)

    def _settle(self, mid: int, failed: bool) -> None:
        (self.refused if failed else self.acknowledged).add(self._by_mid.pop(mid))

    @property
    def settled(self) -> int:
        return len(self.acknowledged) + len(self.refused)
