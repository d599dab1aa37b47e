"""What may differ from zone to zone, and that it does."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from broker.codec.packets import Disconnect, PubAck, Publish, SubscriptionRequest
from broker.config.model import Settings
from broker.connection.sessions.zones import ZoneMqttSettings, ZonesSettings
from broker.connection.settings import FIXED_SETTINGS, MqttSettings
from tests.support.mqtt_server import on_loop
from tests.support.zoned import HOUR_S, zoned

VALUES = [
    -1, 0, 0.5, 1, 1.5, 10, 11, 127, 128, 1023, 1024, 65_535, 65_536, 268_435_460, 268_435_461, 1 << 40, True, "2KB",
    "3m", "refuse", "drop_newest", "drop", "nonsense",
]  # fmt: skip


@pytest.mark.parametrize("name", ZoneMqttSettings.model_fields)
def test_a_setting_of_a_zone_takes_the_values_that_the_general_one_takes(name: str) -> None:
    assert name not in FIXED_SETTINGS
    taken = {repr(value): _read(MqttSettings, name, value) for value in VALUES}
    assert {repr(value): _read(ZoneMqttSettings, name, value) for value in VALUES} == taken
    assert {value is None for value in taken.values()} == {True, False}


def _read(model: type[Settings], name: str, value: object) -> Any:
    """What a setting becomes, None when it is refused."""
    try:
        return getattr(model.model_validate({name: value}), name)
    except ValidationError:
        return None


def test_what_a_zone_does_not_set_is_as_the_general_settings_say() -> None:
    zones = ZonesSettings.model_validate({"lab": {"mqtt": {"max_inflight": 3, "queue_qos0": True}}})
    general = MqttSettings(max_inflight=7, max_keep_alive=60)
    assert zones.by_name["default"].mqtt.over(general) is general
    own = zones.by_name["lab"].mqtt.over(general)
    assert (own.max_inflight, own.queue_qos0, own.max_keep_alive) == (3, True, 60)


@on_loop
async def test_clients_are_told_the_limits_of_their_zone_and_held_to_them() -> None:
    limits = {
        "max_packet_size": 200, "receive_maximum": 5, "max_session_expiry": 60, "max_keep_alive": 9,
        "topic_alias_maximum": 2, "max_inflight": 1, "shared_subscription_available": False,
    }  # fmt: skip
    async with zoned(memory=limits) as there:
        free, held = await there.client("default", "free"), await there.client("memory", "held")
        told = held.connack.properties
        assert told["Maximum-Packet-Size"] == 200
        assert told["Receive-Maximum"] == 5
        assert told["Session-Expiry-Interval"] == 60
        assert told["Server-Keep-Alive"] == 9
        assert told["Topic-Alias-Maximum"] == 2
        assert told["Shared-Subscription-Available"] == 0
        assert not {"Session-Expiry-Interval", "Server-Keep-Alive"} & free.connack.properties.keys()
        await held.subscribe(SubscriptionRequest("t", 1))
        free.send(Publish("t", b"1", 1, packet_id=1), Publish("t", b"2", 1, packet_id=2))
        await held.expect(Publish)
        await held.silence()
        free.send(Publish("x", bytes(300)))
        held.send(Publish("x", bytes(300)))
        assert (await held.expect(Disconnect)).reason_code == 0x95
        assert there.node.server.hub.sessions.by_client_id["held"].expiry_s == 60


@on_loop
async def test_general_settings_that_change_reach_zones_that_do_not_set_them() -> None:
    async with zoned(memory={"max_inflight": 1}) as there:
        hub = there.node.server.hub
        client = await there.client("memory", "s")
        hub.use_settings(
            hub.context.settings.model_copy(update={"max_queued_messages": 2, "max_inflight": 9})
        )
        session = hub.sessions.by_client_id["s"]
        await client.subscribe(SubscriptionRequest("t", 1))
        await there.away(client, "s")
        async with await there.node.client("p") as publisher:
            publisher.send(*(Publish("t", b"", 1, packet_id=number) for number in range(1, 6)))
            for _ in range(5):
                await publisher.expect(PubAck)
        assert session.waiting_messages == 2
        assert (await there.client("memory", "s")).connack.session_present
        assert (session.window.size, session.expiry_s) == (1, HOUR_S)


@on_loop
async def test_clients_of_a_zone_that_is_taken_away_are_in_the_default_one() -> None:
    async with zoned(memory={"max_inflight": 1}) as there:
        hub = there.node.server.hub
        await there.away(await there.client("memory", "s"), "s")
        hub.zones.use(hub.context.settings, ZonesSettings.model_validate({}))
        client = await there.client("memory", "s")
        assert client.connack.session_present
        session = hub.sessions.by_client_id["s"]
        assert (session.zone, session.is_durable, session.window.size) == (
            "default",
            True,
            hub.context.settings.max_inflight,
        )
