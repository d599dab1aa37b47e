"""Messages to a durable session in a cluster: what was acknowledged arrives, in order."""

from __future__ import annotations

from itertools import count

from tests.end_to_end.clients import Client
from tests.support.machines import Cluster


class Acknowledged:
    """A publisher in cell 0, and a subscriber that is connected only while it takes messages."""

    def __init__(self, cluster: Cluster, subscriber_cell: int, at: str) -> None:
        """The subscriber is in a cell, and subscribes at the machine ``at``."""
        self._cluster = cluster
        self._client_id = cluster.client_of(subscriber_cell)
        self._topic = f"acknowledged/{subscriber_cell}"
        self._numbers = count()
        self._payloads: list[bytes] = []
        with self._subscriber(at) as subscriber:
            subscriber.subscribe(self._topic, 1)

    def publish(self, at: str) -> bool:
        """Publish a message at a machine; True once it is acknowledged."""
        payload = b"%d" % next(self._numbers)
        with Client(self._cluster[at], self._cluster.client_of(0, "publisher")) as publisher:
            publisher.publish(self._topic, payload, 1)
        self._payloads.append(payload)
        return True

    def take(self, at: str) -> None:
        """Take, at a machine, all that was acknowledged since the last time."""
        taken: list[bytes] = []
        with self._subscriber(at) as subscriber:
            while self._payloads[-1] not in taken:
                taken.append(bytes(subscriber.take().payload))
        assert [payload for payload in taken if payload in self._payloads] == self._payloads
        self._payloads.clear()

    def _subscriber(self, at: str) -> Client:
        return Client(self._cluster[at], self._client_id, is_clean=False, expiry_s=3600)
