"""Other brokers that tests run beside ours: mosquitto and nats-server, on free ports of 127.0.0.1."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.support.processes import ServerProcess, free_port, is_open


class Peer:
    """A broker with an MQTT port."""

    def __init__(self, process: ServerProcess, port: int) -> None:
        self.process, self.port = process, port

    def __enter__(self) -> Peer:
        self.process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.stop()


def mosquitto(directory: Path, *lines: str, port: int = 0) -> Peer:
    """A mosquitto; ``lines`` are added to its configuration, which allows anonymous clients unless they say else."""
    port = port or free_port()
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "mosquitto.conf"
    anonymous = (
        ()
        if any(line.startswith("allow_anonymous") for line in lines)
        else ("allow_anonymous true",)
    )
    config.write_text(
        "\n".join((f"listener {port} 127.0.0.1", *anonymous, "user root", *lines)) + "\n"
    )
    program = shutil.which("mosquitto") or "/usr/sbin/mosquitto"
    return Peer(ServerProcess((program, "-c", str(config)), directory, lambda: is_open(port)), port)


def nats(directory: Path) -> Peer:
    """A nats-server with JetStream on disk and its MQTT listener."""
    port, client_port = free_port(), free_port()
    directory.mkdir(parents=True, exist_ok=True)
    config = directory / "nats.conf"
    config.write_text(
        f'server_name = peer\nlisten = "127.0.0.1:{client_port}"\n'
        f'jetstream {{ store_dir = "{directory / "jetstream"}" }}\nmqtt {{ listen = "127.0.0.1:{port}" }}\n'
    )
    program = shutil.which("nats-server") or "/usr/sbin/nats-server"
    return Peer(ServerProcess((program, "-c", str(config)), directory, lambda: is_open(port)), port)
