"""What waits for all sessions together, and the alarm when it is too much for one."""

from __future__ import annotations

import logging

import pytest

from broker.codec.packets import PubAck, PubComp, Publish, PubRec, PubRel, SubscriptionRequest
from tests.support.mqtt_server import on_loop, running


def test_the_sums_and_the_alarm_follow_what_waits(caplog: pytest.LogCaptureFixture) -> None:
    _follow(caplog)


@on_loop
async def _follow(caplog: pytest.LogCaptureFixture) -> None:
    async with running(max_inflight=1, queue_high_watermark=5000, slow_subscriber_wait=0) as node:
        alarms = node.alarms
        subscriber, publisher = await node.client("s"), await node.client("p")
        await subscriber.subscribe(SubscriptionRequest("t", 1))
        for number in range(1, 11):
            publisher.send(Publish("t", b"x" * 999, 1, packet_id=number))
            await publisher.expect(PubAck)
        with caplog.at_level(logging.WARNING):
            node.pass_time(31)
        told = [record for record in caplog.records if record.getMessage() == "session.queue_high"]
        assert [record.__dict__["fields"]["client_id"] for record in told] == ["s"]
        [alarm] = alarms.active()
        assert (alarm.name, alarm.details["largest"]) == ("session_queue_high", {"s": 9000})
        shown = [
            node.metrics.value(name)
            for name in ("queued_messages", "queued_bytes", "inflight_messages")
        ]
        assert shown == [9, 9000, 1]
        for _ in range(10):
            subscriber.send(PubAck((await subscriber.expect(Publish)).packet_id))
        await subscriber.silence()
        node.pass_time(31)
        assert alarms.active() == []
        assert node.metrics.value("queued_bytes") == 0


@on_loop
async def test_an_alarm_tells_that_what_clients_may_send_again_fills_its_memory() -> None:
    async with running(max_inbound_bytes_connected=500) as node:
        alarms = node.alarms
        client = await node.client("c", 5)
        active = []
        for number in range(1, 13):
            client.send(Publish("t", b"x", 2, packet_id=number))
            await client.expect(PubRec)
            node.server.hub.queue_watch.tick()
            active.append([alarm.name for alarm in alarms.active()])
        assert active[0] == []
        assert active[-1] == ["inbound_memory_full"]
        client.send(*[PubRel(number) for number in range(1, 13)])
        for _ in range(12):
            await client.expect(PubComp)
        node.server.hub.queue_watch.tick()
        assert alarms.active() == []
