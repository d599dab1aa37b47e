"""Certificates that tests make: an authority, and what it signs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_OIDS = {
    "C": NameOID.COUNTRY_NAME,
    "O": NameOID.ORGANIZATION_NAME,
    "OU": NameOID.ORGANIZATIONAL_UNIT_NAME,
    "CN": NameOID.COMMON_NAME,
}


@dataclass(frozen=True)
class Files:
    """Where a certificate and its key are."""

    cert: Path
    key: Path

    @property
    def settings(self) -> dict[str, str]:
        """As ``ssl_options`` take them."""
        return {"certfile": str(self.cert), "keyfile": str(self.key)}


class Authority:
    """Signs certificates, which it writes to a directory."""

    def __init__(
        self, directory: Path, name: str = "Tests", issuer: Authority | None = None
    ) -> None:
        self._directory = directory
        self._name = _name({"CN": f"{name} root"})
        self._key = ec.generate_private_key(ec.SECP256R1())
        above = issuer or self
        builder = _builder(self._name, above._name, self._key.public_key())
        self._cert = builder.add_extension(x509.BasicConstraints(True, None), critical=True).sign(
            above._key, hashes.SHA256()
        )
        self.file = directory / f"{name}-ca.pem"
        self.file.write_bytes(self._cert.public_bytes(serialization.Encoding.PEM))

    def sign(
        self,
        file: str,
        subject: dict[str, str],
        names: Sequence[str] = (),
        *,
        begins_in: timedelta = timedelta(hours=-1),
        lasts: timedelta = timedelta(days=30),
        password: str = "",
    ) -> Files:
        """A certificate; ``subject`` from the least specific part on, ``names`` as ``localhost``, ``127.0.0.1``,
        ``a@b.example`` or ``urn:x``."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(subject), self._name, key.public_key(), begins_in, lasts)
        if names:
            alternatives = x509.SubjectAlternativeName([_alternative(name) for name in names])
            builder = builder.add_extension(alternatives, critical=False)
        cert = builder.sign(self._key, hashes.SHA256())
        files = Files(self._directory / f"{file}.pem", self._directory / f"{file}-key.pem")
        encryption = (
            serialization.BestAvailableEncryption(password.encode())
            if password
            else serialization.NoEncryption()
        )
        files.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
            )
        )
        files.cert.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        return files

    def revoke(self, files: Files) -> Path:
        """A list of revoked certificates with this one."""
        cert = x509.load_pem_x509_certificate(files.cert.read_bytes())
        now = datetime.now(UTC)
        revoked = (
            x509.RevokedCertificateBuilder()
            .serial_number(cert.serial_number)
            .revocation_date(now - timedelta(hours=1))
        ).build()
        builder = x509.CertificateRevocationListBuilder(
            self._name, now - timedelta(hours=1), now + timedelta(days=1)
        )
        made = builder.add_revoked_certificate(revoked).sign(self._key, hashes.SHA256())
        file = self._directory / "revoked.pem"
        file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        return file


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    begins_in: timedelta = timedelta(hours=-1),
    lasts: timedelta = timedelta(days=30),
) -> x509.CertificateBuilder:
    begins = datetime.now(UTC) + begins_in
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    return (
        builder.serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + lasts)
    )


def _name(parts: dict[str, str]) -> x509.Name:
    return x509.Name([x509.NameAttribute(_OIDS[key], value) for key, value in parts.items()])


def _alternative(name: str) -> x509.GeneralName:
    if "@" in name:
        return x509.RFC822Name(name)
    if ":" in name:
        return x509.UniformResourceIdentifier(name)
    try:
        return x509.IPAddress(ip_address(name))
    except ValueError:
        return x509.DNSName(name)
