"""Servers of NATS with JetStream, which keep commit logs: a cluster on loopback, or on machines of their own."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from broker.cluster.nats.line import Servers
from tests.support.network import Network
from tests.support.processes import ServerProcess, free_port, is_open

_PROGRAM = Path(sys.executable).parent / "nats-server"


class NatsServer(ServerProcess):
    """One of them, with its address for clients."""

    def __init__(
        self,
        directory: Path,
        host: str,
        port: int,
        route: int,
        routes: Sequence[str],
        network: Network | None,
        settings: str,
        sync: str,
    ) -> None:
        self.host, self.port = host, port
        directory.mkdir(parents=True, exist_ok=True)
        config = directory / "nats.conf"
        together = (
            f'cluster {{ name: plant, listen: "{host}:{route}", routes: [{", ".join(routes)}] }}'
            if len(routes) > 1
            else ""
        )
        config.write_text(
            f'server_name: "{directory.name}"\nlisten: "{host}:{port}"\n'
            f'jetstream {{ store_dir: "{directory / "jetstream"}", sync_interval: {sync}, max_file_store: 64G }}\n'
            f"{together}\n{settings}\n"
        )
        command = [str(_PROGRAM), "-c", str(config)]
        super().__init__(
            command if network is None else network.command(command),
            directory,
            lambda: is_open(port, host),
        )


class Nats:
    """All of them."""

    def __init__(
        self,
        directory: Path,
        count: int = 3,
        networks: Sequence[Network] = (),
        settings: str = "",
        sync: str = "always",
    ) -> None:
        hosts = [network.addresses[0] for network in networks] or ["127.0.0.1"] * count
        ports = [4222] * count if networks else [free_port() for _ in range(count)]
        routes = [6222] * count if networks else [free_port() for _ in range(count)]
        all_routes = [f'"nats://{host}:{port}"' for host, port in zip(hosts, routes, strict=True)]
        self.servers = [
            NatsServer(
                directory / f"nats-{at}",
                host,
                ports[at],
                routes[at],
                all_routes,
                networks[at] if networks else None,
                settings,
                sync,
            )
            for at, host in enumerate(hosts)
        ]

    @property
    def places(self) -> Servers:
        """Where clients reach them."""
        return Servers([(server.host, server.port) for server in self.servers])

    def start(self) -> None:
        """Start all."""
        for server in self.servers:
            server.start()

    def stop(self) -> None:
        """Stop what runs."""
        for server in self.servers:
            server.kill()


@contextmanager
def nats(
    directory: Path,
    count: int = 3,
    networks: Sequence[Network] = (),
    settings: str = "",
    sync: str = "always",
) -> Iterator[Nats]:
    """So many servers of one cluster, which run."""
    with ExitStack() as stack:
        servers = Nats(directory, count, networks, settings, sync)
        stack.callback(servers.stop)
        servers.start()
        yield servers
