"""Founding a cluster: an authority, and a file for each machine with all that makes it one of the cluster.

The file of a machine has its certificate and key, the authority's certificate, and the section ``cluster`` of its
configuration. Who has it can be that machine; the authority's key makes more of them, and no broker needs it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

import msgspec
from pydantic import ValidationError

from broker.cluster.adopting import adopt, adopts
from broker.cluster.directories import check_machine, keep_machine
from broker.cluster.settings import ClusterSettings
from broker.config.problems import sentence
from broker.config.sections import replace_file
from broker.core.errors import ConfigError
from broker.core.hosts import address_text

_AUTHORITY: Final = "{}.authority.pem"
_MACHINE: Final = "{}.machine.json"
_CONFIG: Final = "conf.d/cluster.conf"
_FILES: Final = {
    "certfile": "cluster/machine.pem",
    "keyfile": "cluster/machine.key",
    "cacertfile": "cluster/authority.pem",
}
# Of a name in DNS (RFC 1123, section 2.1).
_LABEL: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
_YEARS: Final = timedelta(days=3650)
_LASTS: Final = timedelta(days=825)
# Uses of a key (RFC 5280, section 4.2.1.3).
_USES: Final = (
    "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
    "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
)  # fmt: skip
_BEGAN: Final = timedelta(days=1)
"""Certificates are valid from so long ago: clocks of machines differ."""


class MachineFile(msgspec.Struct, frozen=True):
    """What a machine needs to be one of a cluster. Texts of files are PEM."""

    machine: str
    cluster: dict[str, Any]
    """Its section of the configuration, without ``machine`` and ``tls``."""
    certfile: str
    keyfile: str
    cacertfile: str


def found(
    name: str,
    hosts: Mapping[str, str],
    cells: int,
    port: int,
    directory: Path,
    added: Collection[str] = (),
    data_from: str = "",
) -> Sequence[Path]:
    """Write the files of a cluster's machines, by name with the host at which the others reach each; with the authority
    that is in the directory, or a new one. Those that are ``added`` to a cluster that runs have no cells of their own;
    ``data_from`` comes with the data of a broker. Returns the files of the machines, in the order of their names.

    Raises:
        ConfigError: the cluster cannot be, or a file cannot be read or written.
    """
    for machine, host in hosts.items():
        if not _is_host(host):
            option = "--add" if machine in added else "--machine"
            text = f"{option} {machine}: expected an address or a name in DNS without a port, got {host!r}"
            raise ConfigError([text])
    section = {
        "name": name,
        "machines": {
            machine: {
                "address": address_text(host, port),
                "cells": 0 if machine in added else cells,
            }
            for machine, host in sorted(hosts.items())
        },
        "nats": {"run": True},
        **({"data_from": data_from} if data_from else {}),
    }
    _settings(section, min(hosts, default=""), directory)
    try:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        authority = _Authority(directory / _AUTHORITY.format(name), name)
        files = []
        for machine, host in sorted(hosts.items()):
            certificate, key = authority.sign(machine, host)
            made = MachineFile(machine, section, certificate, key, authority.certificate)
            file = directory / _MACHINE.format(machine)
            replace_file(file, msgspec.json.format(msgspec.json.encode(made)) + b"\n")
            files.append(file)
    except OSError as error:
        raise ConfigError([f"{directory}: {(error.strerror or str(error)).lower()}"]) from error
    return files


def _is_host(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return all(map(_LABEL.fullmatch, text.split(".")))
    return True


def join(
    file: Path, data_dir: Path, resize: Callable[[int], object]
) -> tuple[ClusterSettings, bool]:
    """Make a data directory that of the machine of a file; the same file, or a later one, may come again. Where the
    cluster begins with the data that is there, ``resize`` gives the directory a number of cells; and True is returned.

    Raises:
        ConfigError: it is no such file, the directory is that of another machine or cluster, or cannot be written.
    """
    try:
        machine = msgspec.json.decode(file.read_bytes(), type=MachineFile)
    except OSError as error:
        raise ConfigError([f"{file}: {(error.strerror or str(error)).lower()}"]) from error
    except msgspec.MsgspecError as error:
        text = (
            f"{file}: expected the file of a machine, as 'sluice cluster init' writes it: {error}"
        )
        raise ConfigError([text]) from error
    settings = _settings(machine.cluster, machine.machine, data_dir)
    is_adopting = adopts(data_dir, settings)
    if not is_adopting:
        check_machine(data_dir, settings.digest, settings.machine)
    try:
        if is_adopting:
            adopt(data_dir, settings, resize)
        keep_machine(data_dir, settings.digest, settings.machine)
        for name, place in _FILES.items():
            path = data_dir / place
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            replace_file(path, getattr(machine, name).encode())
        config = data_dir / _CONFIG
        config.parent.mkdir(exist_ok=True, mode=0o700)
        section = {**machine.cluster, "machine": machine.machine, "tls": _tls(data_dir)}
        text = f"# Written by 'sluice cluster join'.\ncluster = {json.dumps(section, indent=2)}\n"
        replace_file(config, text.encode())
    except OSError as error:
        raise ConfigError([f"{data_dir}: {(error.strerror or str(error)).lower()}"]) from error
    return settings, is_adopting


def _tls(data_dir: Path) -> dict[str, str]:
    return {name: str(data_dir / place) for name, place in _FILES.items()}


def _settings(section: Mapping[str, Any], machine: str, directory: Path) -> ClusterSettings:
    """The section as settings. Raises ``ConfigError``."""
    whole = {**section, "machine": machine, "tls": _tls(directory)}
    try:
        return ClusterSettings.model_validate(whole)
    except ValidationError as error:
        details = error.errors(include_url=False)
        problems = [sentence("cluster", ClusterSettings, detail) for detail in details]
        raise ConfigError(problems) from error


class _Authority:
    """The authority of a cluster, whose key and certificate are in a file."""

    def __init__(self, file: Path, name: str) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec

        self._x509 = x509
        if file.exists():
            pem = file.read_bytes()
            try:
                self._key: Any = serialization.load_pem_private_key(pem, None)
                self._certificate = x509.load_pem_x509_certificate(pem)
            except TypeError as error:
                raise ConfigError([f"{file}: expected a key without a passphrase"]) from error
            except ValueError as error:
                raise ConfigError([f"{file}: expected a key and a certificate: {error}"]) from error
            return
        self._key = ec.generate_private_key(ec.SECP256R1())
        own = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        usual = x509.BasicConstraints(ca=True, path_length=0)
        signs = dict.fromkeys(_USES, False) | {"key_cert_sign": True, "crl_sign": True}
        known_as = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        self._certificate = (
            self._builder(own, own, self._key, _YEARS)
            .add_extension(usual, critical=True)
            .add_extension(x509.KeyUsage(**signs), critical=True)
            .add_extension(known_as, critical=False)
            .sign(self._key, _hash())
        )
        replace_file(file, _pem(self._key) + self._certificate.public_bytes(_encoding()))

    @property
    def certificate(self) -> str:
        """Its certificate, PEM."""
        return self._certificate.public_bytes(_encoding()).decode()

    def sign(self, machine: str, host: str) -> tuple[str, str]:
        """A certificate for a machine at a host, and its key, both PEM."""
        from cryptography.hazmat.primitives.asymmetric import ec

        x509 = self._x509
        key = ec.generate_private_key(ec.SECP256R1())
        names: list[Any] = [x509.DNSName(machine)]
        try:
            names.append(x509.IPAddress(ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, machine)])
        # as the identifier of an authority's key is made, also where an earlier release wrote none into its certificate
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            self._builder(subject, self._certificate.subject, key, _LASTS)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(issuer, critical=False)
            .sign(self._key, _hash())
        )
        return certificate.public_bytes(_encoding()).decode(), _pem(key).decode()

    def _builder(self, subject: Any, issuer: Any, key: Any, lasts: timedelta) -> Any:
        now = datetime.now(UTC)
        return (
            self._x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(self._x509.random_serial_number())
            .not_valid_before(now - _BEGAN)
            .not_valid_after(now + lasts)
        )


def _hash() -> Any:
    from cryptography.hazmat.primitives import hashes

    return hashes.SHA256()


def _encoding() -> Any:
    from cryptography.hazmat.primitives import serialization

    return serialization.Encoding.PEM


def _pem(key: Any) -> bytes:
    from cryptography.hazmat.primitives import serialization

    pem: bytes = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return pem
