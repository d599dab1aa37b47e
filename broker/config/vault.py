"""Encryption of named secrets at rest: AES-256-GCM, with a key that is not in the file of the secrets.

The key is in the environment variable ``SLUICE_SECRETS_KEY``, in the file that ``SLUICE_SECRETS_KEY_FILE`` names, or in
``DIR/secrets.key``. The name of a secret is authenticated with its value, so that no encrypted value works under
another name.
"""

from __future__ import annotations

import os
import re
import secrets
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from broker.config.secrets import Secret
from broker.core.errors import SluiceError, Unavailable

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

KEY_VARIABLE: Final = "SLUICE_SECRETS_KEY"
KEY_FILE_VARIABLE: Final = "SLUICE_SECRETS_KEY_FILE"
# File of the key in the data directory, where no variable says otherwise.
KEY_FILE: Final = "secrets.key"
_KEY: Final = re.compile("[0-9a-fA-F]{64}")
# In bytes, as NIST SP 800-38D recommends for AES-GCM.
_NONCE_BYTES: Final = 12


class KeyUnusable(SluiceError):
    """The key is missing, malformed, or another than the one that encrypted a value."""

    code = "secrets_key_unusable"


class Vault:
    """Encrypts and decrypts values by name. The key is read when it is first needed."""

    def __init__(self, file: Path, key: str = "") -> None:
        """``key`` is the key itself; without it, it is in ``file``."""
        self._file = file
        self._given = key
        self._key: bytes | None = None

    @classmethod
    def of_environment(cls, data_dir: Path, environ: Mapping[str, str]) -> Vault:
        """The vault whose key is where the environment says, else in the data directory."""
        file = environ.get(KEY_FILE_VARIABLE, "").strip()
        return cls(
            Path(file).absolute() if file else data_dir / KEY_FILE,
            environ.get(KEY_VARIABLE, "").strip(),
        )

    def reference(self, name: str, sealed: str) -> str:
        """The reference by which another process of this machine, which has the same key, reads a value; it holds the
        value encrypted."""
        return f"${{sealed:{name}:{sealed}:{self._file}}}"

    @property
    def where(self) -> str:
        """Place of the key."""
        return KEY_VARIABLE if self._given else str(self._file)

    def seal(self, name: str, value: str) -> str:
        """The encrypted value, in Base64.

        Raises:
            Unavailable: the key cannot be used, or is no longer in its file, so that a restart would lose the value.
        """
        try:
            key = self._key or self._read()
            if key is None:
                key = secrets.token_bytes(32)  # kept by ``keep_key``
            elif (
                self._key is not None
                and not self._given
                and self._file.exists()
                and self._read() != key
            ):
                raise KeyUnusable(
                    f"{self._file}: expected the key that the broker started with, got another"
                )
        except KeyUnusable as error:
            raise Unavailable(f"{error}; nothing was saved") from None
        self._key = key
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return b64encode(
            nonce + _cipher(key).encrypt(nonce, value.encode(), name.encode())
        ).decode()

    def open(self, name: str, sealed: str) -> str:
        """The value of an encrypted one.

        Raises:
            KeyUnusable: there is no key, or it did not encrypt this value under this name.
        """
        from cryptography.exceptions import InvalidTag

        self._key = self._key or self._read()
        if self._key is None:
            raise KeyUnusable(f"{self._file}: expected the key of the secrets, got no file")
        try:
            data = b64decode(sealed, validate=True)
            return (
                _cipher(self._key)
                .decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], name.encode())
                .decode()
            )
        except (InvalidTag, ValueError):
            raise KeyUnusable(
                f"{self.where}: expected the key that encrypted the secrets, got another"
            ) from None

    def keep_key(self) -> None:
        """Write a new key to its file, readable by the owner only; it is on the disk when this returns.

        Raises:
            Unavailable: the file cannot be written.
        """
        if self._given or self._key is None or self._file.exists():
            return
        try:
            descriptor = os.open(
                self._file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
            )
            with os.fdopen(descriptor, "w") as file:
                file.write(f"{self._key.hex()}\n")
                file.flush()
                os.fsync(descriptor)
            directory = os.open(self._file.parent, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise Unavailable(
                f"the key of the secrets cannot be kept in {self._file} ({reason})"
            ) from error

    def _read(self) -> bytes | None:
        """The key; None where its file does not exist. Raises ``KeyUnusable``."""
        text = self._given
        try:
            text = text or self._file.read_text().strip()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not text"
            raise KeyUnusable(f"{self._file} cannot be read ({reason.lower()})") from None
        if not _KEY.fullmatch(text):
            problem = f"expected a key of 64 hexadecimal digits, got {len(text)} characters"
            raise KeyUnusable(f"{self.where}: {problem}. Try: openssl rand -hex 32")
        return bytes.fromhex(text)


def _cipher(key: bytes) -> AESGCM:
    # only brokers with secrets need it
    from cryptography.hazmat.primitives.ciphers.aead import (
        AESGCM,
    )

    return AESGCM(key)


def unsealed(reference: str) -> str:
    """The value of ``NAME:ENCRYPTED:FILE``, as ``Vault.reference`` made it. Raises ``KeyUnusable``."""
    name, sealed, file = reference.split(":", 2)
    return Vault(Path(file), os.environ.get(KEY_VARIABLE, "").strip()).open(name, sealed)


@dataclass(frozen=True, slots=True)
class NamedSecret:
    """A value, its reference for other processes, and the value before it in this process, which errors may repeat."""

    value: Secret
    reference: str
    former: Secret | None = None


class NamedSecrets:
    """The named secrets of this process. ``version`` grows with every change, so that what is made of values can be
    made again."""

    def __init__(self) -> None:
        self._by_name: Mapping[str, NamedSecret] = {}
        self.version = 0

    def use(self, by_name: Mapping[str, NamedSecret]) -> None:
        """Replace all."""
        self._by_name = {name: self._with_former(name, secret) for name, secret in by_name.items()}
        self.version += 1

    def _with_former(self, name: str, secret: NamedSecret) -> NamedSecret:
        before = self._by_name.get(name)
        if before is None or before == secret:
            return before or secret
        former = before.former if before.value == secret.value else before.value
        return NamedSecret(secret.value, secret.reference, former)

    def find(self, name: str) -> NamedSecret | None:
        """The secret of that name."""
        return self._by_name.get(name)

    @property
    def names(self) -> Mapping[str, object]:
        """All names."""
        return self._by_name


# One for the process, like the environment and the file system.
NAMED_SECRETS: Final = NamedSecrets()
