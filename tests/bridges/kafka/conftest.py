"""One Kafka for the tests that need no other; each uses topics of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.kafka_server import Kafka


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    """A cluster of one node, for all files that ``TOGETHER`` of ``tests/support/tiers.py`` keeps in one process."""
    with Kafka(tmp_path_factory.mktemp("kafka") / "cluster") as started:
        yield started
