"""Messages between cells: what a client of one cell publishes reaches those of others as on one machine."""

from __future__ import annotations

from pathlib import Path

from broker.codec.packets import PubAck, Publish, PubRec, SubscriptionRequest
from tests.support.linked_cells import cells
from tests.support.mqtt_server import on_loop


@on_loop
async def test_a_client_gets_what_one_of_another_cell_publishes(tmp_path: Path) -> None:
    async with cells(2, tmp_path) as (one, two):
        publisher = await one.node.client("p", 5)
        subscriber = await two.node.client("s", 5)
        assert await subscriber.subscribe(SubscriptionRequest("a/+", 2)) == [2]
        for qos in (0, 1, 2):
            publisher.send(Publish("a/b", b"qos %d" % qos, qos, packet_id=qos))
            if qos == 1:
                assert (await publisher.expect(PubAck)).reason_code == 0
            if qos == 2:
                assert (await publisher.expect(PubRec)).reason_code == 0
            packet = await subscriber.expect(Publish)
            assert (packet.topic, packet.payload, packet.qos) == ("a/b", b"qos %d" % qos, qos)
