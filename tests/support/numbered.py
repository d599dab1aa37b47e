"""A client that publishes numbers at QoS 1 at a steady pace, and knows which were acknowledged."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

KEYS = 5


class Numbers:
    """Numbers that were published, over all the clients that did: one that is cut off is not continued, so that what it
    had no acknowledgement for may be there or not, once at most."""

    def __init__(self, rate: int = 400) -> None:
        self._rate = rate
        self.acknowledged: set[int] = set()
        self._next = 0
        self._goes_on = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, address: tuple[str, int]) -> None:
        """Publish on ``n/<key>`` until ``stop``, or until the broker is gone."""
        self._goes_on.set()
        self._thread = threading.Thread(
            target=self._run, args=(address,), name="publisher of numbers"
        )
        self._thread.start()

    def stop(self) -> None:
        """Publish no more; returns when everything is acknowledged, or the broker gone."""
        self._goes_on.clear()
        if self._thread is not None:
            self._thread.join(60)
            assert not self._thread.is_alive(), "the broker acknowledges no more"

    def _run(self, address: tuple[str, int]) -> None:
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=f"numbers-{self._next}",
            reconnect_on_failure=False,
        )
        client.max_inflight_messages_set(100)
        mine: dict[int, int] = {}
        gone = threading.Event()
        client.on_publish = lambda *given: self.acknowledged.add(mine[given[2]])
        client.on_disconnect = lambda *given: gone.set()
        client.connect(*address)
        client.loop_start()
        last: Any = None
        while self._goes_on.is_set() and not gone.is_set():
            number = self._next
            self._next += 1
            mine[client._last_mid % 65535 + 1] = number
            last = client.publish(f"n/{number % KEYS}", json.dumps({"n": number}), 1)
            time.sleep(1 / self._rate)
        while last is not None and not gone.is_set() and not last.is_published():
            gone.wait(0.02)
        client.disconnect()
        client.loop_stop()


def firsts_in_order(found: list[tuple[str, int]]) -> bool:
    """Whether the first arrivals of each key are in the order published."""
    seen: dict[str, list[int]] = {}
    for key, number in dict.fromkeys(found):
        seen.setdefault(key, []).append(number)
    return all(numbers == sorted(numbers) for numbers in seen.values())
