"""Settings of a broker of several machines: section ``cluster``. It is the same on all, but for ``machine``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Final

from pydantic import ConfigDict, Field, field_validator, model_validator

from broker.cluster.certificates import Certificates
from broker.cluster.nats.line import Servers
from broker.config.model import Settings
from broker.config.secret_text import SecretText
from broker.config.units import Size
from broker.core.cells import MAX_CELLS, Machine
from broker.core.hosts import checked_address, split_address

# Servers of which one may be lost.
_LEAST_SERVERS: Final = 3
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


class ClusterTlsSettings(Settings):
    """Certificates with which machines prove to each other who they are."""

    certfile: str = Field(
        default="",
        description="Certificate of this machine, whose DNS name is the name of the machine, PEM.",
    )
    keyfile: str = Field(default="", description="Its private key, PEM.")
    cacertfile: str = Field(
        default="",
        description="The authority of the cluster, PEM: of this one every machine needs a certificate.",
    )


class MachineSettings(Settings):
    """One machine of the cluster."""

    address: str = Field(
        default="",
        description="Address at which the other machines reach it, `HOST:PORT`. No client connects to it.",
    )
    cells: int = Field(
        default=1,
        ge=0,
        le=MAX_CELLS,
        description="Number of its processes, as `--workers`. With 0, which needs `cluster.nats`, a machine that was "
        "added later keeps copies, and runs the cells that are moved to it.",
    )
    mqtt: str = Field(
        default="",
        description="Address at which clients reach it, `HOST:PORT`. With `cluster.redirect`, clients of MQTT 5 that "
        "belong to it are sent there.",
    )

    @field_validator("address", "mqtt")
    @classmethod
    def _check_address(cls, value: str) -> str:
        return checked_address(value, "10.0.0.1:7946") if value else value


class NatsSettings(Settings):
    """NATS servers with JetStream, which keep the commit log of each cell."""

    run: bool = Field(
        default=False,
        description="Whether each machine runs a server of NATS by itself, with the certificates of `cluster.tls`. "
        "`servers`, `user`, `password` and `cacertfile` are then left out.",
    )
    port: int = Field(
        default=4222, ge=1, le=65535, description="Port for clients of servers that machines run."
    )
    route_port: int = Field(
        default=6222, ge=1, le=65535, description="Port at which these reach each other."
    )
    servers: Sequence[str] = Field(
        default=(),
        description="Their addresses for clients, each `HOST:PORT`: the nearest first. With them, what a cell commits "
        "is on several servers before it is acknowledged, and other machines keep a copy of the cell's store.",
    )
    monitors: Sequence[str] = Field(
        default=(),
        description="Addresses of the servers' monitoring (`http` in their configuration), each `HOST:PORT`. A start "
        "asks them whether each server has `sync_interval: always`, without which NATS confirms what a power failure "
        "takes.",
    )
    user: str = Field(default="", description="Name of the user of NATS, if it asks for one.")
    password: SecretText | None = Field(default=None, description="Password of the user.")
    cacertfile: str = Field(
        default="",
        description="Authority of the servers' certificates, PEM; connections are in clear text without it.",
    )
    replicas: int = Field(
        default=3,
        ge=1,
        le=5,
        description="Number of servers that keep a log. Of three, one may be lost.",
    )
    max_log_bytes: Size = Field(
        default=4 * 1024**3,
        ge=64 * 1024**2,
        description="Bytes of a cell's log on each server. Where it is full, since no copy follows, the cell "
        "acknowledges nothing.",
    )

    @field_validator("servers")
    @classmethod
    def _check_servers(cls, value: Sequence[str]) -> Sequence[str]:
        return [checked_address(one, "10.0.0.1:4222") for one in value]

    @field_validator("monitors")
    @classmethod
    def _check_monitors(cls, value: Sequence[str]) -> Sequence[str]:
        return [checked_address(one, "10.0.0.1:8222") for one in value]

    @model_validator(mode="after")
    def _check_run(self) -> NatsSettings:
        if self.run and (self.servers or self.monitors):
            other = "servers" if self.servers else "monitors"
            raise ValueError(f"expected 'run' or '{other}', got both")
        return self

    @property
    def places(self) -> Servers:
        """Where those of the user are, with the password as it is now.

        Raises:
            broker.config.secret_text.SecretUnreadable: the password is not there.
        """
        tls = Certificates("", "", self.cacertfile) if self.cacertfile else None
        password = "" if self.password is None else self.password.reveal()
        return Servers([split_address(one) for one in self.servers], self.user, password, tls)


class ClusterSettings(Settings):
    """Section ``cluster``."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, ignored_types=(cached_property,)
    )

    name: str = Field(
        default="sluice",
        description="Name of the cluster, so that machines of another one are refused.",
    )
    machine: str = Field(
        default="", description="Name of this machine among `machines`; empty without a cluster."
    )
    machines: Mapping[str, MachineSettings] = Field(
        default_factory=dict,
        description="All machines by name. Their cells are numbered in the order of the names, so that a machine is "
        "added with 0 cells only.",
    )
    tls: ClusterTlsSettings = Field(
        default_factory=ClusterTlsSettings, description="Their certificates."
    )
    nats: NatsSettings = Field(
        default_factory=NatsSettings,
        description="Where commit logs are kept; without servers, each machine has its cells for itself.",
    )
    copies: int = Field(
        default=3,
        ge=1,
        le=5,
        description="Number of machines that have the store of a cell, its own among them, with `cluster.nats`.",
    )
    data_from: str = Field(
        default="",
        description="Name of the machine, the one with cell 0, that comes with the data of a broker without a cluster: "
        "the others begin with that. Needs `cluster.nats`; empty for a cluster that begins without data.",
    )
    redirect: bool = Field(
        default=False,
        description="Whether a client of MQTT 5 that another machine has is sent there, with CONNACK 0x9C and the "
        "server's address; else it is relayed.",
    )

    disconnect_rate: int = Field(
        default=1000,
        ge=1,
        description="Clients per second that a cell disconnects before it moves to another machine, so that they do "
        "not connect to the others at once. It takes 5 s at most.",
    )

    @model_validator(mode="after")
    def _check_machines(self) -> ClusterSettings:
        if not self.machine and not self.machines:
            return self
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"name: expected small letters, digits and '-', got {self.name!r}")
        for name, machine in self.machines.items():
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"machines: expected names of small letters, digits and '-', got {name!r}"
                )
            if not machine.address:
                raise ValueError(f"machines.{name}.address: expected HOST:PORT, got nothing")
        if self.machine not in self.machines:
            there_are = ", ".join(sorted(self.machines)) or "none"
            raise ValueError(f"machine: expected one of {there_are}; got {self.machine!r}")
        missing = [name for name in type(self.tls).model_fields if not getattr(self.tls, name)]
        if missing:
            raise ValueError(f"tls.{missing[0]}: expected a file; machines need certificates")
        if self.nats.run and len(self.machines) < max(self.nats.replicas, _LEAST_SERVERS):
            least = max(self.nats.replicas, _LEAST_SERVERS)
            raise ValueError(
                f"nats.run: expected {least} machines or more, got {len(self.machines)}"
            )
        if self.nats.run:
            self._check_ports()
        without = [name for name, machine in self.machines.items() if not machine.cells]
        if without and not self.has_nats:
            raise ValueError(
                f"machines.{without[0]}.cells: expected 1 or more without cluster.nats, got 0"
            )
        if len(without) == len(self.machines):
            raise ValueError("machines: expected one with cells")
        if (cells := sum(machine.cells for machine in self.machines.values())) > MAX_CELLS:
            raise ValueError(f"machines: expected at most {MAX_CELLS} cells in all, got {cells}")
        first = next(machine.name for machine in self.layout if machine.size)
        if self.data_from not in ("", first):
            raise ValueError(
                f"data_from: expected {first!r}, the machine with cell 0, got {self.data_from!r}"
            )
        if self.data_from and not self.moves:
            raise ValueError("data_from: expected cluster.nats, and cluster.copies of 2 or more")
        return self

    def _check_ports(self) -> None:
        """A machine listens at three ports of its address. Raises ``ValueError``."""
        nats = self.nats
        if nats.route_port == nats.port:
            raise ValueError(f"nats.route_port: expected another port than nats.port, {nats.port}")
        for name, machine in self.machines.items():
            port = split_address(machine.address)[1]
            if port in (nats.port, nats.route_port):
                other = "port" if port == nats.port else "route_port"
                raise ValueError(
                    f"machines.{name}.address: expected another port than nats.{other}, {port}"
                )

    @cached_property
    def layout(self) -> Sequence[Machine]:
        """The machines in their order."""
        found = []
        first = 0
        for name, machine in sorted(self.machines.items()):
            host, port = split_address(machine.address)
            found.append(Machine(name, host, port, first, machine.cells, machine.mqtt))
            first += machine.cells
        return found

    @property
    def place(self) -> int:
        """Place of this machine among all, from 0."""
        return next(at for at, machine in enumerate(self.layout) if machine.name == self.machine)

    @property
    def has_nats(self) -> bool:
        """True if cells have commit logs."""
        return bool(self.machine and (self.nats.run or self.nats.servers))

    @property
    def moves(self) -> bool:
        """True if machines keep copies of each other's cells, and take them over."""
        return self.has_nats and min(self.copies, len(self.machines)) > 1

    @cached_property
    def nats_places(self) -> Servers:
        """Where the servers of NATS are, that of this machine first. Raises as ``NatsSettings.places``.

        All connections of a process share it: a file that breaks later stops none of them."""
        if not self.nats.run:
            return self.nats.places
        tls = Certificates(self.tls.certfile, self.tls.keyfile, self.tls.cacertfile)
        layout = self.layout
        machines = [layout[(self.place + far) % len(layout)] for far in range(len(layout))]
        return Servers([(machine.host, self.nats.port) for machine in machines], tls=tls)

    @property
    def awaits_data(self) -> bool:
        """True if the stores of this machine's cells begin with what another one comes with."""
        return self.data_from not in ("", self.machine)

    def copied_here(self) -> Sequence[int]:
        """Numbers of the cells of other machines that this one keeps a copy of: those of the machines before it."""
        layout = self.layout
        if not self.has_nats:
            return []
        before = [layout[self.place - back] for back in range(1, min(self.copies, len(layout)))]
        return sorted(cell for machine in before for cell in machine.cells)

    def others_with(self, cell: int) -> Sequence[str]:
        """Names of the other machines that run a cell, or keep a copy of it."""
        layout = self.layout
        own = next(at for at, machine in enumerate(layout) if cell in machine.cells)
        names = [
            layout[(own + far) % len(layout)].name for far in range(min(self.copies, len(layout)))
        ]
        return [name for name in names if name != self.machine]

    @property
    def digest(self) -> str:
        """Digest of the cluster's name and of which machine has which cells: equal on all machines, and the same when a
        machine without cells is added."""
        cells = [f"{machine.name}={machine.size}" for machine in self.layout if machine.size]
        return blake2b("/".join([self.name, *cells]).encode(), digest_size=16).hexdigest()
