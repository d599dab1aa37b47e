"""A real Apache Kafka (KRaft) for tests, from its jars: one node, or a controller with several brokers.

The jars come through the Ivy that PySpark brings, once, into a cache; ``python -m tests.support.kafka_server`` fetches
them ahead of the tests.
"""

from __future__ import annotations

import asyncio
import base64
import subprocess
import sys
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from aiokafka.client import AIOKafkaClient
from aiokafka.errors import KafkaError

from tests.support.certificates import Authority
from tests.support.jars import SHORT_LIVED, java
from tests.support.jars import jars as fetched
from tests.support.network import Network
from tests.support.processes import ServerProcess, free_port, is_open

VERSION = "4.2.1"
_PROTOCOLS = "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL"
WITH_RIGHTS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
"""Settings of a cluster where users may do what is granted to them; who does not log in may do everything."""
_UNSECURED = "org.apache.kafka.common.security.oauthbearer"
_LOGIN = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule required {users};",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule required;",
    "OAUTHBEARER": f'{_UNSECURED}.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";',
}


def jars() -> Path:
    """The directory of Kafka's jars, fetched when it is not there."""
    wanted = f'<dependency org="org.apache.kafka" name="kafka_2.13" rev="{VERSION}" conf="default->default"/>'
    return fetched(f"kafka-{VERSION}", wanted)


@dataclass
class Node:
    """One process of a cluster."""

    number: int
    process: ServerProcess
    host: str = "127.0.0.1"
    port: int = 0
    """Where clients connect to; 0 for a controller."""
    ports: dict[str, int] = field(default_factory=dict)
    """Of its secured listeners, by name: ``SSL``, ``SASL_PLAINTEXT``, ``SASL_SSL``."""


