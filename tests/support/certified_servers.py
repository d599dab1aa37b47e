"""Connectors to servers, certified on real ones: Kafka and PostgreSQL. One server serves all tests of a process."""

from __future__ import annotations

import asyncio
import atexit
import json
import shutil
import tempfile
import uuid
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tests.support.kafka_server import Kafka
from tests.support.postgres_server import PASSWORD, Postgres

Row = dict[str, Any]


class Started:
    """A server that is started when it is first needed and ended with the process."""

    def __init__(self, server: Any, process: Any) -> None:
        self.server, self._process, self._runs = server, process, False
        atexit.register(self.down)

    def up(self) -> None:
        """Start it, unless it runs."""
        if not self._runs:
            self.server.start()
            self._runs = True

    def down(self) -> None:
        """``kill -9``."""
        if self._runs:
            self._process.kill()
            self._runs = False


@cache
def _postgres() -> Started:
    server = Postgres()
    atexit.register(server.__exit__)
    return Started(server, server.process)


@cache
def _kafka() -> Started:
    directory = Path(tempfile.mkdtemp(prefix="sluice-kafka-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    server = Kafka(directory / "kafka", sasl=["PLAIN"])
    return Started(server, server)


class CertifiedPostgres:
    """The type ``postgresql``."""

    type = "postgresql"
    secret = PASSWORD
    has_targets = asks_for_target = True

    def __init__(self, directory: Path) -> None:
        self._started, self._table = _postgres(), f"rows_{uuid.uuid4().hex}"
        self._is_made = False

    def kinds(self) -> Sequence[Any]:
        return ()

    async def up(self) -> None:
        await asyncio.to_thread(self._started.up)
        if not self._is_made:
            self._started.server.psql(f"CREATE TABLE {self._table} (at serial, n int, key text)")
            self._is_made = True

    async def down(self) -> None:
        self._started.down()

    async def close(self) -> None:
        """The server goes on for the tests that follow."""

    def connector(self) -> Row:
        server = f"127.0.0.1:{self._started.server.port}"
        return {"server": server, "database": "sluice", "username": "sluice", "password": PASSWORD}

    def bad_credentials(self) -> Row:
        return {**self.connector(), "password": "wrong password"}

    def parameters(self) -> Row:
        return {"table": self._table}

    def missing_target(self) -> Row:
        return {"table": "not_there"}

    async def arrived(self) -> list[tuple[str, int]]:
        lines = self._started.server.psql(f"SELECT key, n FROM {self._table} ORDER BY at").split(
            "\n"
        )
        return [
            (key, int(number)) for key, _, number in (line.partition("|") for line in lines if line)
        ]


class CertifiedKafka:
    """The type ``kafka``, with a login."""

    type = "kafka"
    secret = "wonder:land"
    has_targets = asks_for_target = True

    def __init__(self, directory: Path) -> None:
        self._started, self._topic, self._is_made = _kafka(), f"rows-{uuid.uuid4().hex}", False

    def kinds(self) -> Sequence[Any]:
        return ()

    async def up(self) -> None:
        await asyncio.to_thread(self._started.up)
        if not self._is_made:
            admin = AIOKafkaAdminClient(bootstrap_servers=self._server.bootstrap)
            await admin.start()
            await admin.create_topics([NewTopic(self._topic, 3, 1)])
            await admin.close()
            self._is_made = True

    async def down(self) -> None:
        self._started.down()

    async def close(self) -> None:
        """The server goes on for the tests that follow."""

    def connector(self) -> Row:
        return self._login(self.secret)

    def bad_credentials(self) -> Row:
        return self._login("wrong password")

    def parameters(self) -> Row:
        return {"topic": self._topic, "message": {"key": "${key}"}}

    def missing_target(self) -> Row:
        return {**self.parameters(), "topic": "not-there"}

    async def arrived(self) -> list[tuple[str, int]]:
        partitions = [TopicPartition(self._topic, number) for number in range(3)]
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self._server.bootstrap, auto_offset_reset="earliest"
        )
        await consumer.start()
        found: list[tuple[str, int]] = []
        try:
            consumer.assign(partitions)
            ends = await consumer.end_offsets(partitions)
            for partition in partitions:
                while await consumer.position(partition) < ends[partition]:
                    records = await consumer.getmany(partition, timeout_ms=1000)
                    rows = [json.loads(record.value) for record in records.get(partition, [])]
                    found += [(row["key"], row["n"]) for row in rows]
        finally:
            await consumer.stop()
        return found

    @property
    def _server(self) -> Kafka:
        server: Kafka = self._started.server
        return server

    def _login(self, password: str) -> Row:
        authentication = {"mechanism": "plain", "username": "alice", "password": password}
        return {
            "bootstrap_hosts": self._server.secured("SASL_PLAINTEXT"),
            "authentication": authentication,
        }
