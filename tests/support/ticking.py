"""A client that publishes all the time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event, Thread

import paho.mqtt.client as mqtt
from paho.mqtt.enums import CallbackAPIVersion

from tests.support.node import Reachable


@contextmanager
def ticking(
    node: Reachable, *messages: tuple[str, bytes], name: str = "ticking", every_s: float = 0.05
) -> Iterator[None]:
    """Publish these, one after another, until the end of the block."""
    publisher = mqtt.Client(CallbackAPIVersion.VERSION2, name, protocol=mqtt.MQTTv5)
    publisher.connect(*node.mqtt)
    publisher.loop_start()
    ended = Event()

    def tick() -> None:
        while not ended.wait(every_s):
            for topic, payload in messages:
                publisher.publish(topic, payload)

    thread = Thread(target=tick)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        publisher.disconnect()
        publisher.loop_stop()