class Kafka:
    """A cluster. With one broker it is its own controller; with more, a controller stands apart, so that brokers may
    be killed.

    ``sasl`` names the mechanisms of the listeners ``SASL_PLAINTEXT`` and, where there is ``tls``, ``SASL_SSL``; the
    users are alice (password ``wonder:land``) and bob (``builder``). With ``needs_client_certificate`` the listener
    ``SSL`` asks for one. ``settings`` are added to every node's; what they keep lies in ``data``, where that is given.
    In a ``network`` each broker has an address of its own there.
    """

    def __init__(
        self,
        directory: Path,
        *,
        brokers: int = 1,
        tls: Authority | None = None,
        needs_client_certificate: bool = False,
        sasl: Sequence[str] = (),
        settings: dict[str, str] | None = None,
        data: Path | None = None,
        network: Network | None = None,
    ) -> None:
        self._data, self._network = data or directory, network
        self._hosts = network.addresses if network else ["127.0.0.1"]
        self._directory, self._tls, self._sasl = directory, tls, tuple(sasl)
        self._needs_client_certificate = needs_client_certificate
        self._settings = settings or {}
        self._cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes)[:22].decode()
        self._controller_port = free_port()
        self._copies = min(brokers, 3)
        self.nodes: list[Node] = []
        if brokers == 1:
            self.nodes.append(self._node(1, "broker,controller"))
        else:
            self.nodes.append(self._node(1, "controller"))
            self.nodes.extend(self._node(number, "broker") for number in range(2, brokers + 2))

    @property
    def brokers(self) -> list[Node]:
        """Those that clients connect to."""
        return [node for node in self.nodes if node.port]

    @property
    def bootstrap(self) -> str:
        """``host:port,…`` of the plain listeners."""
        return ",".join(f"{node.host}:{node.port}" for node in self.brokers)

    def secured(self, listener: str) -> str:
        """``host:port,…`` of a secured listener, by name."""
        return ",".join(f"localhost:{node.ports[listener]}" for node in self.brokers)

    def start(self) -> None:
        """Start every node that is not running, and wait until it answers."""
        for node in self.nodes:
            node.process.start()

    def stop(self) -> None:
        """End every node, brokers first."""
        for node in reversed(self.nodes):
            node.process.stop()

    def kill(self) -> None:
        """``kill -9`` of every node."""
        for node in reversed(self.nodes):
            node.process.kill()

    def configure(self, *change: str, user: str) -> None:
        """``kafka-configs.sh --alter`` of a user."""
        command = (
            *(
                java(),
                "-Xmx256m",
                *SHORT_LIVED,
                "-cp",
                f"{jars()}/*",
            ),
            *("kafka.admin.ConfigCommand", "--bootstrap-server", self.bootstrap, "--alter"),
            *("--entity-type", "users", "--entity-name", user, *change),
        )
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def _node(self, number: int, roles: str) -> Node:
        directory = self._directory / f"node-{number}"
        directory.mkdir(parents=True)
        is_broker = "broker" in roles
        host = self._hosts[len(self.brokers) % len(self._hosts)]
        node = Node(number, _NOT_STARTED, host, free_port() if is_broker else 0)
        if is_broker:
            for listener in self._secured_listeners():
                node.ports[listener] = free_port()
        lines = {
            **self._common(number, roles, directory),
            **self._listeners(node, roles),
            **self._settings,
        }
        (directory / "server.properties").write_text(
            "".join(f"{key}={value}\n" for key, value in lines.items())
        )
        self._format(directory)
        heap = "512m" if is_broker else "256m"
        command = (
            *(java(), f"-Xmx{heap}", *SHORT_LIVED),
            f"-D{_UNSECURED}.allowed.urls=",
            *("-cp", f"{jars()}/*", "kafka.Kafka", "server.properties"),
        )

        def is_ready() -> bool:
            return (
                _answers(host, node.port)
                if is_broker
                else is_open(self._controller_port, self._hosts[0])
            )

        inside = self._network.command(command) if self._network else command
        node.process = ServerProcess(inside, directory, is_ready, deadline_s=120)
        return node

    def _secured_listeners(self) -> list[str]:
        found = ["SSL"] if self._tls else []
        if self._sasl:
            found += ["SASL_PLAINTEXT", *(["SASL_SSL"] if self._tls else [])]
        return found

    def _common(self, number: int, roles: str, directory: Path) -> dict[str, str]:
        copies = str(self._copies)
        return {
            "process.roles": roles,
            "node.id": str(number),
            "controller.quorum.voters": f"1@{self._hosts[0]}:{self._controller_port}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": _PROTOCOLS,
            "log.dirs": str(self._data / directory.name / "data"),
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": "1",
            "default.replication.factor": copies,
            "group.initial.rebalance.delay.ms": "0",
            "num.partitions": "3",
            "auto.create.topics.enable": "false",
            "broker.session.timeout.ms": "3000",
            "broker.heartbeat.interval.ms": "500",
        }

    def _listeners(self, node: Node, roles: str) -> dict[str, str]:
        bound = {"PLAINTEXT": f"{node.host}:{node.port}"} if node.port else {}
        bound.update((listener, f"{node.host}:{port}") for listener, port in node.ports.items())
        shown = {name: address.replace("127.0.0.1", "localhost") for name, address in bound.items()}
        shown.update({name: address for name, address in bound.items() if name == "PLAINTEXT"})
        all_bound = dict(bound)
        if "controller" in roles:
            all_bound["CONTROLLER"] = f"{self._hosts[0]}:{self._controller_port}"
        lines = {
            "listeners": ",".join(f"{name}://{address}" for name, address in all_bound.items())
        }
        if shown:
            lines["advertised.listeners"] = ",".join(
                f"{name}://{address}" for name, address in shown.items()
            )
            lines["inter.broker.listener.name"] = "PLAINTEXT"
        if self._tls and node.port:
            lines.update(self._tls_lines(self._tls))
        if self._sasl and node.port:
            lines.update(self._sasl_lines())
        return lines

    def _tls_lines(self, authority: Authority) -> dict[str, str]:
        files = authority.sign(
            f"kafka-{uuid.uuid4().hex}", {"CN": "localhost"}, ["localhost", "127.0.0.1"]
        )
        store = files.cert.with_suffix(".store.pem")
        store.write_bytes(files.key.read_bytes() + files.cert.read_bytes())
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(store),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(authority.file),
            "listener.name.ssl.ssl.client.auth": "required"
            if self._needs_client_certificate
            else "none",
        }

    def _sasl_lines(self) -> dict[str, str]:
        lines = {"sasl.enabled.mechanisms": ",".join(self._sasl)}
        users = (
            'username="alice" password="wonder:land" user_alice="wonder:land" user_bob="builder"'
        )
        for listener in self._secured_listeners():
            if not listener.startswith("SASL"):
                continue
            for mechanism in self._sasl:
                prefix = f"listener.name.{listener.lower()}.{mechanism.lower()}"
                lines[f"{prefix}.sasl.jaas.config"] = _LOGIN[mechanism].replace("{users}", users)
                if mechanism == "OAUTHBEARER":
                    handlers = f"{_UNSECURED}.internals.unsecured"
                    lines[f"{prefix}.sasl.server.callback.handler.class"] = (
                        f"{handlers}.OAuthBearerUnsecuredValidatorCallbackHandler"
                    )
                    lines[f"{prefix}.sasl.login.callback.handler.class"] = (
                        f"{handlers}.OAuthBearerUnsecuredLoginCallbackHandler"
                    )
        return lines

    def _format(self, directory: Path) -> None:
        users = [
            f"--add-scram={mechanism}=[name={name},password={password}]"
            for mechanism in self._sasl
            if mechanism.startswith("SCRAM")
            for name, password in (("alice", "wonder:land"), ("bob", "builder"))
        ]
        command = (
            *(
                java(),
                "-Xmx256m",
                *SHORT_LIVED,
                "-cp",
                f"{jars()}/*",
            ),
            *(
                "kafka.tools.StorageTool",
                "format",
                f"--cluster-id={self._cluster_id}",
                "-c",
                "server.properties",
                *users,
            ),
        )
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (
            f"Kafka's storage cannot be formatted:\n{done.stdout}{done.stderr}"
        )


def _answers(host: str, port: int) -> bool:
    """Whether a broker takes part in its cluster: its port is open before."""
    with ThreadPoolExecutor(1) as thread:  # the caller's may run an event loop
        return is_open(port, host) and thread.submit(asyncio.run, _has_brokers(host, port)).result()


async def _has_brokers(host: str, port: int) -> bool:
    client = AIOKafkaClient(bootstrap_servers=f"{host}:{port}")
    try:
        await client.bootstrap()
        return any(broker.port == port for broker in client.cluster.brokers())
    except KafkaError:
        return False
    finally:
        await client.close()


_NOT_STARTED = ServerProcess((), Path(), lambda: False)


if __name__ == "__main__":
    try:
        jars()
    except AssertionError as error:
        sys.exit(str(error))
